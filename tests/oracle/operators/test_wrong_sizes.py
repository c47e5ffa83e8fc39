"""Sizes, factors and degrees that make no sense: errors at the call as PyTorch's, and never a device that is lost."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from support import torch

import flambeau

SHAPES = [(2, 3, 4), (2, 3, 4, 5), (1, 2, 3, 4, 5), (2, 3, 0, 4), (0, 3, 4, 4), (2, 0, 4, 4)]
MODES = ["nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear"]
SIZES: list[dict[str, Any]] = [
    *({"size": size} for size in (-1, 0, 2)),
    *({"scale_factor": factor} for factor in (-1.0, 0.0, math.nan, math.inf, -math.inf, 0.1, 1.5)),
]
POLYNOMIALS = [
    "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
    "shifted_chebyshev_polynomial_t", "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l",
    "legendre_polynomial_p",
]  # fmt: skip


def answer(library: Any, shape: tuple[int, ...], mode: str, how: dict[str, Any], device: str) -> Any:
    try:
        result = library.nn.functional.interpolate(library.ones(shape, device=device), mode=mode, **how)
    except Exception as error:
        return type(error).__name__
    return tuple(result.shape)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("mode", MODES)
def test_interpolate_refuses_what_pytorch_refuses(mode: str, device: str) -> None:
    with flambeau.virtual(1):
        for shape, how in itertools.product(SHAPES, SIZES):
            ours, theirs = (
                answer(flambeau, shape, mode, how, device),
                answer(torch, shape, mode, how, "cpu"),
            )
            assert ours == theirs, (shape, how)
        flambeau.cuda.synchronize()


def test_interpolate_says_both_sizes() -> None:
    message = r"should be greater than 0, but got input \(H: 4, W: 5\) output \(H: 2, W: -2\)"
    for library in (flambeau, torch):
        with pytest.raises(RuntimeError, match=message):
            library.nn.functional.interpolate(library.ones(1, 1, 4, 5), size=(2, -2))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", POLYNOMIALS)
def test_degrees_that_are_no_numbers_give_zero(name: str, device: str) -> None:
    places = [-2.0, -0.5, 0.0, 0.5, 1.0, 3.0]
    with flambeau.virtual(1):
        for degree in (math.nan, math.inf, -math.inf, 1e30, -3.0, 2.5):
            if degree == 1e30 or (math.isinf(degree) and "chebyshev" in name):
                theirs = torch.zeros(6, dtype=torch.float64)  # as for any degree that 64 bits cannot hold
            else:
                theirs = getattr(torch.special, name)(torch.tensor(places, dtype=torch.float64), degree)
            x = flambeau.tensor(places, dtype=flambeau.float64, device=device)
            ours = getattr(flambeau.special, name)(x, degree)
            assert ours.tolist() == pytest.approx(theirs.tolist(), nan_ok=True), degree


def test_a_result_with_a_negative_size_is_refused_before_a_kernel() -> None:
    from flambeau.core.device import CPU
    from flambeau.core.meta import Meta

    with pytest.raises(RuntimeError, match=r"negative dimension -2: \[3, -2\]"):
        Meta.of((3, -2), (1, 1), flambeau.float32, CPU)
