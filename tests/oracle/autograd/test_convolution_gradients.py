"""The gradients of convolutions against PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
from functional import close, draw
from hypothesis import given
from hypothesis import strategies as st
from support import from_torch, torch

import flambeau
from flambeau.ops.nn.convolution import Geometry
from flambeau.ops.op import table
from flambeau.tensor.call import call

TOLERANCE = {"float16": 0.1, "bfloat16": 0.6, "float32": 1e-4, "float64": 1e-12, "complex64": 2e-4}


def gradients(grad: Any, x: Any, weight: Any, how: Geometry) -> tuple[Any, Any]:
    ours = [from_torch(t) for t in (grad, x, weight)]
    return (
        call(table["convolution_backward_input"], (ours[0], ours[2]), (how, tuple(x.shape[2:]))),
        call(table["convolution_backward_weight"], (ours[0], ours[1]), (how, tuple(weight.shape[2:]))),
    )


def reference(grad: Any, x: Any, weight: Any, how: Geometry) -> tuple[Any, Any]:
    if not x.dtype.is_complex:
        more = how.output_padding or (0,) * len(how.stride)
        found = torch.ops.aten.convolution_backward(
            grad, x, weight, None, how.stride, how.padding, how.dilation, how.transposed, more, how.groups,
            [True, True, False],
        )  # fmt: skip
        return found[0], found[1]
    # PyTorch's CPU has no complex ones; they are linear in the gradient and in the other factor.
    parts = [[f(grad), f(x), f(weight)] for f in (torch.real, torch.imag)]
    (rr, rw), (ii, iw) = (reference(*part, how) for part in parts)
    (ri, wi), (ir, iw2) = (reference(parts[a][0], *parts[b][1:], how) for a, b in ((0, 1), (1, 0)))
    return torch.complex(rr - ii, ri + ir), torch.complex(rw - iw, wi + iw2)


@given(
    st.integers(1, 3), st.integers(1, 3), st.sampled_from((1, 2, 3)), st.data(), st.sampled_from(list(TOLERANCE)),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_gradients(
    ndim: int, batch: int, groups: int, data: Any, kind: str, turned: bool, strided: bool
) -> None:
    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple([data.draw(st.integers(low, high)) for _ in range(ndim)])

    kernel, stride, padding, dilation = each(1, 3), each(1, 3), each(0, 2), each(1, 2)
    how = Geometry(stride, padding, dilation, turned, each(0, 2) if turned else (), groups)
    reach = how.reach(kernel)
    if turned and any(
        o >= s and o >= d for o, s, d in zip(how.output_padding, stride, dilation, strict=True)
    ):
        return
    size = tuple([max(n, r - 2 * p) for n, r, p in zip(each(1, 7), reach, padding, strict=True)])
    count = how.size(size, kernel)
    if any(n < 1 for n in count):
        return
    inner, outer = 2 * groups, 3 * groups
    x = draw(batch, inner, *size, kind=kind)
    weight = draw(*((inner, 3) if turned else (outer, 2)), *kernel, kind=kind, seed=1)
    grad = draw(batch, outer, *count, kind=kind, seed=2)
    if strided:
        x, weight, grad = (t.transpose(0, 1).contiguous().transpose(0, 1) for t in (x, weight, grad))
    for ours, theirs in zip(gradients(grad, x, weight, how), reference(grad, x, weight, how), strict=True):
        close(ours, theirs, 4, TOLERANCE[kind])


@pytest.mark.parametrize("turned", (False, True))
def test_of_nothing(turned: bool) -> None:
    how = Geometry((1,), (1,), (1,), turned)
    for batch, inner in ((0, 2), (2, 0)):
        x = draw(batch, inner, 5)
        weight = draw(*((inner, 3) if turned else (3, inner)), 3)
        grad = draw(batch, 3, 5)
        of_input, of_weight = gradients(grad, x, weight, how)
        assert of_input.shape == x.shape
        assert of_weight.shape == weight.shape
        assert float(of_weight.abs().sum()) == float(of_input.abs().sum()) == 0


def test_large_batches_are_computed_in_parts() -> None:
    x, weight = draw(40, 16, 40, 40), draw(8, 16, 3, 3, seed=1)
    how = Geometry((1, 1), (1, 1), (1, 1))
    grad = draw(40, 8, 40, 40, seed=2)
    for ours, theirs in zip(gradients(grad, x, weight, how), reference(grad, x, weight, how), strict=True):
        close(ours, theirs, 4, 0.05)  # sums of 64,000 terms


def test_gradients_round_to_tf32_on_gpus_that_have_it() -> None:
    x, weight, grad = draw(2, 8, 9, 9), draw(4, 8, 3, 3, seed=1), draw(2, 4, 7, 7, seed=2)
    how = Geometry((1, 1), (0, 0), (1, 1))
    exact = gradients(grad.double(), x.double(), weight.double(), how)

    def errors() -> list[float]:
        ours = [from_torch(t).cuda() for t in (grad, x, weight)]
        found = (
            call(table["convolution_backward_input"], (ours[0], ours[2]), (how, (9, 9))),
            call(table["convolution_backward_weight"], (ours[0], ours[1]), (how, (3, 3))),
        )
        return [float((a.cpu().double() - b).abs().max()) for a, b in zip(found, exact, strict=True)]

    for profile, rounds in (("a100", True), ("v100", False)):
        with flambeau.virtual(devices=1, profile=profile):
            assert [e > 1e-3 for e in errors()] == [rounds, rounds]


def test_a_gradient_of_another_shape_is_refused() -> None:
    how = Geometry((1, 1), (0, 0), (1, 1))
    with pytest.raises(RuntimeError, match=r"to have shape \[2, 4, 3, 3\]"):
        gradients(draw(2, 4, 4, 3), draw(2, 3, 5, 5), draw(4, 3, 3, 3), how)
