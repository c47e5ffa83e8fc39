"""Gradients of every module, of its inputs and of its parameters, against PyTorch's, from the table in module_cases.py."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from module_cases import CASES, Case, carried, flat
from support import same_values, to_torch, torch

import flambeau


def gradients(case: Case, room: Any) -> dict[str, Any]:
    """By name, after backward from a sum weighted with sines, so that no gradient is the same for all elements."""
    room.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = case.make(room.nn, carried(room))
        leaves = {}
        given = []
        for i, x in enumerate(case.inputs):
            x = carried(room)(x)
            if isinstance(x, room.Tensor) and x.is_floating_point() and i not in case.constant:
                leaves[f"input {i}"] = x.requires_grad_()
                x = x * 1  # what is changed in place may be no leaf
            given.append(x)
        room.manual_seed(5)
        out = module(*given)
        outs = [o for o in flat(out) if o.is_floating_point()]
        total = sum([(o * weights(o, room)).sum() for o in outs])
        if total.requires_grad:
            total.backward()
    return {name: leaf.grad for name, leaf in [*leaves.items(), *module.named_parameters()]}


def weights(out: Any, room: Any) -> Any:
    return (room.arange(out.numel(), dtype=out.dtype) * 0.7 + 0.3).sin().reshape(out.shape)


_WITHOUT = {
    "Container", "Module", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential",  # compute nothing
    "RNNBase", "RNNCellBase",  # bases
    "LinearCrossEntropyLoss",  # test_linear_cross_entropy.py
    "DataParallel", "SyncBatchNorm",  # of several GPUs: tests/parallel
}  # fmt: skip


def test_every_module_has_a_case() -> None:
    room = {n: getattr(flambeau.nn, n) for n in dir(flambeau.nn)}
    modules = {
        n for n, kind in room.items() if isinstance(kind, type) and issubclass(kind, flambeau.nn.Module)
    }
    assert modules - {case.name.partition("(")[0].partition("-")[0] for case in CASES} <= _WITHOUT
    assert len(modules - _WITHOUT) > 140


@pytest.mark.parametrize("case", [c for c in CASES if c.gradients], ids=lambda c: c.name)
def test_gradients_equal_pytorchs(case: Case) -> None:
    ours, theirs = gradients(case, flambeau), gradients(case, torch)
    assert ours.keys() == theirs.keys()
    for name, wanted in theirs.items():
        assert (ours[name] is None) == (wanted is None), name
        if wanted is None:
            continue
        mine = to_torch(ours[name])
        assert mine.dtype is wanted.dtype and mine.shape == wanted.shape, name
        same_values(torch.where((mine - wanted).abs() <= case.gradient_atol, wanted, mine), wanted, 16)
