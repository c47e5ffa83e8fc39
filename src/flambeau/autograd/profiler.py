"""torch.autograd.profiler: which operators a program calls, and what each costs the host and the devices.

# Note [Where a profile's times come from]
On virtual GPUs all times are simulated: the host's by what each call costs it, the devices' by what they ran; so a
profile repeats exactly, and what the CPU computes takes no time. Elsewhere the host's time is the clock's, and a real
GPU's is measured by a pair of timing events around each launch. An operator's time is that of its launch: on the CPU
the arithmetic itself.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator
from pathlib import Path
from typing import Any

from flambeau.autograd.profiler_events import (
    DeviceType,
    EventList,
    FunctionEvent,
    FunctionEventAvg,
    Interval,
)
from flambeau.core.device import CPU
from flambeau.core.errors import NotSupportedError
from flambeau.core.meta import Meta
from flambeau.core.names import lacking
from flambeau.core.sites import is_inside
from flambeau.driver.api import Executable
from flambeau.observe.timeline import MARKERS, Record
from flambeau.runtime import annotations, calls, current, system
from flambeau.runtime.context import Context

__all__ = ["EventList", "FunctionEvent", "FunctionEventAvg", "emit_nvtx", "profile", "record_function"]

__getattr__ = lacking("torch.autograd.profiler")

_NAMES = {
    "copy_in": "Memcpy HtoD",
    "copy_out": "Memcpy DtoH",
    "copy": "Memcpy DtoD",
    "fill": "Memset (Device)",
}


class record_function(ContextDecorator):
    """A named block in profiles and traces: `with record_function("forward"):`, or a decorator.

    Args:
        name: what it is called. args: a text that is kept with it.
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name
        self.args = args

    def __enter__(self) -> record_function:
        annotations.push(self.name)
        return self

    def __exit__(self, *error: object) -> None:
        annotations.pop()


class profile:
    """Context manager that records calls. Afterwards it answers for them: `key_averages().table()`.

    Args:
        enabled: False makes it a no-op.
        use_cuda: what devices do too; initializes CUDA. use_device: "cuda" is the same.
        record_shapes: keep the shapes of inputs. with_flops: count floating-point operations. with_stack: keep the
            program's lines that each call came from.

    Raises NotSupportedError: profile_memory, which `torch.cuda.memory._record_memory_history` tells of, and
    with_modules. ValueError: another `use_device` than "cuda".
    """

    def __init__(
        self, enabled: bool = True, *, use_cuda: bool = False, use_device: str | None = None,
        record_shapes: bool = False, with_flops: bool = False, profile_memory: bool = False,
        with_stack: bool = False, with_modules: bool = False, use_kineto: bool = False, use_cpu: bool = True,
    ) -> None:  # fmt: skip
        if profile_memory or with_modules:
            raise NotSupportedError(
                "profile: profile_memory and with_modules are not there; "
                "torch.cuda.memory._record_memory_history records allocations with their stacks"
            )
        if use_device not in (None, "cuda"):
            raise ValueError(f"profile: use_device must be None or 'cuda', not {use_device!r}")
        self.enabled, self.use_cpu = enabled, use_cpu
        self.use_cuda = use_cuda or use_device == "cuda"
        self.record_shapes, self.with_flops, self.with_stack = record_shapes, with_flops, with_stack
        self.entered = False
        self.function_events: EventList | None = None
        self._recorder: _Recorder | None = None

    def __enter__(self) -> profile:
        if self.entered:
            raise RuntimeError("Profiler context manager is not reentrant")
        self.entered = True
        if self.enabled:
            self._recorder = _Recorder(self.use_cuda, self.record_shapes, self.with_flops, self.with_stack)
            self._recorder.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._recorder is not None:
            events = self._recorder.stop()
            if not self.use_cpu:
                events = [e for e in events if e.device_type is not DeviceType.CPU]
            self.function_events = EventList(events)
            self._recorder = None

    def _events(self) -> EventList:
        if self.function_events is None:
            raise RuntimeError("Profiler didn't finish running")
        return self.function_events

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> EventList:
        """The events added up by name, and by shapes of inputs and innermost lines if so asked.

        Raises RuntimeError: it has not ended.
        """
        return self._events().key_averages(group_by_input_shape, group_by_stack_n)

    def __repr__(self) -> str:
        return (
            "<unfinished torch.autograd.profile>"
            if self.function_events is None
            else repr(self.function_events)
        )

    def __str__(self) -> str:
        return repr(self) if self.function_events is None else self.function_events.table()

    def total_average(self) -> FunctionEventAvg:
        """All events added up."""
        return self._events().total_average()

    def table(self, *args: Any, **kwargs: Any) -> str:
        """`EventList.table` of all events."""
        return self._events().table(*args, **kwargs)

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write a trace for chrome://tracing and ui.perfetto.dev."""
        self._events().export_chrome_trace(path)

    @property
    def self_cpu_time_total(self) -> float:
        """Host time of all events, in microseconds."""
        return self._events().self_cpu_time_total


