"""Collectives that do not end, over an NCCL whose other ranks never come: what a program and its screen are told.

Each program runs in a process of its own, whose null libraries hold its stream from a collective on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_null_driver import library

assert library  # a fixture

SOURCES = Path(__file__).parents[3] / "src"
HEAD = """
import ctypes, sys
ctypes.CDLL("libnccl.so.2")  # what is loaded already is taken, whatever the machine has
import flambeau as torch, flambeau.distributed as dist
from datetime import timedelta
from flambeau.distributed.backends import watchdog as watch
watch._SLACK_S = 0.0
def init(rank=0, size=1, seconds=0.3):
    where = f"file://{sys.argv[1]}"
    dist.init_process_group("nccl", init_method=where, rank=rank, world_size=size, timeout=timedelta(seconds=seconds))
    return torch.empty(4, device="cuda")
"""


def start(
    library: Path, folder: Path, program: str, *more: str, stuck: int = 2, **settings: str
) -> subprocess.Popen[str]:
    script = folder / "train.py"
    script.write_text(HEAD + program)
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(library), "PYTHONPATH": str(SOURCES), "FLAMBEAU_KERNEL_CACHE": str(library / "kernels"),
        "FLAMBEAU_DRIVER": "cuda", "NULL_NCCL_ALONE": "1", "NULL_NCCL_STUCK": str(stuck), **settings,
    }  # fmt: skip
    command = [
        "bash",
        "-c",
        'ulimit -c 0; exec "$@"',
        "-",
        sys.executable,
        script.name,
        str(folder / "store"),
        *more,
    ]
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def line_of(program: str, text: str) -> int:
    return (HEAD + program).split(text)[0].count("\n") + 1


def told(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.parametrize(
    "wait", ["torch.cuda.synchronize()", "x.tolist()", "dist.destroy_process_group()", "pass"]
)
def test_whoever_waits_for_the_device_is_ended_with_a_report(
    library: Path, tmp_path: Path, wait: str
) -> None:
    program = f"x = init()\ndist.all_reduce(x)\ndist.all_reduce(x)  # never ends\n{wait}\nprint('went on')\n"
    status, out, err = told(start(library, tmp_path, program))
    lines = err.splitlines()
    assert status == -signal.SIGABRT and (out == "went on\n" if wait == "pass" else out == "")
    assert lines[0].startswith(
        "[rank0]: flambeau.distributed.DistBackendError: collective timed out: call 2 of group 0"
    )
    assert lines[1] == (
        f"[rank0]:   rank 0 queued it at train.py:{line_of(program, '# never')} (dist.all_reduce(x)  # never ends): all_reduce of 4 float32, op sum"
    )
    if wait != "pass":
        assert (
            lines[2] == f"[rank0]:   the program of rank 0 is at train.py:{line_of(program, wait)} ({wait})"
        )


ABORTED = """
x = init()
work = dist.all_reduce(x, async_op=True)
late = dist.all_reduce(x, async_op=True)
for wait in (torch.cuda.synchronize, work.wait, late.wait, lambda: dist.all_reduce(x), torch.cuda.synchronize):
    try:
        wait()
        print("well")
    except RuntimeError as error:
        print(type(error).__name__, str(error).splitlines()[0])
print(work.is_success(), late.is_success(), late.exception() is not None)
dist.destroy_process_group()
init()
print("anew")
"""


def test_a_program_may_go_on_after_an_abort(library: Path, tmp_path: Path) -> None:
    status, out, err = told(start(library, tmp_path, ABORTED, TORCH_NCCL_ASYNC_ERROR_HANDLING="2"))
    lines = out.splitlines()
    assert status == 0, err
    assert lines[0].startswith(
        "DriverError NCCL: a communicator was aborted while a stream that it used had work left"
    )
    assert lines[1] == "well"
    assert (
        lines[2].startswith("DistBackendError collective timed out: call 2 of group 0")
        and lines[3] == lines[2]
    )
    assert lines[4:] == ["well", "True False True", "anew"]
    assert err.startswith("[rank0]: flambeau.distributed.DistBackendError: collective timed out")


BLOCKING = """
x = init()
dist.all_reduce(x)
for begin in (lambda: dist.all_reduce(x), lambda: dist.all_reduce(x)):
    try:
        begin()
    except dist.DistBackendError as error:
        print(str(error).splitlines()[:2])
