"""The contents of a profile: events, and averages of events by name. Times in microseconds, memory in bytes."""

from __future__ import annotations

import enum
import warnings
from dataclasses import dataclass, field


class DeviceType(enum.Enum):
    """The kind of device on which an event took time."""

    CPU = 0
    CUDA = 1


@dataclass(frozen=True)
class Interval:
    """A span of time in microseconds."""

    start: float
    end: float

    def elapsed_us(self) -> float:
        """Return the length of the interval in microseconds."""
        return self.end - self.start


_UNITS = {"s": 1e6, "ms": 1e3, "us": 1.0}


def time_text(us: float, unit: str | None = None) -> str:
    """Return microseconds as people read them, or in a unit."""
    if unit is None:
        unit = next((name for name, size in _UNITS.items() if us >= size), "us")
    return f"{us / _UNITS[unit]:.3f}{unit}"


def _text_property(name: str) -> property:
    return property(lambda self: time_text(getattr(self, name)), doc=f"`{name}` as people read it.")


class _TimeStatistics:
    """The statistics that events and averages have in common."""

    count: int
    cpu_time_total: float
    device_time_total: float

    cpu_time_str = _text_property("cpu_time")
    device_time_str = _text_property("device_time")
    cpu_time_total_str = _text_property("cpu_time_total")
    device_time_total_str = _text_property("device_time_total")
    self_cpu_time_total_str = _text_property("self_cpu_time_total")
    self_device_time_total_str = _text_property("self_device_time_total")

    @property
    def cpu_time(self) -> float:
        """Return the average host time of one call."""
        return self.cpu_time_total / self.count if self.count else 0.0

    @property
    def device_time(self) -> float:
        """Return the average device time of one call."""
        return self.device_time_total / self.count if self.count else 0.0

    @property
    def cuda_time(self) -> float:
        """Return the old name of `device_time`. Warns."""
        return self._warn_and_read("cuda_time")

    @property
    def cuda_time_total(self) -> float:
        """Return `device_time_total`, under its older name, and warn."""
        return self._warn_and_read("cuda_time_total")

    @property
    def self_cuda_time_total(self) -> float:
        """Return `self_device_time_total`, under its older name, and warn."""
        return self._warn_and_read("self_cuda_time_total")

    @property
    def self_cuda_memory_usage(self) -> float:
        """Return `self_device_memory_usage`, under its older name, and warn."""
        return self._warn_and_read("self_cuda_memory_usage")

    def _warn_and_read(self, old: str) -> float:
        new = old.replace("cuda", "device")
        warnings.warn(f"`{old}` is deprecated, please use `{new}` instead.", FutureWarning, stacklevel=3)
        found: float = getattr(self, new)
        return found


@dataclass(eq=False)
class FunctionEvent(_TimeStatistics):
    """An operator's call, a `record_function` block, or a command of a device.

    Attributes:
        thread: Number of the host thread, from 0; for a device's event, its stream.
        kernels: The device work that the call itself started.
        device_index: -1 for the host.
        stack: The program's lines that led to it, innermost first, if requested.
        nbytes: Bytes that a device copied or set.
        cpu_memory_usage, device_memory_usage: Allocated minus freed bytes, if requested. `self_` excludes nested calls.
    """

    name: str
    time_range: Interval
    thread: int = 0
    device_type: DeviceType = DeviceType.CPU
    device_index: int = -1
    is_user_annotation: bool = False
    input_shapes: list[list[int]] = field(default_factory=list)
    flops: int = 0
    stack: list[str] = field(default_factory=list, repr=False)
    cpu_parent: FunctionEvent | None = field(default=None, repr=False)
    cpu_children: list[FunctionEvent] = field(default_factory=list, repr=False)
    kernels: list[FunctionEvent] = field(default_factory=list, repr=False)
    count: int = 1
    nbytes: int = 0
    self_cpu_memory_usage: int = 0
    self_device_memory_usage: int = 0

    @property
    def key(self) -> str:
        """Return the key of averages: the name; all steps of a schedule have one key."""
        return "ProfilerStep*" if self.name.startswith("ProfilerStep#") else self.name

    @property
    def _on_host(self) -> bool:
        return self.device_type is DeviceType.CPU

    @property
    def cpu_time_total(self) -> float:  # type: ignore[override]
        """Return the host time of the call, including nested calls."""
        return self.time_range.elapsed_us() if self._on_host else 0.0

    @property
    def self_cpu_time_total(self) -> float:
        """Return the host time of the call without nested calls."""
        return self.cpu_time_total - sum(child.cpu_time_total for child in self.cpu_children)

    @property
    def self_device_time_total(self) -> float:
        """Return the device time of the work that the call itself started, without that of inner calls."""
        if not self._on_host:
            return self.time_range.elapsed_us()
        return sum(kernel.time_range.elapsed_us() for kernel in self.kernels)

    @property
    def device_time_total(self) -> float:  # type: ignore[override]
        """Return the device time of the work that the call and nested calls started."""
        return self.self_device_time_total + sum(child.device_time_total for child in self.cpu_children)

    @property
    def cpu_memory_usage(self) -> int:
        """Return allocated minus freed CPU memory of the call and nested calls, in bytes."""
        return self.self_cpu_memory_usage + sum(child.cpu_memory_usage for child in self.cpu_children)

    @property
    def device_memory_usage(self) -> int:
        """Return the CUDA memory that the event and its children allocated, in bytes."""
        return self.self_device_memory_usage + sum(child.device_memory_usage for child in self.cpu_children)


@dataclass(eq=False)
class FunctionEventAvg(_TimeStatistics):
    """The sum of the events of one name."""

    key: str
    device_type: DeviceType = DeviceType.CPU
    input_shapes: list[list[int]] = field(default_factory=list)
    is_user_annotation: bool = False
    count: int = 0
    cpu_time_total: float = 0.0
    self_cpu_time_total: float = 0.0
    device_time_total: float = 0.0
    self_device_time_total: float = 0.0
    flops: int = 0
    stack: list[str] = field(default_factory=list)
    cpu_memory_usage: int = 0
    self_cpu_memory_usage: int = 0
    device_memory_usage: int = 0
    self_device_memory_usage: int = 0

    def add(self, event: FunctionEvent | FunctionEventAvg) -> FunctionEventAvg:
        """Add an event's statistics and return this object. An event inside another of its name adds only its own
        time.
        """
        self.count += event.count
        inside = isinstance(event, FunctionEvent) and _inside_itself(event)
        if not inside:
            self.cpu_time_total += event.cpu_time_total
            self.device_time_total += event.device_time_total
            self.cpu_memory_usage += event.cpu_memory_usage
            self.device_memory_usage += event.device_memory_usage
        self.self_cpu_memory_usage += event.self_cpu_memory_usage
        self.self_device_memory_usage += event.self_device_memory_usage
        self.self_cpu_time_total += event.self_cpu_time_total
        self.self_device_time_total += event.self_device_time_total
        self.flops += event.flops
        return self


def _inside_itself(event: FunctionEvent) -> bool:
    parent = event.cpu_parent
    while parent is not None:
        if parent.name == event.name:
            return True
        parent = parent.cpu_parent
    return False
