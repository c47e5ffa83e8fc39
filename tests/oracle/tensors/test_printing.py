"""Printing, against PyTorch: every dtype, shape and option, character for character."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import from_torch, torch

import flambeau
from flambeau.core.dtype import DTYPES

OPTIONS: dict[str, list[Any]] = {
    "precision": [0, 1, 2, 8], "threshold": [0, 5, 50], "edgeitems": [0, 1, 2, 5], "linewidth": [20, 40, 120],
    "sci_mode": [True, False], "profile": ["short", "full", "default"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _plain_options() -> Iterator[None]:
    yield
    set_options(profile="default")


def set_options(**options: Any) -> None:
    torch.set_printoptions(**options)
    flambeau.set_printoptions(**options)


def drawn(rng: random.Random, kind: Any) -> Any:
    """A tensor as programs print them: whole numbers, wide and narrow ranges, zeros, NaNs, odd strides."""
    shape = [
        rng.choice([0, 1, 2, 3, 5, 7, 12]) if rng.random() < 0.9 else 40 for _ in range(rng.randint(0, 4))
    ]
    g = torch.Generator().manual_seed(rng.randrange(1 << 30))
    x = torch.randn(shape, generator=g, dtype=torch.float64) * rng.choice(
        [1, 1, 10, 1e3, 1e5, 1e-3, 1e-5, 1e9, 1e30]
    )
    if rng.random() < 0.3:
        x = x.round()
    if rng.random() < 0.2:
        x = x * (torch.rand(shape, generator=g) < 0.5)
    if rng.random() < 0.2 and x.numel():
        x.view(-1)[rng.randrange(x.numel())] = rng.choice([float("nan"), float("inf"), -float("inf"), -0.0])
    if kind.is_complex:
        x = torch.complex(
            x, torch.randn(shape, generator=g, dtype=torch.float64) * rng.choice([1, 1e5, 1e-3])
        )
    elif not kind.is_floating_point:
        x = torch.nan_to_num(x, 0, 0, 0).clamp(-1e15, 1e15)
        x = x if kind.is_signed else x.abs()
    x = x.to(getattr(torch, kind.name))
    return x.transpose(0, 1) if x.dim() > 1 and rng.random() < 0.2 else x


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("kind", DTYPES, ids=lambda d: d.name)
def test_repr(kind: Any) -> None:
    rng = random.Random(kind.name)
    for _ in range(80):
        x = drawn(rng, kind)
        names = rng.sample(sorted(OPTIONS), 2) if rng.random() < 0.4 else []
        options = {name: rng.choice(OPTIONS[name]) for name in names}
        set_options(profile="default")
        set_options(**options)
        assert repr(from_torch(x)) == repr(x), (options, tuple(x.shape), x.stride())


@given(st.lists(st.floats(width=32), min_size=1, max_size=8))
def test_repr_of_any_floats(numbers: list[float]) -> None:
    assert repr(flambeau.tensor(numbers)) == repr(torch.tensor(numbers))
    assert str(flambeau.tensor(numbers[0])) == str(torch.tensor(numbers[0]))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8))
def test_repr_of_any_ints(numbers: list[int]) -> None:
    assert repr(flambeau.tensor(numbers)) == repr(torch.tensor(numbers))


def test_summary_of_more_than_a_thousand() -> None:
    for shape in [(1001,), (40, 40), (11, 10, 10), (2, 1200), (1200, 2), (1, 1, 5000)]:
        x = torch.arange(int(np.prod(shape))).reshape(shape)
        assert repr(from_torch(x)) == repr(x)
        assert repr(from_torch(x.float() / 7)) == repr(x.float() / 7)


def test_format() -> None:
    assert format(flambeau.tensor(1.5), ".3f") == "1.500"
    assert f"{flambeau.tensor([1.5])}" == "tensor([1.5000])"
    with pytest.raises(TypeError, match=r"unsupported format string passed to Tensor\.__format__"):
        format(flambeau.ones(2), ".3f")


def test_cuda_tensors_say_where_they_are() -> None:
    with flambeau.virtual(devices=2):
        for shape in [(2,), (0,), (0, 3), (), (3, 400), (30, 30, 30)]:
            x = torch.arange(float(np.prod(shape))).reshape(shape)
            ours = from_torch(x).cuda(1)
            assert repr(ours) == with_device(repr(x), x), shape


def with_device(text: str, x: Any) -> str:
    """PyTorch's text of a CPU tensor with the suffix of a CUDA tensor, put where PyTorch puts it."""
    suffix = "device='cuda:1'"
    if x.numel():
        return text[:-1] + f", {suffix})"
    return text.replace("[]", f"[], {suffix}")
