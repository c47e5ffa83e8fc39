"""`Forward`, the base class of observers: a driver that forwards every call to an inner driver.

Every call is written out. A generic forwarder once passed on a call that its subclass had to intercept,
which hid a real race. A house test checks that each call of the protocol is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flambeau.driver.protocol import (
    Collective,
    DeviceProperties,
    Driver,
    Executable,
    HostMemory,
    Launch,
    Launcher,
    RecurrentMemory,
    RecurrentNetwork,
)


class Forward:
    """A driver that forwards every call to `inner`. `flambeau.driver.protocol.Driver` documents the calls."""

    def __init__(self, inner: Driver) -> None:
        self.inner = inner
        self.name = inner.name
        self.observes_blocks = inner.observes_blocks
        self.runs_bodies = inner.runs_bodies

    # -- devices --------------------------------------------------------------------------------------
    def device_count(self) -> int:
        return self.inner.device_count()

    def device_properties(self, index: int) -> DeviceProperties:
        return self.inner.device_properties(index)

    def device_sync(self, index: int) -> None:
        self.inner.device_sync(index)

    def mem_info(self, index: int) -> tuple[int, int]:
        return self.inner.mem_info(index)

    def mem_processes(self, index: int) -> list[tuple[int, int]]:
        return self.inner.mem_processes(index)

    def close(self) -> None:
        self.inner.close()

    # -- memory ---------------------------------------------------------------------------------------
    def mem_alloc(self, index: int, nbytes: int) -> int:
        return self.inner.mem_alloc(index, nbytes)

    def mem_free(self, ptr: int) -> None:
        self.inner.mem_free(ptr)

    def range_page(self, index: int) -> int:
        return self.inner.range_page(index)

    def range_reserve(self, index: int, nbytes: int) -> int:
        return self.inner.range_reserve(index, nbytes)

    def range_map(self, ptr: int, nbytes: int) -> None:
        self.inner.range_map(ptr, nbytes)

    def range_unmap(self, ptr: int, nbytes: int) -> None:
        self.inner.range_unmap(ptr, nbytes)

    def range_release(self, ptr: int) -> None:
        self.inner.range_release(ptr)

    def host_alloc(self, nbytes: int) -> HostMemory:
        return self.inner.host_alloc(nbytes)

    def host_free(self, memory: HostMemory) -> None:
        self.inner.host_free(memory)

    def host_register(self, ptr: int, nbytes: int) -> None:
        self.inner.host_register(ptr, nbytes)

    def host_unregister(self, ptr: int) -> int:
        return self.inner.host_unregister(ptr)

    def host_pinned(self, ptr: int, nbytes: int) -> bool:
        return self.inner.host_pinned(ptr, nbytes)

    def host_touch(self, ptr: int, nbytes: int, write: bool) -> None:
        self.inner.host_touch(ptr, nbytes, write)

    def host_export(self, ptr: int, nbytes: int, what: str, view: object) -> None:
        self.inner.host_export(ptr, nbytes, what, view)

    def block_alloc(self, ptr: int, nbytes: int, stream: int, written: bool = False, pool: int = -1) -> None:
        self.inner.block_alloc(ptr, nbytes, stream, written, pool)

    def block_free(self, ptr: int, nbytes: int, stream: int, after: Sequence[int] = ()) -> None:
        self.inner.block_free(ptr, nbytes, stream, after)

    def block_wait(self, ptr: int, nbytes: int, stream: int, events: Sequence[int]) -> None:
        self.inner.block_wait(ptr, nbytes, stream, events)

    # -- copies and fills -----------------------------------------------------------------------------
    def copy_in(self, target: int, source: HostMemory, stream: int) -> None:
        self.inner.copy_in(target, source, stream)

    def copy_out(self, target: HostMemory, source: int, stream: int) -> None:
        self.inner.copy_out(target, source, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.inner.copy(target, source, nbytes, stream)

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        self.inner.fill(target, byte, nbytes, stream)

    # -- streams --------------------------------------------------------------------------------------
    def stream_default(self, index: int) -> int:
        return self.inner.stream_default(index)

    def stream_create(self, index: int, priority: int) -> int:
        return self.inner.stream_create(index, priority)

    def stream_destroy(self, stream: int) -> None:
        self.inner.stream_destroy(stream)

    def stream_native(self, stream: int) -> int:
        return self.inner.stream_native(stream)

    def stream_adopt(self, index: int, native: int) -> int:
        return self.inner.stream_adopt(index, native)

    def stream_query(self, stream: int) -> bool:
        return self.inner.stream_query(stream)

    def stream_sync(self, stream: int) -> None:
        self.inner.stream_sync(stream)

    def stream_wait(self, stream: int, event: int) -> None:
        self.inner.stream_wait(stream, event)

    # -- events ---------------------------------------------------------------------------------------
    def event_create(
        self, index: int, timing: bool, blocking: bool = False, interprocess: bool = False
    ) -> int:
        return self.inner.event_create(index, timing, blocking, interprocess)

    def event_destroy(self, event: int) -> None:
        self.inner.event_destroy(event)

    def event_record(self, event: int, stream: int) -> None:
        self.inner.event_record(event, stream)

    def event_query(self, event: int, internal: bool = False) -> bool:
        return self.inner.event_query(event, internal)

    def event_sync(self, event: int, internal: bool = False) -> None:
        self.inner.event_sync(event, internal)

    def event_elapsed_ns(self, start: int, end: int) -> int:
        return self.inner.event_elapsed_ns(start, end)

    # -- other processes ------------------------------------------------------------------------------
    def ipc_memory(self, ptr: int) -> bytes:
        return self.inner.ipc_memory(ptr)

    def ipc_open(self, index: int, handle: bytes) -> tuple[int, int]:
        return self.inner.ipc_open(index, handle)

    def ipc_close(self, ptr: int) -> None:
        self.inner.ipc_close(ptr)

    def ipc_event(self, event: int) -> bytes:
        return self.inner.ipc_event(event)

    def ipc_event_open(self, index: int, handle: bytes) -> int:
        return self.inner.ipc_event_open(index, handle)

    # -- kernels --------------------------------------------------------------------------------------
    def load(self, launch: Launch, index: int) -> Executable:
        return self.inner.load(launch, index)

    def generic(self, launch: Launch, index: int) -> None:
        """Return None, because an observer's `load` must see the launch record of each kernel."""

    def unload(self, exe: Executable) -> None:
        self.inner.unload(exe)

    def launch(self, exe: Executable, ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
        self.inner.launch(exe, ptrs, scalars, stream)

    def launcher(self, exe: Executable) -> Launcher:
        return partial(self.launch, exe)  # the inner driver's launcher would bypass this observer

    def library_handle(self, name: str, stream: int) -> int:
        return self.inner.library_handle(name, stream)

    def recurrent_memory(self, index: int, network: RecurrentNetwork) -> RecurrentMemory | None:
        return self.inner.recurrent_memory(index, network)

    def host_call(self, call: Callable[[], None], stream: int) -> None:
        self.inner.host_call(call, stream)

    # -- graphs ---------------------------------------------------------------------------------------
    def capture_begin(self, stream: int, mode: str) -> None:
        self.inner.capture_begin(stream, mode)

    def capture_end(self, stream: int) -> int:
        return self.inner.capture_end(stream)

    def capture_active(self, stream: int) -> bool:
        return self.inner.capture_active(stream)

    def graph_launch(self, graph: int, stream: int, seeds: Sequence[tuple[int, int]] = ()) -> None:
        self.inner.graph_launch(graph, stream, seeds)

    def graph_dump(self, graph: int, path: str) -> None:
        self.inner.graph_dump(graph, path)

    def graph_native(self, graph: int) -> tuple[int, int]:
        return self.inner.graph_native(graph)

    def graph_instantiate(self, graph: int) -> None:
        self.inner.graph_instantiate(graph)

    def graph_destroy(self, graph: int) -> None:
        self.inner.graph_destroy(graph)

    # -- collectives ----------------------------------------------------------------------------------
    def comm_id(self) -> bytes:
        return self.inner.comm_id()

    def comm_create(
        self,
        unique: bytes,
        size: int,
        members: Sequence[tuple[int, int]],
        called: Sequence[int] = (),
        name: str = "",
    ) -> list[int]:
        return self.inner.comm_create(unique, size, members, called, name)

    def comm_destroy(self, comm: int, abort: bool = False) -> None:
        self.inner.comm_destroy(comm, abort)

    def comm_error(self, comm: int) -> str | None:
        return self.inner.comm_error(comm)

    def collective(self, parts: Sequence[tuple[int, Collective, int]]) -> None:
        self.inner.collective(parts)

    # -- peers ----------------------------------------------------------------------------------------
    def peer_can(self, index: int, peer: int) -> bool:
        return self.inner.peer_can(index, peer)

    def peer_enable(self, index: int, peer: int) -> None:
        self.inner.peer_enable(index, peer)
