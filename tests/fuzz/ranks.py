"""Ranks that are killed, stopped, asleep or gone at every kind of wait: what the others and the launcher say.

A rank that has ended must end the job, with words that name it, and so must ranks that all wait; of a rank that does
not go on the launcher must print a line on stderr. Either way no process may be left.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import Failure, Findings

import flambeau
from flambeau import distributed as dist
from flambeau.testing.ranks import ranks

_SECONDS = 120.0  # after which a job counts as hanging; the machine may be busy
_EVERY_S = 1.0  # between the launcher's lines about one wait, in place of 30

WAITS = {
    "init": "",
    "get": "store.get('never')",
    "wait": "store.wait(['never'])",
    "all_reduce": "dist.all_reduce(x)",
    "async": "dist.all_reduce(x, async_op=True).wait()",
    "barrier": "dist.barrier(device_ids=ids)",
    "broadcast": "dist.broadcast(x, 1)",
    "recv": "dist.recv(x, 1)",
    "recv_any": "dist.recv(x)",
    "objects": "dist.all_gather_object([None] * 2, 'an object')",
    "new_group": "dist.all_reduce(x, group=dist.new_group([0, 1]))",
    "all_to_all": "dist.all_to_all_single(x, x.clone())",
    "monitored": "dist.monitored_barrier()",
    "object": "dist.broadcast_object_list([None], 1)",
    "batch": "[w.wait() for w in dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 1)])]",
    "destroy": "dist.destroy_process_group()",
}
FAULTS = {
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "exits": "os._exit(0)",
    "fails": "os._exit(3)",
    "raises": "raise ValueError('the fault of this rank')",
    "leaves": "sys.exit(0)",
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "sleeps": "time.sleep(1000)",
    "gets": "store.get('another')",
    "receives": "dist.recv(x)",
    "miscounts": "os.environ['WORLD_SIZE'] = '{size}'",
}
LASTING = ("stopped", "sleeps")  # the rank is still there
WAITING = ("gets", "receives")  # it waits as well, so no rank can go on
BACKENDS = ("nccl", "gloo", "mpi", "tcp")  # "tcp": gloo without MPI
THREADS = {"threads": "gloo", "threads of nccl": "nccl"}
THREAD_FAULTS = ("raises", "leaves", "returns", "fails", "gets", "receives")
SIZES = (1, 3, 1 << 40)  # of a rank that miscounts: two are right

PROGRAM = """
import os, signal, sys, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
if ("{wait}" == "init" or "{name}" == "miscounts") and rank == {failing}:
    {fault}
if "{backend}" == "nccl":
    torch.cuda.set_device(rank)
ids = [rank] if "{backend}" == "nccl" else None
dist.init_process_group("{backend}")
store = dist.distributed_c10d._get_default_store()
x = torch.ones(4, device="cuda" if "{backend}" == "nccl" else "cpu")
dist.all_reduce(x)
if rank == {failing}:
    {fault}
{call}
if "{backend}" == "nccl":
    torch.cuda.synchronize()
