"""`Store`, in which ranks exchange values under keys; `HashStore` within a process; `PrefixStore`, a part of a store.

A store has one primitive, `_ask`: run an operation of its table as soon as the needed keys exist. This module
implements PyTorch's documented methods with it, for all stores. Ranks that are threads under turn-taking wait in the
turn scheduler: one runs at a time, and a wait that nothing can end is reported as a deadlock immediately.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NoReturn

from flambeau.core.callsite import caller, place
from flambeau.core.errors import DriverError
from flambeau.core.host.long_waits import LongWait
from flambeau.core.host.turn_scheduler import seat
from flambeau.distributed.dist_errors import DeadlockError, DistNetworkError, DistStoreError
from flambeau.distributed.stores.kv_store import CHANGES, Table

_LOOK_S = 0.25  # seconds between checks that the awaited ranks are alive
_SHOWN = 4  # keys that a progress line names
_LONGEST_S = 1e9  # the longest time limit; sockets and conditions refuse some more
DEFAULT_TIMEOUT = timedelta(seconds=300)
Text = str | bytes


class PartOfWait(timedelta):
    """The time limit of one part of a longer wait, which is repeated until `whole` has passed.

    Attributes:
        whole: Time limit of all waits together.
    """

    whole: timedelta


class Store:
    """A key-value store that all ranks share. Programs may define subclasses."""

    __module__ = "flambeau.distributed"

    _timeout = DEFAULT_TIMEOUT  # a class attribute, because a subclass may not call `__init__`
    reports_waits = False  # True if another thread prints a line for each long wait

    @property
    def timeout(self) -> timedelta:
        """Return the timeout of `get` and `wait`; zero means no limit."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = _duration("set_timeout", timeout)

    def set(self, key: Text, value: Text) -> None:
        """Set a value, replacing a former one."""
        self._ask("set", self._key("set", key), _bytes("set", value))

    def get(self, key: Text) -> bytes:
        """Return the value of a key. Blocks until the key is set or `timeout` has passed."""
        name = self._key("get", key)
        return self._ask("get", name, needs=[name])

    def add(self, key: Text, amount: int) -> int:
        """Add to a counter. Returns the sum. A value of digits counts as the counter's start.

        Raises:
            ValueError: If the value there is not a number.
        """
        return self._ask("add", self._key("add", key), _int("add", amount))

    def wait(self, keys: Sequence[Text], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set."""
        names = self._keys("wait", keys)
        self._ask("check", names, needs=names, timeout=timeout)

    def check(self, keys: Sequence[Text]) -> bool:
        """Return True if all keys are set."""
        return self._ask("check", self._keys("check", keys))

    def compare_set(self, key: Text, expected_value: Text, desired_value: Text) -> bytes:
        """Replace a value if it equals the expected one ("" if it is unset). Returns the resulting value."""
        expected, desired = _bytes("compare_set", expected_value), _bytes("compare_set", desired_value)
        return self._ask("compare_set", self._key("compare_set", key), expected, desired)

    def delete_key(self, key: Text) -> bool:
        """Return True if there was a value to delete."""
        return self._ask("delete", self._key("delete_key", key))

    def append(self, key: Text, value: Text) -> None:
        """Append to a value, which is empty at first."""
        self._ask("append", self._key("append", key), _bytes("append", value))

    def multi_get(self, keys: Sequence[Text]) -> list[bytes]:
        names = self._keys("multi_get", keys)
        return self._ask("get_all", names, needs=names)

    def multi_set(self, keys: Sequence[Text], values: Sequence[Text]) -> None:
        """Set all values in one step.

        Raises:
            DistStoreError: If the numbers of keys and values differ.
        """
        if len(keys) != len(values):
            raise DistStoreError("multiSet keys and values vectors must be of same size")
        self._ask("set_all", self._keys("multi_set", keys), [_bytes("multi_set", v) for v in values])

    def queue_push(self, key: Text, value: Text) -> None:
        """Append a value to a queue. Queues are separate from values under equal keys."""
        self._ask("push", self._key("queue_push", key), _bytes("queue_push", value))

    def queue_pop(self, key: Text, block: bool = True) -> bytes:
        """Remove and return the first value of a queue. With `block`, wait for one.

        Raises:
            QueueEmptyError: If the queue is empty and `block` is False.
        """
        name = self._key("queue_pop", key)
        return self._ask("pop", name, needs=[name] if block else [])

    def queue_len(self, key: Text) -> int:
        return self._ask("length", self._key("queue_len", key))

    def num_keys(self) -> int:
        """Return the number of keys, including internal keys that count users."""
        return self._ask("num_keys")

    def list_keys(self) -> list[str]:
        return self._ask("list_keys")

    def barrier(self, key: Text, world_size: int, timeout: timedelta | None = None) -> None:
        """Wait until `world_size` callers have called it with this key. It serves once."""
        name = _text("barrier", key)
        if self.add(f"{name}/num_members", 1) == _int("barrier", world_size):
            self.set(f"{name}/last_member", "1")
        self.wait([f"{name}/last_member"], timeout)

    def has_extended_api(self) -> bool:
        """Return True if append, multi_get and multi_set are each one step here."""
        return True

    def clone(self) -> Store:
        """Return another object for the same store, for use in another thread."""
        raise RuntimeError(f"{type(self).__name__} has no clone()")

    def _ask(
        self, operation: str, *args: Any, needs: Sequence[str] = (), timeout: timedelta | None = None
    ) -> Any:
        """Run an operation of the table (kv_store.py) as soon as the needed keys are set."""
        limit = self._timeout if timeout is None else _duration("wait", timeout)
        turns = seat()
        if turns is not None and needs:
            try:
                turns.wait(
                    lambda: self._do("check", [list(needs)], (), limit),
                    lambda: f"waits for {', '.join(map(repr, needs))} of a store",
                    limit=None if timeout is None else seconds(limit),
                )
            except DriverError as error:
                if timeout is None:
                    raise
                raise DistStoreError(f"wait timeout after {milliseconds(limit)} ms: {error}") from error
            needs = ()
        return self._do(operation, list(args), needs, limit)

    def _do(self, operation: str, args: list[Any], needs: Sequence[str], limit: timedelta) -> Any:
        raise RuntimeError(f"Not implemented: {type(self).__name__} defines no {operation!r}")

    def _key(self, function: str, key: Text) -> str:
        """Return the key under which the table stores a program's key."""
        return _text(function, key)

    def _keys(self, function: str, keys: Sequence[Text]) -> list[str]:
        if isinstance(keys, Text) or not isinstance(keys, Sequence):
            refuse(function, "a list of keys", keys)
        return [self._key(function, key) for key in keys]


class HashStore(Store):
    """A store within this process, for its threads."""

    __module__ = "flambeau.distributed"

    def __init__(self) -> None:
        self._table = Table()
        self._changed = threading.Condition()

    def clone(self) -> HashStore:
        twin = HashStore()
        twin._table, twin._changed, twin._timeout = self._table, self._changed, self._timeout
        return twin

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle 'HashStore' object: it is of this process alone")

    def _do(self, operation: str, args: list[Any], needs: Sequence[str], limit: timedelta) -> Any:
        with self._changed:
            if needs and not self._wait(operation, needs, seconds(limit)):
                raise DistStoreError(f"Wait timeout: {describe_unset(needs)} after {milliseconds(limit)} ms")
            answer = self._table.do(operation, args)
            if operation in CHANGES:
                self._changed.notify_all()
            return answer

    def _wait(self, operation: str, needs: Sequence[str], limit_s: float | None) -> bool:
        """Return True if the keys are set in time."""
        end = time.monotonic() + (math.inf if limit_s is None else limit_s)
        long_wait = LongWait(lambda: describe_wait(needs))
        while not self._table.ready(operation, needs):
            if time.monotonic() >= end:
                return False
            long_wait.report()
            self._changed.wait(min(long_wait.left_s, end - time.monotonic()))
        return True


class PrefixStore(Store):
    """A part of another store: the keys that begin with `prefix` and "/"."""

    __module__ = "flambeau.distributed"

    def __init__(self, prefix: str, store: Store) -> None:
        if not isinstance(store, Store):
            refuse("__init__", "a Store", store)
        self._prefix = f"{_text('__init__', prefix)}/"
        self._store = store

    @property
    def underlying_store(self) -> Store:
        """Return the store that this one is a part of."""
        return self._store

    @property
    def reports_waits(self) -> bool:  # type: ignore[override]
        return self._store.reports_waits

    @property
    def _underlying_non_prefix_store(self) -> Store:
        store = self._store
        while isinstance(store, PrefixStore):
            store = store._store
        return store

    @property
    def timeout(self) -> timedelta:
        return self._store.timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._store.set_timeout(timeout)

    # Only public calls of the inner store, which may be of a program's class.
    def set(self, key: Text, value: Text) -> None:
        self._store.set(self._key("set", key), value)

    def get(self, key: Text) -> bytes:
        return self._store.get(self._key("get", key))

    def add(self, key: Text, amount: int) -> int:
        return self._store.add(self._key("add", key), amount)

    def wait(self, keys: Sequence[Text], timeout: timedelta | None = None) -> None:
        names = self._keys("wait", keys)
        self._store.wait(names) if timeout is None else self._store.wait(names, timeout)

    def check(self, keys: Sequence[Text]) -> bool:
        return self._store.check(self._keys("check", keys))

    def compare_set(self, key: Text, expected_value: Text, desired_value: Text) -> bytes:
        return self._store.compare_set(self._key("compare_set", key), expected_value, desired_value)

    def delete_key(self, key: Text) -> bool:
        return self._store.delete_key(self._key("delete_key", key))

    def append(self, key: Text, value: Text) -> None:
        self._store.append(self._key("append", key), value)

    def multi_get(self, keys: Sequence[Text]) -> list[bytes]:
        return self._store.multi_get(self._keys("multi_get", keys))

    def multi_set(self, keys: Sequence[Text], values: Sequence[Text]) -> None:
        self._store.multi_set(self._keys("multi_set", keys), values)

    def queue_push(self, key: Text, value: Text) -> None:
        self._store.queue_push(self._key("queue_push", key), value)

    def queue_pop(self, key: Text, block: bool = True) -> bytes:
        return self._store.queue_pop(self._key("queue_pop", key), block)

    def queue_len(self, key: Text) -> int:
        return self._store.queue_len(self._key("queue_len", key))

    def num_keys(self) -> int:
        """Return the number of values in the whole store."""
        return self._store.num_keys()

    def list_keys(self) -> list[str]:
        return [
            key.removeprefix(self._prefix) for key in self._store.list_keys() if key.startswith(self._prefix)
        ]

    def has_extended_api(self) -> bool:
        return self._store.has_extended_api()

    def clone(self) -> PrefixStore:
        return PrefixStore(self._prefix[:-1], self._store.clone())

    def _key(self, function: str, key: Text) -> str:
        return self._prefix + _text(function, key)


class JobStore(PrefixStore):
    """The part of the ranks' store that one group of all ranks has. A rank that cannot join the group says so here.

    Attributes:
        waits: The waits of this process that it publishes there; None before the first.
    """

    waits: Any = None

    def refuse(self, why: str) -> None:
        """Let the other ranks fail where they wait for this one."""
        self.set("refused", why)

    def refusal(self) -> str:
        """Return the reason why a rank does not join; "" if none has given one."""
        return self.get("refused").decode() if self.check(["refused"]) else ""


def job_store_of(store: Store) -> JobStore | None:
    """Return the store of the group of all ranks that a store is a part of; None if it is not in one."""
    while isinstance(store, PrefixStore) and not isinstance(store, JobStore):
        store = store.underlying_store
    return store if isinstance(store, JobStore) else None


def _refusal_in(store: Store) -> str:
    job = job_store_of(store)
    return "" if job is None else job.refusal()


class Inner:
    """A store that adds internal keys, which begin with "/", to the program's keys."""

    def _key(self, function: str, key: Text) -> str:
        return f"/{_text(function, key)}"

    def list_keys(self) -> list[str]:
        """Return the program's keys."""
        return [key[1:] for key in self._ask("list_keys") if key.startswith("/")]  # type: ignore[attr-defined]


@contextmanager
def turn(store: Store, key: str) -> Iterator[int]:
    """Yield the number of an action that all ranks perform. Each rank counts under its key, so the numbers agree.

    An action that raises does not count, so a rank that repeats it joins the ranks that are late.
    """
    number = store.add(key, 1)
    try:
        yield number
    except BaseException:
        with suppress(RuntimeError):  # the store itself may have failed
            store.add(key, -1)
        raise


def await_keys(
    store: Store, keys: Sequence[str], timeout: timedelta, describe_loss: Callable[[], str] = str
) -> str | None:
    """Wait for keys that other ranks set.

    Args:
        describe_loss: Called repeatedly for the reason why the keys will never be set; returns "" if there is none.

    Returns:
        None if the keys are set, else the reason; "" for a timeout.

    Raises:
        DistNetworkError: If the store has ended.
        DeadlockError: If no rank can set the keys (DriverError for ranks that are threads).
    """
    end = time.monotonic() + (seconds(timeout) or math.inf)
    long_wait = LongWait(lambda: describe_wait([key for key in keys if not store.check([key])]))
    while True:
        try:
            store.wait(keys, part_of_wait(_LOOK_S, end) if seat() is None else timeout)
            return None
        except (DeadlockError, DistNetworkError):
            raise
        except RuntimeError as error:  # some stores raise other errors than DistStoreError
            if isinstance(error.__cause__, DriverError):
                raise error.__cause__ from None
            if (why := describe_loss() or _refusal_in(store)) or time.monotonic() >= end:
                return None if store.check(keys) else why  # a rank may have set them before it ended
            if not store.reports_waits:
                long_wait.report()


def require_keys(
    store: Store, keys: Sequence[str], timeout: timedelta, describe_loss: Callable[[], str] = str
) -> None:
    """Wait for keys that other ranks set when they join a group of all ranks; `describe_loss` as in `await_keys`.

    Raises:
        DistStoreError: If a rank does not join.
        RuntimeError: If not all join in time: the error of the store.
        DistNetworkError, DeadlockError: As by `await_keys`.
    """
    why = await_keys(store, keys, timeout, describe_loss)
    if why:
        raise DistStoreError(why)
    if why is not None:
        store.wait(keys, timedelta(milliseconds=1))


def part_of_wait(length_s: float, end: float) -> PartOfWait:
    """Return the time limit of a part of a wait that lasts until `end` on the monotonic clock, perhaps infinite."""
    left = max(end - time.monotonic(), 1e-3)
    part = PartOfWait(seconds=min(length_s, left))
    part.whole = timedelta() if left == math.inf else timedelta(seconds=left)
    return part


def seconds(limit: timedelta) -> float | None:
    """Return a limit in seconds, as threads and sockets expect it; None for no limit.

    As in PyTorch, 0 and less mean no limit. More than `_LONGEST_S`, which sockets refuse, does too.
    """
    length = limit.total_seconds()
    return length if 0 < length <= _LONGEST_S else None


def message_limit(limit: timedelta) -> int:
    """Return a limit in milliseconds as messages have it: at least 1, or 0 for no limit."""
    return 0 if seconds(limit) is None else max(milliseconds(limit), 1)


def milliseconds(limit: timedelta) -> int:
    return round(limit.total_seconds() * 1000)


def describe_wait(keys: Sequence[str]) -> str:
    """Return text for a progress line: the keys that this process waits for, and where."""
    names = [repr(key.removeprefix("/")) for key in keys[:_SHOWN]]
    more = [f"{len(keys) - _SHOWN:,} more keys"] if len(keys) > _SHOWN else []
    return f"for {', '.join([*names, *more])} of the store at {place(caller())}"


def describe_unset(keys: Sequence[str]) -> str:
    return f"{', '.join(repr(key.removeprefix('/')) for key in keys)} not set"


def _text(function: str, key: Any) -> str:
    if isinstance(key, bytes):
        return key.decode()
    if not isinstance(key, str):
        refuse(function, "a str", key)
    _encode(function, key)
    return key


def _bytes(function: str, value: Any) -> bytes:
    if isinstance(value, str):
        return _encode(function, value)
    return value if isinstance(value, bytes) else refuse(function, "a str or bytes", value)


def _encode(function: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        refuse(function, "a str without surrogates", text)


def _int(function: str, value: Any) -> int:
    if not hasattr(value, "__index__"):
        refuse(function, "an int", value)
    return value.__index__()


def _duration(function: str, timeout: Any) -> timedelta:
    """Return a timedelta. As in PyTorch, seconds may be a float but not an int."""
    if isinstance(timeout, timedelta):
        return timeout
    if not isinstance(timeout, float):
        refuse(function, "a timedelta", timeout)
    try:
        return timedelta(seconds=timeout)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{function}(): the timeout must be a number of seconds up to {timedelta.max.total_seconds():g}, "
            f"got {timeout}"
        ) from None


def refuse(function: str, wanted: str, got: object) -> NoReturn:
    raise TypeError(
        f"{function}(): incompatible function arguments: {wanted} is expected, not {type(got).__name__} ({got!r})"
    )
