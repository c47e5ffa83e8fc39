"""`torch.backends.cpu`: the CPU's vector instructions."""

from flambeau.core.public_names import explain_absent_names

__all__ = ["get_cpu_capability"]

explain_absent_names(globals(), "torch.backends.cpu")


def get_cpu_capability() -> str:
    """Return "DEFAULT": NumPy selects vector instructions, and Flambeau does not know which."""
    return "DEFAULT"
