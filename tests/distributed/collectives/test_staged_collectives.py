"""gloo with CUDA tensors: each collective gives what it gives for CPU tensors, in the order of streams, without a race."""

from __future__ import annotations

import pytest

import flambeau as torch
import flambeau.distributed as dist
from flambeau.runtime import system
from flambeau.testing.ranks import ranks


def many(device, first=0):
    """Return a tensor for each rank."""
    return [
        torch.arange(4.0, device=device) + 10 * dist.get_rank() + first + n
        for n in range(dist.get_world_size())
    ]


def wide(device):
    return torch.cat(many(device))


def empties(device):
    return [torch.zeros(4, device=device) for _ in range(dist.get_world_size())]


def all_to_all_of_sizes(device, more):
    me, size = dist.get_rank(), dist.get_world_size()
    sent = torch.arange(float(sum(range(1, size + 1))), device=device) + 100 * me
    out = torch.zeros(size * (me + 1), device=device)
    work = dist.all_to_all_single(out, sent, [me + 1] * size, list(range(1, size + 1)), **more)
    return [out], work


def to_the_next(device, more):
    """Return what the rank before sent."""
    me, size = dist.get_rank(), dist.get_world_size()
    received, sent = torch.zeros(4, device=device), many(device)[0]
    operations = [
        dist.P2POp(dist.isend, sent, (me + 1) % size), dist.P2POp(dist.irecv, received, (me - 1) % size),
    ]  # fmt: skip
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return [received], None


def of_the_root(device, more, gathers):
    """Gather on rank 1, or scatter from it."""
    here = dist.get_rank() == 1
    lists = (empties(device) if gathers else many(device, 5)) if here else None
    if gathers:
        return lists or [], dist.gather(many(device)[0], lists, 1, **more)
    out = torch.zeros(4, device=device)
    return [out], dist.scatter(out, lists, 1, **more)


def on(make, call):
    """Return a case that makes tensors with `make` and returns them after `call(tensors, more)`."""

    def case(device, more):
        tensors = make(device)
        return (tensors if isinstance(tensors, list) else [tensors]), call(tensors, more)

    return case


def first(device):
    return many(device)[0]


CASES = {
    "all_reduce": on(first, lambda t, more: dist.all_reduce(t, **more)),
    "all_reduce transposed": on(
        lambda d: wide(d).view(-1, 4).t(), lambda t, more: dist.all_reduce(t, dist.ReduceOp.MAX, **more)
    ),
    "all_reduce product": on(first, lambda t, more: dist.all_reduce(t, dist.ReduceOp.PRODUCT, **more)),
    "all_reduce half": on(lambda d: first(d).half(), lambda t, more: dist.all_reduce(t, **more)),
    "all_reduce_coalesced": on(many, lambda t, more: dist.all_reduce_coalesced(t, **more)),
    "broadcast": on(first, lambda t, more: dist.broadcast(t, 1, **more)),
    "reduce": on(first, lambda t, more: dist.reduce(t, 1, **more)),
    "all_gather": on(empties, lambda t, more: dist.all_gather(t, first(t[0].device), **more)),
    "all_gather_into_tensor": on(
        lambda d: torch.cat(empties(d)),
        lambda t, more: dist.all_gather_into_tensor(t, first(t.device), **more),
    ),
    "reduce_scatter": on(first, lambda t, more: dist.reduce_scatter(t, many(t.device), **more)),
    "reduce_scatter_tensor": on(first, lambda t, more: dist.reduce_scatter_tensor(t, wide(t.device), **more)),
    "all_to_all": on(empties, lambda t, more: dist.all_to_all(t, many(t[0].device), **more)),
    "all_to_all_single": on(
        lambda d: torch.cat(empties(d)), lambda t, more: dist.all_to_all_single(t, wide(t.device), **more)
    ),
    "all_to_all of sizes": all_to_all_of_sizes,
    "gather": lambda device, more: of_the_root(device, more, True),
    "scatter": lambda device, more: of_the_root(device, more, False),
    "messages": to_the_next,
}


def results_of(device, how):
    """Return the results of all cases on this rank.

    Args:
        device: "cpu" or "cuda".
        how: "sync"; "async", with work of the device before the wait; "stream", on a side stream.
    """
    dist.init_process_group("gloo")
    found = {}
    for name, case in CASES.items():
        side = torch.cuda.Stream() if how == "stream" else None
        with torch.cuda.stream(side):
            results, work = case(device, {"async_op": how != "sync"})
            other = torch.ones(64, device=device) * 3
            if work is not None:
                work.wait()
            found[name] = [(result * 2).tolist() for result in results]
            del other
    dist.barrier()
    dist.destroy_process_group()
    return found


@pytest.fixture(scope="module")
def expected():
    return ranks(results_of, 3, "cpu", "sync")


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("schedule", ["earliest", "adversarial:3"])
@pytest.mark.parametrize("how", ["sync", "async", "stream"])
def test_cuda_tensors_give_what_cpu_tensors_give(expected, how, schedule):
    with torch.virtual(3, races="error", schedule=schedule):
        assert ranks(results_of, 3, "cuda", how) == expected
        certificate = system.accelerator().detector.certificate()
    assert certificate.race_free, str(certificate)


def unordered():
    """Write the tensor on a side stream that nothing orders before the collective."""
    dist.init_process_group("gloo")
    x, side = torch.ones(64, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        x.mul_(2)
    dist.all_reduce(x)


def test_a_collective_reads_on_the_current_stream():
    with torch.virtual(2, races="warn"):
        ranks(unordered, 2)
        found = system.accelerator().detector.certificate()
    first_race = found.races[0]
    line = unordered.__code__.co_firstlineno
    assert f":{line + 6}" in first_race.first.place and f":{line + 7}" in first_race.second.place
