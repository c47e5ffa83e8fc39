"""`PlaceMap`: the commands that touched each element of a block last, in one of its lifetimes.

# Note [Places] The map divides a block into units that any partial access touches as a whole or not at all:
a row of a table, or an element. For each logical thread, and for reads and writes separately, it keeps the
number of the last command that touched a unit. A command conflicts with a logical thread's accesses to its
own units exactly if one of their numbers exceeds what its clock has of that thread: an earlier access to
the unit is ordered before everything that the last one is ordered before. Accesses are added to the arrays
late, when a decision needs them, and in the order in which they ran.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from flambeau.core.meta import Meta
from flambeau.driver.protocol import Touches
from flambeau.observe.indexed.partial import TOO_LARGE, Array, PartialAccess
from flambeau.observe.layout_overlap import Extent, is_dense, span_of

if TYPE_CHECKING:
    from flambeau.observe.accesses import Cell
    from flambeau.observe.clocks import LogicalThread

_UNITS = 1 << 24  # number of units in the largest map
_BYTES = 1 << 29  # bytes of all maps together; untouched memory takes no pages
_LOGGED = 32  # accesses that are collected before they are added to the arrays
_LOGGED_BYTES = 1 << 20  # bytes of indices that are collected before they are added
_CHUNK = 1 << 20
_PARTS = 256  # number of stored accesses above which those that no unit refers to are dropped


class NotKnown(Exception):
    """The error raised if a map would take too much memory, or indices are out of range."""


class PlaceMap:
    """The last accesses to each element of one block in one lifetime.

    `start` is the block's address, `born` the number at which its lifetime began.

    Attributes:
        unit: Bytes of a unit; 0 before the first access.
        last: (logical thread, whether it writes) -> array of numbers, one for each unit; 0 if untouched.
        accesses: Number -> access, for each number in `last`.
        entire: (logical thread, cell, whether it writes) -> the latest access that counts as touching its
            whole cell.
        defined: An array that is True for units that indexed writes have written; None if there are none.
        defining: The pending accesses that will write elements. `defines` is True if there was any.
    """

    __slots__ = (
        "__weakref__", "_fewest", "_log", "_logged", "_maps", "accesses", "born", "defined", "defines", "defining",
        "end", "entire", "last", "most_entire", "start", "unit",
    )  # fmt: skip

    def __init__(self, start: int, end: int, born: int, maps: weakref.WeakSet[PlaceMap]) -> None:
        self.start, self.end, self.born = start, end, born
        self.unit = 0
        self.last: dict[tuple[LogicalThread, bool], Array] = {}
        self.accesses: dict[int, PartialAccess] = {}
        self.entire: dict[tuple[LogicalThread, Cell, bool], PartialAccess] = {}
        self.defined: Array | None = None
        self.defining: dict[PartialAccess, None] = {}
        self.defines = False
        self.most_entire = _PARTS
        self._maps = maps
        self._log: list[PartialAccess] = []
        self._logged = 0
        self._fewest = _PARTS

    # -- accesses -------------------------------------------------------------------------------------------
    def add(self, access: PartialAccess) -> None:
        """Add an access that has run."""
        if access.indices is None:
            self.add_entire(access)
            return
        self._log.append(access)
        self._logged += sum([index.nbytes for index in access.indices])
        if len(self._log) >= _LOGGED or self._logged >= _LOGGED_BYTES:
            self.draw()

    def add_entire(self, access: PartialAccess) -> None:
        """Add an access that counts as touching its whole cell."""
        self.entire[access.agent, access.cell, access.writes] = access

    def drop_entire(self, is_over: Callable[[PartialAccess], bool]) -> None:
        """Drop whole-cell accesses that no later access can conflict with."""
        self.entire = {key: old for key, old in self.entire.items() if not is_over(old)}
        self.most_entire = _PARTS + 2 * len(self.entire)

    def forget(self, agent: LogicalThread) -> None:
        """Drop a logical thread's accesses."""
        self.draw()
        for writes in (False, True):
            self.last.pop((agent, writes), None)
        self.entire = {key: old for key, old in self.entire.items() if key[0] is not agent}

    def draw(self) -> None:
        """Add the collected accesses to the arrays."""
        log, self._log, self._logged = self._log, [], 0
        for access in log:
            try:
                self._draw(access)
            except (NotKnown, MemoryError):
                access.give_up(TOO_LARGE)
                self.add_entire(access)
                if access.defines:
                    access.operand.deferred.unwritten.not_known(access)
            else:
                access.finish_map()
        if len(self.accesses) > self._fewest:
            self._drop_hidden()

    def _draw(self, access: PartialAccess) -> None:
        region = self.region(access)
        if not access.entire:
            self.accesses[access.number] = access
            key = (access.agent, access.writes)
            numbers = self.last.get(key)
            if numbers is None:
                numbers = self.last[key] = self._zeros(np.int64)
            region.of(numbers)[region.selection] = access.number
        if access.defines:
            if self.defined is None:
                self.defined = self._zeros(np.bool_)
            region.of(self.defined)[region.selection] = True

    def _drop_hidden(self) -> None:
        """Drop the accesses that later ones have replaced in every unit."""
        named: set[int] = set()
        for numbers in self.last.values():
            for begin in range(0, len(numbers), _CHUNK):
                named.update(_distinct(numbers[begin : begin + _CHUNK]))
        self.accesses = {n: access for n, access in self.accesses.items() if n in named}
        self._fewest = _PARTS + 2 * len(self.accesses)

    # -- units ------------------------------------------------------------------------------------------------
    def region(self, access: PartialAccess) -> Region:
        """Return an access's region in the arrays, whose unit becomes small enough to represent it.

        Raises:
            NotKnown: See the class.
        """
        assert access.indices is not None
        operand = access.operand
        return self.region_of(access.cell.start, operand.meta, operand.touches, access.indices)

    def region_of(self, ptr: int, meta: Meta, touches: Touches, indices: Sequence[Array]) -> Region:
        """Return the region of the elements that indices select from an operand at `ptr`.

        Raises:
            NotKnown: See the class.
        """
        if not meta.numel:
            return Region(0, [0], [1], ())
        try:
            selection = touches.places(indices)
        except (IndexError, RuntimeError) as error:
            raise NotKnown from error
        shape, strides = list(meta.shape) or [1], list(meta.byte_strides) or [0]
        if isinstance(selection, tuple):
            run = _inner_run(shape, strides, meta.itemsize, selection)
            selection = selection[: len(shape)]
        else:
            run = meta.itemsize
        return self._region(ptr, shape, strides, run, selection)

    def within(self, ptr: int, extent: Extent) -> Region:
        """Return the region of a whole access: all units of which it touches a byte."""
        begin, end = max(ptr, self.start), min(ptr + span_of(extent), self.end)
        if not isinstance(extent, Meta) or is_dense(extent) or begin > ptr or end < ptr + extent.span:
            unit = self.unit
            first, past = (begin - self.start) // unit, -((self.start - end) // unit)
            return Region(first, [max(past - first, 0)], [1], slice(None))
        shape, strides = list(extent.shape), list(extent.byte_strides)
        everything = (slice(None),) * len(shape)
        run = _inner_run(shape, strides, extent.itemsize, everything)
        try:
            return self._region(ptr, shape, strides, run, ())
        except NotKnown:  # use a superset, which includes the gaps
            return self.within(ptr, extent.span)

    def _region(self, ptr: int, shape: list[int], strides: list[int], run: int, selection: Any) -> Region:
        steps = [step for step, size in zip(strides, shape, strict=True) if size > 1]
        self._refine(gcd(ptr - self.start, run, *steps))
        unit = self.unit
        if run != unit or not shape:
            shape, strides = [*shape, run // unit], [*strides, unit]
        return Region((ptr - self.start) // unit, shape, [s // unit for s in strides], selection)

    def _refine(self, grain: int) -> None:
        """Make the units so small that they divide `grain` bytes."""
        finer = gcd(self.unit, grain)
        if finer == self.unit:
            return
        if self._count(finer) > _UNITS:
            raise NotKnown
        if self.nbytes:
            self._make_room(self.nbytes * (self.unit // finer))
            last = {key: self._finer(numbers, finer) for key, numbers in self.last.items()}
            defined = None if self.defined is None else self._finer(self.defined, finer)
            self.last, self.defined = last, defined
        self.unit = finer

    def _finer(self, old: Array, unit: int) -> Array:
        """Return an array for smaller units. The operating system allocates no pages for its untouched parts."""
        times = self.unit // unit
        new = np.zeros((len(old), times), old.dtype)
        touched = np.flatnonzero(old)
        new[touched] = old[touched, None]
        return new.reshape(-1)[: self._count(unit)]

    def _zeros(self, kind: Any) -> Array:
        units = self._count(self.unit)
        self._make_room(units * np.dtype(kind).itemsize)
        return np.zeros(units, kind)

    def _count(self, unit: int) -> int:
        """Return the length of an array of units; its last element only marks the end."""
        return -((self.start - self.end) // unit) + 1

    def _make_room(self, nbytes: int) -> None:
        if sum([other.nbytes for other in self._maps]) + nbytes > _BYTES:
            raise NotKnown

    @property
    def nbytes(self) -> int:
        """Return the bytes that the arrays of the map may occupy."""
        arrays = [*self.last.values(), *(() if self.defined is None else (self.defined,))]
        return sum([array.nbytes for array in arrays])

    # -- questions --------------------------------------------------------------------------------------------
    def conflicts(
        self, agent: LogicalThread, above: int, region: Region, reads: bool
    ) -> Iterator[tuple[PartialAccess, int, int]]:
        """Yield the logical thread's accesses to a region with a number above `above`, and the bytes where
        they overlap.

        Args:
            reads: True to yield reads as well as writes.
        """
        for writes in (True, False) if reads else (True,):
            numbers = self.last.get((agent, writes))
            if numbers is None:
                continue
            here = region.of(numbers)[region.selection]
            if not here.size or here.max() <= above:
                continue
            for number in np.unique(here[here > above]).tolist():
                units = np.flatnonzero(self._hit(region, numbers, number))
                first, last = int(units[0]), int(units[-1])
                begin = self.start + first * self.unit
                yield self.accesses[number], begin, min(self.start + (last + 1) * self.unit, self.end)

    def _hit(self, region: Region, numbers: Array, number: int) -> Array:
        """Return a mask of the units of a region whose last access has this number."""
        hit = np.zeros(len(numbers), np.bool_)
        region.of(hit)[region.selection] = True
        hit &= numbers == number
        return hit

    # -- never-written memory -----------------------------------------------------------------------------------
    def all_defined(self, ptr: int, extent: Extent) -> bool:
        """Return True if writes through indices have covered the whole extent."""
        if self.defined is None:
            return False
        region = self.within(ptr, extent)
        return bool(region.of(self.defined)[region.selection].all())

    def defined_bytes(self, begin: int, end: int) -> Array:
        """Return a mask of the bytes of a range that writes through indices have covered."""
        found = np.zeros(end - begin, np.bool_)
        if self.defined is not None:
            low, high = max(begin, self.start), min(end, self.end)
            first = (low - self.start) // self.unit
            past = -((self.start - high) // self.unit)
            skipped = low - self.start - first * self.unit
            found[low - begin : high - begin] = np.repeat(self.defined[first:past], self.unit)[
                skipped : skipped + high - low
            ]
        return found

    def undefined_of(self, access: PartialAccess) -> Array:
        """Return a mask of the units of an access that no write through indices has covered.

        Raises:
            NotKnown: See the class.
        """
        region = self.region(access)
        mark = np.zeros(self._count(self.unit), np.bool_)
        region.of(mark)[region.selection] = True
        if self.defined is not None:
            mark &= ~self.defined
        return mark

    def meets(self, access: PartialAccess, ptr: int, extent: Extent) -> bool:
        """Return True if an access in the map touches a unit of a layout."""
        other = self.within(ptr, extent)  # must be computed first, because it may make the units smaller
        return self.share(self.region(access), other)

    def share(self, one: Region, other: Region) -> bool:
        """Return True if two regions have a unit in common."""
        mark = np.zeros(self._count(self.unit), np.bool_)
        one.of(mark)[one.selection] = True
        return bool(other.of(mark)[other.selection].any())


Named = tuple[int, Meta, Touches, Sequence[Array]]
"""An operand whose elements indices select: its address and layout, the kernel's touches, the indices."""


def meets(one: Named, other: Named | tuple[int, Extent]) -> bool:
    """Return True if selected elements overlap others or a layout, or if that is too expensive to decide."""
    start, end = one[0], one[0] + one[1].span
    if len(other) == 4:
        start, end = min(start, other[0]), max(end, other[0] + other[1].span)
    places = PlaceMap(start, end, 0, weakref.WeakSet())
    try:
        region = places.region_of(*one)
        while True:
            second = places.region_of(*other) if len(other) == 4 else places.within(*other)
            unit = places.unit
            region = places.region_of(*one)
            if places.unit == unit:
                return places.share(region, second)
    except (NotKnown, MemoryError):
        return True


class Region:
    """A set of units of a map: a strided array that begins at unit `first`, and a selection of its elements."""

    __slots__ = ("first", "selection", "shape", "strides")

    def __init__(self, first: int, shape: list[int], strides: list[int], selection: Any) -> None:
        self.first, self.shape, self.strides, self.selection = first, shape, strides, selection

    def of(self, array: Array) -> Array:
        """Return the view of an array of units that has the region's shape and strides; `selection` indexes it."""
        size = array.itemsize
        return as_strided(array[self.first :], self.shape, [step * size for step in self.strides])


def _distinct(numbers: Array) -> list[int]:
    """Return the distinct numbers of an array. A table finds them if they are close together."""
    named = numbers[numbers > 0]
    if not named.size:
        return []
    base, most = int(named.min()), int(named.max())
    if most - base > 8 * _CHUNK:
        return np.unique(named).tolist()
    table = np.zeros(most - base + 1, np.bool_)
    table[named - base] = True
    return (np.flatnonzero(table) + base).tolist()


def _inner_run(shape: list[int], strides: list[int], itemsize: int, selection: tuple[Any, ...]) -> int:
    """Remove the last dimensions that are contiguous and selected completely, and return their bytes."""
    run = itemsize
    while (
        shape and _is_whole(selection, len(shape) - 1, shape[-1]) and (shape[-1] == 1 or strides[-1] == run)
    ):
        run *= shape.pop()
        strides.pop()
    return run


def _is_whole(selection: tuple[Any, ...], dim: int, size: int) -> bool:
    if dim >= len(selection):
        return True
    part = selection[dim]
    return isinstance(part, slice) and part.indices(size) == (0, size, 1)
