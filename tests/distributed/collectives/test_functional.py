"""Functional collectives beside PyTorch's own, in three processes with gloo."""

from __future__ import annotations

import inspect
from importlib import import_module

import functional_cases
import oracle_ranks
import pytest

import flambeau
import flambeau.distributed
from flambeau.testing.ranks import ranks

SIZE = 3
KINDS = [("cpu", "gloo", {}), ("cuda", "nccl", {}), ("cuda", "nccl", {"schedule": "random:3", "order": 5})]


@pytest.fixture(scope="module")
def pytorchs():
    return oracle_ranks.pytorchs("functional_cases")


@pytest.mark.parametrize(("device", "backend", "options"), KINDS, ids=["cpu", "cuda", "cuda-random"])
def test_values_and_gradients(pytorchs, device, backend, options):
    mine = ranks(
        oracle_ranks.answers, SIZE, flambeau, "functional_cases", device, backend, races="error", **options
    )
    for case in functional_cases.CASES:
        assert [rank[case] for rank in mine] == [rank[case] for rank in pytorchs], case
    assert all(rank[case][0] == "value" for rank in pytorchs for case in functional_cases.CASES)


@pytest.mark.parametrize("name", flambeau.distributed._functional_collectives.__all__[1:])
def test_signatures_are_pytorchs(name):
    modules = [
        import_module(f"{torch}.distributed._functional_collectives") for torch in ("torch", "flambeau")
    ]
    theirs, mine = (inspect.signature(getattr(module, name)) for module in modules)
    assert list(mine.parameters) == list(theirs.parameters)


def broadcast():
    """The derivative that PyTorch lacks."""
    d = flambeau.distributed
    d.init_process_group("nccl")
    x = flambeau.full((2,), float(d.get_rank()), device="cuda").requires_grad_()
    y = d._functional_collectives.broadcast(x, 1, d.group.WORLD)
    (y * y * (d.get_rank() + 1)).sum().backward()
    return y.tolist(), x.grad.tolist()


def test_broadcast_has_a_gradient():
    """2 x (1 + 2 + 3) at rank 1, whose x is 1."""
    assert ranks(broadcast, 3, races="error") == [([1.0] * 2, [g] * 2) for g in (0.0, 12.0, 0.0)]


def on_a_mesh():
    """A sum along the columns of what is gathered along the rows."""
    d = flambeau.distributed
    mesh = d.init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
    f = d._functional_collectives
    x = flambeau.full((1, 2), 10.0 ** d.get_rank(), device="cuda").requires_grad_()
    y = f.all_reduce(f.all_gather_single(x, 1, mesh["tp"]), "sum", (mesh, 0))
    (y * y).sum().backward()
    return y.tolist(), x.grad.tolist()


def test_along_the_dimensions_of_a_mesh():
    rows = [[101.0, 101.0, 1010.0, 1010.0]]
    assert ranks(on_a_mesh, 4, races="error") == [(rows, [[g] * 2]) for g in (808.0, 8080.0, 808.0, 8080.0)]


def old_names():
    d = flambeau.distributed
    d.init_process_group("gloo")
    f, t, w = d._functional_collectives, flambeau.ones(1), d.group.WORLD
    calls = {
        "all_gather_tensor": (t, 0, w), "all_gather_tensor_autograd": (t, 0, w), "reduce_scatter_tensor": (t, "sum", 0, w),
        "reduce_scatter_tensor_autograd": (t, "sum", 0, w), "all_gather_into_tensor_coalesced": ([t], w),
        "reduce_scatter_tensor_coalesced": ([t], "sum", [0], w),
    }  # fmt: skip
    for name, args in calls.items():
        with pytest.warns(
            FutureWarning, match=rf"_collectives\.{name}` is deprecated. Please use .*_single"
        ) as seen:
            getattr(f, name)(*args)
        assert seen[0].filename == __file__
    with pytest.warns(
        FutureWarning, match="ranks \\+ tag as process group identifier has been deprecated"
    ) as seen:
        f.all_reduce(t, "sum", [0])
    assert seen[0].filename == __file__
    assert f.wait_tensor(t) is t and not isinstance(t, f.AsyncCollectiveTensor)


def test_old_names_are_deprecated_as_in_pytorch():
    ranks(old_names, 1)


def wrong_sizes():
    """PyTorch raises these when the tensor is used."""
    d = flambeau.distributed
    d.init_process_group("gloo")
    exchange, x = d._functional_collectives.all_to_all_single, flambeau.zeros(4)
    with pytest.raises(RuntimeError, match="Number of tensor splits not equal to group size"):
        exchange(x, [2, 2], [2, 2], d.group.WORLD)
    with pytest.raises(RuntimeError, match="Split sizes doesn't match total dim 0 size"):
        exchange(x, [5], [5], d.group.WORLD)
    with pytest.raises(RuntimeError, match="tensors without dimensions cannot be joined"):
        d._functional_collectives.all_gather_single(x.sum(), 0, d.group.WORLD)


def test_wrong_sizes():
    ranks(wrong_sizes, 1)
