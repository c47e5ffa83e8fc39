"""Options of a group's own methods, and `breakpoint`, on several ranks."""

from __future__ import annotations

from datetime import timedelta

import pytest

import flambeau
from flambeau.distributed import debugger
from flambeau.testing.ranks import ranks


def by_options():
    d = flambeau.distributed
    d.init_process_group("nccl")
    w, rank = d.group.WORLD, d.get_rank()
    t = flambeau.full((2,), float(rank), device="cuda")
    largest = d.AllreduceOptions()
    largest.reduceOp, largest.asyncOp = d.ReduceOp.MAX, False
    w.allreduce([t], largest)  # the current stream has waited
    root = d.BroadcastOptions()
    root.rootRank, root.timeout = 1, timedelta(seconds=5)
    u = flambeau.full((2,), float(rank), device="cuda")
    w.broadcast([u], root).wait()
    a, b = flambeau.ones(2, device="cuda"), flambeau.ones(3, device="cuda")
    w.allreduce_coalesced([a, b]).wait()
    x, y = flambeau.zeros(6, device="cuda"), flambeau.zeros(9, device="cuda")
    w.allgather_into_tensor_coalesced([x, y], [a + rank, b + rank]).wait()
    w.reduce_scatter_tensor_coalesced([a, b], [x, y], d.ReduceScatterOptions()).wait()
    ids = d.BarrierOptions()
    ids.device_ids = [rank]
    w.barrier(ids).wait()
    return [t[0].item(), u[0].item(), x.tolist(), a[0].item(), b[0].item()]


@pytest.mark.parametrize("schedule", ["earliest", "random:5"])
def test_options_say_the_same_as_arguments(schedule):
    found = ranks(by_options, 3, races="error", schedule=schedule)
    for rank, (largest, given, gathered, a, b) in enumerate(found):
        assert (largest, given, gathered) == (2.0, 1.0, [3.0, 3.0, 4.0, 4.0, 5.0, 5.0])
        assert a == b == 3 * (3.0 + rank)


def test_options_have_no_other_fields():
    with pytest.raises(AttributeError):
        flambeau.distributed.AllreduceOptions().rootRank = 1


def stopped(seen, skip):
    d = flambeau.distributed
    d.init_process_group("gloo")
    for step in range(3):
        d.breakpoint(rank=1, skip=skip, timeout_s=7200)
        seen.append(("after", step))
    return d.group.WORLD._place.timeout.total_seconds()


@pytest.mark.parametrize("skip", [0, 2])
def test_a_breakpoint_stops_one_rank_and_the_others_wait(monkeypatch, skip, capsys):
    seen = []
    monkeypatch.setattr(debugger._RankPdb, "set_trace", lambda self: seen.append("stopped"))
    assert ranks(stopped, 2, seen, skip) == [7200.0] * 2
    if not skip:
        assert seen.index("stopped") < seen.index(("after", 0))
    assert seen.count("stopped") == 3 - skip
    assert (
        capsys.readouterr().out.count("Type 'up' to get to the frame that called dist.breakpoint(rank=1)")
        == 3 - skip
    )


def test_optimizers_where_programs_look_for_them():
    from flambeau.distributed.optim.post_localSGD_optimizer import PostLocalSGDOptimizer
    from flambeau.distributed.optim.zero_redundancy_optimizer import ZeroRedundancyOptimizer

    optim = flambeau.distributed.optim
    assert optim.ZeroRedundancyOptimizer is ZeroRedundancyOptimizer
    assert optim.PostLocalSGDOptimizer is PostLocalSGDOptimizer
    assert optim.zero_redundancy_optimizer.ZeroRedundancyOptimizer is ZeroRedundancyOptimizer
    with pytest.raises(flambeau.NotSupportedError, match="DistributedOptimizer"):
        optim.DistributedOptimizer()


def prioritized():
    d = flambeau.distributed
    d.init_process_group("nccl", pg_options=d.ProcessGroupNCCL.Options(is_high_priority_stream=True))
    options = d.ProcessGroupNCCL.Options()
    plain = d.new_group([0, 1], pg_options=options)
    options.is_high_priority_stream = True
    high = d.new_group([0, 1], pg_options=options)
    part = d.split_group(high, [[0, 1]])
    found = []
    for group in (d.group.WORLD, plain, high, part):
        d.all_reduce(flambeau.ones(1, device="cuda"), group=group, async_op=True).wait()
        (line,) = group.backend_of("cuda")._lines.values()
        found.append(line.stream.priority)
    with pytest.raises(AssertionError, match=r"to be of type ProcessGroupNCCL\.Options"):
        d.new_group([0, 1], pg_options=3)
    with pytest.raises(flambeau.NotSupportedError, match=r"config\.min_ctas"):
        options.config.min_ctas = 4
    options._timeout = timedelta(seconds=3)
    with pytest.warns(UserWarning, match="_timeout was specified, but timeout kwarg") as seen:
        d.new_group([0, 1], pg_options=options)
    assert seen[0].filename == __file__
    d.new_group([0, 1], backend="gloo", pg_options=options)
    return found


def test_streams_of_groups_have_the_priority_that_options_say():
    assert ranks(prioritized, 2) == [[-1, 0, -1, -1]] * 2


def test_groups_are_not_made_by_their_class():
    with pytest.raises(flambeau.NotSupportedError, match="init_process_group and new_group"):
        flambeau.distributed.ProcessGroupNCCL(None, 0, 1)
