"""torch.cpu.amp: the older form of `torch.autocast("cpu")`."""

from __future__ import annotations

from flambeau import amp
from flambeau.core.callsite import warn_program
from flambeau.core.dtype import bfloat16, dtype
from flambeau.core.public_names import explain_absent_names

__all__ = ["autocast"]


class autocast(amp.autocast):
    """The former name of `torch.amp.autocast("cpu", ...)`.

    Args:
        enabled: False switches autocast off inside.
        dtype: The lower precision.
        cache_enabled: True if weights are cast once for all their uses inside.
    """

    def __init__(self, enabled: bool = True, dtype: dtype = bfloat16, cache_enabled: bool = True) -> None:
        warn_program(
            "`torch.cpu.amp.autocast(args...)` is deprecated. Please use `torch.amp.autocast('cpu', args...)` instead.",
            FutureWarning,
        )
        super().__init__("cpu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


explain_absent_names(globals(), "torch.cpu.amp")
