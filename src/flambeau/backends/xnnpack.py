"""`torch.backends.xnnpack`: XNNPACK, which Flambeau does not use. Programs ask whether it is available."""

from flambeau.core.names import lacking

__all__ = ["is_available"]

__getattr__ = lacking("torch.backends.xnnpack")


def is_available() -> bool:
    """Return False."""
    return False
