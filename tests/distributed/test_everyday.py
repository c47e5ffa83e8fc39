"""Programs of everyday life: beside PyTorch's processes with gloo, on virtual GPUs under the race detector, launched."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import everyday_cases
import oracle_ranks
import pytest
from rank_kit import environment, run_ranks

import flambeau
from flambeau.testing.ranks import ranks

SIZE = 4


@pytest.fixture(scope="module")
def pytorchs():
    return oracle_ranks.pytorchs("everyday_cases")


@pytest.mark.parametrize(
    ("device", "backend", "options"),
    [
        ("cpu", "gloo", {}),
        ("cuda", "nccl", {"schedule": "random:1", "order": 3}),
        ("cuda", "nccl", {"schedule": "adversarial:2"}),
    ],
)
def test_programs(pytorchs, device, backend, options):
    mine = ranks(
        oracle_ranks.answers, SIZE, flambeau, "everyday_cases", device, backend, races="error", **options
    )
    for case in everyday_cases.CASES:
        assert [rank[case] for rank in mine] == [rank[case] for rank in pytorchs], case
    assert all(rank[case][0] == "value" for rank in pytorchs for case in everyday_cases.CASES)


@pytest.mark.parametrize(("size", "device", "backend"), [(4, "cpu", "gloo"), (3, "cuda", "nccl")])
def test_ranks_that_are_processes(size, device, backend):
    """Whole modules of cases: CPU tensors go through MPI, virtual GPUs meet at rank 0."""
    mine = oracle_ranks.of_processes(size, device, backend)
    for module in oracle_ranks.GROUPS[size]:
        theirs = oracle_ranks.pytorchs(module)
        for case in theirs[0]:
            assert [rank[module][case] for rank in mine] == [rank[case] for rank in theirs], (module, case)


def failing():
    """A message that nobody takes: groups cannot end."""
    d = flambeau.distributed
    d.init_process_group("nccl")
    t = flambeau.ones(4, device="cuda")
    if d.get_rank() == 0:
        d.isend(t, 1)
        d.isend(t, 1)
    else:
        d.irecv(t, 0)
    d.destroy_process_group()


def test_what_the_end_of_groups_met_is_told():
    with pytest.raises(
        flambeau.DriverError, match=r"(?s)rank 0's send of 4 float32 to rank 1.*has not arrived|has ended"
    ):
        ranks(failing, 2)


def ring(order, bound):
    """What each rank gets from the one before it; `order` of its rank's messages."""
    d = flambeau.distributed
    where = {"device_id": flambeau.device("cuda", flambeau.cuda.current_device())} if bound else {}
    d.init_process_group("nccl", **where)
    rank, size = d.get_rank(), d.get_world_size()
    out, got = flambeau.full((4,), float(rank), device="cuda"), flambeau.zeros(4, device="cuda")
    steps = {"send": lambda: d.isend(out, (rank + 1) % size), "recv": lambda: d.irecv(got, (rank - 1) % size)}
    if order == "batch":
        ops = [d.P2POp(d.isend, out, (rank + 1) % size), d.P2POp(d.irecv, got, (rank - 1) % size)]
        works = d.batch_isend_irecv(ops)
    else:
        sends_first = order == "send first" or rank % 2 == 0
        works = [steps[name]() for name in (("send", "recv") if sends_first else ("recv", "send"))]
    for work in works:
        work.wait()
    d.all_reduce(out)
    return got.tolist()[0], out.tolist()[0], len(flambeau.distributed.group.WORLD.backend_of("cuda")._lines)


@pytest.mark.filterwarnings("ignore:An unbatched P2P op")
@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_rings_of_messages_go_through(size, bound):
    for order in ("batch", "even ranks first"):
        found = ranks(ring, size, order, bound)
        assert [got for got, _, _ in found] == [float((rank - 1) % size) for rank in range(size)]
        assert {total for _, total, _ in found} == {sum(range(size))}
        if bound:
            assert {lines for _, _, lines in found} == {1}, "messages have the group's communicator"


@pytest.mark.filterwarnings("ignore:An unbatched P2P op")
@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("size", [2, 3])
def test_a_ring_that_sends_first_is_told_that_it_waits_for_ever(size, bound):
    with pytest.raises((flambeau.DriverError, flambeau.distributed.DistBackendError)) as told:
        ranks(ring, size, "send first", bound)
    said = str(told.value)
    assert "deadlock" in said or "has not arrived" in said or "has not joined" in said


def test_messages_that_wait_for_all_others_are_warned_of_once(monkeypatch):
    with pytest.warns(UserWarning, match=r"unbatched P2P op .* ProcessGroup with size 2\.") as told:
        ranks(ring, 2, "even ranks first", True)
    assert len(told) == 2, "each rank says it once"
    monkeypatch.setenv("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranks(ring, 2, "even ranks first", True)
        ranks(ring, 2, "batch", True)


DROPPED = """
import gc
import numpy as np
import flambeau as torch, flambeau.distributed as dist
from flambeau.distributed.distributed_c10d import _get_default_store
dist.init_process_group("gloo")
rank, store = dist.get_rank(), _get_default_store()
for step in range(5):
    dist.barrier()
    if rank == 1:
        dist.all_reduce(torch.full((64,), 2.0), async_op=True)  # nobody keeps the work, or the tensor
        gc.collect()
        junk = [np.full(size, -7, np.int64) for size in (2, 32, 64) for _ in range(2000)]
        store.set(f"go{step}", "1")
    else:
        store.wait([f"go{step}"])
        t = torch.ones(64)
        dist.all_reduce(t)
        assert t.tolist() == [5.0] * 64, t
dist.barrier()
print("well")
"""


def test_the_memory_of_a_work_that_is_let_go_of_stays_until_it_is_over():
    """MPI sums up in it, and sends it on: `Join` lets go of a work in each iteration."""
    said = run_ranks(4, "-c", DROPPED)
    assert [one.out for one in said] == ["well\n"] * 4, said


@pytest.mark.parametrize("name", ["mesh_ddp", "sequence_parallel"])
def test_launched(name):
    """As a user would: `flambeau launch`, where a race is an error."""
    program = Path(__file__).parent / "everyday" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, "-m", "flambeau", "launch", "--nproc-per-node", "4", "--races", "error", str(program)],
        env=environment(), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.count("well\n") == 4, done.stdout + done.stderr


def test_spawned():
    """PyTorch's tutorial on uneven inputs, which starts its own ranks."""
    program = Path(__file__).parent / "everyday" / "uneven_inputs.py"
    done = subprocess.run(
        [sys.executable, "-m", "flambeau", "run", "--devices", "2", "--races", "error", str(program)],
        env=environment(), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = sorted(line for line in done.stdout.splitlines() if "inputs" in line)
    assert told == [
        "10 inputs processed before rank 0 joined!", "11 inputs processed across all ranks!",
        "11 inputs processed across all ranks!", "11 inputs processed before rank 1 joined!",
        "Rank 0 exhausted all 5 of its inputs!", "Rank 1 exhausted all 6 of its inputs!",
    ]  # fmt: skip
