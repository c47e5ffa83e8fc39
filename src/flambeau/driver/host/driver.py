"""The CPU as a driver: one device that runs each command immediately. It is the smallest example of a driver.

Its device memory is host memory, so `copy_in` and `copy_out` are copies within the host. Every stream and
event is always complete. Its handles are negative, so that none equals a handle of an accelerator.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from flambeau.core.errors import DriverError, InvalidAddressError, NotSupportedError, OutOfMemoryError
from flambeau.core.host import host_memory
from flambeau.core.host.errstate import Quiet
from flambeau.core.host_arrays import address_of, array_at, bytes_at
from flambeau.core.meta import Meta
from flambeau.driver.protocol import (
    Body,
    Collective,
    DeviceProperties,
    Executable,
    HostMemory,
    Launch,
    Launcher,
    NativeBody,
    RecurrentMemory,
    RecurrentNetwork,
    copied_bytes,
    host_body,
    reference_memory,
)

Array = np.ndarray[Any, Any]

_DEFAULT = -1  # the handle of the default stream
_KEPT = 256  # number of address sets for which an executable caches arrays
_ALIGNMENT = 512  # required by `mem_alloc`; PyTorch's CPU tensors are aligned to 64


class HostExecutable(Executable):
    """A loaded launch: its body, and its operands as NumPy arrays for recently used sets of addresses.

    Creating an array costs as much as adding 1,024 floats, and allocators reuse few addresses. The arrays
    own no memory; they are used only while their addresses are allocated.

    Attributes:
        operands: Addresses -> (outputs, inputs) as arrays.
        scalars: Positions of the inputs that are values.
        copies: Bytes of temporary arrays, by estimate.
        targets: Sizes of the outputs; empty if the launch takes so little memory that the host is not queried.
    """

    __slots__ = ("body", "copies", "layouts", "operands", "outputs", "scalars", "targets")

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch, 0)
        self.body: Body = host_body(launch)
        self.layouts = [(m.shape, m.dtype.numpy, m.byte_strides) for m in launch.operands]
        self.operands: dict[tuple[int, ...], tuple[list[Array], list[Array]]] = {}
        self.outputs = len(launch.outputs)
        self.scalars = [i for i, x in enumerate(launch.inputs) if not isinstance(x, Meta)]
        self.copies = copied_bytes(launch)
        self.targets = [m.span for m in launch.outputs]
        if self.copies + sum(self.targets) <= host_memory.UNASKED:
            self.targets = []

    def arrays(self, ptrs: tuple[int, ...]) -> tuple[list[Array], list[Array]]:
        """Return the outputs and inputs at these addresses as arrays, and keep them for the next launch."""
        if len(self.operands) >= _KEPT:
            self.operands.clear()
        made = [array_at(ptr, *layout) for ptr, layout in zip(ptrs, self.layouts, strict=True)]
        found = self.operands[ptrs] = made[: self.outputs], made[self.outputs :]
        return found


class HostDriver:
    """The driver of the CPU. `flambeau.driver.protocol.Driver` documents its calls."""

    name = "host"
    observes_blocks = False
    runs_bodies = True

    def __init__(self) -> None:
        self._owners: dict[int, np.ndarray[Any, Any]] = {}
        self._handles = itertools.count(_DEFAULT - 1, -1)
        self._streams = {_DEFAULT}
        # handle -> (has timing, time of the record or None)
        self._events: dict[int, tuple[bool, int | None]] = {}
        self._closed = False
        self._quiet = Quiet()

    # -- devices --------------------------------------------------------------------------------------
    def device_count(self) -> int:
        self._check_open()
        return 1

    def device_properties(self, index: int) -> DeviceProperties:
        self._check_device(index)
        return DeviceProperties(os.uname().machine, 0, 0, _total_memory(), 1)

    def device_sync(self, index: int) -> None:
        self._check_device(index)

    def mem_info(self, index: int) -> tuple[int, int]:
        self._check_device(index)
        return _available_memory(), _total_memory()

    def mem_processes(self, index: int) -> list[tuple[int, int]]:
        """Raise NotSupportedError: the operating system knows the answer, but this driver does not query it."""
        self._check_device(index)
        raise NotSupportedError("the CPU's memory is not accounted for by process")

    def close(self) -> None:
        self._owners.clear()
        self._closed = True

    # -- memory ---------------------------------------------------------------------------------------
    def mem_alloc(self, index: int, nbytes: int) -> int:
        self._check_device(index)
        if nbytes < 0:
            raise DriverError(f"mem_alloc: the size must not be negative, got {nbytes}")
        try:
            owner = np.empty(nbytes + _ALIGNMENT, np.uint8)
        except (MemoryError, ValueError):  # ValueError: the size exceeds the address space
            raise OutOfMemoryError(str(host_memory.out_of_cpu_memory(nbytes))) from None
        start = address_of(owner)
        ptr = start + -start % _ALIGNMENT
        self._owners[ptr] = owner
        return ptr

    def mem_free(self, ptr: int) -> None:
        if self._owners.pop(ptr, None) is None:
            self._check_open()
            raise InvalidAddressError(
                f"mem_free: {ptr:#x} was not allocated by this driver, or freed already"
            )

    def range_page(self, index: int) -> int:
        self._check_device(index)
        return 0

    def range_reserve(self, index: int, nbytes: int) -> int:
        self._no_ranges()

    def range_map(self, ptr: int, nbytes: int) -> None:
        self._no_ranges()

    def range_unmap(self, ptr: int, nbytes: int) -> None:
        self._no_ranges()

    def range_release(self, ptr: int) -> None:
        self._no_ranges()

    def _no_ranges(self) -> NoReturn:
        self._check_open()
        raise NotSupportedError("the host driver reserves no addresses without memory")

    def host_alloc(self, nbytes: int) -> HostMemory:
        raise NotSupportedError("the host driver pins no memory: pinning needs a CUDA device")

    def host_free(self, memory: HostMemory) -> None:
        raise NotSupportedError("the host driver pins no memory: pinning needs a CUDA device")

    def host_register(self, ptr: int, nbytes: int) -> None:
        raise NotSupportedError("the host driver pins no memory: pinning needs a CUDA device")

    def host_unregister(self, ptr: int) -> int:
        raise NotSupportedError("the host driver pins no memory: pinning needs a CUDA device")

    def host_pinned(self, ptr: int, nbytes: int) -> bool:
        self._check_open()
        return False

    def host_touch(self, ptr: int, nbytes: int, write: bool) -> None:
        pass

    def host_export(self, ptr: int, nbytes: int, what: str, view: object) -> None:
        pass

    def block_alloc(self, ptr: int, nbytes: int, stream: int, written: bool = False, pool: int = -1) -> None:
        pass

    def block_free(self, ptr: int, nbytes: int, stream: int, after: Sequence[int] = ()) -> None:
        pass

    def block_wait(self, ptr: int, nbytes: int, stream: int, events: Sequence[int]) -> None:
        pass

    # -- copies and fills -----------------------------------------------------------------------------
    def copy_in(self, target: int, source: HostMemory, stream: int) -> None:
        self.copy(target, source.ptr, source.nbytes, stream)

    def copy_out(self, target: HostMemory, source: int, stream: int) -> None:
        self.copy(target.ptr, source, target.nbytes, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._check_stream(stream)
        if nbytes > host_memory.UNASKED:
            host_memory.require_pages(0, (target, nbytes))
        if nbytes:
            np.copyto(bytes_at(target, nbytes), bytes_at(source, nbytes))

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        self._check_stream(stream)
        if nbytes > host_memory.UNASKED:
            host_memory.require_pages(0, (target, nbytes))
        if nbytes:
            bytes_at(target, nbytes)[...] = byte & 255

    # -- streams: one kind, always idle ---------------------------------------------------------------
    def stream_default(self, index: int) -> int:
        self._check_device(index)
        return _DEFAULT

    def stream_create(self, index: int, priority: int) -> int:
        self._check_device(index)
        stream = next(self._handles)
        self._streams.add(stream)
        return stream

    def stream_destroy(self, stream: int) -> None:
        self._check_stream(stream)
        if stream == _DEFAULT:
            raise DriverError("stream_destroy: the default stream stays")
        self._streams.remove(stream)

    def stream_native(self, stream: int) -> int:
        self._check_stream(stream)
        return 0 if stream == _DEFAULT else -stream

    def stream_adopt(self, index: int, native: int) -> int:
        self._check_device(index)
        if native in (0, 1):
            return _DEFAULT
        if -native not in self._streams:
            raise NotSupportedError(f"the host driver has no stream {native:#x}, and takes none over")
        return -native

    def stream_query(self, stream: int) -> bool:
        self._check_stream(stream)
        return True

    def stream_sync(self, stream: int) -> None:
        self._check_stream(stream)

    def stream_wait(self, stream: int, event: int) -> None:
        self._check_stream(stream)
        self._event(event)

    # -- events ---------------------------------------------------------------------------------------
    def event_create(
        self, index: int, timing: bool, blocking: bool = False, interprocess: bool = False
    ) -> int:
        self._check_device(index)
        if interprocess:
            raise NotSupportedError("the host driver has no interprocess events")
        event = next(self._handles)
        self._events[event] = (timing, None)
        return event

    def event_destroy(self, event: int) -> None:
        self._event(event)
        del self._events[event]

    def event_record(self, event: int, stream: int) -> None:
        self._check_stream(stream)
        self._events[event] = (self._event(event)[0], time.perf_counter_ns())

    def event_query(self, event: int, internal: bool = False) -> bool:
        self._event(event)
        return True

    def event_sync(self, event: int, internal: bool = False) -> None:
        self._event(event)

    def event_elapsed_ns(self, start: int, end: int) -> int:
        times = []
        for event in (start, end):
            timing, recorded = self._event(event)
            if not timing:
                raise DriverError(f"event_elapsed_ns: event {event} was created without timing")
            if recorded is None:
                raise DriverError(f"event_elapsed_ns: event {event} was never recorded")
            times.append(recorded)
        return times[1] - times[0]

    # -- other processes: they share the CPU's memory by other means ----------------------------------
    def ipc_memory(self, ptr: int) -> bytes:
        self._no_handles()

    def ipc_open(self, index: int, handle: bytes) -> tuple[int, int]:
        self._no_handles()

    def ipc_close(self, ptr: int) -> None:
        self._no_handles()

    def ipc_event(self, event: int) -> bytes:
        self._no_handles()

    def ipc_event_open(self, index: int, handle: bytes) -> int:
        self._no_handles()

    def _no_handles(self) -> NoReturn:
        self._check_open()
        raise NotSupportedError("the host driver has no IPC handles: the CPU's tensors lie in shared memory")

    # -- kernels --------------------------------------------------------------------------------------
    def load(self, launch: Launch, index: int) -> HostExecutable:
        self._check_device(index)
        host_memory.require_space(f"cpu: '{launch.kernel.name}'")
        return HostExecutable(launch)

    def generic(self, launch: Launch, index: int) -> None:
        """Return None, because a reference implementation is created for one shape."""

    def unload(self, exe: Executable) -> None:
        self._check_open()

    def launch(self, exe: HostExecutable, ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
        self.launcher(exe)(ptrs, scalars, stream)

    def launcher(self, exe: HostExecutable) -> Launcher:
        body, operands, places, quiet = exe.body, exe.operands, exe.scalars, self._quiet
        tensors, targets = len(exe.launch.inputs) - len(places), exe.targets
        come_last = bool(places) and places[0] == tensors
        if isinstance(body, NativeBody):
            return self._native_launcher(exe, body)

        def launch(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
            if self._closed:
                self._check_open()
            ptrs = tuple(ptrs)
            outputs, inputs = operands.get(ptrs) or exe.arrays(ptrs)
            if come_last:
                inputs = [*inputs, *scalars]
            elif places:
                inputs = inputs.copy()
                for place, value in zip(places, scalars, strict=True):
                    inputs.insert(place, value)
            if targets:
                host_memory.require_pages(exe.copies, *zip(ptrs, targets, strict=False))
            context = quiet.take()
            try:
                context.run(body, outputs, inputs)
            except MemoryError as error:
                raise host_memory.out_of_cpu_memory(_size_of_request(error, exe.launch)) from error
            finally:
                quiet.idle.append(context)

        return launch

    def _native_launcher(self, exe: HostExecutable, body: NativeBody) -> Launcher:
        run_at, targets = body.run_at, exe.targets

        def launch(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
            if self._closed:
                self._check_open()
            if targets:
                host_memory.require_pages(0, *zip(ptrs, targets, strict=False))
            run_at(ptrs, scalars)

        return launch

    def library_handle(self, name: str, stream: int) -> int:
        self._check_stream(stream)
        raise NotSupportedError(f"the host driver has no handle of {name}")

    def recurrent_memory(self, index: int, network: RecurrentNetwork) -> RecurrentMemory | None:
        self.device_properties(index)
        return reference_memory(network)

    def host_call(self, call: Callable[[], None], stream: int) -> None:
        self._check_stream(stream)
        call()

    # -- graphs: there are none -----------------------------------------------------------------------
    def capture_begin(self, stream: int, mode: str) -> None:
        self._check_stream(stream)
        raise NotSupportedError("the host driver has no graphs: CUDA graphs need a CUDA device")

    def capture_end(self, stream: int) -> int:
        self._check_stream(stream)
        raise DriverError(f"capture_end: stream {stream} is not being captured")

    def capture_active(self, stream: int) -> bool:
        self._check_stream(stream)
        return False

    def graph_launch(self, graph: int, stream: int, seeds: Sequence[tuple[int, int]] = ()) -> None:
        self._no_graph(graph)

    def graph_dump(self, graph: int, path: str) -> None:
        self._no_graph(graph)

    def graph_native(self, graph: int) -> tuple[int, int]:
        self._no_graph(graph)

    def graph_instantiate(self, graph: int) -> None:
        self._no_graph(graph)

    def graph_destroy(self, graph: int) -> None:
        self._no_graph(graph)

    def _no_graph(self, graph: int) -> NoReturn:
        self._check_open()
        raise DriverError(f"{graph} is not a graph of the host driver, which has none")

    # -- collectives ----------------------------------------------------------------------------------
    def comm_id(self) -> bytes:
        self._no_collectives()

    def comm_create(
        self,
        unique: bytes,
        size: int,
        members: Sequence[tuple[int, int]],
        called: Sequence[int] = (),
        name: str = "",
    ) -> list[int]:
        self._no_collectives()

    def comm_destroy(self, comm: int, abort: bool = False) -> None:
        self._no_collectives()

    def comm_error(self, comm: int) -> str | None:
        self._no_collectives()

    def collective(self, parts: Sequence[tuple[int, Collective, int]]) -> None:
        self._no_collectives()

    def _no_collectives(self) -> NoReturn:
        self._check_open()
        raise NotSupportedError("the host driver has no collectives: CPU tensors go through MPI")

    # -- peers ----------------------------------------------------------------------------------------
    def peer_can(self, index: int, peer: int) -> bool:
        self._check_device(index)
        self._check_device(peer)
        return False

    def peer_enable(self, index: int, peer: int) -> None:
        raise NotSupportedError("the host driver has one device and no peers")

    # -- checks ---------------------------------------------------------------------------------------
    def _check_open(self) -> None:
        if self._closed:
            raise DriverError("the host driver has been closed")

    def _check_device(self, index: int) -> None:
        self._check_open()
        if index != 0:
            raise DriverError(f"the host driver has one device, 0; there is no device {index}")

    def _check_stream(self, stream: int) -> None:
        self._check_open()
        if stream not in self._streams:
            raise DriverError(f"{stream} is not a stream of the host driver, or was destroyed")

    def _event(self, event: int) -> tuple[bool, int | None]:
        self._check_open()
        found = self._events.get(event)
        if found is None:
            raise DriverError(f"{event} is not an event of the host driver, or was destroyed")
        return found


def _size_of_request(error: MemoryError, launch: Launch) -> int:
    """Return the bytes of the request that failed, at least; NumPy states the shape of the array."""
    shape, dtype = getattr(error, "shape", None), getattr(error, "dtype", None)
    if shape is None or dtype is None:
        return launch.nbytes
    return int(math.prod(shape) * dtype.itemsize)


def _total_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _available_memory() -> int:
    """Return the free memory of the system, or all memory if the system does not report it (macOS)."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return _total_memory()
