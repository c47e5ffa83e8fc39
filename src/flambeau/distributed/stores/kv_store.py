"""`Table`: a store's values and queues by key, and the operations on them. No operation blocks."""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Sequence
from typing import Any

from flambeau.core.ipc.codec import Pieces
from flambeau.distributed.dist_errors import QueueEmptyError

OPERATIONS: dict[str, list[Any]] = {  # the schema of each operation's arguments (`wire.fits`)
    "set": [str, bytes], "get": [str], "add": [str, int], "compare_set": [str, bytes, bytes], "delete": [str],
    "append": [str, bytes], "get_all": [(str,)], "set_all": [(str,), (bytes,)], "num_keys": [], "list_keys": [],
    "check": [(str,)], "push": [str, bytes], "pop": [str], "length": [str],
}  # fmt: skip
CHANGES = frozenset(("set", "add", "compare_set", "delete", "append", "set_all", "push", "pop"))

_LIMIT = 1 << 63
_ALIKE = 64  # keys among which `newest` looks
_DIGITS = 4096  # letters of the longest text that counts as a number
_SHORT = 1 << 16  # bytes of the shortest part of a grown value
_LONG = 1 << 26  # bytes of the longest part that is joined from others


class GrownValue:
    """A value that has grown by `append`, in few parts: neither an append nor a read copies them."""

    __slots__ = ("_last", "_parts", "_pieces")

    def __init__(self, value: bytes) -> None:
        self._parts = [value]
        self._last = bytearray()  # short values, for the next part
        self._pieces: Pieces | None = None

    def append(self, value: bytes) -> None:
        """Append bytes."""
        self._pieces = None
        if len(value) < _SHORT:
            self._last += value
            if len(self._last) >= _SHORT:
                self._end_last()
        else:
            self._end_last()
            self._add_part(value)

    def _end_last(self) -> None:
        if self._last:
            last, self._last = bytes(self._last), bytearray()
            self._add_part(last)

    def _add_part(self, part: bytes) -> None:
        """Add a part, joined with the preceding parts that are not longer, so that each byte is copied only a few
        times.
        """
        while self._parts and len(self._parts[-1]) <= min(len(part), _LONG - len(part)):
            part = self._parts.pop() + part
        self._parts.append(part)

    @property
    def pieces(self) -> Pieces:
        """Return the value as it is now."""
        if self._pieces is None:
            self._pieces = Pieces([*self._parts, bytes(self._last)])
        return self._pieces

    def __len__(self) -> int:
        return sum(map(len, self._parts)) + len(self._last)

    def __bytes__(self) -> bytes:
        return b"".join([*self._parts, self._last])