class emit_nvtx:
    """Context manager that makes each operator's call a range of `torch.cuda.nvtx`: for traces and NVIDIA's tools.

    Args:
        enabled: False makes it a no-op.
        record_shapes: put the shapes of inputs into the ranges' texts.
    """

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        self.enabled, self.record_shapes = enabled, record_shapes
        self.entered = False

    def __enter__(self) -> emit_nvtx:
        if self.entered:
            raise RuntimeError("NVTX annotation context manager is not reentrant")
        self.entered = True
        if self.enabled:
            calls.subscribe(self)
        return self

    def __exit__(self, *error: object) -> None:
        if self.enabled:
            calls.unsubscribe(self)

    def before(self, exe: Executable, stream: int) -> None:
        """A launch begins."""
        sizes = f", sizes = {shapes_of(exe)}" if self.record_shapes else ""
        annotations.push(name_of(exe) + sizes)

    def after(self, exe: Executable, stream: int) -> None:
        """It is queued."""
        annotations.pop()


def name_of(exe: Executable) -> str:
    """An operator as PyTorch's profiler names it."""
    return f"aten::{exe.launch.kernel.name}"


def shapes_of(exe: Executable) -> list[list[int]]:
    """The shapes of a launch's inputs; [] for a scalar."""
    return [list(x.shape) if isinstance(x, Meta) else [] for x in exe.launch.inputs]


def _on_host(exe: Executable) -> bool:
    outputs = exe.launch.outputs
    return bool(outputs) and outputs[0].device is CPU


def _context_of(exe: Executable, stream: int) -> Context:
    """The device of a launch; one without tensors says it by its stream."""
    if exe.launch.outputs:
        return system.context_of(exe.launch.outputs[0].device)
    return next(s.context for s in current.local.streams if s.handle == stream)


