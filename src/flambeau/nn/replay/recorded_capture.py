"""The capture of one call into a CUDA graph, with a record of its launches.

# Note [Leaving a capture]
Problem: A function may do what a graph cannot contain, in the middle of its code: read a value on the host, compute on
the CPU, use another stream. Its Python code cannot run a second time, because it may have side effects.
Rule: While a call is captured, the contexts' drivers are `RecordingDriver`s. Before a call that a graph cannot contain
they end the capture and launch what it contains. The rest of the function runs eagerly on the captured stream.
Consequences: The call has the results and side effects of eager code whatever it does. Driver calls that the protocol
gains leave the capture until they are named here.

# Note [Leaves of a capture]
Problem: A result of an earlier call, such as a loss that the program keeps, holds the nodes of leaves on the current
stream. A capture runs on another stream, so backward would record an event to add gradients there.
Rule: The capture's stream stands for the current one: leaves of that stream belong to the capture's while it lasts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from flambeau.core.callsite import Site, caller, place
from flambeau.core.flags import flags
from flambeau.driver.protocol import Executable, Launcher
from flambeau.nn.replay.static_arguments import StaticArguments
from flambeau.runtime import current, system
from flambeau.runtime.device_context import Context
from flambeau.runtime.graphs.cuda_graph import CUDAGraph
from flambeau.runtime.hooks import capture_breaks, launch_deferral
from flambeau.runtime.streams.stream import Stream
from flambeau.tensor.autograd.autograd_meta import leaf_of
from flambeau.tensor.tensor import Tensor

# Driver calls that a capture allows and does not record.
_ALLOWED = frozenset(
    {
        "name", "observes_blocks", "runs_bodies", "device_count", "device_properties", "mem_alloc", "mem_free",
        "mem_info", "range_page", "range_reserve", "range_map", "range_unmap", "range_release", "host_pinned",
        "block_alloc", "block_free", "block_wait", "stream_default", "stream_create", "stream_destroy", "event_create",
        "event_destroy", "load", "unload", "peer_can", "capture_active", "graph_destroy",
    }
)  # fmt: skip
_REASONS = {
    "copy_in": "host memory is copied to the device",
    "copy_out": "the host reads a result",
    "host_touch": "a CPU tensor is read or written",
    "host_export": "a CPU tensor's memory is exported",
    "stream_sync": "the host waits for a stream",
    "stream_query": "the host asks whether a stream is done",
    "device_sync": "the host waits for the device",
    "event_sync": "the host waits for an event",
    "event_query": "the host asks whether an event is done",
    "event_record": "an event is recorded",
    "stream_wait": "a stream waits for another one",
    "stream_native": "the program asks for a native stream",
    "library_handle": "the program asks for a library's handle",
    "collective": "ranks communicate",
    "graph_launch": "a graph is launched",
    "capture_begin": "the program begins a capture",
}


class RecordedLaunch(NamedTuple):
    """One command of a capture.

    Attributes:
        name: The kernel, or "copy" or "fill".
        what: What must be equal when the function runs again: layouts of the operands, parameters, numbers.
        operands: For each operand its address and the bytes from there that the command may access.
        site: The line of the program.
    """

    name: str
    what: tuple[Any, ...]
    operands: tuple[tuple[int, int], ...]
    site: Site

    def describe(self) -> str:
        """Return "add at train.py:14"."""
        return f"{self.name} at {place(self.site)}"


class CaptureBreak(NamedTuple):
    """Why a call was not captured, and where.

    Attributes:
        is_final: True if later calls are not captured either.
    """

    why: str
    site: Site | None
    is_final: bool = False

    def __str__(self) -> str:
        return self.why if self.site is None else f"{place(self.site)}: {self.why}"


class RecordedCapture:
    """The capture of one call of a function on a separate stream.

    Args:
        context: The device.
        arguments: The function's arguments.
        tensors: The other tensors that guards compare. See Note [Leaves of a capture].

    Attributes:
        graph: The graph; it contains the call once `run` has returned without a refusal.
        launches: The commands, in their order.
        refusal: Why the capture was left; None if it contains the whole call.
    """

    def __init__(
        self, context: Context, arguments: StaticArguments, tensors: Collection[Tensor] = ()
    ) -> None:
        self.context, self._arguments, self._tensors = context, arguments, tensors
        self.graph = CUDAGraph()
        self.launches: list[RecordedLaunch] = []
        self.refusal: CaptureBreak | None = None
        self._stream = Stream(context.device)
        self._is_open = False

    @contextmanager
    def run(self) -> Iterator[None]:
        """Capture what this thread enqueues in a block. After it, the current stream is as before.

        If the capture was left, the current stream has been ordered behind what it contained and behind later work.
        """
        outer, index = current.local.streams[self.context.index], self.context.index
        self._stream.wait_stream(outer)
        current.local.streams[index] = self._stream
        leaves = [leaf for t in self._tensors if (leaf := leaf_of(t)) is not None and leaf.stream == outer]
        for leaf in leaves:
            leaf.stream = self._stream
        drivers = _record_drivers()
        flags.recorded = True
        try:
            self.graph.capture_begin(capture_error_mode="thread_local")
            self._is_open = True
            capture_breaks.local.capture = self
            self._arguments.swap()
            yield
        except BaseException as error:
            self.leave(f"the function raises {type(error).__name__}", is_final=False)
            raise
        finally:
            capture_breaks.local.capture = None
            if self._is_open:
                self._end()
            self._arguments.restore()
            flags.recorded = False
            for context, inner in drivers:
                context.driver = inner
            current.local.streams[index] = outer
            self._tensors = ()
            for leaf in leaves:
                if leaf.stream is self._stream:
                    leaf.stream = outer
            if self.refusal is not None:
                outer.wait_stream(self._stream)
                self._stream.synchronize()  # the graph and its memory are freed with this object

    def leave(self, why: str, is_final: bool = True) -> None:
        """End the capture and launch what it contains. See Note [Leaving a capture]."""
        if not self._is_open:
            return
        self.refusal = CaptureBreak(why, caller(), is_final)
        launch_deferral.settle("a capture is left")
        self._end()
        streams = current.local.streams
        selected, streams[self.context.index] = streams[self.context.index], self._stream
        try:
            self.graph.replay()
            self._arguments.restore()
            self._arguments.note_writes(())
            self._arguments.copy_back()
        finally:
            streams[self.context.index] = selected

    def _end(self) -> None:
        self._is_open = False
        streams = current.local.streams
        selected, streams[self.context.index] = streams[self.context.index], self._stream
        try:
            self.graph.capture_end()
        finally:
            streams[self.context.index] = selected

    # -- what drivers report --------------------------------------------------------------------------
    def on_launch(self, exe: Executable, ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
        """Record a kernel, or leave the capture because of it."""
        if self._must_leave(stream):
            return
        launch = exe.launch
        operands = launch.operands
        spans = tuple([(ptr, meta.span) for ptr, meta in zip(ptrs, operands, strict=True)])
        if self._meets_argument(spans):
            return
        what = (operands, launch.params, repr(tuple(scalars)))
        self.launches.append(RecordedLaunch(launch.kernel.name, what, spans, caller()))

    def on_command(self, name: str, nbytes: int, ptrs: Sequence[int], number: int, stream: int) -> None:
        """Record a copy within the device or a fill, or leave the capture because of it."""
        operands = tuple([(ptr, nbytes) for ptr in ptrs])
        if not self._must_leave(stream) and not self._meets_argument(operands):
            self.launches.append(RecordedLaunch(name, (nbytes, number), operands, caller()))

    def _meets_argument(self, operands: Sequence[tuple[int, int]]) -> bool:
        """Leave the capture and return True if a command accesses an argument through another tensor."""
        if any(self._arguments.is_hidden(ptr, nbytes) for ptr, nbytes in operands):
            self.leave("another tensor shares memory with an argument")
            return True
        return False

    def _must_leave(self, stream: int) -> bool:
        if not self._is_open:
            return True
        if stream == self._stream.handle:
            return False
        self.leave("work is enqueued on another stream")
        return True


class RecordingDriver:
    """A driver that reports the commands of the capturing thread, and leaves the capture before any other call."""

    def __init__(self, inner: Any, is_host: bool) -> None:
        self.inner, self._is_host = inner, is_host

    def __getattr__(self, name: str) -> Any:
        if name not in _ALLOWED:
            capture_breaks.leave(_REASONS.get(name, f"the driver call {name} is made"))
        return getattr(self.inner, name)

    def generic(self, launch: Any, index: int) -> None:
        """Return None: a function that launches for all shapes would not report its launches to the capture."""

    def launcher(self, exe: Executable) -> Launcher:
        """Return a launcher that reports each launch."""
        inner, is_host = self.inner.launcher(exe), self._is_host

        def launch_and_record(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
            capture: Any = capture_breaks.local.capture
            if capture is not None:
                if is_host:
                    capture.leave("a CPU tensor is computed")
                capture.on_launch(exe, ptrs, scalars, stream)
            inner(ptrs, scalars, stream)

        return launch_and_record

    def launch(self, exe: Executable, ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
        """Launch a kernel and report it."""
        self.launcher(exe)(ptrs, scalars, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy within the device and report it."""
        capture: Any = capture_breaks.local.capture
        if capture is not None:
            capture.on_command("copy", nbytes, (target, source), 0, stream)
        self.inner.copy(target, source, nbytes, stream)

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        """Fill memory and report it."""
        capture: Any = capture_breaks.local.capture
        if capture is not None:
            capture.on_command("fill", nbytes, (target,), byte, stream)
        self.inner.fill(target, byte, nbytes, stream)


def _record_drivers() -> list[tuple[Context, Any]]:
    """Let the drivers of all open contexts record. Return the contexts with their drivers."""
    contexts = [*system.contexts(), system.host]
    before = [(context, context.driver) for context in contexts]
    recording: dict[int, Any] = {}
    for context, inner in before:
        context.driver = recording.setdefault(id(inner), RecordingDriver(inner, context is system.host))
    return before
