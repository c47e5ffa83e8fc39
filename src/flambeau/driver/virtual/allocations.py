"""The allocations of a virtual machine: device memory, pinned host memory, and memory of other processes."""

from __future__ import annotations

import os
from bisect import bisect_right, insort
from functools import partial

import numpy as np

from flambeau.core.errors import DriverError, OutOfMemoryError
from flambeau.core.host_arrays import address_of
from flambeau.driver.protocol import HostMemory
from flambeau.driver.virtual.capture import Captures
from flambeau.driver.virtual.collectives import coordinator_client
from flambeau.driver.virtual.device import VirtualDevice
from flambeau.driver.virtual.memory.arena import RANGE_PAGE
from flambeau.driver.virtual.scheduling import scheduler
from flambeau.driver.virtual.simulated_machine import SimulatedMachine
from flambeau.driver.virtual.streams import Queues

_HOST_ALIGNMENT = 4096


class VirtualAllocations:
    """The allocations of a machine, found by address. Calls that free memory wait for the device first."""

    def __init__(self, machine: SimulatedMachine, queues: Queues, captures: Captures) -> None:
        self._machine, self._queues, self._captures = machine, queues, captures
        self._core, self._costs = machine.core, machine.profile.costs
        self._pinned: dict[int, HostMemory] = {}
        self._registered: set[int] = set()  # addresses of those that the program allocated
        self._pinned_from: list[int] = []  # their addresses, sorted

    def clear(self) -> None:
        self._pinned.clear()
        self._registered.clear()
        self._pinned_from.clear()

    def _settle(self, *devices: VirtualDevice) -> None:
        """Wait for all work of the devices."""
        for device in devices:
            self._captures.refuse(device.state)
        for device in devices:
            self._core.wait(device.state)

    # -- of a device --------------------------------------------------------------------------------------
    def info(self, index: int) -> tuple[int, int]:
        """Return the free and the total bytes of a device."""
        arena = self._machine.device(index).arena
        return arena.free - sum([nbytes for _, nbytes in _held_by_others(index)]), arena.total

    def processes(self, index: int) -> list[tuple[int, int]]:
        """Return (process id, bytes) of this process and of the launcher's other ranks that use the device."""
        arena = self._machine.device(index).arena
        return [(os.getpid(), arena.total - arena.free), *_held_by_others(index)]

    def allocate(self, index: int, nbytes: int) -> int:
        device = self._machine.device(index)
        ptr = device.arena.allocate(nbytes)
        _share(device, ptr)
        self._core.now += self._costs.alloc_ns
        return ptr

    def free(self, ptr: int) -> None:
        device = self._machine.owner("mem_free", ptr, 0)
        end, shared = device.arena.ends.get(ptr), device.shared_pages
        if end is None or (shared is not None and shared.owns(ptr)):
            raise device.arena.invalid("mem_free", ptr, 0, "is not the start of an allocation")
        if self._core.running is not None:  # a destructor that runs inside a kernel's body
            self._core.defer(partial(self.free, ptr))
            return
        self._settle(device)
        self._core.now += self._costs.alloc_ns
        device.arena.release(ptr)
        if (others := coordinator_client.of_process()) is not None and others.shares:
            others.release(device.index, ptr)
        if shared is not None:
            shared.on_segment_freed(ptr, end)

    # -- addresses, and what is behind them ---------------------------------------------------------------
    def reserve(self, index: int, nbytes: int) -> int:
        arena = self._machine.device(index).arena
        if nbytes <= 0 or nbytes % RANGE_PAGE:
            raise DriverError(f"range_reserve: {nbytes} bytes are not whole pages of {RANGE_PAGE} bytes")
        return arena.reserve(nbytes)

    def map(self, ptr: int, nbytes: int) -> None:
        self._machine.owner("range_map", ptr, nbytes).arena.back(ptr, nbytes)
        self._core.now += self._costs.alloc_ns

    def unmap(self, ptr: int, nbytes: int) -> None:
        device = self._machine.owner("range_unmap", ptr, nbytes)
        self._settle(device)
        device.arena.unback(ptr, nbytes)
        self._core.now += self._costs.alloc_ns

    def unreserve(self, ptr: int) -> None:
        self._machine.owner("range_release", ptr, 0).arena.unreserve(ptr)

    # -- of the host --------------------------------------------------------------------------------------
    def allocate_host(self, nbytes: int) -> HostMemory:
        self._machine.check_open()
        try:
            owner = np.zeros(nbytes + _HOST_ALIGNMENT, np.uint8)  # zeros make runs repeatable
        except MemoryError:
            raise OutOfMemoryError(f"host_alloc: the host cannot allocate {nbytes} bytes") from None
        ptr = address_of(owner)
        memory = HostMemory(ptr + -ptr % _HOST_ALIGNMENT, nbytes, owner, pinned=True)
        if self._machine.budget is not None:
            self._machine.budget.add_pinned(memory.ptr, nbytes)
        self._keep_pinned(memory)
        return memory

    def free_host(self, memory: HostMemory) -> None:
        self._machine.check_open()
        if memory.ptr not in self._pinned or memory.ptr in self._registered:
            raise DriverError(
                f"host_free: {memory.ptr:#x} is none of this machine's pinned memory, or freed already"
            )
        self._drop_pinned(memory.ptr)
        if self._machine.budget is not None:
            self._machine.budget.remove_pinned(memory.ptr)

    def register_host(self, ptr: int, nbytes: int) -> None:
        self._machine.check_open()
        if ptr <= 0 or nbytes <= 0:
            raise DriverError(f"host_register: no memory of {nbytes} bytes is at {ptr:#x}")
        place = bisect_right(self._pinned_from, ptr + nbytes - 1)
        before = self._pinned[self._pinned_from[place - 1]] if place else None
        if before is not None and ptr < before.ptr + before.nbytes:
            raise DriverError(
                f"host_register: part of the {nbytes} bytes at {ptr:#x} is already mapped as page-locked memory"
            )
        self._registered.add(ptr)
        self._keep_pinned(HostMemory(ptr, nbytes, None, pinned=True))

    def unregister_host(self, ptr: int) -> int:
        self._machine.check_open()
        if ptr not in self._registered:
            raise DriverError(f"host_unregister: {ptr:#x} is not the start of memory that was registered")
        self._registered.remove(ptr)
        nbytes = self._pinned[ptr].nbytes
        self._drop_pinned(ptr)
        return nbytes

    def _keep_pinned(self, memory: HostMemory) -> None:
        self._pinned[memory.ptr] = memory
        insort(self._pinned_from, memory.ptr)
        self._core.now += self._costs.alloc_ns

    def _drop_pinned(self, ptr: int) -> None:
        self._settle(*self._machine.devices)
        self._core.now += self._costs.alloc_ns
        del self._pinned[ptr]
        self._pinned_from.remove(ptr)

    def is_pinned(self, ptr: int, nbytes: int) -> bool:
        """Return True if `nbytes` is positive and all bytes are pinned memory of this machine."""
        self._machine.check_open()
        at, end = ptr, ptr + nbytes
        while at < end and (place := bisect_right(self._pinned_from, at)):
            memory = self._pinned[self._pinned_from[place - 1]]
            if at >= memory.ptr + memory.nbytes:
                break
            at = memory.ptr + memory.nbytes
        return ptr < end <= at

    # -- blocks of the caching allocator ------------------------------------------------------------------
    def poison(self, what: str, ptr: int, nbytes: int, handle: int) -> None:
        """Enqueue a fill with poison of a block that is allocated or freed, on its stream."""
        device = self._machine.range(what, ptr, nbytes)
        arena = device.arena
        stream = device.state.streams.get(handle)
        if stream is None:  # the stream was destroyed and its work is done
            arena.lay_poison(ptr, nbytes)
            return
        self._queues.put(
            scheduler.POISON, what, stream, nbytes, None, 0, 0, arena.lay_poison, (ptr, nbytes), ptr
        )

    # -- of other processes: see Note [Exported memory] in virtual_ipc.py -----------------------------------------
    def export(self, ptr: int) -> bytes:
        """Return an IPC handle of an allocation."""
        device = self._machine.owner("ipc_memory", ptr, 0)
        self._core.now += self._costs.call_ns
        return self._machine.shared_pages(device).export(ptr)

    def open(self, index: int, handle: bytes) -> tuple[int, int]:
        """Map memory of another process; return its address and its size in bytes."""
        device = self._machine.device(index)
        self._core.now += self._costs.alloc_ns
        return self._machine.shared_pages(device).open(handle)

    def close(self, ptr: int) -> None:
        """Unmap memory that `open` mapped."""
        device = self._machine.owner("ipc_close", ptr, 0)
        shared = self._machine.shared_pages(device)
        if not shared.owns(ptr):
            raise device.arena.invalid("ipc_close", ptr, 0, "is not of another process's memory")
        if self._core.running is not None:  # a destructor that runs inside a kernel's body
            self._core.defer(partial(self.close, ptr))
            return
        self._settle(device)
        self._core.now += self._costs.alloc_ns
        shared.close(ptr)


def _held_by_others(index: int) -> list[tuple[int, int]]:
    others = coordinator_client.of_process()
    return others.reserved_by_other_ranks(index) if others is not None and others.shares else []


def _share(device: VirtualDevice, ptr: int) -> None:
    """Reserve an allocation in the device memory that all processes of the launcher share.

    Raises:
        OutOfMemoryError: If the other processes hold too much of it.
    """
    others = coordinator_client.of_process()
    if others is None or not others.shares:
        return
    arena = device.arena
    try:
        others.reserve(device.index, ptr, arena.ends[ptr] - ptr, arena.capacity)
    except BaseException:
        arena.release(ptr)
        raise
