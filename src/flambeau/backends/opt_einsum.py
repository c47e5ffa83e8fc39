"""torch.backends.opt_einsum: the package that orders the products of an einsum. Flambeau orders them itself."""

from typing import Any

from flambeau.core.public_names import explain_absent_names

__all__ = ["get_opt_einsum", "is_available"]

explain_absent_names(globals(), "torch.backends.opt_einsum")

enabled = False
strategy = None


def is_available() -> bool:
    """Return whether the package orders products: always False."""
    return False


def get_opt_einsum() -> Any:
    """Return the package: None, as it is not used."""
    return None
