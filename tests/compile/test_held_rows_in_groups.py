"""Softmax and normalization inside of compiled functions, with pointwise operators next to them, on virtual GPUs."""

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

SHAPES = ((4, 6), (2, 3, 5), (7,), (3, 1), (2, 64))
STEP = st.tuples(
    st.sampled_from(
        [
            "softmax",
            "log_softmax",
            "norm",
            "back",
            "mul",
            "sub",
            "add_",
            "float",
            "mask",
            "half",
            "row",
            "sum",
            "drop",
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


def normalized(x: Any, other: Any, centers: bool) -> Any:
    """Return rows of `x`, normalized, with a row of another tensor as the weight."""
    weight = other.reshape(-1)[: x.shape[-1]].to(x.dtype)
    if centers:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, weight * 2)
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight)


def gradient(x: Any, other: Any, is_log: bool) -> Any:
    """Return the gradient through a softmax of a product."""
    x = x.detach().requires_grad_()
    y = torch.log_softmax(x * 2, -1) if is_log else torch.softmax(x * 2, -1)
    (made,) = torch.autograd.grad(y, x, (other * 0.5).to(y.dtype).expand_as(y).contiguous())
    return made * 3


def perform(name: str, a: Any, b: Any, flag: bool) -> Any:
    """Return the result of a step."""
    if name.endswith("softmax"):
        return getattr(torch, name)(a, -1, dtype=torch.float32 if flag else None)
    if name == "norm":
        return normalized(a, b, flag)
    if name == "back":
        return gradient(a, b, flag)
    if name == "mask":
        return a.masked_fill(b > 0.5, -1e9)
    if name == "add_":
        return a.add_(b * 0.5)
    if name == "row":
        return a[0] if flag else a[..., ::2]
    if name == "sum":
        return a.sum(-1, keepdim=True)
    return getattr(a, name)() if name in ("float", "half") else getattr(torch, name)(a, b)


@given(
    shape=st.sampled_from(SHAPES),
    kind=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    steps=st.lists(STEP, min_size=3, max_size=14),
)
@settings(max_examples=1500 if EXHAUSTIVE else 60, deadline=None)
def test_random_rows_equal_eager_code(shape: Any, kind: Any, steps: Any) -> None:
    check_equals_eager_code(partial(walk, perform), shape, kind, steps)


def masked_softmax(scores: Any, mask: Any) -> Any:
    return torch.softmax((scores * 0.125).masked_fill(mask, -1e9), -1) * 2


def log_probabilities(scores: Any, mask: Any) -> Any:
    return torch.log_softmax(scores + mask, -1) * -0.1


def added_norm(weight: Any, scores: Any, mask: Any) -> Any:
    return torch.nn.functional.layer_norm(scores + mask, (64,), weight) * 2


@pytest.mark.parametrize(
    "function", [masked_softmax, log_probabilities, added_norm], ids=lambda f: f.__name__
)
def test_function_of_rows_is_one_kernel_without_temporaries(
    function: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = torch.randn(8, 64, 64, device="cuda")
    mask = torch.ones(64, 64, device="cuda").triu(1).bool()
    function = partial(function, mask[0].float()) if function is added_norm else function
    want = function(scores, mask)
    monkeypatch.setenv("FLAMBEAU_LOGS", "fusion")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    capsys.readouterr()
    got = torch.compile(function)(scores, mask)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fusion: ")]
    assert len(lines) == 1
    assert "one kernel of" in lines[0]
    assert torch.cuda.max_memory_allocated() - before == got.nbytes
    assert torch.equal(got, want)


def test_gradient_through_softmax_equals_eager() -> None:
    gradients = []
    for function in (masked_softmax, torch.compile(masked_softmax)):
        x = torch.arange(200.0, device="cuda").view(4, 50).sin().requires_grad_()
        function(x, x > 0.9).square().sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)
