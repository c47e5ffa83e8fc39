"""`torch.optim.swap_in_optimizer_params_and_state` against PyTorch's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from support import torch as oracle

import flambeau


def stepped(module: Any) -> tuple[Any, list[Any]]:
    """Return an optimizer of two groups after one step, and its parameters."""
    params = [module.nn.Parameter(module.arange(float(n)) - 1) for n in (3, 2, 4)]
    optimizer = module.optim.AdamW([{"params": params[:2]}, {"params": params[2:], "lr": 0.5}], lr=0.1)
    for p in params:
        p.grad = module.ones_like(p)
    optimizer.step()
    return optimizer, params


def swapped(module: Any) -> Any:
    optimizer, params = stepped(module)
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0]["lr"] = 0.25
    others = {str(at): module.full_like(p, 7.0).detach() for at, p in enumerate(params)}
    for other in others.values():
        other.grad = module.ones_like(other)
    groups = [group["params"] for group in optimizer.param_groups]
    with module.optim.swap_in_optimizer_params_and_state(optimizer, others, state):
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] == 0.25
    assert all(a is b["params"] for a, b in zip(groups, optimizer.param_groups, strict=True))
    return [
        [value.tolist() for value in (*params, *others.values())],
        optimizer.param_groups[0]["lr"],
        [[float(each["step"]), each["exp_avg"].tolist()] for each in state["state"].values()],
        [float(each["step"]) for each in optimizer.state.values()],
    ]


def test_a_step_of_swapped_parameters_is_pytorchs() -> None:
    mine, theirs = swapped(flambeau), swapped(oracle)
    assert mine[1:2] + mine[3:] == theirs[1:2] + theirs[3:]
    for a, b in zip(mine[0], theirs[0], strict=True):
        assert a == pytest.approx(b)
    assert str(mine[2]) == str(theirs[2])


CHANGES: dict[str, Any] = {
    "no dict": lambda state, params: 3,
    "no state": lambda state, params: {"param_groups": state["param_groups"]},
    "no groups": lambda state, params: {"state": state["state"]},
    "fewer groups": lambda state, params: state["param_groups"].pop(),
    "other keys": lambda state, params: state["param_groups"][0].pop("lr"),
    "fewer numbers": lambda state, params: state["param_groups"][0]["params"].pop(),
    "further state": lambda state, params: state["state"].update({9: {}}),
    "fewer tensors": lambda state, params: params.popitem(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_does_not_fit_raises_and_changes_nothing(name: str) -> None:
    for module in (oracle, flambeau):
        optimizer, params = stepped(module)
        state, others = optimizer.state_dict(), {str(at): p for at, p in enumerate(params)}
        given = CHANGES[name](state, others)
        before = [dict(group) for group in optimizer.param_groups]
        state = given if name in ("no dict", "no state", "no groups") else state
        with (
            pytest.raises(RuntimeError),
            module.optim.swap_in_optimizer_params_and_state(optimizer, others, state),
        ):
            pass
        assert [dict(group) for group in optimizer.param_groups] == before


def test_a_fresh_optimizer_is_refused() -> None:
    optimizer = flambeau.optim.SGD([flambeau.nn.Parameter(flambeau.ones(1))])
    with (
        pytest.raises(RuntimeError, match="requires initialized optimizer state"),
        flambeau.optim.swap_in_optimizer_params_and_state(optimizer, {}, optimizer.state_dict()),
    ):
        pass
