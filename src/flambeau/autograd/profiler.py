"""torch.autograd.profiler: which operators a program calls, and what each costs the host and the devices.

# Note [Times of a profile]
On virtual GPUs all times are simulated: the host's by what each call costs it, the devices' by what they ran; so a
profile repeats exactly, and what the CPU computes takes no time. Elsewhere the host's time is the clock's, and a real
GPU's is measured by a pair of timing events around each piece of work: launches, copies, graphs and collectives. An
operator's time is that of its launch: on the CPU the arithmetic itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ContextDecorator
from pathlib import Path
from typing import Any

from flambeau.autograd.profiler_events import DeviceType, FunctionEvent, FunctionEventAvg
from flambeau.autograd.profiler_list import EventList
from flambeau.autograd.profiler_recorder import ProfileRecorder, name_of, shapes_of
from flambeau.core.errors import NotSupportedError
from flambeau.core.public_names import explain_absent_names
from flambeau.driver.protocol import Executable
from flambeau.runtime.hooks import annotations, launch_hooks

__all__ = [
    "EventList",
    "FunctionEvent",
    "FunctionEventAvg",
    "emit_nvtx",
    "kineto_available",
    "profile",
    "record_function",
]

explain_absent_names(globals(), "torch.autograd.profiler")


def kineto_available() -> bool:
    """Return False: PyTorch's tracing library is not used; `profile` records by itself."""
    return False


class record_function(ContextDecorator):
    """A named block in profiles and traces: `with record_function("forward"):`, or a decorator.

    Args:
        name: The name of the block.
        args: A text that is stored with it.
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
    """A context manager that records calls; afterwards `key_averages().table()` shows them.

    Args:
        enabled: False makes it a no-op.
        use_cuda: Record the work of devices, too. It initializes CUDA.
        use_device: "cuda" is equal to `use_cuda=True`.
        record_shapes: Store the shapes of inputs.
        with_flops: Count floating-point operations.
        with_stack: Store the call site of each call.
        profile_memory: Store what calls allocate and free, on the CPU and on CUDA devices.

    Raises:
        NotSupportedError: For `with_modules`, which concerns models of TorchScript.
        ValueError: If `use_device` is neither None nor "cuda".
    """

    def __init__(
        self, enabled: bool = True, *, use_cuda: bool = False, use_device: str | None = None,
        record_shapes: bool = False, with_flops: bool = False, profile_memory: bool = False,
        with_stack: bool = False, with_modules: bool = False, use_kineto: bool = False, use_cpu: bool = True,
    ) -> None:  # fmt: skip
        if with_modules:
            raise NotSupportedError(
                "profile: with_modules is for TorchScript's models, which Flambeau has none of; "
                "with_stack says the lines of a module's forward of each call"
            )
        if use_device not in (None, "cuda"):
            raise ValueError(f"profile: use_device must be None or 'cuda', not {use_device!r}")
        self.enabled, self.use_cpu = enabled, use_cpu
        self.use_cuda = use_cuda or use_device == "cuda"
        self.record_shapes, self.with_flops, self.with_stack = record_shapes, with_flops, with_stack
        self.profile_memory = profile_memory
        self.entered = False
        self.function_events: EventList | None = None
        self._recorder: ProfileRecorder | None = None

    def __enter__(self) -> profile:
        if self.entered:
            raise RuntimeError("Profiler context manager is not reentrant")
        self.entered = True
        if self.enabled:
            self._recorder = ProfileRecorder(
                self.use_cuda, self.record_shapes, self.with_flops, self.with_stack, self.profile_memory
            )
            self._recorder.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._recorder is not None:
            events = self._recorder.stop()
            if not self.use_cpu:
                events = [e for e in events if e.device_type is not DeviceType.CPU]
            self.function_events = EventList(
                events,
                profile_memory=self.profile_memory,
                with_flops=self.with_flops,
                memory=self._recorder.memory or (),
            )
            self._recorder = None

    def keep(self, earlier: profile) -> None:
        """Put the events of an earlier recording after its own."""
        own, others = self._events(), earlier._events()
        own += others
        own.memory = [*others.memory, *own.memory]

    def _events(self) -> EventList:
        if self.function_events is None:
            raise RuntimeError("Profiler didn't finish running")
        return self.function_events

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> EventList:
        """Return the events summed by name and, if requested, by input shapes and innermost lines.

        Raises:
            RuntimeError: If it has not ended.
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
        """Return all events added up."""
        return self._events().total_average()

    def table(self, *args: Any, **kwargs: Any) -> str:
        """Return `EventList.table` of all events."""
        return self._events().table(*args, **kwargs)

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write a trace for chrome://tracing and ui.perfetto.dev."""
        self._events().export_chrome_trace(path)

    def export_stacks(self, path: str | Path, metric: str = "self_cpu_time_total") -> None:
        """Write the stacks of all events, like `EventList.export_stacks`.

        Raises:
            AssertionError: If the profile was recorded without `with_stack`.
        """
        events = self._events()
        if not self.with_stack:
            raise AssertionError("export_stacks() requires with_stack=True")
        events.export_stacks(path, metric)

    @property
    def self_cpu_time_total(self) -> float:
        """Return the host time of all events, in microseconds."""
        return self._events().self_cpu_time_total


class emit_nvtx:
    """A context manager that makes each operator's call a range of `torch.cuda.nvtx`, which traces and NVIDIA's tools
    show.

    Args:
        enabled: False makes it a no-op.
        record_shapes: Put the shapes of inputs into the ranges' texts.
    """

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        self.enabled, self.record_shapes = enabled, record_shapes
        self._is_entered = False

    def __enter__(self) -> emit_nvtx:
        if self._is_entered:
            raise RuntimeError("NVTX annotation context manager is not reentrant")
        self._is_entered = True
        if self.enabled:
            launch_hooks.subscribe(self)
        return self

    def __exit__(self, *error: object) -> None:
        if self.enabled:
            launch_hooks.unsubscribe(self)

    def before(self, exe: Executable, stream: int, ptrs: Sequence[int]) -> None:
        """Begin a range for a launch."""
        sizes = f", sizes = {shapes_of(exe)}" if self.record_shapes else ""
        annotations.push(name_of(exe) + sizes)

    def after(self, exe: Executable, stream: int) -> None:
        """End the range of a launch that was enqueued."""
        annotations.pop()

    def on_scope_begin(self, name: str) -> None:
        """Begin a range for an autograd function."""
        annotations.push(name)

    def on_scope_end(self) -> None:
        """End the range of an autograd function."""
        annotations.pop()
