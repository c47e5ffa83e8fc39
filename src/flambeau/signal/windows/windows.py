"""torch.signal.windows.windows: window functions of M points. `sym=False` gives the first M of M + 1 points."""

# ruff: noqa: N803  (PyTorch calls the number of points M)
from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from flambeau.core.dtype import dtype as Dtype
from flambeau.core.dtype import float64
from flambeau.core.flags import flags
from flambeau.core.public_names import explain_absent_names
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.arguments.typing import strided
from flambeau.tensor.tensor import Tensor

__all__ = [
    "bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine", "general_hamming", "hamming",
    "hann", "kaiser", "nuttall",
]  # fmt: skip


def _window(name: str, M: int, options: dict[str, Any], compute: Callable[[Any, int], Any]) -> Tensor:
    """Return `compute(n, last)` for the points n = 0 ... M - 1, where `last` is the last point of the whole window."""
    sym, kind = options.pop("sym", True), options.pop("dtype", None) or flags.default_dtype
    layout, device = options.pop("layout", strided), options.pop("device", None)
    requires_grad = options.pop("requires_grad", False)
    if options:
        raise TypeError(f"{name}() got an unexpected keyword argument {next(iter(options))!r}")
    if M < 0:
        raise ValueError(f"{name} requires non-negative window length, got M={M}")
    if layout is not strided:
        raise ValueError(f"{name} is implemented for strided tensors only, got: {layout}")
    if not isinstance(kind, Dtype) or not kind.is_floating_point or kind.itemsize not in (4, 8):
        raise ValueError(f"{name} expects float32 or float64 dtypes, got: {kind}")
    points = functions["arange"](M, dtype=float64, device=device)
    last = M - 1 if sym or M == 1 else M
    if not M or (M == 1 and name != "exponential"):
        made = points + 1
    else:
        made = compute(points, last)
    found: Tensor = made.to(kind).requires_grad_(requires_grad)
    return found


def general_cosine(M: int, *, a: Iterable[float], **options: Any) -> Tensor:
    """Return the window a[0] - a[1] cos(x) + a[2] cos(2 x) - ..., where x goes from 0 to 2 pi.

    Args:
        M: The number of points.
        a: The coefficients.
        options: `sym`, `dtype`, `layout`, `device`, `requires_grad`.

    Raises:
        TypeError: If `a` is not iterable.
        ValueError: If `a` is empty and M > 1, or an option is out of range.
    """
    if not isinstance(a, Iterable):
        raise TypeError("Coefficients must be a list/tuple")
    weights = list(a)

    def compute(n: Any, last: int) -> Any:
        if not weights:
            raise ValueError("Coefficients cannot be empty")
        waves = [(n * (2 * math.pi * k / last)).cos() for k in range(len(weights))]
        return sum(
            (-1) ** k * weight * wave for k, (weight, wave) in enumerate(zip(weights, waves, strict=True))
        )

    return _window("general_cosine", M, options, compute)


def general_hamming(M: int, *, alpha: float = 0.54, **options: Any) -> Tensor:
    """Return alpha - (1 - alpha) cos(2 pi n / (M - 1)). Options are those of `general_cosine`."""
    return general_cosine(M, a=[alpha, 1.0 - alpha], **options)


def hamming(M: int, **options: Any) -> Tensor:
    """Return the Hamming window. Options are those of `general_cosine`."""
    return general_hamming(M, **options)


def hann(M: int, **options: Any) -> Tensor:
    """Return the Hann window. Options are those of `general_cosine`."""
    return general_hamming(M, alpha=0.5, **options)


def blackman(M: int, **options: Any) -> Tensor:
    """Return the Blackman window. Options are those of `general_cosine`."""
    return general_cosine(M, a=[0.42, 0.5, 0.08], **options)


def nuttall(M: int, **options: Any) -> Tensor:
    """Return the minimum 4-term Blackman-Harris window of Nuttall. Options are those of `general_cosine`."""
    return general_cosine(M, a=[0.3635819, 0.4891775, 0.1365995, 0.0106411], **options)


def bartlett(M: int, **options: Any) -> Tensor:
    """Return the triangular window. Options are those of `general_cosine`."""
    return _window("bartlett", M, options, lambda n, last: 1 - (2 * n / last - 1).abs())


def cosine(M: int, **options: Any) -> Tensor:
    """Return half a period of the sine. Options are those of `general_cosine`."""
    return _window("cosine", M, options, lambda n, last: ((n + 0.5) * (math.pi / (last + 1))).sin())


def exponential(M: int, *, center: float | None = None, tau: float = 1.0, **options: Any) -> Tensor:
    """Return exp(-|n - center| / tau).

    Args:
        M: The number of points.
        center: The point of the maximum; None is the middle, and the only choice for symmetric windows.
        tau: How far from the maximum the window falls to 1 / e.
        options: As of `general_cosine`.

    Raises:
        ValueError: If `tau` is not positive, a symmetric window has a center, or an option is out of range.
    """
    if tau <= 0:
        raise ValueError(f"Tau must be positive, got: {tau} instead.")
    if options.get("sym", True) and center is not None:
        raise ValueError("Center must be None for symmetric windows")
    return _window(
        "exponential",
        M,
        options,
        lambda n, last: (-(n - (last / 2 if center is None else center)).abs() / tau).exp(),
    )


def gaussian(M: int, *, std: float = 1.0, **options: Any) -> Tensor:
    """Return exp(-((n - middle) / std)^2 / 2). Options are those of `general_cosine`.

    Raises:
        ValueError: If `std` is not positive, or an option is out of range.
    """
    if std <= 0:
        raise ValueError(f"Standard deviation must be positive, got: {std} instead.")
    return _window("gaussian", M, options, lambda n, last: (-(((n - last / 2) / std) ** 2) / 2).exp())


def kaiser(M: int, *, beta: float = 12.0, **options: Any) -> Tensor:
    """Return the Kaiser window with shape parameter `beta`. Options are those of `general_cosine`.

    Raises:
        ValueError: If `beta` is negative, or an option is out of range.
    """
    if beta < 0:
        raise ValueError(f"beta must be non-negative, got: {beta} instead.")
    return _window(
        "kaiser",
        M,
        options,
        lambda n, last: (
            (beta * (1 - (2 * n / last - 1) ** 2).clamp(min=0).sqrt()).i0()
            / functions["i0"](functions["tensor"](float(beta), dtype=float64)).item()
        ),
    )


explain_absent_names(globals(), "torch.signal.windows.windows")