"""

_SOURCES = str(Path(flambeau.__file__).parents[1])
_LAUNCH = (
    "import sys; from flambeau.distributed.launching import stalls; stalls._EVERY_S = float(sys.argv[1]); "
    "from flambeau.cli.main import main; sys.exit(main(sys.argv[2:]))"
)

Case = tuple[str, str, str]


def cases() -> list[Case]:
    """Return every backend, wait and fault, and threads with the faults that they can have."""
    found = [
        (backend, wait, fault)
        for backend, wait, fault in itertools.product(BACKENDS, WAITS, FAULTS)
        if _is_possible(backend, wait, fault) and fault != "miscounts"
    ]
    found += [
        (backend, f"init {size} {rank}", "miscounts")
        for backend in BACKENDS
        for size in SIZES
        for rank in (0, 1)
    ]
    return found + [
        (backend, wait, fault)
        for backend, wait, fault in itertools.product(THREADS, WAITS, THREAD_FAULTS)
        if _is_possible(THREADS[backend], wait, fault)
    ]


def _is_possible(backend: str, wait: str, fault: str) -> bool:
    """Return True if the rank can have this fault, and the other one waits for it then."""
    if wait == "init":
        return fault not in WAITING  # there is no store yet
    if wait == "destroy":  # which waits for no other rank
        return fault in ("killed", "fails", "raises")
    refused = {"nccl": ("recv_any", "monitored"), "mpi": ("monitored",)}
    return wait not in refused.get(backend, ())


def check(case: Case) -> str:
    """Return what is wrong with what became of a job; "" if nothing is."""
    return _check_threads(*case) if case[0] in THREADS else _check_processes(*case)


# -- processes --------------------------------------------------------------------------------------------


def _check_processes(backend: str, wait: str, fault: str) -> str:
    word = "gloo" if backend == "tcp" else backend
    wait, size, failing = wait.split() if fault == "miscounts" else (wait, "2", "1")
    line = FAULTS[fault].format(size=size)
    text = PROGRAM.format(backend=word, wait=wait, call=WAITS[wait], fault=line, name=fault, failing=failing)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(text)
        command = [
            sys.executable,
            "-c",
            _LAUNCH,
            str(_EVERY_S),
            "launch",
            "--nproc-per-node",
            "2",
            str(program),
        ]
        environment = os.environ | {"PYTHONPATH": _SOURCES, "TMPDIR": folder, "FLAMBEAU_DRIVER": "virtual"}
        if backend == "tcp":
            environment["FLAMBEAU_GLOO"] = "tcp"
        with Path(folder, "err").open("w+") as err:
            job = subprocess.Popen(command, stdout=err, stderr=err, start_new_session=True, env=environment)
            try:
                ended = _wait(job, err, lasting=fault in LASTING)
                err.seek(0)
                said = err.read()
                return _complaint(job, ended, said, fault) or _left_of(job.pid, str(program))
            finally:
                for process in _processes_of(str(program)):
                    os.kill(process, signal.SIGKILL)
                job.kill()
                job.wait()


_PROGRESS = re.compile(r"rank 0 has waited .* rank 1 \(process \d+\) (sleeps|is stopped)")


def _wait(job: subprocess.Popen[bytes], err: object, lasting: bool) -> bool:
    """Wait for the end of a job, or for a line about a rank that does not go on, and end the job then."""
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        if job.poll() is not None:
            return True
        if lasting and _PROGRESS.search(Path(err.name).read_text()):  # type: ignore[attr-defined]
            job.terminate()
            job.wait(_SECONDS)
            return True
        time.sleep(0.02)
    return False


def _complaint(job: subprocess.Popen[bytes], ended: bool, said: str, fault: str) -> str:
    if not ended:
        return f"the job does not end, and says {said[-1500:]!r}"
    if fault in LASTING:
        return (
            "" if _PROGRESS.search(said) else f"no line names the rank that does not go on: {said[-1500:]!r}"
        )
    if not job.returncode:
        return f"the status is 0: {said[-1500:]!r}"
    words = {
        "killed": r"rank 1.*killed by SIGKILL", "miscounts": r"ranks disagree on their number|rank \d is out of range", "fails": r"rank 1.*exit status 3", "raises": "the fault of this rank",
        **dict.fromkeys(WAITING, r"deadlock: .*\n.* rank 1\b|does not support recv from any source"),
    }.get(fault, r"rank 1\b[^\n]*(has ended|ended|exit status 0|left)")  # fmt: skip
    return "" if re.search(words, said, re.S) else f"nothing names the rank that ended: {said[-1500:]!r}"


def _left_of(job: int, program: str) -> str:
    """Name processes of a job that still live; they have a moment to end."""
    end = time.monotonic() + 20
    while (left := _processes_of(program)) and time.monotonic() < end:
        time.sleep(0.05)
    return f"processes {left} are left" if left else ""


def _processes_of(program: str) -> list[int]:
    """The processes with a program on their command line, but for zombies, which have none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if program.encode() in words and int(path.parent.name) != os.getpid():
            found.append(int(path.parent.name))
    return found


# -- threads ----------------------------------------------------------------------------------------------


def _check_threads(backend: str, wait: str, fault: str) -> str:
    word = THREADS[backend]
    device = "cuda" if word == "nccl" else "cpu"

    def body() -> None:
        if dist.is_initialized():
            raise AssertionError("a group is left of another job")
        if wait == "init" and _rank() == 1:
            return _thread_fault(fault, {})
        dist.init_process_group(word)
        names = {
            "dist": dist, "x": flambeau.ones(4, device=device), "store": dist.distributed_c10d._get_default_store(),
            "ids": [dist.get_rank()] if word == "nccl" else None,
        }  # fmt: skip
        dist.all_reduce(names["x"])
        if dist.get_rank() == 1:
            return _thread_fault(fault, names)
        exec(WAITS[wait], names)  # the call of the process's program
        if word == "nccl":
            flambeau.cuda.synchronize()

    try:
        ranks(body, 2)
    except Exception as error:
        said = "\n".join([str(error), *getattr(error, "__notes__", [])])
        return "" if re.search(r"rank (1|0)\b", said) else f"nothing names a rank: {said}"
    return "the job ends without an error"


def _rank() -> int:
    from flambeau.distributed import world

    return int(world.local.world.environment["RANK"])


def _thread_fault(fault: str, names: dict[str, object]) -> None:
    if fault == "fails":  # os._exit ends the process, and so all ranks
        sys.exit(3)
    if fault != "returns":
        exec(FAULTS[fault], {"sys": sys, **names})


# -- the search -------------------------------------------------------------------------------------------


def search(seed: int, begin: int, count: int, stop: int = 10, of: str = "") -> Findings:
    """Try `count` cases in an order of the seed, from number `begin` on; `of`: those of one backend."""
    every = [case for case in cases() if of in ("", case[0])]
    random.Random(seed).shuffle(every)
    found = Findings("ranks", seed)
    for number, case in enumerate(every[begin : begin + count], begin):
        start = time.monotonic()
        why = check(case)
        found.slowest = max(found.slowest, time.monotonic() - start)
        found.counts["failed" if why else "accepted"] += 1
        if why:
            found.failures[case] = Failure(number, " ".join(case), why)
        if len(found.failures) >= stop:
            break
    return found
