"""The race detector's observers: `RaceDriver` for the driver of an accelerator, `HostRaceDriver` for the driver of the
CPU.

Both feed one `Detector`. Each call first reports its effects to the detector and is then forwarded. Host
waits are forwarded first, because only their return establishes an order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from threading import get_ident
from typing import Any, TypeVar, cast

from flambeau.core.callsite import caller, is_within
from flambeau.core.errors import DriverError
from flambeau.driver.protocol import Collective, Driver, Executable, HostMemory, Launch, Launcher
from flambeau.observe import handovers
from flambeau.observe.accesses import Key, Operation
from flambeau.observe.capture_log import Tape
from flambeau.observe.clocks import Reached
from flambeau.observe.collective_order import Meetings
from flambeau.observe.command_checks import CommandChecks
from flambeau.observe.detector import Detector
from flambeau.observe.driver_proxy import Forward
from flambeau.observe.indexed.partial import NO_DATA, NOT_READ
from flambeau.observe.ipc_events import Others
from flambeau.observe.layout_overlap import extent_of
from flambeau.observe.race_builder import READ as _READ
from flambeau.observe.race_builder import WRITE as _WRITE
from flambeau.observe.reporting.fixes import Select
from flambeau.observe.reporting.operator_names import ACCESS

_COPY: Operation = ("copy", (), 0)
_Call = TypeVar("_Call", bound=Callable[..., Any])


def _may_raise(call: _Call) -> _Call:
    """Wrap a call that may raise the error of earlier work. Timing decides which call raises it."""

    @wraps(call)
    def wrapper(self: RaceDriver, *args: Any, **options: Any) -> Any:
        try:
            return call(self, *args, **options)
        except DriverError as error:
            self._on_failure(error)
            raise

    return cast(_Call, wrapper)


def attach_detector(
    accelerator: Driver,
    host: Driver,
    races: str = "warn",
    visible: Sequence[int] | None = None,
    strict: bool = False,
    select: Select | None = None,
) -> tuple[RaceDriver, HostRaceDriver]:
    """Wrap the two drivers of a machine in one race detector, which both have as `.detector`.

    The runtime must call `block_alloc`, `block_wait` and `block_free` for device memory and for cached
    pinned memory (stream 0).

    Args:
        accelerator: The driver of the devices.
        host: The driver of the CPU.
        races: "warn" (collect) or "error" (RaceError at the second access).
        visible: The driver's indices of cuda:0, cuda:1 and so on, which reports use; all devices by
            default.
        strict: True if unseen host accesses to pinned memory withhold the certificate.
        select: Returns the expressions of current streams, for fixes.
    """
    detector = Detector(races, strict)
    detector.select = select
    detector.pinned.simulated = accelerator.name == "virtual"
    if not accelerator.runs_bodies:
        detector.deferred.unseen = NO_DATA if accelerator.name == "virtual" else NOT_READ
    return RaceDriver(accelerator, detector, visible), HostRaceDriver(host, detector)


class RaceDriver(Forward):
    """An observer of an accelerator's driver that checks its commands for races."""

    def __init__(self, inner: Driver, detector: Detector, visible: Sequence[int] | None = None) -> None:
        super().__init__(inner)
        self.observes_blocks = True
        devices = range(inner.device_count()) if visible is None else visible
        # device index of the driver -> device index of the program
        self._shown = {index: shown for shown, index in enumerate(devices)}
        self.detector = detector
        self._lock = detector.lock
        self._sizes: dict[int, int] = {}
        # bound directly, because every allocation of a result calls it
        if not inner.observes_blocks:
            self.block_alloc = detector.begin_life  # type: ignore[method-assign]
            self.block_free = detector.end_life  # type: ignore[method-assign]
        self._tapes: dict[int, Tape] = {}  # captured stream -> the log of its capture
        self._captured: dict[int, Tape] = {}  # event that was recorded in a capture -> the capture's log
        self._graphs: dict[int, Tape] = {}
        self._commands = CommandChecks(inner, detector, self._tapes, self._shown, self._on_failure)
        self._meetings = Meetings(detector)
        self._others = Others()
        for index, shown in self._shown.items():
            detector.add_stream(shown, inner.stream_default(index), None, default=True)
        handovers.listen(detector)

    # -- devices --------------------------------------------------------------------------------------
    @_may_raise
    def device_sync(self, index: int) -> None:
        with self._lock:
            self._enter()
            points = self.detector.points_of(self._shown[index])
        self.inner.device_sync(index)
        self._host_waited(points)

    def close(self) -> None:
        self.detector.before_certificate(self.detector)
        handovers.forget(self.detector)
        self.inner.close()
        self._commands.unload_all()
        self.detector.settle()
        self.detector.findings.warn()

    # -- memory ---------------------------------------------------------------------------------------
    def mem_alloc(self, index: int, nbytes: int) -> int:
        ptr = self.inner.mem_alloc(index, nbytes)
        with self._lock:
            self._sizes[ptr] = nbytes
            self.detector.own(ptr, nbytes, None, caller())
        return ptr

    def mem_free(self, ptr: int) -> None:
        self.inner.mem_free(ptr)
        self._forget(ptr, self._sizes.pop(ptr))

    def range_map(self, ptr: int, nbytes: int) -> None:
        self.inner.range_map(ptr, nbytes)
        with self._lock:
            self.detector.own(ptr, nbytes, None, caller())

    def range_unmap(self, ptr: int, nbytes: int) -> None:
        self.inner.range_unmap(ptr, nbytes)
        self._forget(ptr, nbytes)

    def host_alloc(self, nbytes: int) -> HostMemory:
        memory = self.inner.host_alloc(nbytes)
        self._pin(memory.ptr, nbytes)
        return memory

    def host_register(self, ptr: int, nbytes: int) -> None:
        self.inner.host_register(ptr, nbytes)
        self._pin(ptr, nbytes)

    def host_unregister(self, ptr: int) -> int:
        nbytes = self.inner.host_unregister(ptr)
        self._forget(ptr, nbytes)
        return nbytes

    def _pin(self, ptr: int, nbytes: int) -> None:
        with self._lock:
            self.detector.own(ptr, nbytes, None, caller(), host=True)
            self.detector.pinned.on_pin(ptr, nbytes)

    def host_free(self, memory: HostMemory) -> None:
        self.inner.host_free(memory)
        self._forget(memory.ptr, memory.nbytes)

    def host_touch(self, ptr: int, nbytes: int, write: bool) -> None:
        if self.detector.host.cells:
            with self._lock:
                self._enter()
                what = "a write by the host" if write else "a read by the host"
                self.detector.host.check(ptr, nbytes, _WRITE if write else _READ, (what, (), 0))
        if write:
            self.detector.host.on_write([(ptr, nbytes)])
        self.inner.host_touch(ptr, nbytes, write)

    def host_export(self, ptr: int, nbytes: int, what: str, view: object) -> None:
        self.detector.host.on_export(ptr, nbytes, what, view)
        self.inner.host_export(ptr, nbytes, what, view)

    def block_alloc(self, ptr: int, nbytes: int, stream: int, written: bool = False, pool: int = -1) -> None:
        self.detector.begin_life(ptr, nbytes, stream, written, pool)
        self.inner.block_alloc(ptr, nbytes, stream, written, pool)

    def block_free(self, ptr: int, nbytes: int, stream: int, after: Sequence[int] = ()) -> None:
        self.detector.end_life(ptr, nbytes, stream, after)
        self.inner.block_free(ptr, nbytes, stream, after)

    def block_wait(self, ptr: int, nbytes: int, stream: int, events: Sequence[int]) -> None:
        with self._lock:
            self.detector.outlive(ptr, events)
        self.inner.block_wait(ptr, nbytes, stream, events)

    # -- copies and fills -----------------------------------------------------------------------------
    @_may_raise
    def copy_in(self, target: int, source: HostMemory, stream: int) -> None:
        with self._lock:
            key = (source.ptr, source.nbytes)
            if source.pinned:
                self._commands.check(stream, "copy_in", [(target, source.nbytes), key], 1, source, _READ)
            # the driver reads the host's bytes before the call returns
            else:
                self._enter()
                self.detector.host.check(*key, _READ, ("copy_in", (), 0))
                self._commands.check(stream, "copy_in", [(target, source.nbytes)], 1)
            self.inner.copy_in(target, source, stream)

    @_may_raise
    def copy_out(self, target: HostMemory, source: int, stream: int) -> None:
        key = (target.ptr, target.nbytes)
        with self._lock:
            if target.pinned:
                self._commands.check(stream, "copy_out", [key, (source, target.nbytes)], 1, target, _WRITE)
                self.inner.copy_out(target, source, stream)
                return
            self._enter()
            self.detector.host.check(*key, _WRITE, ("copy_out", (), 0))
            self._commands.check(stream, "copy_out", [(source, target.nbytes)], 0)
            point = self.detector.point_of(stream)
        # the copy is complete when the call returns; the lock is not held because the call may wait
        self.inner.copy_out(target, source, stream)
        self._host_waited([point])

    @_may_raise
    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        with self._lock:
            self._commands.check(stream, "copy", [(target, nbytes), (source, nbytes)], 1)
            self.inner.copy(target, source, nbytes, stream)

    @_may_raise
    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        with self._lock:
            self._commands.check(stream, "fill", [(target, nbytes)], 1)
            self.inner.fill(target, byte, nbytes, stream)

    # -- streams --------------------------------------------------------------------------------------
    def stream_create(self, index: int, priority: int) -> int:
        handle = self.inner.stream_create(index, priority)
        with self._lock:
            self.detector.add_stream(self._shown[index], handle, caller())
        return handle

    def stream_destroy(self, stream: int) -> None:
        self.inner.stream_destroy(stream)
        self.detector.remove_stream(stream)

    def stream_adopt(self, index: int, native: int) -> int:
        handle = self.inner.stream_adopt(index, native)
        with self._lock:
            if handle not in self.detector.agents:
                self.detector.add_stream(self._shown[index], handle, caller())
        return handle

    @_may_raise
    def stream_query(self, stream: int) -> bool:
        self.detector.findings.note_query("Stream.query()")
        point = self._end_of(stream)
        done = self.inner.stream_query(stream)
        if done:
            self._host_waited([point])
        return done

    @_may_raise
    def stream_sync(self, stream: int) -> None:
        point = self._end_of(stream)
        self.inner.stream_sync(stream)
        self._host_waited([point])

    def stream_wait(self, stream: int, event: int) -> None:
        with self._lock:
            self._enter()
            tape = self._captured.get(event)
            if tape is None and stream not in self._tapes:
                self.detector.wait(stream, event, caller())
                for point, _, _ in self._others.points(event):
                    self.detector.after(stream, point)
            self.inner.stream_wait(stream, event)
            if tape is not None:
                tape.join(stream, self.detector.agents[stream])
                tape.wait(stream, event, caller())
                self._tapes[stream] = tape

    # -- events ---------------------------------------------------------------------------------------
    def event_destroy(self, event: int) -> None:
        self.inner.event_destroy(event)
        self._captured.pop(event, None)
        self._others.forget(event)
        self.detector.forget_event(event)

    def event_record(self, event: int, stream: int) -> None:
        with self._lock:
            self._enter()
            self.inner.event_record(event, stream)
            tape = self._tapes.get(stream)
            if tape is None:
                self._captured.pop(event, None)
                self.detector.record(event, stream)
                self._others.on_record(event, self.detector.event_point(event))
            else:
                self._captured[event] = tape
                tape.record(event, stream)

    @_may_raise
    def event_query(self, event: int, internal: bool = False) -> bool:
        if not internal:
            self.detector.findings.note_query("Event.query()")
        point = self._marked_by(event, internal)
        done = self.inner.event_query(event, internal)
        if internal:
            self.detector.runtime_polled(point, done)
        elif done:
            self._host_waited([point, *self._others.points(event)])
        return done

    @_may_raise
    def event_sync(self, event: int, internal: bool = False) -> None:
        point = self._marked_by(event, internal)
        if internal:
            self.inner.event_sync(event, internal)
            self.detector.runtime_polled(point, True)
            return
        self.inner.event_sync(event)
        self._host_waited([point, *self._others.points(event)])

    def event_elapsed_ns(self, start: int, end: int) -> int:
        with self._lock:
            self._enter()
            if self.detector.is_over(start) and self.detector.is_over(end):
                self.detector.findings.read_time()
            # The call raises if the events are not complete.
            else:
                self.detector.findings.note_query("Event.elapsed_time() before a wait for the events")
        return self.inner.event_elapsed_ns(start, end)

    # -- other processes: see Note [Other processes] in ipc_events.py ---------------------------------------
    def ipc_memory(self, ptr: int) -> bytes:
        self.detector.findings.shared_memory(caller())
        return self.inner.ipc_memory(ptr)

    def ipc_open(self, index: int, handle: bytes) -> tuple[int, int]:
        self.detector.findings.shared_memory(caller())
        ptr, nbytes = self.inner.ipc_open(index, handle)
        with self._lock:
            self._sizes[ptr] = nbytes
            self.detector.own(ptr, nbytes, None, caller())
        return ptr, nbytes

    def ipc_close(self, ptr: int) -> None:
        self.inner.ipc_close(ptr)
        self._forget(ptr, self._sizes.pop(ptr))

    def ipc_event(self, event: int) -> bytes:
        handle = self.inner.ipc_event(event)
        with self._lock:
            self._others.share(event, self.detector.event_point(event))
        return handle

    def ipc_event_open(self, index: int, handle: bytes) -> int:
        event = self.inner.ipc_event_open(index, handle)
        self._others.share(event, None)
        return event

    # -- kernels --------------------------------------------------------------------------------------
    def load(self, launch: Launch, index: int) -> Executable:
        exe = self.inner.load(launch, index)
        self._commands.load(exe)
        return exe

    def unload(self, exe: Executable) -> None:
        self.inner.unload(exe)
        self._commands.unload(exe)

    def launch(self, exe: Executable, ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
        self._commands.launcher(exe, depth=3)(ptrs, scalars, stream)

    def launcher(self, exe: Executable) -> Launcher:
        """Return a launch function for callers in this package, where the program's frame is further out."""
        return self._commands.launcher(exe, depth=4)

    @_may_raise
    def host_call(self, call: Callable[[], None], stream: int) -> None:
        with self._lock:
            self._commands.check(stream, "host function", [], 0)
            self.inner.host_call(self.detector.pinned.guard_call(call), stream)

    # -- graphs ---------------------------------------------------------------------------------------
    def capture_begin(self, stream: int, mode: str) -> None:
        with self._lock:
            self.inner.capture_begin(stream, mode)
            self._tapes[stream] = Tape(stream)
            self.detector.graphs.begin_capture()

    def capture_end(self, stream: int) -> int:
        with self._lock:
            tape = self._tapes.get(stream)
            try:
                graph = self.inner.capture_end(stream)
            finally:
                if tape is not None and tape.origin == stream:
                    self.detector.graphs.end_capture()
                    for joined in [s for s, t in self._tapes.items() if t is tape]:
                        del self._tapes[joined]
            assert tape is not None
            self._graphs[graph] = tape
            return graph

    @_may_raise
    def graph_launch(self, graph: int, stream: int, seeds: Sequence[tuple[int, int]] = ()) -> None:
        with self._lock:
            self._enter()
            tape = self._tapes.get(stream)
            if tape is not None:
                self.inner.graph_launch(graph, stream, seeds)
                tape.nest(self._graphs[graph], stream)
                return
            if graph in self._graphs:
                self._graphs[graph].play(self.detector, stream, caller())
            self.inner.graph_launch(graph, stream, seeds)

    def graph_destroy(self, graph: int) -> None:
        with self._lock:
            self.inner.graph_destroy(graph)
            self._graphs.pop(graph).forget(self.detector)

    # -- collectives ----------------------------------------------------------------------------------
    def comm_create(
        self,
        unique: bytes,
        size: int,
        members: Sequence[tuple[int, int]],
        called: Sequence[int] = (),
        name: str = "",
    ) -> list[int]:
        # the lock is not held, because the call waits for others
        comms = self.inner.comm_create(unique, size, members, called, name)
        with self._lock:
            ranks = [rank for rank, _ in members]
            self._meetings.join(unique, size, list(zip(comms, ranks, strict=True)))
        return comms

    def comm_destroy(self, comm: int, abort: bool = False) -> None:
        self.inner.comm_destroy(comm, abort)
        with self._lock:
            self._meetings.leave(comm)

    @_may_raise
    def collective(self, parts: Sequence[tuple[int, Collective, int]]) -> None:
        with self._lock:
            self._enter()
            points = {stream: self.detector.before(stream) for _, _, stream in parts}
            for stream in points:
                mine = [(comm, call) for comm, call, s in parts if s == stream]
                writes, reads = self._meetings.operands(mine)
                name = " and ".join(dict.fromkeys([call.kind for _, call in mine]))
                self._commands.check(stream, name, writes + reads, len(writes))
            self.inner.collective(parts)
            for comm, call, stream in parts:
                self._meetings.meet(comm, call, stream, points[stream])

    # -- the rest ------------------------------------------------------------------------------------
    def _end_of(self, stream: int) -> Reached:
        with self._lock:
            self._enter()
            return self.detector.point_of(stream)

    def _marked_by(self, event: int, own: bool) -> Reached | None:
        with self._lock:
            self._enter()
            return self.detector.event_point(event, own)

    def _host_waited(self, points: Sequence[Any]) -> None:
        with self._lock:
            self._enter()
            self.detector.host_waited(points)

    def _forget(self, ptr: int, nbytes: int) -> None:
        """Drop memory whose uses the driver has waited for. This adds no order; see Note [What orders reuse]."""
        with self._lock:
            self.detector.forget(ptr, nbytes)

    def _on_failure(self, error: DriverError) -> None:
        """Record that the program received an error of earlier work."""
        if error.late and not is_within("cli"):  # otherwise the program has ended
            self.detector.findings.on_failure(caller())

    def _enter(self) -> None:
        """Make the calling thread the one that the detector attributes the next driver calls to."""
        if get_ident() != self.detector.running:
            with self._lock:
                self.detector.enter()


class HostRaceDriver(Forward):
    """An observer of the CPU's driver. While commands use host memory, it checks each call as an access of the host."""

    def __init__(self, inner: Driver, detector: Detector) -> None:
        super().__init__(inner)
        self.detector = detector

    def host_touch(self, ptr: int, nbytes: int, write: bool) -> None:
        self._act()
        if self.detector.host.cells:
            self._record_host_access(
                [(ptr, nbytes)] if write else [], [] if write else [(ptr, nbytes)], (ACCESS, (), 0)
            )
        if write:
            self.detector.host.on_write([(ptr, nbytes)])
        self.inner.host_touch(ptr, nbytes, write)

    def host_export(self, ptr: int, nbytes: int, what: str, view: object) -> None:
        self._act()
        self.detector.host.on_export(ptr, nbytes, what, view)
        self.inner.host_export(ptr, nbytes, what, view)

    def copy_in(self, target: int, source: HostMemory, stream: int) -> None:
        self._act()
        if self.detector.host.cells:
            self._record_host_access([(target, source.nbytes)], [(source.ptr, source.nbytes)], _COPY)
        self.detector.host.on_write([(target, source.nbytes)])
        self.inner.copy_in(target, source, stream)

    def copy_out(self, target: HostMemory, source: int, stream: int) -> None:
        self._act()
        if self.detector.host.cells:
            self._record_host_access([(target.ptr, target.nbytes)], [(source, target.nbytes)], _COPY)
        self.detector.host.on_write([(target.ptr, target.nbytes)])
        self.inner.copy_out(target, source, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._act()
        if self.detector.host.cells:
            self._record_host_access([(target, nbytes)], [(source, nbytes)], _COPY)
        self.detector.host.on_write([(target, nbytes)])
        self.inner.copy(target, source, nbytes, stream)

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        self._act()
        if self.detector.host.cells:
            self._record_host_access([(target, nbytes)], [], ("fill", (), 0))
        self.detector.host.on_write([(target, nbytes)])
        self.inner.fill(target, byte, nbytes, stream)

    def launch(self, exe: Executable, ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
        self._act()
        launch = exe.launch
        metas, outputs = launch.operands, len(launch.outputs)
        if self.detector.host.cells:
            keys = [(ptr, extent_of(meta)) for ptr, meta in zip(ptrs, metas, strict=True)]
            reads = keys if launch.updates else keys[outputs:]
            self._record_host_access(keys[:outputs], reads, (launch.kernel.name, metas, outputs))
        for ptr, meta in zip(ptrs[:outputs], metas, strict=False):
            if self.detector.pinned.contains(ptr):
                self.detector.host.on_write([(ptr, extent_of(meta))])
        if launch.kernel.draws and self.detector.several:
            with self.detector.lock:
                if get_ident() != self.detector.running:
                    self.detector.enter()
                self.detector.drew(-1)
        self.inner.launch(exe, ptrs, scalars, stream)

    def _act(self) -> None:
        """Note that the calling thread uses CPU tensors."""
        if get_ident() != self.detector.running:
            self.detector.threads.act()

    def _record_host_access(self, writes: list[Key], reads: list[Key], what: Operation) -> None:
        with self.detector.lock:
            if get_ident() != self.detector.running:
                self.detector.enter()
            for ptr, extent in reads:
                self.detector.host.check(ptr, extent, _READ, what)
            for ptr, extent in writes:
                self.detector.host.check(ptr, extent, _WRITE, what)
