"""torch.backends.mps: Apple's GPUs, of which there are none here. Programs that look for a device ask."""

from flambeau.core.names import explain_absent_names

__all__ = ["is_available", "is_built"]

explain_absent_names(globals(), "torch.backends.mps")


def is_built() -> bool:
    """Whether this package can drive Apple's GPUs: always False."""
    return False


def is_available() -> bool:
    """Whether there is one: always False."""
    return False
