"""`torch.backends.cpu`: the CPU's vector instructions."""

from flambeau.core.names import lacking

__all__ = ["get_cpu_capability"]

__getattr__ = lacking("torch.backends.cpu")


def get_cpu_capability() -> str:
    """Return "DEFAULT": NumPy selects vector instructions, and Flambeau does not know which."""
    return "DEFAULT"
