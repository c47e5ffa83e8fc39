"""Pooling against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
from functional import both, draw, refuses
from hypothesis import given
from hypothesis import strategies as st
from support import torch

NEAR = {"float32": 1e-6, "float64": 1e-14}
KINDS = ("float16", "bfloat16", "float32", "float64", "int64")


@given(st.integers(1, 3), st.integers(0, 2), st.data(), st.sampled_from(KINDS), st.booleans(), st.booleans())
def test_pools(ndim: int, batch: int, data: Any, kind: str, ceil: bool, special: bool) -> None:
    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple([data.draw(st.integers(low, high)) for _ in range(ndim)])

    x = draw(*((batch,) if batch else ()), 2, *each(1, 8), kind=kind)
    if special and kind != "int64":
        x = torch.where(draw(*x.shape, seed=4) > 1.5, float("nan"), x)
        x = torch.where(draw(*x.shape, seed=5) > 1.0, -float("inf"), x)
    kernel, stride, dilation = each(1, 4), data.draw(st.sampled_from((None, each(1, 3)))), each(1, 2)
    padding = tuple([data.draw(st.integers(0, k // 2)) for k in kernel])
    both(
        lambda nn, x: getattr(nn, f"max_pool{ndim}d")(
            x, kernel, stride, padding, dilation, ceil_mode=ceil, return_indices=True
        ),
        x, ulps=0,
    )  # fmt: skip
    include = data.draw(st.booleans())
    more = [data.draw(st.sampled_from((None, 3, -2)))] if ndim > 1 else []
    if not special and not (ndim == 3 and kind in ("float16", "bfloat16")):  # that PyTorch has on GPUs alone
        both(
            lambda nn, x: getattr(nn, f"avg_pool{ndim}d")(x, kernel, stride, padding, ceil, include, *more),
            x, ulps=2, atol=NEAR.get(kind, 0),
        )  # fmt: skip


@given(st.integers(1, 3), st.integers(0, 2), st.data(), st.sampled_from(("float32", "float64", "bfloat16")))
def test_adaptive_pools(ndim: int, batch: int, data: Any, kind: str) -> None:
    sizes = [data.draw(st.integers(1, 7)) for _ in range(ndim)]
    x = draw(*((batch,) if batch else ()), 2, *sizes, kind=kind)
    target = tuple([data.draw(st.integers(1, 8)) for _ in range(ndim)])
    both(
        lambda nn, x: getattr(nn, f"adaptive_avg_pool{ndim}d")(x, target),
        x,
        ulps=2,
        atol=NEAR.get(kind, 0),
    )
    both(lambda nn, x: getattr(nn, f"adaptive_max_pool{ndim}d")(x, target, return_indices=True), x, ulps=0)
    both(lambda nn, x: getattr(nn, f"adaptive_max_pool{ndim}d")(x, target), x.fill_(float("nan")), ulps=0)


def test_adaptive_sizes() -> None:
    x = draw(2, 3, 6, 7)
    both(lambda nn, x: nn.adaptive_avg_pool2d(x, (None, 2)), x, atol=1e-6)
    both(lambda nn, x: nn.adaptive_avg_pool2d(x, 1), x, atol=1e-6)
    both(lambda nn, x: nn.adaptive_max_pool2d(x, 3), x)
    both(lambda nn, x: nn.adaptive_avg_pool2d(x[:, :, :0], 3), x)


@pytest.mark.parametrize("norm_type", (1.0, 2.0, 3.0))
def test_lp_pools(norm_type: float) -> None:
    for ndim in (1, 2, 3):
        x = draw(2, 3, *(6,) * ndim, low=0.1)
        for ceil in (False, True):
            both(
                lambda nn, x, n=ndim, c=ceil: getattr(nn, f"lp_pool{n}d")(x, norm_type, 3, 2, c),
                x, ulps=16,
            )  # fmt: skip


@pytest.mark.parametrize("ndim", (1, 2, 3))
def test_unpooling_puts_maxima_back(ndim: int) -> None:
    x = draw(2, 3, *(7,) * ndim)
    values, places = getattr(torch.nn.functional, f"max_pool{ndim}d")(x, 2, 2, return_indices=True)
    name = f"max_unpool{ndim}d"
    even = getattr(torch.nn.functional, f"max_pool{ndim}d")(
        draw(2, 3, *(6,) * ndim), 2, 2, return_indices=True
    )
    both(lambda nn, v, p: getattr(nn, name)(v, p, 2, 2), *even, ulps=0)
    both(lambda nn, v, p: getattr(nn, name)(v, p, 2, 2, output_size=(7,) * ndim), values, places, ulps=0)
    both(
        lambda nn, v, p: getattr(nn, name)(v[0], p[0], 2, 2, output_size=(7,) * ndim), values, places, ulps=0
    )
    both(lambda nn, v, p: getattr(nn, name)(v, p, 2, 2, output_size=(12,) * ndim), values, places)
    both(lambda nn, v, p: getattr(nn, name)(v, p + 1000, 2, 2), values, places)
    both(lambda nn, v, p: getattr(nn, name)(v, p.int(), 2, 2), values, places)


def test_refusals() -> None:
    x = draw(1, 2, 4, 4)
    refuses(RuntimeError, "at most half", lambda nn, x: nn.max_pool2d(x, 2, padding=2), x)
    refuses(RuntimeError, "Output size is too small", lambda nn, x: nn.max_pool2d(x, 5), x)
    refuses(RuntimeError, "must be non-negative", lambda nn, x: nn.max_pool2d(x, 2, padding=-1), x)
    refuses(RuntimeError, "greater than zero", lambda nn, x: nn.max_pool2d(x, 2, 0), x)
    refuses(
        RuntimeError, "divisor must be not zero", lambda nn, x: nn.avg_pool2d(x, 2, divisor_override=0), x
    )
    refuses(NotImplementedError, "not implemented for 'Bool'", lambda nn, x: nn.avg_pool2d(x, 2), x > 0)
    both(lambda nn, x: nn.max_pool2d(x[0, 0], 2), x)
    both(lambda nn, x: nn.max_pool2d(x, (2, 2, 2)), x)
