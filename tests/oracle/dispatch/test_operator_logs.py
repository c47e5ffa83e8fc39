"""`TorchDispatchMode`: the operators that a handler sees, and the results, are PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_kit import backward, evaluate, log_operators, operands
from logged_programs import FORWARD, OTHER, SAME
from support import to_torch, torch

import flambeau

pytestmark = pytest.mark.skipif(torch is None, reason="needs PyTorch")


def _run(library: Any, text: str) -> tuple[list[str], list[str], Any, list[Any]]:
    """Return the operators of an expression, those of its backward, its result and the gradients."""
    library.manual_seed(0)
    named = operands(library)
    forward, result = log_operators(library, evaluate(text, named))
    behind, _ = log_operators(library, lambda _: backward(result))
    leaves = [t for t in named.values() if isinstance(t, library.Tensor) and t.is_leaf and t.requires_grad]
    return forward, behind, result, [t.grad for t in leaves]


def _assert_close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(to_torch(ours), theirs.detach(), rtol=1e-4, atol=1e-5, equal_nan=True)


def _assert_equal_values(text: str, ours: Any, theirs: Any) -> None:
    if isinstance(theirs, list | tuple):
        for mine, other in zip(ours, theirs, strict=True):
            _assert_equal_values(text, mine, other)
    elif isinstance(theirs, torch.Tensor) and "empty" not in text:
        _assert_close(ours, theirs)
    elif isinstance(theirs, int | float | bool):
        assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("text", SAME)
def test_operators_and_values_equal(text: str) -> None:
    theirs, ours = _run(torch, text), _run(flambeau, text)
    assert ours[0] == theirs[0]
    assert ours[1] == theirs[1]
    _assert_equal_values(text, ours[2], theirs[2])
    _assert_equal_values(text, ours[3], theirs[3])


@pytest.mark.parametrize("text", FORWARD)
def test_forward_operators_and_values_equal(text: str) -> None:
    theirs, ours = _run(torch, text), _run(flambeau, text)
    assert ours[0] == theirs[0]
    _assert_equal_values(text, ours[2], theirs[2])
    _assert_equal_values(text, ours[3], theirs[3])


@pytest.mark.parametrize("text", OTHER)
def test_values_equal_where_operators_differ(text: str) -> None:
    theirs, ours = _run(torch, text), _run(flambeau, text)
    assert ours[0]
    _assert_equal_values(text, ours[2], theirs[2])
    _assert_equal_values(text, ours[3], theirs[3])


# Steps of random programs: each keeps the shape (3, 4) of its operand `a`.
_STEPS = [
    "a + 1", "a * x", "a - y", "a / 2", "F.relu(a)", "a.sigmoid()", "a.tanh()", "F.gelu(a)", "-a", "a.abs()",
    "F.softmax(a, -1)", "F.log_softmax(a, 1)", "a.t().contiguous().view(3, 4)", "a.reshape(4, 3).reshape(3, 4)",
    "F.linear(F.linear(a, w), w.t())", "F.linear(a, sq.new_ones(4, 4), v)", "F.layer_norm(a, (4,), v, v)",
    "a - a.mean(1, keepdim=True)", "a + a.sum(0)", "t.cat([a[:1], a[1:]])", "t.stack([a, a])[0]",
    "t.where(m, a, y)", "a.masked_fill(m, 0)", "a[i]", "a.clone().add_(1)", "a.clone().mul_(y)", "a.exp()",
    "a.cumsum(0)", "a.roll(1, 0)", "a.flip(0)", "a.expand(2, 3, 4)[1]", "a.unsqueeze(0).squeeze(0)",
    "F.dropout(a, 0.5)", "a.max(1, keepdim=True)[0] + a", "a.index_select(0, i)", "a.double().float()",
    "(a @ w.t()) @ w", "F.silu(a)", "a ** 2", "a.tril()", "a.clamp(-1, 1)", "a.detach() + a",
]  # fmt: skip


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(_STEPS), min_size=1, max_size=6))
def test_random_programs_equal(steps: list[str]) -> None:
    def run(library: Any) -> tuple[list[str], Any, Any]:
        library.manual_seed(0)
        named = operands(library)

        def program(_: Any) -> Any:
            a = named["x"]
            for step in steps:
                a = eval(step, {**named, "a": a})
            return a

        lines, result = log_operators(library, program)
        backward(result)
        return lines, result, named["x"].grad

    theirs, ours = run(torch), run(flambeau)
    assert ours[0] == theirs[0]
    _assert_close(ours[1], theirs[1])
    if theirs[2] is not None:
        _assert_close(ours[2], theirs[2])
