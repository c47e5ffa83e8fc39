"""A profile in the Trace Event Format, as chrome://tracing and ui.perfetto.dev read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flambeau.autograd.profiler_events import DeviceType, FunctionEvent
from flambeau.autograd.profiler_memory import MemoryNote
from flambeau.observe.tracing.chrome import PROGRAM, ChromeTrace

_KINETO = {DeviceType.CPU: 0, DeviceType.CUDA: 1}  # c10::DeviceType


def chrome_trace(events: Iterable[FunctionEvent], memory: Sequence[MemoryNote] = ()) -> ChromeTrace:
    """Return slices of a process for the program and one for each device, and an arrow from each call to what it
    started.

    What was allocated and freed are instants of the program's threads, "[memory]".
    """
    trace = ChromeTrace()
    seen: set[int] = set()
    for event in events:
        if event.name == "[memory]":
            continue  # it is among `memory`
        if event.device_index not in seen:
            seen.add(event.device_index)
            trace.process(
                event.device_index, "program" if event.device_index < 0 else f"cuda:{event.device_index}"
            )
        pid, tid, begin_ns = _begin(event)
        trace.slice(
            pid, tid, event.name, _category(event), begin_ns, event.time_range.end * 1000, _args(event)
        )
        for kernel in event.kernels:
            trace.arrow("ac2g", "ac2g", _begin(event), _begin(kernel))
    for note in memory:
        trace.instant(PROGRAM, note.thread, "[memory]", "cpu_instant_event", note.time * 1000, _memory(note))
    return trace


def _begin(event: FunctionEvent) -> tuple[int, int, float]:
    return event.device_index, event.thread, event.time_range.start * 1000


def _category(event: FunctionEvent) -> str:
    """Return PyTorch's category of an event."""
    if event.device_type is DeviceType.CPU:
        return "user_annotation" if event.is_user_annotation else "cpu_op"
    if event.name.startswith("Memcpy "):
        return "gpu_memcpy"
    return "gpu_memset" if event.name.startswith("Memset ") else "kernel"


def _args(event: FunctionEvent) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if event.input_shapes:
        found["Input Dims"] = event.input_shapes
    if event.nbytes:
        found["bytes"] = event.nbytes
    return found


def _memory(note: MemoryNote) -> dict[str, int]:
    return {
        "Total Reserved": note.reserved,
        "Total Allocated": note.allocated,
        "Bytes": note.nbytes,
        "Device Id": note.device_index,
        "Device Type": _KINETO[note.device_type],
        "Addr": note.ptr,
    }
