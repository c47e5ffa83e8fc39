"""`Table`: a store's values and queues by key, and the operations on them. No operation blocks."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Any

from flambeau.distributed.errors import QueueEmptyError

OPERATIONS: dict[str, list[Any]] = {  # the schema of each operation's arguments (`wire.fits`)
    "set": [str, bytes], "get": [str], "add": [str, int], "compare_set": [str, bytes, bytes], "delete": [str],
    "append": [str, bytes], "get_all": [(str,)], "set_all": [(str,), (bytes,)], "num_keys": [], "list_keys": [],
    "check": [(str,)], "push": [str, bytes], "pop": [str], "length": [str],
}  # fmt: skip
CHANGES = frozenset(("set", "add", "compare_set", "delete", "append", "set_all", "push", "pop"))

_LIMIT = 1 << 63


class Table:
    """The values of a store: bytes. Counters of `add` are decimal digits, as in PyTorch."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._queues: dict[str, deque[bytes]] = {}

    def do(self, operation: str, args: Sequence[Any]) -> Any:
        """Run one of OPERATIONS.

        Raises:
            ValueError: If there is none of this name, or it refuses.
        """
        if operation not in OPERATIONS:
            raise ValueError(f"a store has no operation {operation!r}")
        return getattr(self, operation)(*args)

    def ready(self, operation: str, keys: Sequence[str]) -> bool:
        """Return True if an operation that needs these keys can be done."""
        if operation in ("get", "get_all"):
            return all(key in self.values for key in keys)
        return self.check(keys)

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key]

    def add(self, key: str, amount: int) -> int:
        total = _number(key, self.values.get(key, b"0")) + amount
        if not -_LIMIT <= total < _LIMIT:
            raise ValueError(f"add: the sum of key {key!r} has more than 64 bits")
        self.values[key] = b"%d" % total
        return total

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Replace a value if it equals the expected one. Returns the resulting value."""
        there = self.values.get(key)
        if there is None and expected:
            return expected
        if there is None or there == expected:
            self.values[key] = desired
        return self.values[key]

    def delete(self, key: str) -> bool:
        return self.values.pop(key, None) is not None

    def append(self, key: str, value: bytes) -> None:
        self.values[key] = self.values.get(key, b"") + value

    def get_all(self, keys: Sequence[str]) -> list[bytes]:
        return [self.values[key] for key in keys]

    def set_all(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        self.values.update(zip(keys, values, strict=True))

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


def _number(key: str, value: bytes) -> int:
    if not re.fullmatch(rb"\s*[+-]?\d+", value):
        raise ValueError(f"stoll: add: the value of key {key!r} is {value[:40]!r}, which is no whole number")
    return int(value)
