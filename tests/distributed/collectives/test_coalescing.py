"""`_coalescing_manager` beside PyTorch's own, in three processes with gloo; what it adds on virtual GPUs."""

from __future__ import annotations

import coalescing_cases
import oracle_ranks
import pytest

import flambeau
from flambeau.testing.ranks import ranks

SIZE = 3


@pytest.fixture(scope="module")
def pytorchs():
    return oracle_ranks.pytorchs("coalescing_cases")


@pytest.mark.parametrize(
    ("device", "backend", "options"), [("cpu", "gloo", {}), ("cuda", "nccl", {"schedule": "random:4"})]
)
def test_several_at_once(pytorchs, device, backend, options):
    mine = ranks(
        oracle_ranks.answers, SIZE, flambeau, "coalescing_cases", device, backend, races="error", **options
    )
    for case in coalescing_cases.CASES:
        assert [rank[case] for rank in mine] == [rank[case] for rank in pytorchs], case
    assert all(rank[case][0] == "value" for rank in pytorchs for case in coalescing_cases.CASES)


def times():
    """Simulated ns of eight small sums, one by one and together."""
    d = flambeau.distributed
    d.init_process_group("nccl")
    tensors = [flambeau.ones(4, device="cuda") for _ in range(8)]
    begin, middle, end = [flambeau.cuda.Event(enable_timing=True) for _ in range(3)]
    d.all_reduce(tensors[0])
    begin.record()
    for t in tensors:
        d.all_reduce(t)
    middle.record()
    with d._coalescing_manager():
        for t in tensors:
            d.all_reduce(t)
    end.record()
    end.synchronize()
    return begin.elapsed_time(middle), middle.elapsed_time(end)


def test_one_group_is_faster_than_many():
    for apart, together in ranks(times, 2, races="error"):
        assert together < apart / 2


def with_a_device():
    """Messages, which need each other, and broadcasts."""
    d = flambeau.distributed
    d.init_process_group("nccl")
    rank = d.get_rank()
    a, b = flambeau.full((4,), float(rank), device="cuda"), flambeau.zeros(4, device="cuda")
    c = flambeau.full((4,), float(rank), device="cuda")
    with d._coalescing_manager(device=a.device, async_ops=True) as cm:
        d.isend(a, 1 - rank)
        d.irecv(b, 1 - rank)
        d.broadcast(c, 1, async_op=True)
    cm.wait()
    return b.tolist(), c.tolist(), len(cm.works)


@pytest.mark.parametrize("schedule", ["earliest", "random:1"])
def test_with_a_device_it_waits_for_all(schedule):
    found = ranks(with_a_device, 2, races="error", schedule=schedule)
    assert found == [([1.0] * 4, [1.0] * 4, 2), ([0.0] * 4, [1.0] * 4, 2)]


def refused():
    d = flambeau.distributed
    d.init_process_group("gloo")
    a = flambeau.ones(2)
    with (
        pytest.raises(
            RuntimeError, match="requires all collectives to be the same type, but got mixed types"
        ),
        d._coalescing_manager(),
    ):
        d.all_reduce(a)
        d.all_gather_single(flambeau.zeros(4), a)
    with pytest.raises(RuntimeError, match="to have the same op"), d._coalescing_manager():
        d.all_reduce(a)
        d.all_reduce(a, d.ReduceOp.MAX)
    with pytest.raises(KeyError), d._coalescing_manager():
        d.all_reduce(a)
        raise KeyError
    with d._coalescing_manager():  # all is as it was
        d.all_reduce(a)
    return a.tolist()


def test_what_is_refused_begins_nothing():
    assert ranks(refused, 2) == [[2.0, 2.0]] * 2
