"""`torch.backends.kleidiai`: KleidiAI, which Flambeau does not use. Programs ask whether it is available."""

from flambeau.core.public_names import explain_absent_names

__all__ = ["is_available"]

explain_absent_names(globals(), "torch.backends.kleidiai")


def is_available() -> bool:
    """Return False."""
    return False
