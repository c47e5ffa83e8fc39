"""torch.utils._triton: whether Triton can compile kernels for Flambeau's devices. It cannot."""

from __future__ import annotations

from importlib.util import find_spec

from flambeau.core.public_names import explain_absent_names

__all__ = ["has_triton", "has_triton_package"]
explain_absent_names(globals(), "torch.utils._triton")


def has_triton_package() -> bool:
    """Return True if the package `triton` is installed."""
    return find_spec("triton") is not None


def has_triton() -> bool:
    """Return False: Triton needs PyTorch's C++ library to launch kernels."""
    return False
