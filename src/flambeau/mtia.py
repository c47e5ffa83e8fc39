"""torch.mtia: Meta's accelerators, which Flambeau does not drive. Programs ask whether there is one."""

from __future__ import annotations

from typing import Any

from flambeau.core.absent_backend import DeviceGuard, build_answers, build_classes, build_refusals
from flambeau.core.errors import absent_device
from flambeau.core.public_names import explain_absent_names

_BACKEND = (
    "attach_out_of_memory_observer", "current_device", "current_stream", "default_stream", "empty_cache",
    "get_device_capability", "get_device_properties", "graph_pool_handle", "set_stream", "snapshot", "synchronize",
)  # fmt: skip
_BUILD = ("get_rng_state", "init", "initial_seed", "set_device", "set_rng_state")
_NONE = (
    "manual_seed", "manual_seed_all", "record_memory_history", "reset_peak_memory_stats", "seed", "seed_all",
    "set_rng_state_all",
)  # fmt: skip


class device(DeviceGuard):
    """A context manager that selects an MTIA device; a negative index or None changes nothing."""

    kind = "mtia"


def stream(stream: Any) -> Any:
    """Return a context manager that selects a stream; None changes nothing.

    Raises:
        AssertionError: If a stream is given.
    """
    return device(None if stream is None else 0)


_values: dict[str, Any] = build_answers(
    __name__,
    dict.fromkeys(_NONE)
    | dict.fromkeys(("device_count", "max_memory_allocated", "memory_allocated"), 0)
    | {"get_rng_state_all": list, "is_available": False, "is_bf16_supported": True, "is_initialized": False}
    | {"memory_stats": dict},
)
_values |= build_refusals(
    __name__, _BACKEND, lambda name: RuntimeError(f"Cannot execute {name}() without MTIA backend.")
)
_values |= build_refusals(__name__, _BUILD, lambda name: absent_device("mtia"))
_values |= build_classes(__name__, ("Event", "MTIAGraph", "Stream", "graph"))
globals().update(_values)
__all__ = sorted([*_values.keys() - {"Event", "Stream"}, "device", "stream"])
explain_absent_names(globals(), "torch.mtia")
