"""torch.mps: Apple's GPUs, which Flambeau does not drive. Programs ask whether there is one."""

from __future__ import annotations

from typing import Any

from flambeau.core.absent_backend import build_classes, build_refusals
from flambeau.core.public_names import explain_absent_names

_REFUSED = (
    "compile_shader", "current_allocated_memory", "driver_allocated_memory", "empty_cache", "get_rng_state",
    "load_metallib", "recommended_max_memory", "seed", "set_per_process_memory_fraction", "set_rng_state",
    "synchronize",
)  # fmt: skip


def is_available() -> bool:
    """Return False."""
    return False


def device_count() -> int:
    """Return 0."""
    return 0


def manual_seed(seed: int) -> None:
    """Do nothing, because there is no generator to seed."""


def _error(name: str) -> Exception:
    return RuntimeError(f"Cannot execute {name}() without MPS backend.")


_values: dict[str, Any] = build_refusals(__name__, _REFUSED, _error) | build_classes(__name__, ["Event"])
globals().update(_values)
__all__ = sorted([*_values, "device_count", "is_available", "manual_seed"])
explain_absent_names(globals(), "torch.mps")
