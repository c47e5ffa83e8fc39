"""`MemoryTrace`: an allocator's events in the form of snapshots, as dictionaries or as a pickle.

# Note [Records]
A million dictionaries take most of a second to build, and as long again to pickle. In the pickle, though, all events
have the same form: the same field names, and numbers. So an event is a record of bytes with room for its numbers, and
NumPy fills in a column of a million at a time. Texts, pools and stacks are pickled at their first use (`Parts`), and
referred to by number after it. The pickle loads as plain dictionaries.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np

from flambeau.core.host.gc_pause import without_collections
from flambeau.runtime.memory.history import Columns
from flambeau.runtime.memory.log_entries import (
    ALLOC,
    ALLOC_PART,
    CODES,
    CUT,
    DONE,
    DONE_PART,
    FREE,
    FREE_PART,
    GROW,
    LOOK,
    MAP,
    ORDER,
    REFUSE,
    REQUEST,
    SHRINK,
    UNMAP,
)
from flambeau.runtime.memory.private_pool import PoolId, pack_id, unpack_id

Array = np.ndarray[Any, Any]

ACTIONS: dict[int, tuple[str, ...]] = {
    ALLOC: ("alloc",), ALLOC_PART: ("alloc",), FREE: ("free_requested", "free_completed"),
    FREE_PART: ("free_requested", "free_completed"), REQUEST: ("free_requested",), DONE: ("free_completed",),
    DONE_PART: ("free_completed",), CUT: (), GROW: ("segment_alloc",), SHRINK: ("segment_free",), REFUSE: ("oom",),
    LOOK: ("snapshot",), ORDER: (), MAP: ("segment_map",), UNMAP: ("segment_unmap",),
}  # fmt: skip
_NAMES = [*dict.fromkeys(name for names in ACTIONS.values() for name in names), "order"]
_OOM, _ORDER = _NAMES.index("oom"), _NAMES.index("order")

_AT_ONCE = 1 << 15  # events whose records are built together: the next ones reuse their memory

_OF_SEGMENTS = np.array([code & ~1 in (GROW, SHRINK, MAP, UNMAP) for code in CODES])
"""They say how large it is, not what was asked for."""


class MemoryTrace(NamedTuple):
    """Events as columns of numbers. The columns `pool` and `stack` are indices into `pools` and `frames`."""

    action: Array
    addr: Array
    size: Array
    stream: Array
    time_us: Array
    pool: Array
    stack: Array
    pools: list[PoolId]
    frames: list[list[dict[str, Any]]]

    def latest(self, most: int) -> MemoryTrace:
        """Return the last `most` events."""
        begin = max(len(self.action) - most, 0)
        return self._at(slice(begin, None))

    def dictionaries(self) -> list[dict[str, Any]]:
        """Return the events as dictionaries in PyTorch's form."""
        # otherwise the collector scans them repeatedly, which takes half of the time
        with without_collections():
            found = [
                {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": time_us,
                 "pool_id": pool, "frames": frames}
                for action, addr, size, stream, time_us, pool, frames in zip(
                    map(_NAMES.__getitem__, self.action.tolist()), self.addr.tolist(), self.size.tolist(),
                    self.stream.tolist(), self.time_us.tolist(), map(self.pools.__getitem__, self.pool.tolist()),
                    map(self.frames.__getitem__, self.stack.tolist()), strict=True,
                )
            ]  # fmt: skip
        for at in np.flatnonzero(self.action == _OOM).tolist():
            found[at] = {
                "device_free" if name == "addr" else name: value for name, value in found[at].items()
            }
        for at in np.flatnonzero(self.action == _ORDER).tolist():
            found[at] = {"action": "order", "after": found[at]["addr"], "stream": found[at]["stream"]}
        return found

    def to_pickle(self, parts: Parts) -> Iterator[bytes | memoryview]:
        """Yield bytes of a pickle that append the events to the last list. See Note [Records]."""
        for begin in range(0, len(self.action), _AT_ONCE):
            yield from self._at(slice(begin, begin + _AT_ONCE))._to_pickle(parts)

    def _to_pickle(self, parts: Parts) -> Iterator[bytes | memoryview]:
        new = self._new()
        found = [parts.to_pickle(event) + pickle.APPEND for event in self._at(new).dictionaries()]
        if len(new) == len(self.action):
            yield from found
            return
        records, width = self._records(parts.numbers())
        begin = 0
        for at, part in zip(new.tolist(), found, strict=True):
            yield records[begin * width : at * width]
            yield part
            begin = at + 1
        yield records[begin * width :]

    def _at(self, which: Any) -> MemoryTrace:
        return self._replace(**{name: getattr(self, name)[which] for name in self._fields[:-2]})

    def _new(self) -> Array:
        """Return the events that introduce an action, pool or stack, and those with extra fields: they need new
        objects.
        """
        firsts = [_firsts(column) for column in (self.action, self.pool, self.stack)]
        return np.unique(np.concatenate([*firsts, np.flatnonzero(self.action == _OOM)]))

    def _records(self, numbers: dict[int, int]) -> tuple[memoryview, int]:
        """Return the pickled records of the events and the length of one. `numbers`: object id -> number in the
        pickle.
        """
        names, pools, stacks = (
            np.array([numbers.get(id(value), 0) for value in values])  # 0 where no event has the value
            for values in (_NAMES, self.pools, self.frames)
        )
        form = _Form(numbers)
        form.refer("action", names[self.action])
        for name in ("addr", "size", "stream", "time_us"):
            form.number(name, getattr(self, name))
        form.refer("pool_id", pools[self.pool])
        form.refer("frames", stacks[self.stack])
        return form.records(len(self.action))


