"""Functions that read numbers which change: which graphs are kept, replaced and replayed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

import flambeau as torch
from flambeau.nn.replay.replayed_function import WORTH, ReplayedFunction


@pytest.fixture(autouse=True)
def gpu() -> Iterator[Any]:
    with torch.virtual(devices=1, races="error", poison=True) as machine:
        yield machine
        torch.compiler.reset()


def counts(compiled: Any) -> ReplayedFunction:
    """Return the captured calls of a compiled function, and its counts."""
    found: ReplayedFunction = compiled._flambeau_compiled
    return found


class Scale:
    """A function with a number that the program changes."""

    def __init__(self, limit: int) -> None:
        self.factor = 1.0
        self.x = torch.ones(3, 4, device="cuda")
        self.called = torch.compile(
            lambda: (self.x * self.factor).sum(), mode="reduce-overhead", recompile_limit=limit
        )

    def run(self, factor: float, calls: int) -> None:
        self.factor = factor
        for _ in range(calls):
            assert self.called().item() == 12 * factor


def test_graph_that_was_worth_its_capture_is_replaced() -> None:
    scale = Scale(limit=2)
    for factor in range(6):
        scale.run(float(factor), WORTH + 2)
    assert counts(scale.called).captures == 6
    assert len(counts(scale.called).captured_calls()) == 2
    scale.run(5.0, 3)
    scale.run(4.0, 3)  # both are kept
    assert counts(scale.called).captures == 6


def test_graph_that_was_replayed_too_seldom_is_kept() -> None:
    scale = Scale(limit=2)
    for factor in range(6):
        scale.run(float(factor), WORTH)  # without the warm-up and the capture of the first
    found = counts(scale.called)
    assert (found.captures, found.replays) == (2, 2 * WORTH - 3)
    assert "self.factor changed from 1.0 to 2.0" in str(found.breaks[-1])


def test_graph_that_is_unused_for_longest_is_replaced() -> None:
    scale = Scale(limit=3)
    for factor in (1.0, 2.0, 3.0):
        scale.run(factor, WORTH + 2)
    scale.run(1.0, 1)
    scale.run(4.0, 2)  # replaces the graph of 2.0
    captures = counts(scale.called).captures
    for factor in (1.0, 3.0, 4.0):
        scale.run(factor, 2)
    assert counts(scale.called).captures == captures
    scale.run(2.0, 1)
    assert counts(scale.called).captures == captures + 1


def test_memory_of_replaced_graphs_is_freed() -> None:
    scale = Scale(limit=2)
    reserved = []
    for factor in range(8):
        scale.run(float(factor), WORTH + 2)
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[3] == reserved[-1]


@pytest.mark.parametrize("seed", range(3))
def test_results_are_those_of_eager_code_for_any_order_of_numbers(seed: int) -> None:
    choice, scale = random.Random(seed), Scale(limit=2)
    for _ in range(25):
        scale.run(float(choice.randrange(5)), choice.choice([1, 2, WORTH + 3]))


def train(wrap: Any, lr: Any, every: int) -> list[float]:
    """Return the losses of steps with a scheduler that changes the learning rate at each `every`-th step."""
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 4).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, capturable=True)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    function, losses = wrap(step), []
    for k in range(4 * WORTH):
        losses.append(function(torch.full((3, 8), k * 0.1, device="cuda")).item())
        if (k + 1) % every == 0:
            scheduler.step()
    return losses


@pytest.mark.parametrize("every, is_tensor, captures", [(1, True, 1), (WORTH + 2, False, 4)])
def test_schedulers_keep_steps_replayed(every: int, is_tensor: bool, captures: int) -> None:
    functions = []

    def wrap(function: Any) -> Any:
        functions.append(torch.compile(function, mode="reduce-overhead", recompile_limit=2))
        return functions[-1]

    def rate() -> Any:
        return torch.tensor(0.1, device="cuda") if is_tensor else 0.1

    assert train(wrap, rate(), every) == train(lambda function: function, rate(), every)
    found = counts(functions[0])
    assert (found.captures, found.replays) == (captures, 4 * WORTH - 1 - captures)
