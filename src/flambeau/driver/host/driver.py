"""The CPU as a driver: one device that does each thing at once. The smallest example of the contract.

Its device memory is host memory, so `copy_in` and `copy_out` are copies within the host. Every stream and
event is always complete. Its handles are negative, so that none equals a handle of an accelerator.
"""

from __future__ import annotations

import itertools
import os
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flambeau.core.errors import DriverError, NotSupportedError, OutOfMemoryError
from flambeau.core.memory import address_of, array_at, bytes_at
from flambeau.core.meta import Meta
from flambeau.driver.api import Body, DeviceProperties, Executable, HostMemory, Launch

_ALIGNMENT = 512  # mem_alloc's contract; PyTorch's CPU tensors have 64


class HostExecutable(Executable):
    __slots__ = ("body", "inputs", "outputs")

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch, 0)
        self.body: Body = launch.kernel.host(launch)
        self.outputs = [(m.shape, m.dtype.numpy, m.byte_strides) for m in launch.outputs]
        self.inputs = [
            (m.shape, m.dtype.numpy, m.byte_strides) if isinstance(m, Meta) else None for m in launch.inputs
        ]


class HostDriver:
    """See the module's docstring; contracts in `flambeau.driver.api.Driver`."""

    name = "host"
    observes_blocks = False

    def __init__(self) -> None:
        self._owners: dict[int, np.ndarray[Any, Any]] = {}
        self._handles = itertools.count(-2, -1)
        self._events: dict[int, tuple[bool, int | None]] = {}  # timing, when recorded
        self._closed = False

    # -- devices --------------------------------------------------------------------------------------
    def device_count(self) -> int:
        return 1

    def device_properties(self, index: int) -> DeviceProperties:
        return DeviceProperties(platform.processor() or platform.machine(), 0, 0, _total_memory(), 1)

    def device_sync(self, index: int) -> None:
        pass

    def mem_info(self, index: int) -> tuple[int, int]:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _total_memory()

    def close(self) -> None:
        self._owners.clear()
        self._closed = True

    # -- memory ---------------------------------------------------------------------------------------
    def mem_alloc(self, index: int, nbytes: int) -> int:
        try:
            owner = np.empty(nbytes + _ALIGNMENT, np.uint8)
        except MemoryError:
            raise OutOfMemoryError(
                f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {nbytes} bytes."
            ) from None
        start = address_of(owner)
        ptr = start + -start % _ALIGNMENT
        self._owners[ptr] = owner
        return ptr

    def mem_free(self, ptr: int) -> None:
        if self._owners.pop(ptr, None) is None:
            raise DriverError(f"mem_free: {ptr:#x} was not allocated by this driver, or freed already")

    def host_alloc(self, nbytes: int) -> HostMemory:
        raise NotSupportedError("the host driver pins no memory: pinning needs a CUDA device")

    def host_free(self, memory: HostMemory) -> None:
        raise NotSupportedError("the host driver pins no memory: pinning needs a CUDA device")

    def host_touch(self, ptr: int, nbytes: int, write: bool) -> None:
        pass

    def block_alloc(self, ptr: int, nbytes: int, stream: int) -> None:
        pass

    def block_free(self, ptr: int, nbytes: int, stream: int) -> None:
        pass

    # -- copies and fills -----------------------------------------------------------------------------
    def copy_in(self, target: int, source: HostMemory, stream: int) -> None:
        self.copy(target, source.ptr, source.nbytes, stream)

    def copy_out(self, target: HostMemory, source: int, stream: int) -> None:
        self.copy(target.ptr, source, target.nbytes, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        if nbytes:
            np.copyto(bytes_at(target, nbytes), bytes_at(source, nbytes))

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        if nbytes:
            bytes_at(target, nbytes)[...] = byte

    # -- streams: one kind, always idle ---------------------------------------------------------------
    def stream_default(self, index: int) -> int:
        return -1

    def stream_create(self, index: int, priority: int) -> int:
        return next(self._handles)

    def stream_destroy(self, stream: int) -> None:
        pass

    def stream_native(self, stream: int) -> int:
        return 0

    def stream_query(self, stream: int) -> bool:
        return True

    def stream_sync(self, stream: int) -> None:
        pass

    def stream_wait(self, stream: int, event: int) -> None:
        pass

    # -- events ---------------------------------------------------------------------------------------
    def event_create(
        self, index: int, timing: bool, blocking: bool = False, interprocess: bool = False
    ) -> int:
        if interprocess:
            raise NotSupportedError("the host driver has no interprocess events")
        event = next(self._handles)
        self._events[event] = (timing, None)
        return event

    def event_destroy(self, event: int) -> None:
        self._events.pop(event)

    def event_record(self, event: int, stream: int) -> None:
        self._events[event] = (self._events[event][0], time.perf_counter_ns())

    def event_query(self, event: int, internal: bool = False) -> bool:
        return True

    def event_sync(self, event: int) -> None:
        pass

    def event_elapsed_ns(self, start: int, end: int) -> int:
        times = []
        for event in (start, end):
            timing, recorded = self._events[event]
            if not timing:
                raise DriverError("event_elapsed_ns: an event was created without timing")
            if recorded is None:
                raise DriverError("event_elapsed_ns: an event was never recorded")
            times.append(recorded)
        return times[1] - times[0]

    # -- kernels --------------------------------------------------------------------------------------
    def load(self, launch: Launch, index: int) -> HostExecutable:
        return HostExecutable(launch)

    def unload(self, exe: Executable) -> None:
        pass

    def launch(self, exe: HostExecutable, ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
        outputs = [array_at(ptr, *layout) for ptr, layout in zip(ptrs, exe.outputs, strict=False)]
        addresses = iter(ptrs[len(outputs) :])
        values = iter(scalars)
        inputs = [
            next(values) if layout is None else array_at(next(addresses), *layout) for layout in exe.inputs
        ]
        exe.body(outputs, inputs)

    def host_call(self, call: Callable[[], None], stream: int) -> None:
        call()

    # -- peers ----------------------------------------------------------------------------------------
    def peer_can(self, index: int, peer: int) -> bool:
        return False

    def peer_enable(self, index: int, peer: int) -> None:
        raise NotSupportedError("the host driver has one device and no peers")


def _total_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
