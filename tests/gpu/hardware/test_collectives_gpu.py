"""Collectives over NCCL: one process per real GPU; on a machine with one the world has one rank.

Against NumPy; and beside ranks that end, stall or are killed, on two GPUs: there every other rank ends, and says why.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from gpu_kit import alone, needs_gpu, path_with_src

import flambeau

TESTS = Path(__file__).parents[2] / "distributed" / "collectives"
PROGRAM = """
import os, sys
import torch
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
import test_collectives_by_numpy as tests
everybody = list(range(int(os.environ["WORLD_SIZE"])))
tests.program("nccl", [None, everybody[::-1], everybody[:1]], sys.argv[1].split(","))
print("well")
"""
NAMES = ("uint8,int32,int64", "float16,bfloat16,float32,float64", "bool", "complex64")


@needs_gpu
@alone
@pytest.mark.parametrize("names", NAMES)
def test_every_collective(names, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    count = flambeau.cuda.device_count()
    command = [
        sys.executable,
        "-m",
        "flambeau",
        "launch",
        "--nproc-per-node",
        str(count),
        str(program),
        names,
    ]
    path = os.pathsep.join([str(TESTS), path_with_src()])
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.count("well") == count, done.stdout + done.stderr


# -- ranks that stop ------------------------------------------------------------------------------------------

needs_two = pytest.mark.skipif("flambeau.cuda.device_count() < 2", reason="there are not two GPUs")


def of_two_ranks(test):
    return needs_gpu(alone(needs_two(test)))


PATIENCE_S = 120  # for a process to end by itself: many times what it needs
STOPS = """
import os, signal, sys
import flambeau as torch, flambeau.distributed as dist
from datetime import timedelta
rank, store = int(sys.argv[1]), sys.argv[2]
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=5))
x = torch.ones(1 << 16, device="cuda")
dist.all_reduce(x)  # both
torch.cuda.synchronize()
print("both came", flush=True)
def stall():
    sys.stdin.read()  # until the test lets it go
"""
REPORT = re.compile(r"collective (timed out|failed|waits forever): call \d+ of group 0 \(ranks 0, 1\)")


class Rank:
    """A process of two. Its screen goes to files, so that nothing waits for the test to read."""

    def __init__(self, folder: Path, rank: int, program: str, handling: str) -> None:
        script = folder / "train.py"
        script.write_text(STOPS + program)
        self.out, self.err = folder / f"{rank}.out", folder / f"{rank}.err"
        command = [sys.executable, "-u", script.name, str(rank), str(folder / "store")]
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                ["bash", "-c", 'ulimit -c 0; exec "$@"', "-", *command], stdin=subprocess.PIPE, stdout=out, stderr=err,
                cwd=folder, env={**os.environ, "FLAMBEAU_DRIVER": "cuda", "PYTHONPATH": path_with_src(),
                                 "TORCH_NCCL_ASYNC_ERROR_HANDLING": handling},
            )  # fmt: skip

    def ended(self) -> int:
        """Wait for the process to end and return its exit status."""
        return self.process.wait(PATIENCE_S)

    def let_go(self) -> None:
        stdin: IO[bytes] | None = self.process.stdin
        assert stdin is not None
        stdin.close()

    def told(self) -> str:
        return f"status {self.process.poll()}\n{self.out.read_text()}\n{self.err.read_text()}"


def outcome(folder: Path, program: str, handling: str = "3", kill: bool = False) -> tuple[int, str, str]:
    """Rank 0's status and screen, after which rank 1 is let go and ends, too. kill: rank 1, once both have come."""
    ranks = [Rank(folder, rank, program, handling) for rank in (0, 1)]
    first, second = ranks
    try:
        if kill:
            while "both came" not in second.out.read_text():
                assert second.process.poll() is None, second.told()
            second.process.kill()
        status = first.ended()
        second.let_go()
        second.ended()
    except subprocess.TimeoutExpired:
        pytest.fail("a rank hangs:\n" + "\n".join([rank.told() for rank in ranks]))
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.let_go()
            rank.process.wait()
    print("\n".join([rank.told() for rank in ranks]))  # what a failure shows
    return status, first.out.read_text(), first.err.read_text()


def lost(status: int, err: str) -> bool:
    """Whether a process lost its device: its kernel used memory of the other, which had gone. Else it has reported."""
    if status == 1 and "CUDA error" in err:
        return True
    assert status == -signal.SIGABRT and REPORT.search(err)
    return False


EXITS = """
if rank == 1:
    sys.exit()
dist.all_reduce(x)  # one
torch.cuda.synchronize()
print("went on")
"""