def _lines() -> list[str]:
    """The program's lines that are being run, innermost first, as "file(line): function"."""
    found, frame = [], sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not is_inside(code):
            found.append(f"{code.co_filename}({frame.f_lineno}): {code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return found


class _Recorder:
    """Listens to ranges and launches, and to the machine's commands, from `start` to `stop`."""

    def __init__(self, use_cuda: bool, shapes: bool, flops: bool, stacks: bool) -> None:
        self.events: list[FunctionEvent] = []
        self._shapes, self._flops, self._stacks = shapes, flops, stacks
        self._threads: dict[int, int] = {}
        self._open: dict[int, list[tuple[FunctionEvent, float]]] = {}
        self._launched: dict[
            int, deque[FunctionEvent]
        ] = {}  # calls by stream, in the order of their launches
        self._contexts: list[Context] = system.contexts() if use_cuda and system.is_available() else []
        self._clock: Callable[[], int] = time.perf_counter_ns
        if system.is_initialized() and system.is_virtual():
            self._clock = system.contexts()[0].clock
        self._source: _Commands | _Stopwatch | None = None

    def start(self) -> None:
        self._synchronize()
        if self._contexts:
            virtual = system.is_virtual()
            self._source = _Commands() if virtual else _Stopwatch(self._contexts, self._now())
        annotations.subscribe(self)
        calls.subscribe(self)

    def stop(self) -> list[FunctionEvent]:
        calls.unsubscribe(self)
        annotations.unsubscribe(self)
        if self._source is not None:
            self._synchronize()
            self._attach(self._source.stop())
        for stack in self._open.values():  # begun inside and still running
            while stack:
                self._close(stack)
        return sorted(
            self.events, key=lambda e: (e.device_index, e.thread, e.time_range.start, -e.time_range.end)
        )

    def _synchronize(self) -> None:
        for context in self._contexts:
            context.driver.device_sync(context.driver_index)

    # -- ranges ---------------------------------------------------------------------------------------
    def began(self, text: str, number: int | None) -> None:
        if number is None:
            self._begin(text).is_user_annotation = True

    def ended(self, number: int | None) -> None:
        stack = self._stack()
        if number is None and stack:
            self._close(stack)

    def marked(self, text: str) -> None:
        now = self._now()
        self.events.append(FunctionEvent(text, Interval(now, now), self._thread(), is_user_annotation=True))

    # -- launches -------------------------------------------------------------------------------------
    def before(self, exe: Executable, stream: int) -> None:
        event = self._begin(name_of(exe))
        if self._shapes:
            event.input_shapes = shapes_of(exe)
        if self._flops:
            event.flops = exe.launch.kernel.flops(exe.launch)
        if not _on_host(exe):
            self._launched.setdefault(stream, deque()).append(event)
            if isinstance(self._source, _Stopwatch):
                self._source.before(exe, stream)

    def after(self, exe: Executable, stream: int) -> None:
        if isinstance(self._source, _Stopwatch) and not _on_host(exe):
            self._source.after(exe, stream)
        self._close(self._stack())

    def _begin(self, name: str) -> FunctionEvent:
        stack, now = self._stack(), self._now()
        parent = stack[-1][0] if stack else None
        event = FunctionEvent(name, Interval(now, now), self._thread(), cpu_parent=parent)
        if parent is not None:
            parent.cpu_children.append(event)
        if self._stacks:
            event.stack = _lines()
        self.events.append(event)
        stack.append((event, now))
        return event

    def _close(self, stack: list[tuple[FunctionEvent, float]]) -> None:
        event, begin = stack.pop()
        event.time_range = Interval(begin, self._now())

    def _stack(self) -> list[tuple[FunctionEvent, float]]:
        return self._open.setdefault(self._thread(), [])

    def _thread(self) -> int:
        return self._threads.setdefault(threading.get_ident(), len(self._threads))

    def _now(self) -> float:
        return self._clock() / 1000

    # -- devices --------------------------------------------------------------------------------------
    def _attach(self, ran: Iterator[FunctionEvent]) -> None:
        """Give each call what it started: the launches of a stream ran in the order in which they were made."""
        for event in ran:
            self.events.append(event)
            waiting, name = self._launched.get(event.thread, deque()), f"aten::{event.name}"
            if any(call.name == name for call in waiting):
                while (call := waiting.popleft()).name != name:
                    pass  # it raised, and nothing was started
                call.kernels.append(event)


class _Commands:
    """What a virtual machine runs, by its own account."""

    def __init__(self) -> None:
        self._driver = system.bare_driver()
        self._outer: Callable[[Record], None] | None = self._driver.on_command
        self._records: list[Record] = []
        self._driver.on_command = self._add

    def _add(self, record: Record) -> None:
        self._records.append(record)
        if self._outer is not None:
            self._outer(record)

    def stop(self) -> Iterator[FunctionEvent]:
        self._driver.on_command = self._outer
        for r in sorted(self._records, key=lambda r: (r.index, r.stream, r.seq)):
            if r.kind not in MARKERS:
                span = Interval(r.start_ns / 1000, r.end_ns / 1000)
                name = _NAMES.get(r.kind, r.name)
                yield FunctionEvent(name, span, r.stream, DeviceType.CUDA, r.index)


class _Stopwatch:
    """Timing events around each launch on real GPUs. Copies are not seen."""

    def __init__(self, contexts: list[Context], now_us: float) -> None:
        self._now = now_us
        self._bases = {c: self._record(c, c.default_stream.handle) for c in contexts}
        self._began: dict[int, int] = {}
        self._laps: list[tuple[Context, int, str, int, int]] = []

    def _record(self, context: Context, stream: int) -> int:
        event = context.driver.event_create(context.driver_index, True)
        context.driver.event_record(event, stream)
        return event

    def before(self, exe: Executable, stream: int) -> None:
        self._began[stream] = self._record(_context_of(exe, stream), stream)

    def after(self, exe: Executable, stream: int) -> None:
        context = _context_of(exe, stream)
        end = self._record(context, stream)
        self._laps.append((context, stream, exe.launch.kernel.name, self._began.pop(stream), end))

    def stop(self) -> Iterator[FunctionEvent]:
        for context, stream, name, begin, end in self._laps:
            base, driver = self._bases[context], context.driver
            times = [self._now + driver.event_elapsed_ns(base, event) / 1000 for event in (begin, end)]
            yield FunctionEvent(name, Interval(*times), stream, DeviceType.CUDA, context.index)
            driver.event_destroy(begin)
            driver.event_destroy(end)
        for context, base in self._bases.items():
            context.driver.event_destroy(base)
