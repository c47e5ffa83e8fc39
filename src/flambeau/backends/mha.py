"""torch.backends.mha: the switch of PyTorch's fast path for attention modules, which has no effect here."""

from flambeau.core.flags import flags
from flambeau.core.public_names import explain_absent_names

__all__ = ["get_fastpath_enabled", "set_fastpath_enabled"]

explain_absent_names(globals(), "torch.backends.mha")


def get_fastpath_enabled() -> bool:
    """Return the value that was set; True at first."""
    return flags.mha_fastpath


def set_fastpath_enabled(value: bool) -> None:
    """Store the setting, which has no effect."""
    flags.mha_fastpath = value
