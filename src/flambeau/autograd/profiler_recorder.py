"""`ProfileRecorder`: the subscriber that turns ranges, launches, other work and memory into a profile's events."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from flambeau.autograd.profiler_events import FunctionEvent, Interval
from flambeau.autograd.profiler_memory import MemoryNotes
from flambeau.autograd.profiler_work import ProfiledDriver, Work, request_of
from flambeau.core.callsite import is_inside
from flambeau.core.device import CPU
from flambeau.core.meta import Meta
from flambeau.driver.protocol import AUTOCAST, Driver, Executable
from flambeau.observe.tracing.driver_calls import Request
from flambeau.runtime import current, system
from flambeau.runtime.device_context import AllocatedBlock, Context
from flambeau.runtime.hooks import annotations, launch_hooks, memory_hooks

_NAMES = {
    "copy": "copy_",
    "fill": "fill_",
    AUTOCAST: "copy_",
}  # kernels that PyTorch's operators of another name run


def name_of(exe: Executable) -> str:
    """Return an operator as PyTorch's profiler names it."""
    name = exe.launch.kernel.name
    return f"aten::{_NAMES.get(name, name)}"


def shapes_of(exe: Executable) -> list[list[int]]:
    """Return the shapes of a launch's inputs; [] for a scalar."""
    return [list(x.shape) if isinstance(x, Meta) else [] for x in exe.launch.inputs]


