"""torch.autograd.profiler_util: the events of a profile and their list."""

from __future__ import annotations

from flambeau.autograd.profiler_events import DeviceType, FunctionEvent, FunctionEventAvg, Interval
from flambeau.autograd.profiler_list import EventList
from flambeau.core.public_names import explain_absent_names

__all__ = ["DeviceType", "EventList", "FunctionEvent", "FunctionEventAvg", "Interval"]
explain_absent_names(globals(), "torch.autograd.profiler_util")
