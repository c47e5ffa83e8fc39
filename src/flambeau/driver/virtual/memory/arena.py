"""The memory of one virtual device: reserved address space, an allocator of ranges, and address checks.

Addresses are simulated: `(generation << 48) + ((index + 1) << 40) + 2 MiB + offset`. The generation counts
the machines that this process has opened, from 1. Host pointers of user processes use the low 47 bits only,
so an address identifies the machine and the device.

The pages are reserved and not committed, so 80 GB cost nothing until they are written. Freed pages return
to the system. The allocator is best fit, lowest address first, in multiples of 512 bytes. A real cudaMalloc
maps 2 MiB pages. The caching allocator requests nothing smaller, so programs see the difference only in
`mem_info` after tiny direct allocations.
"""

from __future__ import annotations

import gc
import itertools
import mmap
import sys
from bisect import bisect_right, insort
from contextlib import suppress
from typing import Any

import numpy as np

from flambeau.core.errors import DriverError, HostMemoryError, InvalidAddressError, OutOfMemoryError
from flambeau.core.host.host_memory import address_space_left
from flambeau.driver.virtual.memory.host_budget import HostBudget

ALIGNMENT = 512
RANGE_PAGE = 1 << 21  # granularity of mapping memory at reserved addresses, as on hardware
POISON = 0xCB  # as float32 about -2.7e7, as float16 about -15: clearly wrong values
# Poison is written, and host memory granted, in chunks.
_CHUNK = 1 << 21
_GRANTED_WHOLE = 1 << 25  # segments up to this size are granted as a whole
_GUARD = 1 << 21  # addresses just below the first one that still count as this device's, for error messages
_ADDRESSES = (1 << 40) - _GUARD  # addresses of one device
# address space for segments, as a multiple of the memory, so that fragmentation prevents no allocation
_ROOM = 8
_PAGE = mmap.PAGESIZE
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000) if sys.platform == "linux" else 0

_generations = itertools.count(1)


def next_generation() -> int:
    """Return the number of a new machine."""
    return next(_generations)


