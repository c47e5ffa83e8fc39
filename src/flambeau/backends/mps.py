"""torch.backends.mps: Apple's GPUs, which are never available."""

from typing import NoReturn

from flambeau.core.errors import NotSupportedError
from flambeau.core.public_names import explain_absent_names

__all__ = [
    "get_core_count",
    "get_name",
    "is_available",
    "is_built",
    "is_macos13_or_newer",
    "is_macos_or_newer",
]

explain_absent_names(globals(), "torch.backends.mps")


def is_built() -> bool:
    """Return True if this package can drive Apple's GPUs: always False."""
    return False


def is_available() -> bool:
    """Return False, because Flambeau drives no GPU of Apple."""
    return False


def is_macos_or_newer(major: int, minor: int) -> bool:
    """Return True on a version of macOS from `major`.`minor`, where Apple's GPUs can be used: always False."""
    return False


def is_macos13_or_newer(minor: int = 0) -> bool:
    """Return True on macOS from 13.`minor`, where Apple's GPUs can be used: always False."""
    return False


def get_name() -> NoReturn:
    """Raise NotSupportedError, because there is no Apple GPU."""
    raise NotSupportedError(_REASON)


def get_core_count() -> NoReturn:
    """Raise NotSupportedError, because there is no Apple GPU."""
    raise NotSupportedError(_REASON)


_REASON = "Flambeau does not drive Apple's GPUs, so there is none to describe. Test torch.backends.mps.is_available()."