"""


def test_blocking_waits_raise_by_themselves(library: Path, tmp_path: Path) -> None:
    status, out, err = told(start(library, tmp_path, BLOCKING, TORCH_NCCL_BLOCKING_WAIT="1"))
    line = line_of(BLOCKING, "dist.all_reduce(x), lambda")
    queued = f"  rank 0 queued it at train.py:{line} (for begin in (lambda: dist.all_reduce(x), lambda: dist.all_reduce(x)):): "
    first, second = out.splitlines()
    assert (status, err) == (0, "") and first == second
    assert first == str(
        ["a collective of GPUs timed out after 300ms", f"{queued}all_reduce of 4 float32, op sum"]
    )


def test_a_timeout_may_be_set_later(library: Path, tmp_path: Path) -> None:
    program = """
x = init(seconds=1000)
group = dist.new_group([0], timeout=timedelta(seconds=1000))
dist.all_reduce(x, group=group)
dist.all_reduce(x, group=group)
dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.1), group)
torch.cuda.synchronize()
"""
    status, _, err = told(start(library, tmp_path, program))
    assert status == -signal.SIGABRT
    assert (
        "collective timed out: call 2 of group 1 (ranks 0)" in err and "the group's timeout is 0.1 s" in err
    )


FAILED = """
x = init(seconds=1000)
dist.all_reduce(x)
dist.all_reduce(x)
raise ValueError("of the program")
"""


def test_a_program_that_failed_does_not_wait_at_its_end(library: Path, tmp_path: Path) -> None:
    status, _, err = told(start(library, tmp_path, FAILED))
    assert status == 1 and err.splitlines()[-1] == "[rank0]: ValueError: of the program"


MANY = """
x = init(seconds=1000)
dist.all_reduce(x)
(line,) = watch.process._lines
events = line._driver._events
before = len(events)
for _ in range(1000):
    dist.all_reduce(x)
print(line.count, len(line.pending) <= 256, len(events) - before <= 256)
works = [dist.all_reduce(x, async_op=True) for _ in range(300)]
[work.wait() for work in works]
del works
print(line.head(), len(line.pending), line.count)
"""


def test_a_call_costs_an_event_that_is_used_again(library: Path, tmp_path: Path) -> None:
    status, out, err = told(start(library, tmp_path, MANY, stuck=10_000))
    assert (status, out, err) == (0, "1001 True True\nNone 0 1301\n", "")


MESSAGES = """
x = init(int(sys.argv[2]), 2)
if sys.argv[2] == "0":
    dist.recv(x, 1)
    torch.cuda.synchronize()
else:
    dist.barrier()
    dist.send(x, 0)
"""


def test_a_message_that_does_not_come_is_told_with_its_peer(library: Path, tmp_path: Path) -> None:
    ranks = [start(library, tmp_path, MESSAGES, rank, stuck=1) for rank in "01"]
    status, _, err = told(ranks[0])
    assert status == 1  # the peer has not even come to where they join a communicator
    line = line_of(MESSAGES, "dist.recv")
    assert err.splitlines()[-1] == (
        f"[rank0]: flambeau.distributed.DistBackendError: rank 0 at train.py:{line}: rank 1 did not arrive within 0.3 s at "
        "the first message of group 0 (ranks 0, 1)"
    )
    ranks[1].kill()
    ranks[1].communicate()


RANKS = """
rank = int(sys.argv[2])
x = init(rank, 2, seconds=2)
dist.all_reduce(x)  # both
if rank == 1:
    sys.exit()
dist.all_reduce(x)  # one
torch.cuda.synchronize()
"""


def test_a_rank_that_has_gone_is_named(library: Path, tmp_path: Path) -> None:
    first = start(library, tmp_path, RANKS, "0")
    second = start(library, tmp_path, RANKS, "1")
    assert told(second)[0] == 0
    status, _, err = told(first)
    assert status == -signal.SIGABRT
    assert (
        f"[rank0]:   rank 1 has not arrived: the last that it reported is call 1, at train.py:{line_of(RANKS, '# both')} (dist.all_reduce(x)  # both): "
        f"all_reduce of 4 float32, op sum; its process, {second.pid}, has ended"
    ) in err.splitlines(), err


def test_a_rank_that_never_comes_is_named(library: Path, tmp_path: Path) -> None:
    program = "x = init(0, 3, seconds=0.3)\ndist.all_reduce(x)\n"
    status, _, err = told(start(library, tmp_path, program))
    assert status == 1
    assert err.splitlines()[-1] == (
        f"[rank0]: flambeau.distributed.DistBackendError: rank 0 at train.py:{line_of(program, 'dist.all')}: ranks 1, 2 did not arrive within 0.3 s at the "
        "first collective of group 0 (ranks 0, 1, 2)"
    )
