"""Reductions inside of compiled functions, with pointwise operators before and after them, on virtual GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_programs import check_equals_eager_code, walk
from seeds import EXHAUSTIVE

import flambeau as torch

REDUCTIONS = ("sum", "mean", "amax", "amin")
SHAPES = ((64, 64), (5, 37), (2, 3, 40), (40, 2, 32), (4, 100))
STEP = st.tuples(
    st.sampled_from(
        [
            *REDUCTIONS,
            *[f"{name}2" for name in REDUCTIONS],
            "mul",
            "sub",
            "add_",
            "sub_",
            "float",
            "drop",
            "total",
        ]
    ),
    st.integers(0, 5),
    st.integers(0, 5),
    st.booleans(),
)


@pytest.fixture(scope="module", autouse=True)
def devices() -> Iterator[None]:
    with torch.virtual(races="error"):
        yield


def perform(name: str, a: Any, b: Any, flag: bool) -> Any:
    """Return the result of a step. A reduction whose name ends with 2 has two dimensions."""
    if name.rstrip("2") in REDUCTIONS:
        return getattr(a, name.rstrip("2"))((-1, -2) if name.endswith("2") else -1, flag)
    if name == "total":
        return a.sum()
    if name == "float":
        return a.float()
    return getattr(a, name)(b * 0.5) if name in ("add_", "sub_") else getattr(torch, name)(a, b)


@given(
    shape=st.sampled_from(SHAPES),
    kind=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    steps=st.lists(STEP, min_size=3, max_size=14),
)
@settings(max_examples=1500 if EXHAUSTIVE else 80, deadline=None)
def test_random_rows_equal_eager_code(shape: Any, kind: Any, steps: Any) -> None:
    check_equals_eager_code(partial(walk, perform), shape, kind, steps)


def normalize(x: Any) -> Any:
    centered = x - x.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def rms_norm(x: Any) -> Any:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * x[0]


def softmax(x: Any) -> Any:
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


@pytest.mark.parametrize("function", [normalize, rms_norm, softmax], ids=lambda f: f.__name__)
def test_function_of_rows_is_one_kernel(
    function: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.randn(64, 128, device="cuda")
    want = function(x)
    monkeypatch.setenv("FLAMBEAU_LOGS", "fusion")
    capsys.readouterr()
    got = torch.compile(function)(x)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fusion: ")]
    assert len(lines) == 1
    assert "one kernel of" in lines[0]
    assert torch.equal(got, want)


def test_rows_of_other_item_sizes_are_reduced_by_another_kernel(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that groups keep item sizes apart: they decide how many threads reduce a row, and so the sum."""
    x = torch.randn(64, 128, device="cuda")
    monkeypatch.setenv("FLAMBEAU_LOGS", "fusion")
    torch.compile(lambda x: (x.sum(-1, keepdim=True), x.half().sum(-1, keepdim=True)))(x)
    assert "the next call reduces other rows" in capsys.readouterr().err


def test_memory_of_fused_rows_is_that_of_the_result() -> None:
    x = torch.randn(512, 128, device="cuda")
    normalize(x)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = torch.compile(normalize)(x)
    assert torch.cuda.max_memory_allocated() - before == result.nbytes


def test_backward_of_fused_rows_equals_eager() -> None:
    gradients = []
    for function in (normalize, torch.compile(normalize)):
        x = torch.arange(200.0, device="cuda").view(4, 50).sin().requires_grad_()
        function(x).square().sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("shape", [(1, 1 << 18), (300000, 2)])
def test_rows_that_blocks_serve_badly_stay_separate(
    shape: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that one long row, which many blocks reduce, and short rows are not fused."""
    x = torch.ones(shape, device="cuda")
    monkeypatch.setenv("FLAMBEAU_LOGS", "fusion")
    torch.compile(lambda x: (x * 2).sum(-1, keepdim=True) + 1)(x)
    assert "sum cannot be fused" in capsys.readouterr().err