class Table:
    """The values of a store: bytes. Counters of `add` are decimal digits, as in PyTorch."""

    def __init__(self) -> None:
        self.values: dict[str, bytes | GrownValue] = {}
        self._suffixes: dict[
            str, dict[str, None]
        ] = {}  # the last two parts of keys -> the keys, the newest last
        self._queues: dict[str, deque[bytes]] = {}

    def newest(self, ending: str) -> bytes:
        """Return the newest value whose key is a prefix, "/" and `ending`, of two parts or more; b"" if there is none.

        Of many keys with the same last two parts only the newest count.
        """
        alike = self._suffixes.get("/".join(ending.rsplit("/", 2)[-2:]), {})
        for key in itertools.islice(reversed(alike), _ALIKE):
            if key.endswith(f"/{ending}"):
                return bytes(self.values[key])
        return b""

    def keep(self, prefix: str) -> None:
        """Drop all values except those whose key begins with `prefix`."""
        for key in [key for key in self.values if not key.startswith(prefix)]:
            self.delete(key)

    def _put(self, key: str, value: bytes | GrownValue) -> None:
        if key not in self.values and (suffix := _suffix(key)):
            self._suffixes.setdefault(suffix, {})[key] = None
        self.values[key] = value

    def do(self, operation: str, args: Sequence[Any]) -> Any:
        """Run one of OPERATIONS, and join the pieces of values.

        Raises:
            ValueError: If there is none of this name, or it refuses.
        """
        answer = self.run(operation, args)
        return list(map(_join, answer)) if operation == "get_all" else _join(answer)

    def run(self, operation: str, args: Sequence[Any]) -> Any:
        """Run one of OPERATIONS. Long values may be `Pieces`, which are not copied.

        Raises:
            ValueError: If there is none of this name, or it refuses.
        """
        if operation not in OPERATIONS:
            raise ValueError(f"a store has no operation {operation!r}")
        return getattr(self, operation)(*args)

    def ready(self, operation: str, keys: Sequence[str]) -> bool:
        """Return True if an operation that needs these keys can be done."""
        return not self.missing(operation, keys)

    def missing(self, operation: str, keys: Sequence[str]) -> set[str]:
        """Return those of the keys that an operation needs and that are not set."""
        unset = {*keys}.difference(self.values)
        return unset if operation in ("get", "get_all") else unset.difference(self._queues)

    def set(self, key: str, value: bytes) -> None:
        self._put(key, value)

    def get(self, key: str) -> bytes | Pieces:
        value = self.values[key]
        return value.pieces if isinstance(value, GrownValue) else value

    def add(self, key: str, amount: int) -> int:
        total = _number(key, self.values.get(key, b"0")) + amount
        if not -_LIMIT <= total < _LIMIT:
            raise ValueError(f"add: the sum of key {key!r} has more than 64 bits")
        self._put(key, b"%d" % total)
        return total

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes | Pieces:
        """Replace a value if it equals the expected one. Returns the resulting value."""
        there = self.values.get(key)
        if there is None and expected:
            return expected
        if there is None or (len(there) == len(expected) and bytes(there) == expected):
            self._put(key, desired)
        return self.get(key)

    def delete(self, key: str) -> bool:
        if key not in self.values:
            return False
        del self.values[key]
        if (keys := self._suffixes.get(suffix := _suffix(key))) is not None:
            del keys[key]
            if not keys:
                del self._suffixes[suffix]
        return True

    def append(self, key: str, value: bytes) -> None:
        there = self.values.get(key, b"")
        if isinstance(there, bytes):
            there = GrownValue(there)
            self._put(key, there)
        there.append(value)

    def get_all(self, keys: Sequence[str]) -> list[bytes | Pieces]:
        return [self.get(key) for key in keys]

    def set_all(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self._put(key, value)

    def num_keys(self) -> int:
        """Return the number of values, without queues."""
        return len(self.values)

    def list_keys(self) -> list[str]:
        return list(self.values)

    def check(self, keys: Sequence[str]) -> bool:
        """Return True if each key has a value, or a queue with a value."""
        return all(key in self.values or key in self._queues for key in keys)

    def push(self, key: str, value: bytes) -> None:
        self._queues.setdefault(key, deque()).append(value)

    def pop(self, key: str) -> bytes:
        queue = self._queues.get(key)
        if queue is None:
            raise QueueEmptyError("queue is empty")
        value = queue.popleft()
        if not queue:
            del self._queues[key]
        return value

    def length(self, key: str) -> int:
        return len(self._queues.get(key, ()))


def _suffix(key: str) -> str:
    """Return the last two parts of a key that has a prefix before them; "" for other keys."""
    _, *ending = key.rsplit("/", 2)
    return "/".join(ending) if len(ending) == 2 else ""


def _join(value: Any) -> Any:
    return b"".join(value.parts) if isinstance(value, Pieces) else value


def _number(key: str, value: bytes | GrownValue) -> int:
    digits = bytes(value) if len(value) <= _DIGITS else b""
    if not re.fullmatch(rb"\s*[+-]?\d+", digits):
        shown = f"is {digits[:40]!r}" if digits else f"has {len(value):,} bytes"
        raise ValueError(f"stoll: add: the value of key {key!r} {shown}, which is not an integer")
    return int(digits)
