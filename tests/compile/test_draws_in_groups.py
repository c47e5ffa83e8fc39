"""Dropout inside of compiled functions: the numbers, the generator's offsets and the masks of eager code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import EXHAUSTIVE

import flambeau as torch
from flambeau.nn.functional import dropout

SIZE = 1 << 16  # elements, of which memory is a multiple of the allocator's unit


@pytest.fixture(scope="module", autouse=True)
def devices() -> Iterator[None]:
    with torch.virtual(races="error"):
        yield


def attention(x: Any, p: float) -> tuple[Any, ...]:
    weights = torch.softmax((x * 0.125).masked_fill(x > 0.5, -1e4), -1)
    return (dropout(weights, p, True),)


def residual(x: Any, p: float) -> tuple[Any, ...]:
    y = x + dropout(x * 2, p, True)
    return y, dropout(y, 0.9, True).relu()


def rows(x: Any, p: float) -> tuple[Any, ...]:
    centered = dropout(x, p, True) - dropout(x.mean(-1, keepdim=True), 0.2, True)
    return (centered * 2,)


def moved(x: Any, p: float) -> tuple[Any, ...]:
    dropped = dropout(x + 1, p, True)
    return torch.cat((dropped, x), -1) * 2, dropped.transpose(0, -1) * 3, dropped[..., 1:] - 1


def turned(x: Any, p: float) -> tuple[Any, ...]:
    return (dropout(x.transpose(0, -1) * 2, p, True) + 1,)


def observed(
    function: Callable[..., Any], run: Callable[..., Any], shape: Any, kind: Any, p: float, grad: bool
) -> Any:
    torch.manual_seed(7)
    x = torch.randn(shape, device="cuda").to(kind).requires_grad_(grad)
    results = run(x, p)
    if grad:
        sum([(y.float() * 2).sum() for y in results]).backward()
    names = [type(y.grad_fn).__name__ for y in results]
    return [y.detach() for y in results] + ([x.grad] if grad else []), torch.cuda.get_rng_state(), names


@given(
    function=st.sampled_from([attention, residual, rows, moved, turned]),
    shape=st.sampled_from([(4, 64), (3, 5), (7,), (2, 3, 40), (70, 1031)]),
    kind=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    p=st.sampled_from([0.1, 0.5, 0.99]),
    grad=st.booleans(),
)
@settings(max_examples=500 if EXHAUSTIVE else 40, deadline=None)
def test_dropout_equals_eager_code(function: Any, shape: Any, kind: Any, p: float, grad: bool) -> None:
    want, state, names = observed(function, function, shape, kind, p, grad)
    compiled = torch.compile(function)
    for _ in range(2):  # the second run finds the groups
        got, offset, found = observed(function, compiled, shape, kind, p, grad)
        assert torch.equal(offset, state)
        assert found == names
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b)


def test_masked_softmax_with_dropout_is_one_kernel_without_mask(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.randn(64, SIZE // 64, device="cuda")
    monkeypatch.setenv("FLAMBEAU_LOGS", "fusion")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    capsys.readouterr()
    (got,) = torch.compile(attention)(x, 0.1)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fusion: ")]
    assert len(lines) == 1
    assert "one kernel of" in lines[0]
    assert "dropout_mask" in lines[0]
    assert torch.cuda.max_memory_allocated() - before == got.nbytes


def test_graph_of_compiled_dropout_draws_as_eager_graph() -> None:
    drawn = []
    for run in (residual, torch.compile(residual)):
        torch.manual_seed(3)
        x = torch.ones(100, 64, device="cuda")
        run(x, 0.3)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = run(x, 0.3)
        replays = []
        for _ in range(3):
            graph.replay()
            replays.append(torch.stack(results))
        drawn.append(torch.stack(replays))
    assert torch.equal(*drawn)
    assert not torch.equal(drawn[0][0], drawn[0][1])
