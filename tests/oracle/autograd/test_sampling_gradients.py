"""The gradients of interpolation and of grid_sample against those that PyTorch's autograd finds."""

from __future__ import annotations

from typing import Any

import pytest
from functional import close, draw
from hypothesis import given
from hypothesis import strategies as st
from support import from_torch, torch

import flambeau
from flambeau.ops.nn.interpolation import Resampling
from flambeau.ops.op import table
from flambeau.tensor.call import call

NEAR = {"float16": 0.05, "bfloat16": 0.3, "float32": 3e-5, "float64": 1e-12}
NAMES = {
    "linear": {1: "linear", 2: "bilinear", 3: "trilinear"},
    "cubic": {2: "bicubic"},
    "lanczos": {2: "lanczos"},
}


@given(
    st.sampled_from(("nearest", "nearest-exact", "linear", "cubic", "lanczos")), st.integers(1, 3), st.data(),
    st.sampled_from(("float32", "float64", "bfloat16")), st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_interpolation(
    mode: str, ndim: int, data: Any, kind: str, align: bool, antialias: bool, scaled: bool
) -> None:
    named = NAMES.get(mode)
    if named is not None and ndim not in named:
        return
    if mode == "lanczos":
        if kind == "bfloat16":
            return
        align, antialias = False, True
    antialias = antialias and named is not None and ndim == 2 and kind != "bfloat16"  # which PyTorch lacks
    size = tuple([data.draw(st.integers(1, 6)) for _ in range(ndim)])
    x = draw(2, 2, *size, kind=kind).requires_grad_()
    more: dict[str, Any] = {"mode": named[ndim] if named else mode}
    if named:
        more |= {"align_corners": align, "antialias": antialias}
    if scaled:
        factors = tuple([data.draw(st.sampled_from((0.6, 1.0, 1.7, 3.0))) for _ in range(ndim)])
        if any(int(n * f) < 1 for n, f in zip(size, factors, strict=True)):
            return
        more["scale_factor"] = factors
    else:
        factors = (None,) * ndim
        more["size"] = tuple([data.draw(st.integers(1, 9)) for _ in range(ndim)])
    out = torch.nn.functional.interpolate(x, **more)
    grad = draw(*out.shape, kind=kind, seed=1)
    out.backward(grad)
    how = Resampling(mode, tuple(out.shape[2:]), factors, bool(named) and align, antialias)
    found = call(table["interpolate_backward"], (from_torch(grad),), (how, size))
    close(found, x.grad, 4, NEAR[kind])


@given(
    st.sampled_from(("nearest", "bilinear", "bicubic")), st.sampled_from(("zeros", "border", "reflection")),
    st.booleans(), st.integers(2, 3), st.data(), st.sampled_from(("float32", "float64")),
)  # fmt: skip
def test_grid_sample(mode: str, padding: str, align: bool, ndim: int, data: Any, kind: str) -> None:
    if mode == "bicubic" and ndim == 3:
        return
    size, places = (tuple([data.draw(st.integers(1, 5)) for _ in range(ndim)]) for _ in range(2))
    x = draw(2, 3, *size, kind=kind).requires_grad_()
    reach = data.draw(st.sampled_from((0.9, 1.5, 4.0)))
    grid = draw(2, *places, ndim, kind=kind, seed=1, low=-reach, high=reach).requires_grad_()
    out = torch.nn.functional.grid_sample(x, grid, mode, padding, align)
    grad = draw(*out.shape, kind=kind, seed=2)
    out.backward(grad)
    args = [from_torch(t.detach()) for t in (grad, x, grid)]
    found = call(table["grid_sample_backward"], args, (mode, padding, align))
    for ours, theirs in zip(found, (x.grad, grid.grad), strict=True):
        close(ours, theirs, 16, NEAR[kind])


def test_places_on_the_edges_and_beyond() -> None:
    at = torch.tensor([-1.0, 1.0, 0.0, 40.0, -70.0])
    grid = torch.stack(torch.meshgrid(at, at, indexing="ij"), -1)[None]
    x, grad = draw(1, 2, 4, 5), draw(1, 2, 5, 5, seed=1)
    for mode in ("nearest", "bilinear"):
        for padding in ("zeros", "border"):
            for align in (False, True):
                a, b = x.clone().requires_grad_(), grid.clone().requires_grad_()
                torch.nn.functional.grid_sample(a, b, mode, padding, align).backward(grad)
                args = [from_torch(t) for t in (grad, x, grid)]
                of_x, of_grid = call(table["grid_sample_backward"], args, (mode, padding, align))
                close(of_x, a.grad, 4, 1e-5)
                close(of_grid, b.grad, 4, 1e-5)


def test_places_that_are_no_numbers_or_infinite_take_no_part() -> None:
    """PyTorch's CPU writes outside its memory here."""
    x, grad = draw(1, 2, 4, 5), draw(1, 2, 1, 3, seed=1)
    grid = torch.tensor([[[[float("nan"), 0.0], [float("inf"), 0.0], [0.0, -1e30]]]])
    for mode in ("nearest", "bilinear", "bicubic"):
        args = [from_torch(t) for t in (grad, x, grid)]
        of_x, of_grid = call(table["grid_sample_backward"], args, (mode, "zeros", False))
        assert float(of_x.abs().sum()) == 0
        assert of_grid.shape == grid.shape


def test_deterministic_algorithms_refuse_it_on_gpus_as_pytorch_does() -> None:
    from flambeau.core.flags import flags

    with flambeau.virtual(devices=1):
        args = [from_torch(t).cuda() for t in (draw(1, 2, 2, 2), draw(1, 2, 3, 3), draw(1, 2, 2, 2))]
        flags.deterministic = True
        try:
            with pytest.raises(RuntimeError, match="grid_sampler_2d_backward_cuda does not have a determ"):
                call(table["grid_sample_backward"], args, ("bilinear", "zeros", False))
        finally:
            flags.deterministic = False


def test_a_gradient_of_another_shape_is_refused() -> None:
    args = [from_torch(t) for t in (draw(1, 2, 2, 3), draw(1, 2, 3, 3), draw(1, 2, 2, 2))]
    with pytest.raises(RuntimeError, match=r"expected grad_output of shape \[1, 2, 2, 2\]"):
        call(table["grid_sample_backward"], args, ("bilinear", "zeros", False))
    with pytest.raises(RuntimeError, match="spatial size"):
        how = Resampling("nearest", (2, 2), (None, None))
        call(table["interpolate_backward"], args[:1], (how, (4, 4)))
