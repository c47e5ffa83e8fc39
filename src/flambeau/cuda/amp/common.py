"""torch.cuda.amp.common: whether there is a GPU for mixed precision; the warning of the older names."""

from __future__ import annotations

from flambeau.core.callsite import warn_program
from flambeau.core.public_names import explain_absent_names
from flambeau.runtime.system import is_available

__all__ = ["amp_definitely_not_available"]
explain_absent_names(globals(), "torch.cuda.amp.common")


def warn_of(old: str, new: str) -> None:
    """Warn that a name of `torch.cuda.amp` is deprecated, and name the one of `torch.amp`."""
    warn_program(
        f"`torch.cuda.amp.{old}(args...)` is deprecated. Please use `torch.amp.{new}` instead.", FutureWarning
    )


def amp_definitely_not_available() -> bool:
    """Return True if there is no GPU to compute with mixed precision."""
    return not is_available()