class _Form:
    """The byte layout of a pickled record: the names of a dictionary and the columns of its values."""

    def __init__(self, numbers: dict[int, int]) -> None:
        self._fixed = bytearray(pickle.EMPTY_DICT + pickle.MARK)
        self._columns: list[tuple[int, str, Array]] = []  # position, format, values of a column
        self._numbers = numbers

    def refer(self, name: str, column: Array) -> None:
        """Add a field whose values the pickle refers to by number."""
        self._field(name, pickle.LONG_BINGET, "<u4", column)

    def number(self, name: str, column: Array) -> None:
        """Add a field of ints of at most 8 bytes."""
        if column.min() >= -(1 << 31) and column.max() < 1 << 31:
            self._field(name, pickle.BININT, "<i4", column)
        else:
            self._field(name, pickle.LONG1 + b"\x08", "<i8", column)

    def _field(self, name: str, opcode: bytes, kind: str, column: Array) -> None:
        number = self._numbers[id(name)]
        short = pickle.BINGET + bytes([number]) if number < 256 else b""
        self._fixed += (short or pickle.LONG_BINGET + number.to_bytes(4, "little")) + opcode
        self._columns.append((len(self._fixed), kind, column))
        self._fixed += bytes(np.dtype(kind).itemsize)

    def records(self, count: int) -> tuple[memoryview, int]:
        self._fixed += pickle.SETITEMS + pickle.APPEND
        width = len(self._fixed)
        found = self._fixed * count
        for offset, kind, column in self._columns:
            np.ndarray(count, kind, found, offset, (width,))[:] = column
        return memoryview(found), width


class Parts:
    """A pickler that writes one pickle in parts; later parts refer to objects of earlier ones. The first part is
    `head`.
    """

    head = pickle.PROTO + b"\x03"  # without frames, which would state the length of the parts

    def __init__(self) -> None:
        self._buffer = BytesIO()
        self._pickler = pickle.Pickler(self._buffer, 3)

    def to_pickle(self, value: Any) -> bytes:
        """Return the opcodes that push a value onto the unpickler's stack."""
        self._buffer.seek(0)
        self._buffer.truncate()
        self._pickler.dump(value)
        return self._buffer.getvalue()[len(self.head) : -1]  # without the opcode STOP

    def numbers(self) -> dict[int, int]:
        """Return the numbers of the objects in the pickle's memo: object id -> number."""
        return {key: number for key, (number, _) in self._pickler.memo.copy().items()}


def trace_of(
    columns: Columns,
    stream_named: Callable[[int], int],
    pool: PoolId | None = None,
    skip: frozenset[str] = frozenset(),
    orders: bool = False,
) -> MemoryTrace:
    """Return the events of a history without the actions in `skip`; of one pool if given, with "order" if `orders`."""
    if pool is not None:
        columns = columns.at(columns.numbers[:, 5] == pack_id(pool))
    code, size, requested, addr, handle, owner = columns.numbers.T
    actions = _table(skip, orders)[code]  # an entry becomes up to two events
    entry, _ = np.nonzero(actions >= 0)
    streams, stream = _index_values(handle, stream_named)
    pools, place = _index_values(owner, unpack_id)
    if orders:
        addr = addr.copy()
        for at in np.flatnonzero(code & ~1 == ORDER):
            addr[at] = stream_named(int(addr[at]))
    return MemoryTrace(
        actions[actions >= 0],
        addr[entry],
        np.where(_OF_SEGMENTS[code], size, requested)[entry],
        np.array(streams, np.int64)[stream][entry],
        _known_before(columns.time)[entry] // 1000,
        place[entry],
        columns.stack[entry],
        pools,
        [[] if stack is None else stack.frames() for stack in columns.stacks],
    )


def _table(skip: frozenset[str], orders: bool) -> Array:
    """Return, for each event code, the numbers of its one or two actions; -1 for none."""
    table = np.full((len(CODES), 2), -1, np.int8)
    for code in CODES:
        for i, name in enumerate(ACTIONS[code & ~1]):
            if name not in skip:
                table[code, i] = _NAMES.index(name)
    if orders:
        table[ORDER : ORDER + 2, 0] = _ORDER
    return table


def _index_values(column: Array, value: Callable[[int], Any]) -> tuple[list[Any], Array]:
    """Return the distinct values of a column of numbers, and for each row the index of its value."""
    found, place = np.unique(column, return_inverse=True)
    return [value(number) for number in found.tolist()], place


def _firsts(column: Array) -> Array:
    """Return the index of the first row with each of a column's small numbers."""
    found = np.full(column.max(initial=-1) + 1, -1)
    # of several writes to one position NumPy keeps the last, here that of the first row
    found[column[::-1]] = np.arange(len(column))[::-1]
    return found[found >= 0]


def _known_before(times: Array) -> Array:
    """Return the times with each -1 (unknown) replaced by the last time before it, or by 0."""
    latest = np.maximum.accumulate(np.where(times < 0, -1, np.arange(len(times))))
    return np.where(latest < 0, 0, times[latest])