@of_two_ranks
def test_a_rank_that_ends_early_is_named_and_the_other_ends(tmp_path):
    status, out, err = outcome(tmp_path, EXITS)
    assert "went on" not in out
    if not lost(status, err):
        assert "rank 0 queued it at train.py:" in err and "(dist.all_reduce(x)  # one)" in err
        assert "rank 1 has not arrived: the last that it reported is call 1, at train.py:" in err
        assert "the program of rank 0 is at train.py:" in err and "(torch.cuda.synchronize())" in err


STALLS = """
if rank == 1:
    stall()
    os._exit(0)
dist.all_reduce(x)
x.sum().item()
print("went on")
"""


@of_two_ranks
@pytest.mark.parametrize("handling", ["1", "3"])
def test_a_rank_that_stalls_is_named_and_the_other_ends(tmp_path, handling):
    status, out, err = outcome(tmp_path, STALLS, handling)
    assert status in (-signal.SIGABRT, 1) and "went on" not in out  # 1: the abort let the wait raise first
    assert REPORT.search(err) and "rank 1 has not arrived: the last that it reported is call 1" in err


GOES_ON = """
if rank == 1:
    stall()
    os._exit(0)
work = dist.all_reduce(x, async_op=True)
for wait in (torch.cuda.synchronize, work.wait, lambda: dist.all_reduce(x)):
    try:
        wait()
        print("went on")
    except RuntimeError as error:
        print(type(error).__name__)
print("alone", torch.ones(3, device="cuda").sum().item())
os._exit(0)
"""


@of_two_ranks
def test_a_program_may_go_on_after_an_abort(tmp_path):
    status, out, err = outcome(tmp_path, GOES_ON, "2")
    assert REPORT.search(err)
    assert (status, out.splitlines()[1:]) == (
        0,
        ["DriverError", "DistBackendError", "DistBackendError", "alone 3.0"],
    )


BARRIER = """
if rank == 1:
    stall()
    os._exit(0)
try:
    dist.barrier(device_ids=[rank])
except dist.DistBackendError as error:
    print(error)
os._exit(0)
"""


@of_two_ranks
def test_a_barrier_says_who_has_not_come(tmp_path):
    status, out, _ = outcome(tmp_path, BARRIER)
    assert status == 0 and "a collective of GPUs timed out after 5000ms" in out
    assert "rank 1 has not arrived: the last that it reported is call 1" in out


KILLED = """
while True:
    dist.all_reduce(x)
    torch.cuda.synchronize()
"""


@of_two_ranks
def test_the_other_ends_when_a_rank_is_killed(tmp_path):
    status, _, err = outcome(tmp_path, KILLED, kill=True)
    if not lost(status, err):
        assert re.search(r"rank 1 .*; its process, \d+, has ended", err)


LEAVES = """
if rank == 1:
    stall()
    os._exit(0)
try:
    dist.destroy_process_group()
    print("left")
except dist.DistBackendError as error:
    print(error)
os._exit(0)
"""


@of_two_ranks
def test_leaving_a_group_waits_for_nobody_for_ever(tmp_path):
    status, out, _ = outcome(tmp_path, LEAVES)
    last = out.splitlines()[-1]
    assert status == 0 and last in (
        "left",
        "rank 0 has left group 0, and not all others have, within 5 s",
    )


NEVER = """
if rank == 1:
    stall()
    os._exit(0)
group = dist.new_group([0, 1], timeout=timedelta(seconds=2))
dist.all_reduce(x, group=group)
"""


@of_two_ranks
def test_a_rank_that_never_comes_to_a_group_is_named(tmp_path):
    status, _, err = outcome(tmp_path, NEVER)
    assert (
        status == 1
        and "rank 1 did not arrive within 2 s at the first collective of group 1 (ranks 0, 1)" in err
    )


LAUNCHED = """
import os
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
x = torch.ones(1 << 16, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
if rank == 1:
    raise ValueError("of rank 1")
dist.all_reduce(x)
torch.cuda.synchronize()
"""


@of_two_ranks
def test_under_the_launcher_the_first_error_ends_all(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(LAUNCHED)
    command = [
        sys.executable,
        "-m",
        "flambeau",
        "launch",
        "--driver",
        "cuda",
        "--nproc-per-node",
        "2",
        str(program),
    ]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path_with_src()}, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "rank 1 failed first, and the others were ended" in done.stderr, (
        done.stderr
    )
    assert "ValueError: of rank 1" in done.stderr