class Arena:
    """The memory of one device.

    Attributes:
        base: The first address.
        bytes: A NumPy array over the whole memory.
        granted: Numbers of the chunks that the host has memory for. See Note [Memory of the host].
        hot: The part of a live segment that was used last and is granted. Most addresses lie in it.
    """

    chunk = _CHUNK

    def __init__(
        self,
        generation: int,
        index: int,
        total: int,
        reserved: int,
        poison: bool,
        budget: HostBudget | None = None,
    ) -> None:
        self.generation = generation
        self.index = index
        self.total = total
        self.base = (generation << 48) + ((index + 1) << 40) + _GUARD
        self.capacity = self.free = (total - reserved) // ALIGNMENT * ALIGNMENT
        # bytes of the address space
        self.space = min(_ROOM * self.free, _ADDRESSES // 2 // RANGE_PAGE * RANGE_PAGE)
        self.limit = self.base + self.space
        self.ranges: dict[int, int] = {}  # start -> end of reserved ranges, which begin at `limit`
        self.starts: list[int] = []  # start addresses of live segments, sorted
        self.ends: dict[int, int] = {}  # start -> end of live segments
        self.hot = (0, 0)
        self._gaps: list[tuple[int, int]] = [(self.space, self.base)]  # (size, start), sorted: best fit
        self._gap_sizes = {self.base: self.space}  # start -> size
        self._gap_ends = {self.limit: self.base}
        self._map: mmap.mmap | None = None
        self._window: np.ndarray[Any, Any] | None = None
        self.poison = poison
        self._touched: set[int] = set()  # with poison: chunks that were touched
        self.granted: set[int] = set()
        self._budget = budget
        if budget is not None:
            budget.add(self)

    @property
    def bytes(self) -> np.ndarray[Any, Any]:
        """Return all of the memory as uint8. It is reserved at its first use, so an unused device has none."""
        if self._window is None:
            self._map = _reserve(self.space, self.index)
            self._window = np.frombuffer(self._map, np.uint8)
        return self._window

    # -- ranges ---------------------------------------------------------------------------------------
    def allocate(self, nbytes: int) -> int:
        """Allocate `nbytes` bytes and return their address.

        Raises:
            OutOfMemoryError: If they do not fit. Nothing has changed then.
        """
        if nbytes < 0:
            raise DriverError(f"mem_alloc on cuda:{self.index}: the size must not be negative, got {nbytes}")
        size = max(-(-nbytes // ALIGNMENT), 1) * ALIGNMENT
        at = bisect_right(self._gaps, (size, -1))
        if size > self.free or at == len(self._gaps):
            raise OutOfMemoryError(self._out_of_memory(nbytes))
        gap, start = self._gaps.pop(at)
        del self._gap_sizes[start], self._gap_ends[start + gap]
        if gap > size:
            self._add_gap(start + size, gap - size)
        insort(self.starts, start)
        self.ends[start] = start + size
        self.free -= size
        if self.poison:
            self._lay(start, size)
        return start

    def release(self, ptr: int) -> None:
        """Free a range that `allocate` returned. Its whole pages return to the system."""
        end = self.ends.pop(ptr, None) if ptr < self.limit else None
        if end is None:
            raise self.invalid("mem_free", ptr, 0, "is not the start of an allocation")
        del self.starts[bisect_right(self.starts, ptr) - 1]
        self.hot = (0, 0)
        self.free += end - ptr
        self._give_back(ptr - self.base, end - self.base)
        start, size = ptr, end - ptr
        before = self._gap_ends.get(start)
        if before is not None:
            size += self._drop_gap(before)
            start = before
        if start + size in self._gap_sizes:
            size += self._drop_gap(start + size)
        self._add_gap(start, size)

    def rename(self, ptr: int, start: int, end: int) -> None:
        """Change the first and last address of a live segment."""
        at = bisect_right(self.starts, ptr) - 1
        del self.ends[ptr]
        self.starts[at] = start
        self.ends[start] = end
        self.hot = (0, 0)

    # -- reserved ranges ------------------------------------------------------------------------------
    def reserve(self, nbytes: int) -> int:
        """Reserve addresses without memory; `nbytes` is a multiple of RANGE_PAGE.

        Raises:
            OutOfMemoryError: If no addresses are left.
        """
        if self._window is None:
            self.space = _ADDRESSES  # addresses cost nothing until they are written
        start = -(-self.limit // RANGE_PAGE) * RANGE_PAGE
        for taken in sorted(self.ranges):
            if start + nbytes <= taken:
                break
            start = self.ranges[taken]
        if start + nbytes > self.base + self.space:
            raise OutOfMemoryError(f"cuda:{self.index} has no {nbytes} addresses left to reserve")
        self.ranges[start] = start + nbytes
        return start

    def back(self, ptr: int, nbytes: int) -> None:
        """Map memory at reserved addresses that have none."""
        self._check_reserved("range_map", ptr, nbytes)
        if self._is_backed(ptr, nbytes):
            raise self.invalid("range_map", ptr, nbytes, "has memory already, or some behind it has")
        if nbytes > self.free:
            raise OutOfMemoryError(self._out_of_memory(nbytes))
        start, end = ptr, ptr + nbytes
        at = bisect_right(self.starts, ptr) - 1
        if at >= 0 and self.ends[self.starts[at]] == ptr and start not in self.ranges:
            start = self.starts.pop(at)
        if end in self.ends and end not in self.ranges:
            del self.starts[bisect_right(self.starts, end) - 1]
            end = self.ends.pop(end)
        insort(self.starts, start)
        self.ends[start] = end
        self.free -= nbytes
        if self.poison:
            self._lay(ptr, nbytes)

    def unback(self, ptr: int, nbytes: int) -> None:
        """Unmap the memory of reserved addresses, all of which must be mapped."""
        self._check_reserved("range_unmap", ptr, nbytes)
        self.check("range_unmap", ptr, nbytes)
        start = self.starts[bisect_right(self.starts, ptr) - 1]
        end = self.ends.pop(start)
        self.starts.remove(start)
        for low, high in ((start, ptr), (ptr + nbytes, end)):
            if low < high:
                insort(self.starts, low)
                self.ends[low] = high
        self.hot = (0, 0)
        self.free += nbytes
        self._give_back(ptr - self.base, ptr + nbytes - self.base)

    def unreserve(self, ptr: int) -> None:
        """Release reserved addresses, none of which may be mapped."""
        end = self.ranges.get(ptr)
        if end is None:
            raise self.invalid("range_release", ptr, 0, "is not the start of a reserved range")
        if self._is_backed(ptr, end - ptr):
            raise self.invalid("range_release", ptr, end - ptr, "has memory still")
        del self.ranges[ptr]

    def _check_reserved(self, what: str, ptr: int, nbytes: int) -> None:
        if nbytes <= 0 or ptr % RANGE_PAGE or nbytes % RANGE_PAGE:
            raise DriverError(f"{what}: {nbytes} bytes at {ptr:#x} are not whole pages of {RANGE_PAGE} bytes")
        if not any(start <= ptr and ptr + nbytes <= end for start, end in self.ranges.items()):
            raise self.invalid(what, ptr, nbytes, "is not reserved")

    def _is_backed(self, ptr: int, nbytes: int) -> bool:
        """Return True if any of these addresses is mapped."""
        at = bisect_right(self.starts, ptr + nbytes - 1) - 1
        return at >= 0 and self.ends[self.starts[at]] > ptr

    def _add_gap(self, start: int, size: int) -> None:
        insort(self._gaps, (size, start))
        self._gap_sizes[start] = size
        self._gap_ends[start + size] = start

    def _drop_gap(self, start: int) -> int:
        size = self._gap_sizes.pop(start)
        del self._gap_ends[start + size]
        del self._gaps[bisect_right(self._gaps, (size, start)) - 1]
        return size

    def _out_of_memory(self, nbytes: int) -> str:
        return f"cuda:{self.index} cannot allocate {nbytes} bytes: {self.free} of {self.total} bytes are free"

    # -- checks ---------------------------------------------------------------------------------------
    def check(self, what: str, ptr: int, nbytes: int) -> None:
        """Raise InvalidAddressError unless `nbytes` from `ptr` on lie in one live segment."""
        self._segment(what, ptr, nbytes)

    def reach(self, what: str, ptr: int, nbytes: int) -> None:
        """Prepare these bytes, which must lie in one live segment, for a command that accesses them.

        Raises:
            InvalidAddressError: If they do not.
            HostMemoryError: If the host has no memory for them.
        """
        start = self._segment(what, ptr, nbytes)
        end = self.ends[start]
        if self._budget is None:
            self.hot = start, end
            return
        if end - start <= _GRANTED_WHOLE:
            low, high = start - self.base, end - self.base
        else:
            low, high = ptr - self.base, ptr - self.base + max(nbytes, 1)
        first, last = low // _CHUNK, (high - 1) // _CHUNK + 1
        new = [chunk for chunk in range(first, last) if chunk not in self.granted]
        if new:
            self._budget.take(what, self.index, len(new) * _CHUNK)
            self.granted.update(new)
        self.hot = max(start, self.base + first * _CHUNK), min(end, self.base + last * _CHUNK)

    def _segment(self, what: str, ptr: int, nbytes: int) -> int:
        """Return the start of the live segment that holds these bytes."""
        at = bisect_right(self.starts, ptr) - 1
        if at < 0 or ptr + nbytes > self.ends[self.starts[at]]:
            raise self.invalid(what, ptr, nbytes, "is not allocated (freed, or out of bounds)")
        return self.starts[at]

    def invalid(self, what: str, ptr: int, nbytes: int, why: str) -> InvalidAddressError:
        return InvalidAddressError(
            f"{what}: {nbytes} bytes at {ptr:#x} on cuda:{self.index}: the address {why}; "
            f"{self._nearest(ptr)}"
        )

    def _nearest(self, ptr: int) -> str:
        if not self.starts:
            return f"nothing is allocated on cuda:{self.index}"
        at = max(bisect_right(self.starts, ptr) - 1, 0)
        near = min(self.starts[at : at + 2], key=lambda start: _distance(ptr, start, self.ends[start]))
        return f"the nearest segment is {near:#x} to {self.ends[near]:#x} ({self.ends[near] - near} bytes)"

    # -- pages ----------------------------------------------------------------------------------------
    def _give_back(self, start: int, end: int) -> None:
        first, last = -(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE
        whole = range(-(-start // _CHUNK), end // _CHUNK)
        if self._budget is not None:
            before = len(self.granted)
            self.granted.difference_update(whole)
            self._budget.give_back((before - len(self.granted)) * _CHUNK)
        if self._map is None:
            return
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)
        if self.poison:
            self._touched.difference_update(whole)
            for chunk in range(start // _CHUNK, -(-end // _CHUNK)):
                if chunk in self._touched:
                    self._fill(max(start, chunk * _CHUNK), min(end, (chunk + 1) * _CHUNK))

    def discard(self) -> None:
        """Return every page to the system, and the addresses as soon as no executable holds an array over them."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)
        # Reference cycles keep a closed machine until a garbage collection. It has up to 512 GiB of addresses.
        self._map = self._window = None
        self.granted.clear()

    # -- poison ---------------------------------------------------------------------------------------
    # An untouched chunk reads as poison: the poison is written when a command first accesses the chunk. So
    # poisoning commits only memory that the program itself would commit.
    def touch(self, ptr: int, nbytes: int) -> None:
        """Write the pending poison of these bytes, because a command accesses them now."""
        start = ptr - self.base
        for chunk in range(start // _CHUNK, (start + nbytes - 1) // _CHUNK + 1):
            if chunk not in self._touched:
                self._touched.add(chunk)
                self._fill(chunk * _CHUNK, min((chunk + 1) * _CHUNK, self.space))

    def occupy(self, ptr: int, nbytes: int) -> None:
        """Prepare these bytes because other memory will be mapped over them: poison the rest of their chunks only."""
        if self.poison:
            first, last = ptr, ptr + nbytes - 1
            self.touch(first, 1)
            self.touch(last, 1)
            self._touched.update(range((first - self.base) // _CHUNK, (last - self.base) // _CHUNK + 1))

    def _lay(self, ptr: int, nbytes: int) -> None:
        """Poison these bytes: immediately in chunks that were accessed, in others at their first access."""
        start, end = ptr - self.base, ptr - self.base + nbytes
        for chunk in range(start // _CHUNK, -(-end // _CHUNK)):
            if chunk in self._touched:
                self._fill(max(start, chunk * _CHUNK), min(end, (chunk + 1) * _CHUNK))

    def lay_poison(self, ptr: int, nbytes: int) -> None:
        """Poison a block. A command of the block's stream calls this."""
        self._lay(ptr, nbytes)

    def _fill(self, start: int, end: int) -> None:
        self.bytes[start:end] = POISON


def _distance(ptr: int, start: int, end: int) -> int:
    return max(start - ptr, ptr - end, 0)


def _reserve(nbytes: int, index: int) -> mmap.mmap:
    """Reserve address space without committing memory.

    Arrays in reference cycles keep those of closed machines until they are collected, so a refused request is made
    again after a collection.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    with suppress(OSError):
        return mmap.mmap(-1, nbytes, flags=flags)
    gc.collect()
    try:
        return mmap.mmap(-1, nbytes, flags=flags)
    except OSError as error:
        left = address_space_left()
        most = "" if left is None else f", and this process has {left:,} left of its limit (RLIMIT_AS)"
        raise HostMemoryError(
            f"cuda:{index}: the host refuses to reserve {nbytes:,} bytes of address space for a virtual GPU "
            f"({error}){most}. They cost no memory. This is a limit of the host, not of the simulated GPU. Fix: raise "
            "the limit (ulimit -v), allow overcommitment (vm.overcommit_memory=0 or 1), or take a smaller profile."
        ) from error
