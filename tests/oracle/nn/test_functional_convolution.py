"""Linear maps, convolutions, padding and rearrangement against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
from functional import HALF_AND_UP, both, draw, refuses
from hypothesis import assume, given
from hypothesis import strategies as st
from support import HALVES, from_torch, torch

import flambeau

TOLERANCE = {"float16": 4e-2, "bfloat16": 0.3, "float32": 2e-5, "float64": 1e-12, "complex64": 4e-5}


@given(
    st.integers(1, 3), st.integers(0, 3), st.sampled_from((1, 2, 3)), st.booleans(), st.data(),
    st.sampled_from((*HALF_AND_UP, "complex64")), st.booleans(), st.booleans(),
)  # fmt: skip
def test_convolutions(
    ndim: int, batch: int, groups: int, bias: bool, data: Any, kind: str, transposed: bool, strided: bool
) -> None:
    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple([data.draw(st.integers(low, high)) for _ in range(ndim)])

    kernel, size, stride, padding, dilation = each(1, 3), each(1, 7), each(1, 3), each(0, 2), each(1, 2)
    inner, outer = 2 * groups, 3 * groups
    x = draw(*((batch,) if batch else ()), inner, *size, kind=kind)
    x = x.transpose(-1, -2).contiguous().transpose(-1, -2) if strided else x
    weight = draw(*((inner, 3) if transposed else (outer, 2)), *kernel, kind=kind, seed=1)
    b = draw(outer, kind=kind, seed=2) if bias else None
    more = {"output_padding": each(0, 1)} if transposed else {}
    if transposed and kind in ("float16", "bfloat16") and kind not in HALVES:
        ends = zip(size, stride, padding, dilation, kernel, more["output_padding"], strict=True)
        assume(all((n - 1) * s - 2 * p + d * (k - 1) + o >= 0 for n, s, p, d, k, o in ends))
    name = f"conv_transpose{ndim}d" if transposed else f"conv{ndim}d"
    both(
        lambda nn, x, w, b: getattr(nn, name)(
            x, w, b, stride=stride, padding=padding, dilation=dilation, groups=groups, **more
        ),
        x, weight, b, ulps=4, atol=TOLERANCE[kind],
    )  # fmt: skip


@pytest.mark.parametrize("kernel", (1, 2, 3, 4))
def test_named_padding(kernel: int) -> None:
    for ndim in (1, 2, 3):
        x, weight = draw(2, 3, *(6,) * ndim), draw(4, 3, *(kernel,) * ndim, seed=1)
        for padding in ("same", "valid"):
            for dilation in (1, 2):
                both(
                    lambda nn, x, w, n=ndim, **how: getattr(nn, f"conv{n}d")(x, w, **how),
                    x, weight, atol=2e-4, padding=padding, dilation=dilation,
                )  # fmt: skip
    both(lambda nn, x, w: nn.conv1d(x, w, padding="same", stride=2), draw(1, 3, 6), draw(4, 3, 2))
    both(lambda nn, x, w: nn.conv1d(x, w, padding="full"), draw(1, 3, 6), draw(4, 3, 2))


def test_large_batches_are_computed_in_parts() -> None:
    both(
        lambda nn, x, w: nn.conv2d(x, w, padding=1),
        draw(40, 16, 40, 40),
        draw(8, 16, 3, 3, seed=1),
        atol=2e-4,
    )


def test_tf32_rounds_convolutions_of_float32_on_gpus_that_have_it() -> None:
    x, w = from_torch(draw(1, 8, 9, 9)), from_torch(draw(4, 8, 3, 3, seed=1))
    conv = flambeau.nn.functional.conv2d
    exact = conv(x.double(), w.double())

    def error(x: Any, w: Any) -> float:
        return float((conv(x, w).cpu().double() - exact).abs().max())

    assert error(x, w) < 2e-5
    for profile, rounds in (("a100", True), ("v100", False)):
        with flambeau.virtual(devices=1, profile=profile):
            assert (error(x.cuda(), w.cuda()) > 1e-3) == rounds
            flambeau.backends.cudnn.allow_tf32 = False
            try:
                assert error(x.cuda(), w.cuda()) < 2e-5
            finally:
                flambeau.backends.cudnn.allow_tf32 = True
            assert float((conv(x.double().cuda(), w.double().cuda()).cpu() - exact).abs().max()) < 1e-12


def test_refusals_of_convolutions() -> None:
    x, w = draw(2, 3, 5, 5), draw(4, 3, 3, 3)
    refuses(
        RuntimeError, "to have 3 channels, but got 2 channels", lambda nn, x, w: nn.conv2d(x, w), x[:, :2], w
    )
    refuses(RuntimeError, "Kernel size can't be greater", lambda nn, x, w: nn.conv2d(x, w), x[..., :2], w)
    refuses(RuntimeError, r"Expected 3D \(unbatched\) or 4D", lambda nn, x, w: nn.conv2d(x, w), x[0, 0], w)
    refuses(RuntimeError, "should be the same", lambda nn, x, w: nn.conv2d(x, w), x, w.double())
    refuses(RuntimeError, "non-positive stride", lambda nn, x, w: nn.conv2d(x, w, stride=0), x, w)
    refuses(RuntimeError, "negative padding", lambda nn, x, w: nn.conv2d(x, w, padding=-1), x, w)
    refuses(RuntimeError, "dilation should be", lambda nn, x, w: nn.conv2d(x, w, dilation=0), x, w)
    refuses(RuntimeError, "divisible by 3", lambda nn, x, w: nn.conv2d(x, w, groups=3), x, w)
    refuses(RuntimeError, "expected bias", lambda nn, x, w, b: nn.conv2d(x, w, b), x, w, draw(5))
    refuses(
        RuntimeError, "output padding must be smaller",
        lambda nn, x, w: nn.conv_transpose2d(x, w.transpose(0, 1), output_padding=1), x, w,
    )  # fmt: skip
    refuses(TypeError, "must be Tensor", lambda nn, w: nn.conv2d([1.0], w), w)
    refuses(
        RuntimeError,
        "single integer value or a list of 2",
        lambda nn, x, w: nn.conv2d(x, w, stride=(1, 1, 1)),
        x,
        w,
    )


@given(st.lists(st.integers(0, 3), max_size=3), st.booleans(), st.sampled_from(HALF_AND_UP))
def test_linear(lead: list[int], bias: bool, kind: str) -> None:
    x, w = draw(*lead, 5, kind=kind), draw(4, 5, kind=kind, seed=1)
    both(
        lambda nn, x, w, b: nn.linear(x, w, b),
        x,
        w,
        draw(4, kind=kind) if bias else None,
        atol=TOLERANCE[kind],
    )


def test_bilinear_and_other_linear_forms() -> None:
    both(
        lambda nn, a, b, w, c: nn.bilinear(a, b, w, c),
        draw(3, 4),
        draw(3, 5),
        draw(2, 4, 5),
        draw(2),
        atol=4e-5,
    )
    both(lambda nn, a, b, w: nn.bilinear(a, b, w), draw(3, 2, 4), draw(3, 2, 5), draw(2, 4, 5), atol=4e-5)
    both(lambda nn, a, b, w: nn.bilinear(a, b, w), draw(3, 4), draw(2, 5), draw(2, 4, 5))
    both(lambda nn, x, w: nn.linear(x, w), draw(3, 4), draw(4), atol=1e-5)
    both(lambda nn, x, w: nn.linear(x, w), draw(3, 4), draw(2, 5))
    both(lambda nn, x, w, b: nn.linear(x, w, b), draw(3, 4), draw(2, 4), draw(3))
    both(lambda nn, x, w, b: nn.conv_tbc(x, w, b, 1), draw(6, 2, 3), draw(3, 3, 4), draw(4), atol=2e-5)


@given(
    st.integers(0, 2), st.tuples(st.integers(1, 3), st.integers(1, 3)), st.tuples(st.integers(1, 2), st.integers(1, 3)),
    st.integers(0, 2), st.integers(1, 2), st.sampled_from(("float32", "bfloat16")),
)  # fmt: skip
def test_unfold_and_fold(
    batch: int, kernel: Any, stride: Any, padding: int, dilation: int, kind: str
) -> None:
    x = draw(*((batch,) if batch else ()), 2, 5, 6, kind=kind)
    how = {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    both(lambda nn, x: nn.unfold(x, **how), x, ulps=0)
    columns = torch.nn.functional.unfold(x, **how)
    both(lambda nn, x: nn.fold(x, (5, 6), **how), columns, ulps=4, atol=1e-5 if kind == "float32" else 0.05)
    both(lambda nn, x: nn.fold(x, (5, 7), **how), columns[..., 1:])


@given(st.integers(1, 4), st.data(), st.sampled_from(("constant", "reflect", "replicate", "circular")))
def test_pad(ndim: int, data: Any, mode: str) -> None:
    x = draw(*data.draw(st.lists(st.integers(1, 4), min_size=ndim, max_size=ndim)))
    pads = data.draw(st.lists(st.integers(-2, 4), min_size=0, max_size=2 * ndim))
    if mode != "constant" and ndim - len(pads) // 2 not in (1, 2):
        return
    cut = [min(a, 0) + min(b, 0) for a, b in zip(pads[::2], pads[1::2], strict=False)]
    if mode == "circular" and any(n + less <= 0 for n, less in zip(reversed(x.shape), cut, strict=False)):
        return  # nothing is left to come round: PyTorch shows memory that it has not written
    both(lambda nn, x: nn.pad(x, pads, mode), x, ulps=0)


@pytest.mark.parametrize("kind", ("int64", "bool", "bfloat16", "complex64"))
def test_pad_with_a_value(kind: str) -> None:
    both(lambda nn, x: nn.pad(x, (1, 2, 0, 3), value=1), draw(2, 3, kind=kind), ulps=0)
    both(lambda nn, x: nn.pad(x, (1, 2), "reflect"), draw(2, 3, kind=kind), ulps=0)
    both(lambda nn, x: nn.pad(x, (1, 2), "replicate", 1), draw(2, 3, kind=kind), ulps=0)


def test_shuffles() -> None:
    x = draw(2, 12, 4, 6)
    for r in (1, 2, 3, 0):
        both(lambda nn, x, r=r: nn.pixel_shuffle(x, r), x, ulps=0)
        both(lambda nn, x, r=r: nn.pixel_unshuffle(x, r), x, ulps=0)
        both(lambda nn, x, r=r: nn.channel_shuffle(x, r), x, ulps=0)
    both(lambda nn, x: nn.pixel_shuffle(x, 2), x[0], ulps=0)
    both(lambda nn, x: nn.channel_shuffle(x, 5), x)
