"""Each rank's part of the tests of CPU tensors' collectives between processes: everything beside NumPy. Ends with "good"."""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import numpy as np

import flambeau as torch
import flambeau.distributed as dist
from flambeau.core.dtype import from_numpy
from flambeau.distributed.backends import mpi_world
from flambeau.distributed.collectives.reduce_op import ReduceOp

KINDS = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128",
]  # fmt: skip
REDUCTIONS = {
    "SUM": np.add.reduce, "PRODUCT": np.multiply.reduce, "MIN": np.minimum.reduce, "MAX": np.maximum.reduce,
    "BAND": np.bitwise_and.reduce, "BOR": np.bitwise_or.reduce, "BXOR": np.bitwise_xor.reduce,
}  # fmt: skip


def tensor(array, kind):
    return torch.from_numpy(np.ascontiguousarray(array)).to(kind)


def values(rank, count, kind, seed):
    """Small whole numbers: sums and products of them are exact in every dtype."""
    numbers = np.random.default_rng((seed, rank)).integers(0, 3, count).astype(np.float64)
    return tensor(numbers, getattr(torch, kind))


def same(found, expected, what):
    mine, theirs = found.to(torch.complex128).numpy(), np.asarray(expected, np.complex128)
    assert np.array_equal(mine, theirs), (what, mine, theirs)


def ops_of(kind):
    if kind.startswith("complex"):
        return ["SUM"]
    names = ["SUM", "PRODUCT", "MIN", "MAX"]
    return names if kind.startswith(("float", "bfloat")) else [*names, "BAND", "BOR", "BXOR"]


def reduced(arrays, op, kind):
    wide = torch.complex128 if kind.startswith("complex") else torch.float64
    stack = np.stack([array.to(wide).numpy() for array in arrays])
    if kind == "bool":
        stack = stack.astype(bool)
        return {"SUM": np.logical_or, "PRODUCT": np.logical_and, "BXOR": np.logical_xor}.get(
            op,
            {"MIN": np.logical_and, "MAX": np.logical_or, "BAND": np.logical_and, "BOR": np.logical_or}.get(
                op
            ),
        ).reduce(stack)
    return REDUCTIONS[op](stack.astype(np.int64) if op.startswith("B") else stack)


def check_reductions(group, ranks):
    me, size = ranks.index(dist.get_rank()), len(ranks)
    for kind in KINDS:
        for op in ops_of(kind):
            what = (kind, op, ranks)
            inputs = [values(rank, 6, kind, 1) for rank in ranks]
            expected = reduced(inputs, op, kind)
            mine = inputs[me].clone()
            work = dist.all_reduce(mine, getattr(ReduceOp, op), group=group, async_op=True)
            work.wait()
            same(mine, expected, ("all_reduce", *what))
            mine = inputs[me].clone()
            dist.reduce(mine, ranks[-1], getattr(ReduceOp, op), group=group)
            same(
                mine,
                expected if me == size - 1 else inputs[me].to(torch.complex128).numpy(),
                ("reduce", *what),
            )
            wide = [values(rank, 2 * size, kind, 2) for rank in ranks]
            out = torch.zeros(2, dtype=getattr(torch, kind))
            dist.reduce_scatter_single(out, wide[me], getattr(ReduceOp, op), group=group)
            same(out, reduced(wide, op, kind).reshape(size, 2)[me], ("reduce_scatter", *what))


def check_averages(group, ranks):
    mine = torch.full((3,), float(dist.get_rank()))
    dist.all_reduce(mine, ReduceOp.AVG, group=group)
    same(mine, np.full(3, np.float32(sum(ranks)) / np.float32(len(ranks))), "avg")
    mine = torch.full((2,), -7 * (dist.get_rank() + 1))
    dist.all_reduce(mine, ReduceOp.AVG, group=group)
    same(mine, np.full(2, int(-7 * sum(r + 1 for r in ranks) / len(ranks))), "avg of integers truncates")
    mine = torch.full((2,), complex(float("inf"), 0.0))
    dist.all_reduce(mine, ReduceOp.AVG, group=group)  # numbers that are none, and no warning
    assert mine.real.isinf().all()


