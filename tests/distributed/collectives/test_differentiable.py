"""Collectives with derivatives beside PyTorch's own, in three processes with gloo."""

from __future__ import annotations

import inspect
from importlib import import_module

import differentiable_cases
import oracle_ranks
import pytest

import flambeau
import flambeau.distributed
from flambeau.testing.ranks import ranks

SIZE = 3
KINDS = [("cpu", "gloo", {}), ("cuda", "nccl", {}), ("cuda", "nccl", {"schedule": "random:3", "order": 5})]


@pytest.fixture(scope="module")
def pytorchs():
    return oracle_ranks.pytorchs("differentiable_cases")


@pytest.mark.parametrize(("device", "backend", "options"), KINDS, ids=["cpu", "cuda", "cuda-random"])
def test_values_and_gradients(pytorchs, device, backend, options):
    mine = ranks(
        oracle_ranks.answers,
        SIZE,
        flambeau,
        "differentiable_cases",
        device,
        backend,
        races="error",
        **options,
    )
    for case in differentiable_cases.CASES:
        assert [rank[case] for rank in mine] == [rank[case] for rank in pytorchs], case
    assert all(rank[case][0] == "value" for rank in pytorchs for case in differentiable_cases.CASES)


NAMES = [
    "all_gather", "all_reduce", "all_to_all", "all_to_all_single", "broadcast", "gather", "reduce", "reduce_scatter",
    "scatter", "_all_gather_base",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_signatures_are_pytorchs(name):
    theirs = inspect.signature(getattr(import_module("torch.distributed.nn.functional"), name))
    mine = inspect.signature(getattr(flambeau.distributed.nn.functional, name))
    assert list(mine.parameters) == list(theirs.parameters)


def base():
    d = flambeau.distributed
    d.init_process_group("nccl")
    x = flambeau.arange(3.0, device="cuda").requires_grad_()
    output = flambeau.zeros(2 * 3, device="cuda")
    y = d.nn.functional._all_gather_base(output, x)
    (y * flambeau.arange(6.0, device="cuda") * (d.get_rank() + 1)).sum().backward()
    return y.tolist(), x.grad.tolist()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_all_gather_base():
    """PyTorch's needs nccl for its gradient: the sum over ranks of weights 0 1 2, 3 4 5, times rank + 1."""
    values = [0.0, 1.0, 2.0] * 2
    assert ranks(base, 2, races="error") == [(values, [0.0, 3.0, 6.0]), (values, [9.0, 12.0, 15.0])]


DEPRECATED = {
    "broadcast": "broadcast", "reduce_scatter": "reduce_scatter_single", "all_gather": "all_gather_single",
    "all_to_all_single": "all_to_all_single", "all_reduce": "all_reduce",
}  # fmt: skip


def old_names():
    d = flambeau.distributed
    d.init_process_group("gloo")
    t, nn = flambeau.ones(1), d.nn.functional
    args = {"broadcast": (t, 0), "reduce_scatter": (t, [t]), "all_to_all_single": (t, t)}
    for name, better in DEPRECATED.items():
        text = (
            rf"^torch\.distributed\.nn\.functional\.{name} is deprecated, use "
            rf"torch\.distributed\._functional_collectives\.{better} instead\.$"
        )
        with pytest.warns(FutureWarning, match=text) as seen:
            getattr(nn, name)(*args.get(name, (t,)))
        assert seen[0].filename == __file__


def test_old_names_are_deprecated_as_in_pytorch():
    ranks(old_names, 1)


def in_a_subgroup():
    """Roots are ranks of all: 2 is the second of the group."""
    d, rank = flambeau.distributed, flambeau.distributed.get_rank
    d.init_process_group("nccl")
    group = d.new_group([0, 2])
    if rank() == 1:
        return None
    x = flambeau.full((2,), float(rank() + 1), device="cuda").requires_grad_()
    nn = d.nn.functional
    parts = nn.gather(x, 2, group)
    mine = nn.scatter([p * p for p in parts], 2, group)
    total = nn.broadcast(nn.reduce(mine, 2, group=group), 2, group)
    sum(nn.all_gather(total, group)).sum().backward()
    return total.tolist(), x.grad.tolist()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_in_a_subgroup():
    """1 + 9, of which 2 ranks' losses have 2 each: 4 * 2 x. PyTorch's gather and all_gather fail there."""
    assert ranks(in_a_subgroup, 3, races="error") == [([10.0] * 2, [8.0] * 2), None, ([10.0] * 2, [24.0] * 2)]
