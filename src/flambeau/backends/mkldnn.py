"""torch.backends.mkldnn: Intel's oneDNN, which Flambeau does not use. Programs that tune it ask."""

from flambeau.core.public_names import explain_absent_names

__all__ = ["is_available"]

explain_absent_names(globals(), "torch.backends.mkldnn")

enabled = False


def is_available() -> bool:
    """Return whether oneDNN computes: always False."""
    return False
