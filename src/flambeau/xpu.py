"""torch.xpu: Intel's GPUs, which Flambeau does not drive. Programs ask whether there is one."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from flambeau.core.absent_backend import DeviceGuard, build_answers, build_classes, build_refusals
from flambeau.core.errors import absent_device
from flambeau.core.public_names import explain_absent_names

_CLASSES = (
    "Event", "MemPool", "Stream", "StreamContext", "XPUGraph", "XPUPluggableAllocator", "graph",
)  # fmt: skip
_REFUSED = (
    "can_device_access_peer", "change_current_allocator", "current_device", "current_stream",
    "get_device_capability", "get_device_name", "get_device_properties", "get_per_process_memory_fraction",
    "get_rng_state", "get_stream_from_external", "init", "initial_seed", "make_graphed_callables", "mem_get_info",
    "set_device", "set_per_process_memory_fraction", "set_rng_state", "synchronize", "use_mem_pool",
)  # fmt: skip
_SENSORS = ("clock_rate", "device_memory_used", "memory_usage", "power_draw", "temperature", "utilization")
_NONE = (
    "empty_cache",
    "manual_seed",
    "manual_seed_all",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_rng_state_all",
    "set_stream",
)
_NUMBERS = (
    "device_count",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
)
_FALSE = ("is_available", "is_bf16_supported", "is_initialized", "is_tf32_supported")
default_generators: tuple[Any, ...] = ()


class device(DeviceGuard):
    """A context manager that selects an XPU device; a negative index or None changes nothing."""

    kind = "xpu"


class device_of(device):
    """A context manager that makes an object's device current; objects without one change nothing."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if getattr(obj, "is_xpu", False) else -1)


def stream(stream: Any) -> Any:
    """Return a context manager that selects a stream; None changes nothing.

    Raises:
        AssertionError: If a stream is given.
    """
    return device(None if stream is None else 0)


_answers = (
    dict.fromkeys(_NONE)
    | dict.fromkeys(_NUMBERS, 0)
    | dict.fromkeys(_FALSE, False)
    | {"get_arch_list": list, "get_gencode_flags": "", "get_rng_state_all": list, "memory_snapshot": list}
    | {"memory_stats": OrderedDict, "memory_stats_as_nested_dict": dict}
)
_values: dict[str, Any] = build_answers(__name__, _answers)
_values |= build_refusals(__name__, _REFUSED, lambda name: absent_device("xpu"))
_values |= build_refusals(
    __name__,
    ("graph_pool_handle", "is_current_stream_capturing"),
    lambda name: RuntimeError("Torch not compiled with XPU enabled"),
)
_values |= build_refusals(
    __name__, _SENSORS, lambda name: ImportError("pyzes is required; install it with 'pip install pyzes'.")
)
_values |= build_classes(__name__, _CLASSES)
globals().update(_values)
__all__ = sorted([*_values, "default_generators", "device", "device_of", "stream"])
explain_absent_names(globals(), "torch.xpu")
