"""Pruning beside PyTorch's: masks, what is drawn, gradients, several methods in a row, state, errors."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from nn_kit import agree, fails
from support import torch

import flambeau
from flambeau import nn

import_module(f"{torch.__name__}.nn.utils.prune")  # PyTorch has it only then

HOW = {
    "identity": lambda p, m: p.identity(m, "weight"),
    "random": lambda p, m: p.random_unstructured(m, "weight", 0.4),
    "random by count": lambda p, m: p.random_unstructured(m, "bias", 2),
    "l1": lambda p, m: p.l1_unstructured(m, "weight", 5),
    "random channels": lambda p, m: p.random_structured(m, "weight", 0.5, 0),
    "norm of channels": lambda p, m: p.ln_structured(m, "weight", 2, n=2, dim=1),
    "greatest of channels": lambda p, m: p.ln_structured(m, "weight", 0.3, n=float("inf"), dim=-1),
    "nothing": lambda p, m: p.ln_structured(m, "weight", 0, n=1, dim=0),
    "twice": lambda p, m: p.l1_unstructured(p.l1_unstructured(m, "weight", 0.3), "weight", 0.5),
    "thrice": lambda p, m: p.random_unstructured(
        p.ln_structured(p.l1_unstructured(m, "weight", 0.2), "weight", 1, n=1, dim=0), "weight", 0.25
    ),
}


def layer(t: Any) -> Any:
    t.manual_seed(0)
    return t.nn.Linear(6, 4)


def found(t: Any, module: Any) -> Any:
    x = (t.arange(18.0) * 0.7).sin().round(decimals=3).reshape(3, 6)
    out = module(x)
    out.sum().backward()
    state = {k: v.tolist() for k, v in module.state_dict().items()}
    grads = {name: (p.grad != 0).tolist() for name, p in module.named_parameters()}
    return state, grads, module.weight.tolist(), t.nn.utils.prune.is_pruned(module)


@pytest.mark.parametrize("name", HOW)
def test_masks_state_and_gradients(name: str) -> None:
    def run(t: Any) -> Any:
        module = layer(t)
        t.manual_seed(3)
        assert HOW[name](t.nn.utils.prune, module) is module
        hooks = [type(h).__name__ for h in module._forward_pre_hooks.values()]
        before = found(t, module)
        for tensor in [n for n in ("weight", "bias") if hasattr(module, f"{n}_mask")]:
            t.nn.utils.prune.remove(module, tensor)
        return hooks, before, found(t, module), isinstance(module.weight, t.nn.Parameter)

    agree(run)


def test_masks_and_scores_of_the_programs_own() -> None:
    def run(t: Any) -> Any:
        module, other = layer(t), layer(t)
        t.nn.utils.prune.custom_from_mask(module, "bias", t.tensor([1, 0, 0, 1]))
        t.nn.utils.prune.l1_unstructured(other, "bias", 2, importance_scores=t.tensor([3.0, -1.0, 0.5, 2.0]))
        once = t.nn.utils.prune.L1Unstructured(amount=2).prune(t.tensor([3.0, -1.0, 0.5, 2.0]))
        return found(t, module), found(t, other), once

    agree(run)


def test_parameters_pruned_as_one() -> None:
    def run(t: Any) -> Any:
        model = t.nn.Sequential(layer(t), t.nn.ReLU(), layer(t))
        prune = t.nn.utils.prune
        listed = [(model[0], "weight"), (model[2], "bias")]
        prune.global_unstructured(listed, prune.L1Unstructured, amount=9)
        prune.global_unstructured(
            listed,
            prune.L1Unstructured,
            amount=0.5,
            importance_scores={(model[2], "bias"): t.tensor([9.0, 8, 7, 6])},
        )
        return [model.state_dict(), prune.is_pruned(model), prune.is_pruned(model[1])]

    agree(run)


def tool(t: Any) -> Any:
    return t.nn.utils.prune


def strange(t: Any, kind: str) -> Any:
    class Strange(tool(t).BasePruningMethod):  # type: ignore[misc]
        PRUNING_TYPE = kind

        def compute_mask(self, x: Any, default_mask: Any) -> Any:
            return default_mask

    module = tool(t).identity(layer(t), "weight")
    Strange.apply(module, "weight")


WRONG = {
    "amount": lambda t: tool(t).l1_unstructured(layer(t), "weight", 1.5),
    "negative amount": lambda t: tool(t).l1_unstructured(layer(t), "weight", -1),
    "kind of amount": lambda t: tool(t).l1_unstructured(layer(t), "weight", "half"),
    "too many": lambda t: tool(t).l1_unstructured(layer(t), "bias", 9),
    "channels of a vector": lambda t: tool(t).random_structured(layer(t), "bias", 1, 0),
    "dim": lambda t: tool(t).ln_structured(layer(t), "weight", 1, n=2, dim=2),
    "mask": lambda t: tool(t).custom_from_mask(layer(t), "bias", t.ones(3)),
    "scores": lambda t: tool(t).L1Unstructured(1).prune(t.ones(3), importance_scores=t.ones(2)),
    "not pruned": lambda t: tool(t).remove(layer(t), "weight"),
    "no parameters": lambda t: tool(t).global_unstructured(3, tool(t).L1Unstructured, amount=1),
    "no scores": lambda t: tool(t).global_unstructured([], tool(t).L1Unstructured, importance_scores=[]),
    "no method": lambda t: tool(t).PruningContainer().add_pruning_method(3),
    "kind of method": lambda t: strange(t, "other"),
    "no dim": lambda t: strange(t, "structured"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(name: str) -> None:
    fails(WRONG[name])


def test_what_raises_changes_nothing() -> None:
    module = layer(flambeau)
    with pytest.raises(ValueError, match="should be smaller than the number"):
        nn.utils.prune.l1_unstructured(module, "weight", 99)
    assert list(module.state_dict()) == ["weight", "bias"] and not nn.utils.prune.is_pruned(module)
    nn.utils.prune.l1_unstructured(module, "weight", 2)
    before = module.state_dict()["weight_mask"].tolist()
    with pytest.raises(ValueError, match="should be smaller than the number"):
        nn.utils.prune.l1_unstructured(module, "weight", 99)
    assert module.state_dict()["weight_mask"].tolist() == before
    assert [type(h).__name__ for h in module._forward_pre_hooks.values()] == ["L1Unstructured"]


def test_pruned_modules_train_on_a_virtual_gpu() -> None:
    with flambeau.virtual(devices=1):
        module = nn.utils.prune.ln_structured(layer(flambeau), "weight", 2, n=2, dim=0).cuda()
        module(flambeau.ones(2, 6, device="cuda")).sum().backward()
        rows = (module.weight_orig.grad != 0).sum(1).tolist()
        assert sorted(rows) == [0, 0, 6, 6]
