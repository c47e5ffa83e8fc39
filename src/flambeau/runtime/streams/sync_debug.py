"""`announce`: an operation is about to make the host wait for a device; the mode of `set_sync_debug_mode` applies."""

from __future__ import annotations

from flambeau.core.callsite import warn_program
from flambeau.core.flags import flags

WARN, ERROR = 1, 2
_TEXT = "called a synchronizing CUDA operation"


def announce() -> None:
    """Warn of a blocking operation, or raise RuntimeError, as `set_sync_debug_mode` says. Call this before any
    change.
    """
    if flags.sync_debug_mode == WARN:
        warn_program(_TEXT, UserWarning)
    elif flags.sync_debug_mode == ERROR:
        raise RuntimeError(_TEXT)
