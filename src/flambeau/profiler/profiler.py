"""torch.profiler.profiler: the module in which PyTorch defines the names of `torch.profiler`."""

from __future__ import annotations

from flambeau.core.public_names import explain_absent_names
from flambeau.profiler import (
    ProfilerAction,
    ProfilerActivity,
    profile,
    schedule,
    supported_activities,
    tensorboard_trace_handler,
)

__all__ = [
    "ProfilerAction", "ProfilerActivity", "profile", "schedule", "supported_activities", "tensorboard_trace_handler",
]  # fmt: skip
explain_absent_names(globals(), "torch.profiler.profiler")
