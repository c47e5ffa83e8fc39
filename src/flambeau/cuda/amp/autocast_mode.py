"""torch.cuda.amp.autocast_mode: the older names of autocast for CUDA. Each use warns, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau import amp
from flambeau.core.dtype import dtype, float16
from flambeau.core.public_names import explain_absent_names
from flambeau.cuda.amp.common import warn_of

__all__ = ["autocast", "custom_bwd", "custom_fwd"]
explain_absent_names(globals(), "torch.cuda.amp.autocast_mode")


class autocast(amp.autocast):
    """The deprecated form of `torch.autocast("cuda", ...)`. Each use warns. Raises the same errors."""

    def __init__(self, enabled: bool = True, dtype: dtype = float16, cache_enabled: bool = True) -> None:
        warn_of("autocast", "autocast('cuda', args...)")
        super().__init__("cuda", dtype, enabled, cache_enabled)


def custom_fwd(fwd: Callable[..., Any] | None = None, *, cast_inputs: dtype | None = None) -> Any:
    """Return `torch.amp.custom_fwd(..., device_type="cuda")`, with a FutureWarning. Raises what that raises."""
    warn_of("custom_fwd", "custom_fwd(args..., device_type='cuda')")
    return amp.custom_fwd(fwd, device_type="cuda", cast_inputs=cast_inputs)


def custom_bwd(bwd: Callable[..., Any]) -> Any:
    """Return `torch.amp.custom_bwd(..., device_type="cuda")`, with a FutureWarning. Raises what that raises."""
    warn_of("custom_bwd", "custom_bwd(args..., device_type='cuda')")
    return amp.custom_bwd(bwd, device_type="cuda")