class ProfileRecorder:
    """A subscriber that records ranges, launches, device work and allocations from `start` to `stop`.

    Args:
        use_cuda: Record the work of devices.
        shapes: Record the shapes of each call's operands.
        flops: Record the number of each call's floating-point operations.
        stacks: Record the program's lines of each call.
        memory: Record allocations and frees.
    """

    def __init__(self, use_cuda: bool, shapes: bool, flops: bool, stacks: bool, memory: bool) -> None:
        self.events: list[FunctionEvent] = []
        self._use_cuda = use_cuda and system.is_available()
        self._shapes, self._flops, self._stacks = shapes, flops, stacks
        self._threads: dict[int, int] = {}
        self._open: dict[int, list[FunctionEvent]] = {}
        self._requests: dict[
            tuple[int, int], Request
        ] = {}  # by thread and stream: the launch that is under way
        seen = self._use_cuda or system.is_initialized()
        self._contexts: list[Context] = system.contexts() if seen else []
        self._clock: Callable[[], int] = time.perf_counter_ns
        if self._contexts and system.is_virtual():
            self._clock = self._contexts[0].clock
        self._work: Work | None = None
        self._profiled_drivers: list[ProfiledDriver] = []
        self.memory = MemoryNotes(self._contexts) if memory else None

    def start(self) -> None:
        self._synchronize()
        if self._use_cuda:
            self._work = Work(self._contexts)
        self._install_drivers()
        if self.memory is not None:
            memory_hooks.subscribe(self, [system.host, *self._contexts])
        annotations.subscribe(self)
        launch_hooks.subscribe(self)

    def stop(self) -> list[FunctionEvent]:
        launch_hooks.unsubscribe(self)
        annotations.unsubscribe(self)
        if self.memory is not None:
            memory_hooks.unsubscribe(self)
        self._remove_drivers()
        if self._work is not None:
            self._synchronize()
            self.events += self._work.stop()
        for stack in self._open.values():  # begun inside and still running
            while stack:
                self._close(stack)
        if self.memory is not None:
            self.events += self.memory.top_level()
        # stable: where simulated time stands still, calls are in the order in which they began
        return sorted(self.events, key=lambda e: (e.device_index, e.thread, e.time_range.start))

    def _synchronize(self) -> None:
        if self._use_cuda:
            for context in self._contexts:
                context.driver.device_sync(context.driver_index)

    # -- ranges ---------------------------------------------------------------------------------------
    def on_range_begin(self, text: str, number: int | None) -> None:
        if number is None:
            self._begin(text).is_user_annotation = True

    def on_range_end(self, number: int | None) -> None:
        if number is None:
            self._close(self._stack())

    def on_mark(self, text: str) -> None:
        now = self._now()
        self.events.append(FunctionEvent(text, Interval(now, now), self._thread(), is_user_annotation=True))

    # -- launches -------------------------------------------------------------------------------------
    def before(self, exe: Executable, stream: int, ptrs: Sequence[int]) -> None:
        event = self._begin(name_of(exe))
        if self._shapes:
            event.input_shapes = shapes_of(exe)
        if self._flops:
            event.flops = exe.launch.kernel.flops(exe.launch)
        if self.memory is not None:
            self.memory.assign_requests(event)
        if self._work is not None and not _on_host(exe):
            index = _context_of(exe, stream).driver_index
            request = request_of(exe.launch.kernel.name, stream, index, launch=exe.launch)
            self._requests[threading.get_ident(), stream] = request
            self._work.begin(request, event)

    def after(self, exe: Executable, stream: int) -> None:
        request = self._requests.pop((threading.get_ident(), stream), None)
        if self._work is not None and request is not None:
            self._work.end(request, gave=True)
        self._close(self._stack())

    def on_scope_begin(self, name: str) -> None:
        self._begin(name)

    def on_scope_end(self) -> None:
        self._close(self._stack())

    # -- other work -----------------------------------------------------------------------------------
    def _install_drivers(self) -> None:
        """Replace the contexts' drivers by drivers that report to this recorder, one for each former driver."""
        made: dict[Driver, ProfiledDriver] = {}
        for context in self._contexts:
            if context.driver not in made:
                made[context.driver] = ProfiledDriver(context.driver, self._record_work, self._contexts)
            context.driver = made[context.driver]
        self._profiled_drivers = list(made.values())

    def _remove_drivers(self) -> None:
        for watched in self._profiled_drivers:
            watched.on_work = None  # for callers that still hold the driver
            for context in self._contexts:
                if context.driver is watched:
                    context.driver = watched.inner

    @contextmanager
    def _record_work(
        self, kind: str, call: str, label: str, stream: int, where: Context | None, nbytes: int
    ) -> Iterator[None]:
        event = self._begin(call)
        request = None
        if self._work is not None and where is not None:
            request = request_of(kind, stream, where.driver_index, nbytes)
            self._work.begin(request, event, label)
        gave = False
        try:
            yield
            gave = True
        finally:
            if self._work is not None and request is not None:
                self._work.end(request, gave)
            self._close(self._stack())

    # -- memory ---------------------------------------------------------------------------------------
    def on_allocate(self, context: Context, block: AllocatedBlock, nbytes: int, to_launch: bool) -> None:
        assert self.memory is not None
        if to_launch:
            self.memory.note_request(self._now(), self._thread(), context, block, nbytes)
            return
        event = self._begin("aten::empty")
        self.memory.note_allocation(event, self._now(), context, block, nbytes)
        self._close(self._stack())

    def on_free(self, context: Context, block: AllocatedBlock) -> None:
        assert self.memory is not None
        stack = self._stack()
        self.memory.note_free(stack[-1] if stack else None, self._now(), self._thread(), context, block)

    # -- events ---------------------------------------------------------------------------------------
    def _begin(self, name: str) -> FunctionEvent:
        stack, now = self._stack(), self._now()
        parent = stack[-1] if stack else None
        event = FunctionEvent(name, Interval(now, now), self._thread(), cpu_parent=parent)
        if parent is not None:
            parent.cpu_children.append(event)
        if self._stacks:
            event.stack = _lines()
        self.events.append(event)
        stack.append(event)
        return event

    def _close(self, stack: list[FunctionEvent]) -> None:
        if stack:  # otherwise the range began before the profile
            event = stack.pop()
            event.time_range = Interval(event.time_range.start, self._now())

    def _stack(self) -> list[FunctionEvent]:
        return self._open.setdefault(self._thread(), [])

    def _thread(self) -> int:
        return self._threads.setdefault(threading.get_ident(), len(self._threads))

    def _now(self) -> float:
        return self._clock() / 1000


def _on_host(exe: Executable) -> bool:
    outputs = exe.launch.outputs
    return bool(outputs) and outputs[0].device is CPU


def _context_of(exe: Executable, stream: int) -> Context:
    """Return the context of a launch. A launch without outputs is assigned by its stream."""
    if exe.launch.outputs:
        return system.context_of(exe.launch.outputs[0].device)
    return next(s.context for s in current.local.streams if s.handle == stream)


def _lines() -> list[str]:
    """Return the program's lines that are being run, innermost first, as "file(line): function"."""
    found, frame = [], sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not is_inside(code):
            found.append(f"{code.co_filename}({frame.f_lineno}): {code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return found
