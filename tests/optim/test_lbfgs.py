"""LBFGS against PyTorch's: the same way down, with and without line search."""

from __future__ import annotations

from typing import Any

import pytest
from support import to_torch, torch

import flambeau


def rosenbrock(lib, x):
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def quartic(lib, x):
    return ((x - 3) ** 4).sum() + (x[0] * x[1] - 1) ** 2


def waves(lib, x):
    return (x.sin() * 3 + 0.1 * x * x).sum()


def run(lib, objective, steps, **given):
    start = [-1.2, 1.0, 0.5, 2.0]
    x = lib.tensor(start, dtype=lib.float64, requires_grad=True)
    o = lib.optim.LBFGS([x], **given)
    losses = []

    def closure():
        o.zero_grad()
        loss = objective(lib, x)
        loss.backward()
        losses.append(loss.item())
        return loss

    for _ in range(steps):
        o.step(closure)
    return x, o, losses


@pytest.mark.parametrize("objective", [rosenbrock, quartic, waves])
@pytest.mark.parametrize("given", [
    {"lr": 0.01, "max_iter": 5}, {"line_search_fn": "strong_wolfe"},
    {"line_search_fn": "strong_wolfe", "history_size": 2, "max_iter": 7, "lr": 0.5},
    {"line_search_fn": "strong_wolfe", "max_eval": 6},
])  # fmt: skip
def test_the_way_down_is_pytorchs(objective, given):
    theirs, a, their_losses = run(torch, objective, 4, **given)
    ours, b, our_losses = run(flambeau, objective, 4, **given)
    count = min(len(their_losses), len(our_losses))
    assert abs(len(their_losses) - len(our_losses)) <= 2  # where the last digits decide
    largest = max(map(abs, their_losses))
    for one, other in zip(our_losses[:count], their_losses[:count], strict=True):
        assert abs(one - other) <= 1e-6 * max(abs(other), 1e-3 * largest)
    assert (to_torch(ours.detach()) - theirs.detach()).abs().max() < 1e-5
    assert set(b.state[ours]) >= set(a.state[theirs]) - {"al"}


def test_a_complex_parameter_and_one_without_gradient():
    target = 1 - 2j
    z = flambeau.zeros(1, dtype=flambeau.complex128, requires_grad=True)
    idle = flambeau.ones(3, dtype=flambeau.float64, requires_grad=True)
    o = flambeau.optim.LBFGS([z, idle], line_search_fn="strong_wolfe")

    def closure():
        o.zero_grad()
        loss = ((z - target).abs() ** 2).sum()
        loss.backward()
        return loss

    o.step(closure)
    assert abs(z.item() - target) < 1e-8
    assert idle.tolist() == [1, 1, 1]


def test_its_state_is_saved_and_continues():
    x, o, _ = run(flambeau, rosenbrock, 2, line_search_fn="strong_wolfe")
    again = flambeau.optim.LBFGS([x], line_search_fn="strong_wolfe")
    again.load_state_dict(o.state_dict())
    assert again.state[x]["n_iter"] == o.state[x]["n_iter"] > 2
    assert again.state[x]["d"].tolist() == o.state[x]["d"].tolist()


def test_refusals_are_pytorchs():
    p = flambeau.ones(2, requires_grad=True)
    with pytest.raises(
        ValueError, match=r"^LBFGS doesn't support per-parameter options \(parameter groups\)$"
    ):
        flambeau.optim.LBFGS([{"params": [p]}, {"params": [flambeau.ones(1, requires_grad=True)]}])
    o = flambeau.optim.LBFGS([p], line_search_fn="weak")

    def closure():
        loss = (p * p).sum()
        loss.backward()
        return loss

    with pytest.raises(RuntimeError, match=r"^only 'strong_wolfe' is supported$"):
        o.step(closure)


@pytest.mark.parametrize("start", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_zero_tolerance_searches_an_empty_bracket(start: float, kind: str) -> None:
    """With tolerance_change=0 the bracket shrinks to one point, through which no cubic is determined."""

    def descend(module: Any) -> list[float]:
        x = module.tensor([start, -2.0, 5.0], dtype=getattr(module, kind), requires_grad=True)
        optimizer = module.optim.LBFGS(
            [x], max_iter=100, tolerance_grad=0, tolerance_change=0, line_search_fn="strong_wolfe"
        )

        def closure() -> Any:
            optimizer.zero_grad()
            loss = ((x - 1) ** 4).sum() + ((x - 2) ** 2).sum() + x.cos().sum()
            loss.backward()
            return loss

        for _step in range(4):
            optimizer.step(closure)
        return x.tolist()  # type: ignore[no-any-return]

    assert descend(flambeau) == pytest.approx(descend(torch), abs=1e-4)
