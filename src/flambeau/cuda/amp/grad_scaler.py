"""torch.cuda.amp.grad_scaler: the older name of `torch.amp.GradScaler`. Each use warns, as in PyTorch."""

from __future__ import annotations

from flambeau import amp
from flambeau.amp.grad_scaler import OptState as OptState
from flambeau.core.public_names import explain_absent_names
from flambeau.cuda.amp.common import warn_of

__all__ = ["GradScaler", "OptState"]
explain_absent_names(globals(), "torch.cuda.amp.grad_scaler")


class GradScaler(amp.GradScaler):
    """The deprecated form of `torch.amp.GradScaler("cuda", ...)`. Each use warns. Raises the same errors."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        warn_of("GradScaler", "GradScaler('cuda', args...)")
        super().__init__("cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
