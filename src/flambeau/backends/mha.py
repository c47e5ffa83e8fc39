"""torch.backends.mha: whether attention modules may take PyTorch's fast path of inference.

There is none here: modules compute the same, whatever is set. What programs set they read again.
"""

from flambeau.core.flags import flags
from flambeau.core.names import explain_absent_names

__all__ = ["get_fastpath_enabled", "set_fastpath_enabled"]

explain_absent_names(globals(), "torch.backends.mha")


def get_fastpath_enabled() -> bool:
    """Return the value that was set; True at first."""
    return flags.mha_fastpath


def set_fastpath_enabled(value: bool) -> None:
    """Remember it."""
    flags.mha_fastpath = value
