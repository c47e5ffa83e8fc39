"""The log of groups: `FLAMBEAU_LOGS=fusion` writes to stderr the calls that were fused, and why a group was issued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.core.callsite import place
from flambeau.core.logs import is_logged, log
from flambeau.driver.protocol import Launch


def is_on() -> bool:
    """Return True if the environment asks for the log."""
    return is_logged("fusion")


def write(context: Any, calls: Sequence[Any], why: str, alone: str, is_fused: bool) -> None:
    """Write one line for a kernel of a group, or for a group that was launched call by call.

    Args:
        context: The device.
        calls: The calls.
        why: What needed the group.
        alone: Why its calls were launched one by one; "" if nothing spoke for that.
        is_fused: True if it was one kernel.
    """
    shape = list(calls[-1].launch.outputs[0].shape)
    how = "one kernel" if is_fused else f"{len(calls)} kernels ({alone or 'no fused one is compiled'})"
    named = [(call.launch.kernel.name, call.site) for call in calls]
    listed = ", ".join([name if at is None else f"{name} ({place(at)})" for name, at in named])
    log("fusion", f"{context.device} {shape}: {how} of {listed}; issued because: {why}")


def write_refusal(launch: Launch, error: Exception) -> None:
    """Write why a group is launched call by call."""
    log("fusion", f"{launch.kernel.name} is launched call by call: {error}")