def check_moves(group, ranks):
    me, size = ranks.index(dist.get_rank()), len(ranks)
    for kind in KINDS:
        kept = getattr(torch, kind)
        inputs = [values(rank, 4, kind, 3) for rank in ranks]
        expected = np.stack([x.to(torch.complex128).numpy() for x in inputs])
        mine = inputs[me].clone()
        dist.broadcast(mine, ranks[size // 2], group=group)
        same(mine, expected[size // 2], ("broadcast", kind))
        outs = [torch.zeros(4, dtype=kept) for _ in ranks]
        dist.all_gather(outs, inputs[me], group=group)
        same(torch.stack(outs), expected, ("all_gather", kind))
        out = torch.zeros(size, 4, dtype=kept)
        dist.all_gather_single(out, inputs[me], group=group)
        same(out, expected, ("all_gather_into_tensor", kind))
        outs = [torch.zeros(4, dtype=kept) for _ in ranks] if me == 0 else None
        dist.gather(inputs[me], outs, dst=ranks[0], group=group)
        if outs is not None:
            same(torch.stack(outs), expected, ("gather", kind))
        out = torch.zeros(4, dtype=kept)
        dist.scatter(out, [x.clone() for x in inputs] if me == size - 1 else None, src=ranks[-1], group=group)
        same(out, expected[me], ("scatter", kind))
        table = [[values(a * 8 + b, 3, kind, 4) for b in range(size)] for a in range(size)]
        outs = [torch.zeros(3, dtype=kept) for _ in ranks]
        dist.all_to_all(outs, table[me], group=group)
        same(
            torch.stack(outs),
            np.stack([table[a][me].to(torch.complex128).numpy() for a in range(size)]),
            kind,
        )


def check_layouts(ranks):
    """Dense tensors in another order of dimensions; what a wider dtype is reduced in too."""
    me = ranks.index(dist.get_rank())
    for kind in ("float32", "float16"):
        inputs = [values(rank, 6, kind, 5).view(2, 3).t() for rank in ranks]
        mine = inputs[me].clone()
        assert not mine.is_contiguous()
        dist.all_reduce(mine)
        same(mine, reduced(inputs, "SUM", kind), ("transposed", kind))
        outs = [torch.zeros(3, 2, dtype=mine.dtype) for _ in ranks]
        dist.all_gather(outs, inputs[me])
        same(torch.stack(outs), np.stack([x.double().numpy() for x in inputs]), ("gathered", kind))


def check_messages(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    for tag in (3, 1):  # received in another order than sent
        dist.isend(torch.full((2,), rank * 10.0 + tag), right, tag=tag)
    for tag in (1, 3):
        found = torch.zeros(2)
        assert dist.recv(found, left, tag=tag) == left
        same(found, [left * 10 + tag] * 2, "tags")
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            found = torch.zeros(1)
            seen.add((dist.recv(found), found.item()))
        assert seen == {(r, float(r)) for r in range(1, size)}, seen
    else:
        dist.send(torch.tensor([float(rank)]), 0)
    big = torch.arange(300_000.0) + rank
    found = torch.zeros_like(big)
    ops = [dist.P2POp(dist.isend, big, right), dist.P2POp(dist.irecv, found, left)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(found[:5], np.arange(5.0) + left, "batch")


def check_objects(rank, size):
    found = [None] * size
    dist.all_gather_object(found, {"rank": rank, "text": "x" * rank})
    assert found == [{"rank": r, "text": "x" * r} for r in range(size)]
    box = [f"from {rank}"]
    dist.broadcast_object_list(box, src=size - 1)
    assert box == [f"from {size - 1}"]


def check_lateness(rank, size):
    late = torch.zeros(1)
    if rank == 0:
        work = dist.irecv(late, 1, tag=77)
        assert not work.is_completed()
        try:
            work.wait(timedelta(milliseconds=30))
        except dist.DistBackendError as error:
            assert "timed out after 30ms" in str(error), error
            assert "mpi_program.py" in str(error), error
        else:
            raise AssertionError("nobody has sent")
        dist.barrier()
        dist.recv(late, 1, tag=77)  # a receipt that was given up takes the first message
    else:
        dist.barrier()
        if rank == 1:
            for _ in range(2):
                dist.send(torch.ones(1), 0, tag=77)


def check_limits(rank):
    """What each call, or the group, says of how long it may take."""
    short, group = timedelta(milliseconds=30), dist.new_group([0, 1])
    if rank == 0:
        for late in (
            lambda: dist.barrier(group, timeout=short),
            lambda: dist.barrier(group, True, timeout=short).wait(),
            lambda: group.barrier(short).wait(),
            lambda: (group.set_timeout(short), dist.barrier(group)),
        ):
            try:
                late()
            except dist.DistBackendError as error:
                assert "timed out after 30ms" in str(error), error
            else:
                raise AssertionError("the other has not arrived")
    elif rank == 1:
        dist.recv(torch.zeros(1), 0, tag=78)
        for _ in range(4):
            dist.barrier(group)
    if rank == 0:
        dist.send(torch.ones(1), 1, tag=78)


def check_monitored(rank, size):
    """Rank 0 says who has not arrived; the others that it has said so; who comes late too."""
    group = dist.new_group(range(size))
    dist.monitored_barrier(group)
    for every in (False, True):
        if rank != 1:
            try:
                dist.monitored_barrier(group, timedelta(milliseconds=50 if rank == 0 else 60_000), every)
            except RuntimeError as error:
                said = str(error)
            assert "Rank 1 failed to pass monitoredBarrier in 50 ms" in said, said
            assert rank == 0 or f"Rank {rank} successfully reached monitoredBarrier" in said, said
        dist.barrier()
    if rank == 1:
        for _ in range(2):
            try:
                dist.monitored_barrier(group)
            except RuntimeError as error:
                assert "Rank 1 failed to pass" in str(error), error
            else:
                raise AssertionError("it had failed")
    dist.monitored_barrier(group, wait_all_ranks=True)


def check_waits_elsewhere(rank, size):
    """A work goes on while its rank waits in the store, for ranks that wait for the work."""
    store, many = dist.distributed_c10d._get_default_store(), torch.ones(1 << 20)
    work = dist.all_reduce(many, async_op=True)
    if rank == 0:
        store.wait([f"work {other}" for other in range(1, size)], timedelta(seconds=30))
    work.wait()
    store.set(f"work {rank}", "over")
    assert many[-1].item() == size


def check_many(size):
    """Groups that come and go: MPI has 2,048 communicators for a process, of which these leave few."""
    held = [mpi_world.current_world().comm.Dup() for _ in range(1980)] if mpi_world.has_joined() else []
    for _ in range(30):
        group, ones = dist.new_group(range(size)), torch.ones(2)
        work = dist.all_reduce(ones, group=group, async_op=True)
        dist.destroy_process_group(group)
        work.wait()
        same(ones, [size] * 2, "of a group that was given up meanwhile")
    for comm in held:
        comm.Free()


def main():
    dist.init_process_group(sys.argv[1])
    engine = dist.group.WORLD.backend_of("cpu")
    assert engine.kind == ("tcp" if os.environ.get("FLAMBEAU_GLOO") == "tcp" else "mpi"), engine.kind
    rank, size = dist.get_rank(), dist.get_world_size()
    everybody = list(range(size))
    check_reductions(None, everybody)
    check_averages(None, everybody)
    check_moves(None, everybody)
    check_layouts(everybody)
    check_messages(rank, size)
    check_objects(rank, size)
    for ranks in ([size - 1], everybody[1:], everybody[::2]):
        group = dist.new_group(ranks)
        if rank in ranks:
            check_reductions(group, ranks)
            check_moves(group, ranks)
    check_lateness(rank, size)
    check_limits(rank)
    check_many(size)
    check_waits_elsewhere(rank, size)
    if sys.argv[1] != "mpi":
        check_monitored(rank, size)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group(sys.argv[1])  # the same ranks may meet again
    ones = torch.ones(2)
    dist.all_reduce(ones)
    same(ones, [size] * 2, "again")
    assert from_numpy(np.dtype("f4")) is torch.float32
    print("good")


main()
