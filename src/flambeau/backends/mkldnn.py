"""torch.backends.mkldnn: Intel's oneDNN, which Flambeau does not use. Programs that tune it ask."""

from flambeau.core.names import lacking

__all__ = ["is_available"]

__getattr__ = lacking("torch.backends.mkldnn")

enabled = False


def is_available() -> bool:
    """Return whether oneDNN computes: always False."""
    return False
