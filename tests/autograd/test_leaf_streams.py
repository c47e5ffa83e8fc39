"""The stream on which a leaf's gradient is accumulated: PyTorch's rule, in the detector and as a reference by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from autograd.leaf_programs import programs, uses
from autograd.test_backward_streams import SCHEDULES, run

import flambeau as torch
from flambeau.testing.ranks import ranks

USES = uses(torch) | {
    "an edge": lambda w: torch.autograd.graph.get_gradient_edge(w),
    "checkpoint": lambda w: torch.utils.checkpoint.checkpoint(torch.sin, w, use_reentrant=False),
}


@pytest.mark.parametrize("name", USES)
def test_a_leaf_keeps_the_stream_of_its_first_use_while_a_graph_holds_it(name: str) -> None:
    """PyTorch creates the node with the first graph that needs it, and drops it with the last one."""
    use = USES[name]
    with torch.virtual():
        w = torch.ones(8, device="cuda", requires_grad=True)
        node = node_of(w)
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        kept = []
        for stream in (first, second, first):  # the graph of the use before is still there
            with torch.cuda.stream(stream):
                kept.append(use(w))
            assert stream_of(w) == first
        kept.clear()
        with torch.no_grad(), torch.cuda.stream(second):
            unrecorded = [w * 2, w[1:], w.detach()]
        assert stream_of(w) == first
        with torch.cuda.stream(second):
            last = use(w)
        assert stream_of(w) == second
        del last
        held = w.view_as(w).grad_fn.next_functions[0][0]
        assert held is node() and stream_of(w) == torch.cuda.current_stream()
        with torch.cuda.stream(second):
            use(w)
        assert stream_of(w) == torch.cuda.current_stream(), "a variable of the program holds the node"
        del unrecorded


def node_of(w: Any) -> Callable[[], Any]:
    return lambda: w.history.node


def stream_of(w: Any) -> Any:
    """The public stream on which a leaf accumulates."""
    return w.history.node.stream


def test_random_programs_follow_the_life_of_the_node() -> None:
    for seed in range(40):
        with torch.virtual():
            for leaves, streams, _, _ in programs(torch, seed):
                assert [stream_of(w) for w in leaves] == streams, seed
            torch.cuda.synchronize()


def test_the_warning_comes_where_the_streams_differ() -> None:
    for seed in range(10):
        with torch.virtual():
            for _, _, crosses, warns in programs(torch, seed):
                torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(True)
                assert warns() == crosses, seed
            torch.cuda.synchronize()
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    with torch.virtual():
        for *_, warns in programs(torch, 0):
            assert not warns()


def first_function_again() -> Any:
    """One parameter on two streams: the gradient of the function on `side` is used there, and nowhere else."""
    side = torch.cuda.Stream()
    w = torch.full((64,), 3.0, device="cuda", requires_grad=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        one = (w * w).sum()
    two = (w * 5).sum()
    busy = torch.ones(64, device="cuda")
    with torch.cuda.stream(side):
        (grad,) = torch.autograd.grad(one, w)
        result = grad * 2
    busy.mul_(2)
    return two, busy, result, side


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_wait_that_pytorch_does_not_make_is_not_made(schedule: str) -> None:
    """What the default stream reads is not ordered by the walk of a graph that PyTorch keeps on the side stream."""

    def program(waits: bool) -> Callable[[], Any]:
        def run_it() -> Any:
            two, _, result, side = first_function_again()
            if waits:
                torch.cuda.current_stream().wait_stream(side)
            value = (result + 1).cpu().numpy()
            result.record_stream(torch.cuda.current_stream())
            del two
            return value

        return run_it

    _, certificate = run(program(False), schedule)
    assert not certificate.race_free
    value, certificate = run(program(True), schedule)
    assert certificate.race_free, str(certificate)
    assert (value == 13.0).all()


def test_ddp_holds_its_leaves_from_its_construction_on() -> None:
    """PyTorch's reducer holds the nodes, so that their streams are those of its construction."""

    def rank() -> bool:
        torch.distributed.init_process_group("nccl")
        model = torch.nn.Linear(4, 4, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model = torch.nn.parallel.DistributedDataParallel(model)
        torch.cuda.current_stream().wait_stream(side)
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        streams = [stream_of(p) for p in model.parameters()]
        torch.cuda.synchronize()
        return streams == [side, side]

    assert ranks(rank, 2) == [True, True]
