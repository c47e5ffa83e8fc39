"""torch.backends.mps: Apple's GPUs, which are never available."""

from flambeau.core.names import explain_absent_names

__all__ = ["is_available", "is_built"]

explain_absent_names(globals(), "torch.backends.mps")


def is_built() -> bool:
    """Return True if this package can drive Apple's GPUs: always False."""
    return False


def is_available() -> bool:
    """Return True if there is one: always False."""
    return False
