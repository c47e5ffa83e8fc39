"""torch.cuda.amp: the older names of `torch.amp` for CUDA. Each use warns, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau import amp
from flambeau.core.callsite import warn_program
from flambeau.core.dtype import dtype, float16
from flambeau.core.names import explain_absent_names
from flambeau.runtime.system import is_available


def _warn(old: str, new: str) -> None:
    warn_program(
        f"`torch.cuda.amp.{old}(args...)` is deprecated. Please use `torch.amp.{new}` instead.", FutureWarning
    )


class autocast(amp.autocast):
    """The former name of `torch.autocast("cuda", ...)`; creating it warns with a FutureWarning."""

    def __init__(self, enabled: bool = True, dtype: dtype = float16, cache_enabled: bool = True) -> None:
        _warn("autocast", "autocast('cuda', args...)")
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(amp.GradScaler):
    """The former name of `torch.amp.GradScaler("cuda", ...)`; creating it warns with a FutureWarning."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        _warn("GradScaler", "GradScaler('cuda', args...)")
        super().__init__("cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


def custom_fwd(fwd: Callable[..., Any] | None = None, *, cast_inputs: dtype | None = None) -> Any:
    """Return `torch.amp.custom_fwd(..., device_type="cuda")`, with a FutureWarning. Raises what that raises."""
    _warn("custom_fwd", "custom_fwd(args..., device_type='cuda')")
    return amp.custom_fwd(fwd, device_type="cuda", cast_inputs=cast_inputs)


def custom_bwd(bwd: Callable[..., Any]) -> Any:
    """Return `torch.amp.custom_bwd(..., device_type="cuda")`, with a FutureWarning. Raises what that raises."""
    _warn("custom_bwd", "custom_bwd(args..., device_type='cuda')")
    return amp.custom_bwd(bwd, device_type="cuda")


def amp_definitely_not_available() -> bool:
    """Return True if there is no GPU to compute with mixed precision."""
    return not is_available()


explain_absent_names(globals(), "torch.cuda.amp")
