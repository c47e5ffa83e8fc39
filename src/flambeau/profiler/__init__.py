"""torch.profiler: profiles of a training loop, step by step."""

from __future__ import annotations

import enum
import itertools
import json
import os
import socket
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from flambeau.autograd import profiler as autograd_profiler
from flambeau.autograd.profiler import kineto_available, record_function
from flambeau.autograd.profiler_events import DeviceType
from flambeau.autograd.profiler_list import EventList
from flambeau.autograd.profiler_trace import chrome_trace
from flambeau.core.errors import NotSupportedError
from flambeau.core.public_names import explain_absent_names, lacks
from flambeau.runtime import system

__all__ = [
    "DeviceType", "ProfilerAction", "ProfilerActivity", "kineto_available", "profile", "record_function", "schedule",
    "supported_activities", "tensorboard_trace_handler",
]  # fmt: skip

explain_absent_names(globals(), "torch.profiler")


class ProfilerActivity(enum.Enum):
    """The activities of PyTorch's profilers. Flambeau records calls on the host and work of CUDA devices."""

    CPU = 0
    XPU = 1
    MTIA = 4
    CUDA = 2
    HPU = 3
    PrivateUse1 = 5


class ProfilerAction(enum.Enum):
    """The action of a profiler in a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


def supported_activities() -> set[ProfilerActivity]:
    """Return the activities that can be recorded here."""
    return {ProfilerActivity.CPU} | ({ProfilerActivity.CUDA} if system.is_available() else set())


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0, skip_first_wait: int = 0
) -> Callable[[int], ProfilerAction]:
    """Return a schedule: a function of the step number that skips `skip_first` steps and then repeats a cycle.

    A cycle has `wait`, `warmup` and `active` steps. `repeat` is the number of cycles; 0: no end. With
    `skip_first_wait` other than 0 the first cycle has no `wait` steps. A warning is issued if no step warms
    up.

    Raises:
        AssertionError: If a number is negative, or no step is active.
    """
    if wait < 0 or warmup < 0 or active <= 0 or repeat < 0 or skip_first < 0:
        raise AssertionError(
            f"Invalid profiler schedule arguments. Got wait={wait} (need >= 0), warmup={warmup} (need >= 0), "
            f"active={active} (need > 0), repeat={repeat} (need >= 0), skip_first={skip_first} (need >= 0)."
        )
    if warmup == 0:
        warnings.warn(
            "Profiler won't be using warmup, this can skew profiler results", UserWarning, stacklevel=2
        )
    cycle = wait + warmup + active

    def action(step: int) -> ProfilerAction:
        if step < 0:
            raise AssertionError(f"Step must be non-negative. Got {step}.")
        step -= skip_first
        if step < 0:
            return ProfilerAction.NONE
        step += wait if skip_first_wait else 0
        if repeat and step >= repeat * cycle:
            return ProfilerAction.NONE
        at = step % cycle
        if at < wait:
            return ProfilerAction.NONE
        if at < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if at < cycle - 1 else ProfilerAction.RECORD_AND_SAVE

    return action


_CLEARED = (
    "Warning: Profiler clears events at the end of each cycle. Only events from the current cycle will be reported. "
    "To keep events across cycles, set acc_events=True."
)


def _always(step: int) -> ProfilerAction:
    return ProfilerAction.RECORD


def _refuse(**of_kineto: Any) -> None:
    for name, value in of_kineto.items():
        if value is not None:
            raise NotSupportedError(
                f"profile: {name} is of Kineto, PyTorch's recorder, which Flambeau does not use"
            )


class profile:
    """A context manager that records a program's calls and its devices' work, step by step if there is a
    schedule.

    Args:
        activities: The activities to record (default: all that are supported).
        schedule: The action in each step; `step()` ends a step. Without a schedule everything is recorded.
        on_trace_ready: Called with the profiler when a recording is complete.
        record_shapes: True to record the shapes of inputs.
        with_flops: True to count floating-point operations.
        profile_memory: True to record what calls allocate and free, on the CPU and on CUDA devices.
        with_stack: True to record the program's call sites.
        acc_events: True to keep the events of earlier cycles. Otherwise a second cycle warns that they are
            gone.
        use_cuda: Deprecated, with a FutureWarning; use `activities`.

    Raises:
        AssertionError: If `activities` is empty.
        NotSupportedError: For with_modules, which concerns TorchScript's models, and for any value but None
            of experimental_config, execution_trace_observer, custom_trace_id_callback and
            post_processing_timeout_s, which are Kineto's.
    """

    if not TYPE_CHECKING:  # a type checker should find misspelt names
        __getattr__ = lacks

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: None = None,
        execution_trace_observer: None = None,
        acc_events: bool = False,
        use_cuda: bool | None = None,
        custom_trace_id_callback: None = None,
        post_processing_timeout_s: float | None = None,
    ) -> None:
        _refuse(
            experimental_config=experimental_config,
            execution_trace_observer=execution_trace_observer,
            custom_trace_id_callback=custom_trace_id_callback,
            post_processing_timeout_s=post_processing_timeout_s,
        )
        self.activities = set(activities) if activities is not None else supported_activities()
        if use_cuda is not None:
            warnings.warn(
                "`use_cuda` is deprecated, use `activities` argument instead", FutureWarning, stacklevel=2
            )
            cuda = {ProfilerActivity.CUDA}
            self.activities = self.activities | cuda if use_cuda else self.activities - cuda
        if not self.activities & set(ProfilerActivity):
            raise AssertionError("No valid profiler activities found")
        if not self.activities & {ProfilerActivity.CPU, ProfilerActivity.CUDA}:
            raise AssertionError("No activities specified for the profiler")
        self._make = lambda: autograd_profiler.profile(
            use_cuda=ProfilerActivity.CUDA in self.activities,
            use_cpu=ProfilerActivity.CPU in self.activities,
            record_shapes=record_shapes,
            with_flops=with_flops,
            profile_memory=profile_memory,
            with_stack=with_stack,
            with_modules=with_modules,
        )
        self._make()  # invalid arguments raise now
        self._with_stack = with_stack
        self.acc_events = acc_events
        self.schedule = schedule or _always
        self.on_trace_ready = on_trace_ready
        self._stepwise = schedule is not None
        self.step_num = 0
        self.current_action = ProfilerAction.NONE
        self._running: autograd_profiler.profile | None = None
        self._last: autograd_profiler.profile | None = None
        self._step: record_function | None = None
        self._metadata: dict[str, Any] = {}

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin the first step."""
        self._go_to(self.schedule(self.step_num))
        self._begin_step()

    def step(self) -> None:
        """Begin the next step."""
        self._end_step()
        self.step_num += 1
        if self.current_action is ProfilerAction.RECORD_AND_SAVE:
            self._finish(notify=True)
        self._go_to(self.schedule(self.step_num))
        self._begin_step()

    def stop(self) -> None:
        """End the last step. This completes a recording that is active."""
        self._end_step()
        self._finish(notify=True)
        self.current_action = ProfilerAction.NONE

    def _go_to(self, action: ProfilerAction) -> None:
        recording = action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
        if recording and self._running is None:
            if self._last is not None and not self.acc_events:
                warnings.warn(_CLEARED, UserWarning, stacklevel=3)
            self._running = self._make().__enter__()
        elif not recording:
            self._finish(notify=False)
        self.current_action = action

    def _finish(self, notify: bool) -> None:
        if self._running is None:
            return
        self._running.__exit__()
        if self.acc_events and self._last is not None:
            self._running.keep(self._last)
        self._last, self._running = self._running, None
        if notify and self.on_trace_ready is not None:
            self.on_trace_ready(self)

    def _begin_step(self) -> None:
        if self._stepwise:
            self._step = record_function(f"ProfilerStep#{self.step_num}").__enter__()

    def _end_step(self) -> None:
        if self._step is not None:
            self._step.__exit__()
            self._step = None

    def _require_recorded(self, what: str) -> autograd_profiler.profile:
        if self._last is None:
            raise AssertionError(f"Profiler must be initialized before {what}")
        return self._last

    def events(self) -> EventList:
        """Return the events of the last complete recording.

        Raises:
            AssertionError: If there is none.
        """
        return self._require_recorded("accessing events")._events()

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> EventList:
        """Return the events added up by name and, on request, by shapes of inputs and innermost call sites.

        The steps of a schedule are added up as `ProfilerStep*`.

        Raises:
            AssertionError: If there is no recording.
        """
        return self._require_recorded("getting key averages").key_averages(
            group_by_input_shape, group_by_stack_n
        )

    def export_stacks(self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total") -> None:
        """Write each call stack with its time in microseconds, in the format of flame graph tools.

        Raises:
            AssertionError: If the profiler was created without `with_stack`, or there is no recording.
            ValueError: If the metric is neither "self_cpu_time_total" nor "self_cuda_time_total".
        """
        if not self._with_stack:
            raise AssertionError("export_stacks() requires with_stack=True")
        self._require_recorded("exporting stacks")._events().export_stacks(path, metric)

    def add_metadata(self, key: str, value: str) -> None:
        """Add a text to the trace."""
        self._metadata[key] = value

    def add_metadata_json(self, key: str, value: str) -> None:
        """Add a value, given as JSON, to the trace.

        Raises:
            ValueError: If the text is not JSON.
        """
        self._metadata[key] = json.loads(value)

    def preset_metadata_json(self, key: str, value: str) -> None:
        """Add a value as `add_metadata_json` does. Values added before the start hold for all recordings."""
        self.add_metadata_json(key, value)

    def export_chrome_trace(self, path: str | os.PathLike[str], use_python_export: bool = False) -> None:
        """Write the last recording for chrome://tracing and ui.perfetto.dev, compressed if the name ends in
        `.gz`.

        Args:
            path: The file.
            use_python_export: Python writes the file in any case; PyTorch chooses between two writers by it.

        Raises:
            AssertionError: If there is no recording.
        """
        events = self._require_recorded("exporting chrome trace")._events()
        chrome_trace(events, events.memory).write(path, **self._metadata)


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, use_gzip: bool = False, use_python_export: bool = False
) -> Callable[[profile], None]:
    """Return a function for `on_trace_ready` that writes each recording into a folder, in TensorBoard's naming
    scheme.
    """
    numbers = itertools.count()
    worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"

    def handle(done: profile) -> None:
        os.makedirs(dir_name, exist_ok=True)
        ending = "pt.trace.json.gz" if use_gzip else "pt.trace.json"
        path = os.path.join(dir_name, f"{worker}.{next(numbers)}.{ending}")
        done.export_chrome_trace(path, use_python_export=use_python_export)

    return handle
