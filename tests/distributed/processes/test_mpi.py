"""CPU tensors between processes, over MPI and over TCP: late, dead, absent and disagreeing ranks; how ranks join MPI."""

from __future__ import annotations

import random
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rank_kit import finish, free_port, run_ranks, start

from flambeau.distributed.backends import mpi_world, process_work
from flambeau.distributed.backends.process_manager import ProcessManager
from flambeau.distributed.backends.process_work import ProcessWork
from flambeau.distributed.backends.wait_reports import PendingOperation, Wait, Waits, key_of, said_by, stuck
from flambeau.distributed.dist_errors import DistBackendError
from flambeau.distributed.stores.store import DEFAULT_TIMEOUT, HashStore

PROGRAM = str(Path(__file__).with_name("mpi_program.py"))
ENVIRONMENTS = {"mpi": {}, "tcp": {"FLAMBEAU_GLOO": "tcp"}}
both = pytest.mark.parametrize("transport", ENVIRONMENTS)


def segments() -> set[str]:
    """Those that no process has: others' tests may run."""
    mapped = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            mapped.append(maps.read_text())
    text = "".join(mapped)
    return {path.name for path in Path("/dev/shm").glob("mpich_shm_*") if path.name not in text}


@pytest.mark.parametrize(
    ("size", "word", "transport"), [(2, "mpi", "mpi"), (3, "gloo", "mpi"), (3, "gloo", "tcp")]
)
def test_every_collective_beside_numpy(size: int, word: str, transport: str) -> None:
    before = segments()
    for said in run_ranks(size, PROGRAM, word, **ENVIRONMENTS[transport]):
        assert (said.status, said.out) == (0, "good\n"), said.err
    assert segments() <= before, "shared memory outlives no rank"


def test_ranks_that_mpiexec_started_need_nothing_else() -> None:
    mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    assert mpiexec is not None, "mpich's wheel brings one"
    command = [mpiexec, "-n", "2", sys.executable, PROGRAM, "mpi"]
    said = finish(start("-c", f"import os; os.execv({mpiexec!r}, {command!r})"))
    assert (said.status, said.out.count("good")) == (0, 2), said.err


@pytest.mark.skipif(shutil.which("mpiexec.openmpi") is None, reason="no Open MPI here")
def test_every_collective_by_open_mpi() -> None:
    """Check that inputs and communicators live until the end of a collective, which Open MPI needs."""
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = ["mpiexec.openmpi", "--oversubscribe", "-n", "3", sys.executable, PROGRAM, "mpi"]
    said = finish(
        start("-c", f"import os; os.execvp({command[0]!r}, {command!r})", MPI4PY_MPIABI="openmpi", **root)
    )
    assert (said.status, said.out.count("good")) == (0, 3), said.err


_FAILS = """
import sys
import flambeau as torch, flambeau.distributed as dist
dist.init_process_group("mpi")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    if sys.argv[1] == "raise":
        raise ValueError("the reason")
    sys.exit(3)
dist.all_reduce(torch.ones(4))
"""


@pytest.mark.parametrize("by", ["python", "flambeau run"])
@pytest.mark.parametrize("how", ["raise", "exit"])
def test_a_rank_of_mpiexec_that_fails_keeps_nobody_waiting(tmp_path: Path, by: str, how: str) -> None:
    """MPI's end waits for all ranks, and the others wait for this one in a collective."""
    program = tmp_path / "program.py"
    program.write_text(_FAILS)
    runner = [sys.executable, *(["-m", "flambeau", "run", "--quiet"] if by != "python" else [])]
    said = finish(start("-c", _EXEC, "-n", "3", *runner, str(program), how))
    assert said.status != 0
    if how == "raise":
        assert "ValueError: the reason" in said.err + said.out
    else:
        assert "the program of rank 1 has ended" in said.err + said.out


_EXEC = """
import os, shutil, sys
found = shutil.which("mpiexec", path=os.path.dirname(sys.executable))
os.execv(found, [found, *sys.argv[1:]])
"""


_DIFFER = """
import flambeau as torch, flambeau.distributed as dist
dist.init_process_group("gloo")
rank, t = dist.get_rank(), torch.ones(4)
odd = rank == 2
calls = [
    lambda g: dist.broadcast(t, 0, group=g) if odd else dist.all_reduce(t, group=g),
    lambda g: dist.all_reduce(torch.ones(4, dtype=torch.int32) if odd else t, group=g),
    lambda g: dist.all_reduce(torch.ones(5 if odd else 4), group=g),
    lambda g: dist.all_reduce(torch.ones(1 << 20 if odd else 1 << 18), group=g),
    lambda g: dist.broadcast(t, int(odd), group=g),
    lambda g: dist.all_reduce(t, op=dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM, group=g),
    lambda g: dist.barrier(g) if odd else dist.all_reduce(t, group=g),
    lambda g: dist.barrier(g) if odd else dist.scatter(t, [t, t, t] if rank == 0 else None, group=g),
    lambda g: (dist.all_reduce(t, async_op=True, group=g) if odd else dist.broadcast(t, 1, async_op=True, group=g)).wait(),
]
for call in calls:
    group = dist.new_group()
    dist.barrier(group)
    for _ in range(2):  # it stays
        try:
            call(group)
        except dist.DistBackendError as error:
            print(str(error).replace("\\n", "|"))
    dist.all_reduce(torch.ones(1))  # other groups are as they were
"""


@both
def test_ranks_that_disagree_are_told_with_their_lines(transport: str) -> None:
    """What MPI itself hangs on, or goes on with."""
    wanted = [
        ("all_reduce of 4 float32, op sum", "broadcast of 4 float32, root 0"),
        ("all_reduce of 4 float32, op sum", "all_reduce of 4 int32, op sum"),
        ("all_reduce of 4 float32, op sum", "all_reduce of 5 float32, op sum"),
        ("all_reduce of 262144 float32, op sum", "all_reduce of 1048576 float32, op sum"),
        ("broadcast of 4 float32, root 0", "broadcast of 4 float32, root 1"),
        ("all_reduce of 4 float32, op sum", "all_reduce of 4 float32, op max"),
        ("all_reduce of 4 float32, op sum", "barrier"),
        ("recv of 4 float32 from rank 0", "barrier"),
        ("broadcast of 4 float32, root 1", "all_reduce of 4 float32, op sum"),
    ]
    for said in run_ranks(3, "-c", _DIFFER, **ENVIRONMENTS[transport]):
        assert said.status == 0, said.err
        lines = said.out.splitlines()
        assert lines[::2] == lines[1::2], "the second call says the same"
        for line, (most, odd) in zip(lines[::2], wanted, strict=True):
            head, first, second, third, end = line.split("|")
            assert head.startswith("collective mismatch: call 2 of group") and "in the same order" in end
            assert first.startswith("  rank 0 at <string>:")
            assert (second.split(": ")[-1], third.split(": ")[-1]) == (most, odd)
            assert (second[:7], third[:7]) == ("  rank ", "  rank ") and second[7] + third[7] == "12"


_CIRCLE = """
import flambeau as torch, flambeau.distributed as dist
dist.init_process_group("gloo")
rank, t = dist.get_rank(), torch.ones(4)
try:
    if rank < 2:
        dist.recv(t, 1 - rank)
    else:
        dist.barrier()
except dist.DistBackendError as error:
    print(error)
store = dist.group.WORLD.get_group_store()
store.set(f"told {rank}", "")
store.wait([f"told {other}" for other in range(3)])  # rank 0 serves it
"""


@both
def test_ranks_that_wait_for_each_other_are_told_with_their_lines(transport: str) -> None:
    wanted = (
        "deadlock: these ranks wait for each other\n"
        "  rank 0 at <string>:7: recv of 4 float32 from rank 1 in group 0\n"
        "  rank 1 at <string>:7: recv of 4 float32 from rank 0 in group 0\n"
        "  rank 2 at <string>:9: barrier in group 0\n"
    )
    assert [said.out for said in run_ranks(3, "-c", _CIRCLE, **ENVIRONMENTS[transport])] == [wanted] * 3


_LONGER = """
import flambeau as torch, flambeau.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.send(torch.ones(4), 1)
else:
    dist.recv(torch.ones(2))
"""


def test_a_message_that_does_not_fit_is_told_without_what_mpi_says() -> None:
    sender, receiver = run_ranks(2, "-c", _LONGER)
    assert (sender.status, receiver.status) == (0, 1), sender.err
    assert receiver.err.splitlines()[-1].endswith(
        "DistBackendError: rank 1 at <string>:7: recv of 2 float32 from any rank: the message received from rank 0 is longer"
    )
    assert "mpi4py" not in receiver.err, "one traceback, of the program's lines"


def wait_for(
    *peers: int, number: int = 0, sends: bool = False, group: str = "0", tag: int = 0, looks: int = 0,
    pending: tuple[PendingOperation, ...] = (),
) -> Wait:  # fmt: skip
    return Wait(1, "", group, number, tag, sends, peers, looks=looks, pending=pending)


def begun(*peers: int, number: int = 0, sends: bool = False, tag: int = 0) -> PendingOperation:
    return PendingOperation("0", number, tag, sends, peers)


def wait_for_any(*peers: int, group: str = "0", tag: int = 0) -> Wait:
    return Wait(1, "", group, 0, tag, False, peers, True)


@pytest.mark.parametrize(("waits", "wanted"), [
    ({0: wait_for(1), 1: wait_for(0)}, {0, 1}),
    ({0: wait_for(1), 1: wait_for(0, sends=True)}, set()),  # they meet
    ({0: wait_for(1, tag=7), 1: wait_for(0, sends=True, tag=8)}, {0, 1}),
    ({0: wait_for(1), 1: wait_for(2), 2: wait_for(0)}, {0, 1, 2}),
    ({0: wait_for(1), 1: wait_for(2)}, set()),  # 2 works
    ({0: wait_for(0), 1: wait_for(0)}, {0, 1}),  # 0 waits for itself
    ({0: wait_for_any(0, 1), 1: wait_for(0)}, {0, 1}),
    ({0: wait_for_any(0, 1), 1: wait_for_any(0, 1)}, {0, 1}),
    ({0: wait_for_any(0, 1, 2), 1: wait_for_any(0, 1, 2)}, set()),  # 2 works
    ({0: wait_for_any(0, 1), 1: wait_for_any(0, 1)}, {0, 1}),  # 2 has ended
    ({0: wait_for_any(0)}, {0}),  # both others have ended
    ({0: wait_for_any(0, 1), 1: wait_for(0, sends=True)}, set()),
    ({0: wait_for_any(0, 1), 1: wait_for(0, sends=True, group="1")}, {0, 1}),
    ({0: wait_for_any(0, 1, 2), 1: wait_for(2), 2: wait_for(0, 1, number=3)}, {0, 1, 2}),
    ({0: wait_for_any(0, 1, 2), 1: wait_for(2), 2: wait_for(1, sends=True)}, set()),  # 1 and 2 go on
    ({0: wait_for(0, 1, number=4), 1: wait_for(0, 1, number=4)}, set()),
    ({0: wait_for(0, 1, number=4), 1: wait_for(0, 1, number=4, group="1")}, {0, 1}),
    ({0: wait_for(0, 1, 2, number=4), 1: wait_for(0, 1, 2, number=4), 2: wait_for(0)}, {0, 1, 2}),
    ({0: wait_for(0, 1, 2, number=4), 1: wait_for(0, 1, 2, number=4)}, set()),  # 2 may come
    ({0: wait_for(1, pending=(begun(1, tag=7),)), 1: wait_for(0)}, {0, 1}),
    ({0: wait_for(1, pending=(begun(1, sends=True),)), 1: wait_for(0)}, set()),  # 1 receives
    ({0: wait_for(1, pending=(begun(0, 1, 2, number=4),)), 1: wait_for(0, 1, 2, number=4)}, set()),  # 2 may come
    ({0: wait_for(1, pending=(begun(0, 1, 2, number=4),)), 1: wait_for(0, 1, 2, number=4), 2: wait_for(0)}, {0, 1, 2}),
    ({0: wait_for(0, pending=(begun(0, sends=True),))}, set()),
    ({0: wait_for_any(0, 1), 1: wait_for(0, pending=(begun(0, sends=True),))}, set()),
])  # fmt: skip
def test_who_waits_in_vain(waits: dict[int, Wait], wanted: set[int]) -> None:
    assert stuck(waits) == wanted


_ANY_SOURCE = """
import os, sys
import flambeau as torch, flambeau.distributed as dist
from flambeau.distributed.backends import rank_processes
from flambeau.distributed.backends.process_work import ProcessWork
dist.init_process_group("gloo")
rank, case, x = dist.get_rank(), sys.argv[1], torch.ones(4)
store = dist.group.WORLD.get_group_store()
if rank == 2:
    store.set("process", str(os.getpid()))
dist.barrier()
if case != "waits" and rank == 2:
    os._exit(0)
while case != "waits" and not rank_processes.has_ended(int(store.get("process"))):
    pass
if case == "sends" and rank == 1:
    store.wait(["looked"])
    dist.send(x, 0)
    sys.exit()
look = ProcessWork._why_hopeless
ProcessWork._why_hopeless = lambda work: (look(work), store.set("looked", ""))[0]
try:
    dist.recv(x)
    print("received")
except dist.DistBackendError as error:
    print(error, flush=True)
    store.set(f"told {rank}", "")
    store.wait([f"told {other}" for other in range(2)])  # rank 0 serves it
    os._exit(1)
"""


@both
def test_ranks_that_all_receive_from_any_source_are_deadlocked(transport: str) -> None:
    for first, ended in (("waits", False), ("ends", True)):
        said = run_ranks(3, "-c", _ANY_SOURCE, first, **ENVIRONMENTS[transport])
        assert said[0].out.startswith("deadlock: these ranks wait for each other\n"), said[0]
        assert "  rank 1 at <string>:23: recv of 4 float32 from any rank in group 0" in said[0].out
        assert ("rank 2, " in said[0].out and "has ended" in said[0].out) is ended, said[0].out


@both
def test_a_rank_that_has_ended_keeps_no_message_from_others(transport: str) -> None:
    assert run_ranks(3, "-c", _ANY_SOURCE, "sends", **ENVIRONMENTS[transport])[0].out == "received\n"


def test_a_circle_is_told_when_all_have_looked_again() -> None:
    """What one says may be old: only who has asked MPI since, and still waits for the same, counts."""
    store = HashStore()
    mine, theirs = Waits(store, 0, 2), Waits(store, 1, 2)
    for look in range(1, 9):  # 1 has not looked again
        assert mine.look(wait_for(1, looks=look)) == ""
        if look == 1:
            theirs.look(wait_for(0, looks=1))
    for look in range(2, 4):
        assert theirs.look(wait_for(0, looks=look)) == ""
        assert mine.look(wait_for(1, looks=7 + look)) == ""
    theirs.over()
    assert mine.look(wait_for(1, looks=11)) == ""
    assert mine.look(wait_for(1, looks=12)) == ""
    for look in range(3):
        assert (theirs.look(wait_for(0, looks=20 + look)), mine.look(wait_for(1, looks=20 + look))) == (
            "",
            "",
        )
    assert theirs.look(wait_for(0, looks=23)).startswith("deadlock: these ranks wait for each other")


class Job:
    """A model of ranks that begin operations and wait for them in random orders, advanced to any state.

    Args:
        programs: For each rank its actions: an operation of (kind, peers, tag) that it begins, and whether it waits.
    """

    def __init__(self, programs: list[list[tuple[tuple[str, tuple[int, ...], int], bool]]]) -> None:
        self.programs = programs
        self.at = [0] * len(programs)
        self.begun: list[list[PendingOperation]] = [[] for _ in programs]  # without those that have ended
        self.calls = [0] * len(programs)
        self.waits: dict[int, PendingOperation] = {}

    def movable(self) -> list[int]:
        """Return the ranks that do not wait and have not ended."""
        self._end_operations()
        return [
            rank
            for rank, program in enumerate(self.programs)
            if rank not in self.waits and self.at[rank] < len(program)
        ]

    def step(self, rank: int) -> None:
        """Let a rank begin its next operation."""
        (kind, peers, tag), waits = self.programs[rank][self.at[rank]]
        self.at[rank] += 1
        number = 0
        if kind == "collective":
            self.calls[rank] += 1
            number = self.calls[rank]
        operation = PendingOperation("0", number, tag, kind == "send", peers)
        self.begun[rank].append(operation)
        if waits:
            self.waits[rank] = operation

    def _end_operations(self) -> None:
        for rank, mine in enumerate(self.begun):
            for operation in list(mine):
                others = [peer for peer in operation.peers if peer != rank]
                pairs = [self._partner(rank, operation, peer) for peer in others]
                if all(pair is not None for pair in pairs):
                    self._end(rank, operation)
                    for peer, pair in zip(others, pairs, strict=True):
                        assert pair is not None
                        self._end(peer, pair)

    def _partner(self, rank: int, operation: PendingOperation, peer: int) -> PendingOperation | None:
        for other in self.begun[peer]:
            pairs = operation.number or other.sends != operation.sends
            alike = (other.number, other.tag) == (operation.number, operation.tag)
            if alike and pairs and rank in other.peers:
                return other
        return None

    def _end(self, rank: int, operation: PendingOperation) -> None:
        self.begun[rank].remove(operation)
        if self.waits.get(rank) is operation:
            del self.waits[rank]

    def stuck(self) -> set[int]:
        self._end_operations()
        return stuck({
            rank: Wait(1, "", *each, pending=tuple(other for other in self.begun[rank] if other is not each))
            for rank, each in self.waits.items()
        })  # fmt: skip


def draw_job(rng: random.Random) -> Job:
    size = rng.randint(2, 4)
    programs: list[list[Any]] = [[] for _ in range(size)]
    for _ in range(rng.randint(1, 6)):
        tag = rng.randrange(2)
        if rng.random() < 0.3:
            for rank in range(size):
                programs[rank].append((("collective", tuple(range(size)), 0), rng.random() < 0.6))
            continue
        source, target = rng.sample(range(size), 2)
        if rng.random() < 0.8:
            programs[source].append((("send", (target,), tag), rng.random() < 0.6))
        if rng.random() < 0.8:
            programs[target].append((("recv", (source,), tag), rng.random() < 0.6))
    for program in programs:  # in other orders: some of these jobs are deadlocked
        if rng.random() < 0.5 and len(program) > 1:
            at = rng.randrange(len(program) - 1)
            program[at], program[at + 1] = program[at + 1], program[at]
    return Job(programs)


def test_only_ranks_that_never_go_on_are_stuck() -> None:
    """At every state of random jobs, and at the end all of them."""
    deadlocks = 0
    for seed in range(2000):
        rng = random.Random(seed)
        job = draw_job(rng)
        found = set()
        while movable := job.movable():
            job.step(rng.choice(movable))
            found |= job.stuck()
        left = {rank: rank for rank in job.waits}
        assert found <= left.keys(), seed
        ended = {rank for rank in range(len(job.programs)) if rank not in left}
        if not ended:
            assert job.stuck() == left.keys(), seed
            deadlocks += 1
    assert deadlocks > 100


def test_a_wait_is_published_with_the_other_works_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    mine, theirs = Waits(store, 0, 2), Waits(store, 1, 2)
    monkeypatch.setattr(process_work, "place", lambda site: "line 3")
    other = begun(1, sends=True, tag=5)
    transport = SimpleNamespace(waits=mine, pending_besides=lambda work: [other])
    group = SimpleNamespace(transport=transport, place=SimpleNamespace(ranks=(0, 1), name="0"))
    calls = [("all_reduce", None)]
    work = SimpleNamespace(_backend=group, calls=calls, tag=0, number=1, site=None, me="rank 0")
    work.pending_operation = begun(0, 1, number=1)
    for look in range(9):
        ProcessWork._report_wait(cast(ProcessWork, work), 1, look)
        assert theirs.look(wait_for(0, tag=5, looks=look)) == ""
    wait = said_by(store.get(key_of(0)))
    assert wait is not None and wait.text == "rank 0 at line 3: all_reduce in group 0"
    assert wait.pending == (other,)
    with pytest.raises(DistBackendError, match="deadlock: these ranks wait for each other"):
        for look in range(9, 19):
            theirs.look(wait_for(0, tag=6, looks=look))
            ProcessWork._report_wait(cast(ProcessWork, work), 1, look)


_RETRIES = """
import sys
from datetime import timedelta
import flambeau as torch, flambeau.distributed as dist
rank, folder = int(sys.argv[1]), sys.argv[2]
news = dist.FileStore(folder + "/news", 2)
if rank == 1:
    news.wait(["0 has failed"])
limits = [timedelta(milliseconds=200), timedelta(seconds=100)][rank:]
for limit in limits:
    store = dist.FileStore(folder + "/store", 2)
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=rank, world_size=2, timeout=limit)
    except RuntimeError as error:
        print(type(error).__name__)
        news.set("0 has failed", "")
for device in ("cpu", f"cuda:{rank}"):
    x = torch.ones(2, device=device)
    dist.all_reduce(x)
    print(x.tolist())
dist.destroy_process_group()
"""


def test_a_rank_that_tries_again_alone_meets_who_comes_late(tmp_path: Path) -> None:
    """It counted its tries, and came to a meeting of its own."""
    ranks = [
        start("-c", _RETRIES, str(rank), str(tmp_path), FLAMBEAU_VIRTUAL_DEVICES="2") for rank in range(2)
    ]
    sums = "[2.0, 2.0]\n" * 2
    said = [finish(rank) for rank in ranks]
    assert [one.out for one in said] == ["RuntimeError\n" + sums, sums], said


_DIES = """
import os, sys
import flambeau as torch, flambeau.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    os._exit(7)
for call in (lambda: dist.all_reduce(torch.ones(4)), lambda: dist.recv(torch.ones(4), 1), dist.barrier):
    try:
        call()
    except dist.DistBackendError as error:
        print(error)
"""


@both
def test_a_rank_that_died_is_named_in_every_wait(transport: str) -> None:
    first, second = run_ranks(2, "-c", _DIES, **ENVIRONMENTS[transport])
    assert (first.status, second.status) == (0, 7), first.err
    lines = first.out.splitlines()
    calls = ("all_reduce of 4 float32, op sum", "recv of 4 float32 from rank 1", "barrier")
    for line, what in zip(lines, calls, strict=True):
        assert line.startswith("rank 0 at <string>:")
        assert what in line
        assert line.endswith("has ended")


_DISAGREES = """
import sys
import flambeau as torch, flambeau.distributed as dist
dist.init_process_group("gloo")
rank, t = dist.get_rank(), torch.ones(4)
dist.all_reduce(t)
dist.barrier()
first, second = sys.argv[1].split(";")
try:
    eval(first if rank == 0 else second)
except dist.DistBackendError as error:
    print(error)
dist.all_reduce(t)                   # nothing was begun
print(t.tolist())
"""


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ("dist.all_reduce(torch.ones(5))", "all_reduce of 5 float32, op sum"),
        ("dist.all_reduce(t.double())", "all_reduce of 4 float64, op sum"),
        ("dist.all_reduce(t, dist.ReduceOp.MAX)", "all_reduce of 4 float32, op max"),
        ("dist.broadcast(t, 0)", "broadcast of 4 float32, root 0"),
        ("dist.barrier()", "barrier"),
    ],
)
@both
def test_in_detail_ranks_that_disagree_are_told_before_they_begin(
    transport: str, second: str, told: str
) -> None:
    """MPI itself gives no sign of most of these: it takes the numbers of either."""
    calls = f"dist.all_reduce(t);{second}"
    for said in run_ranks(
        2, "-c", _DISAGREES, calls, TORCH_DISTRIBUTED_DEBUG="DETAIL", **ENVIRONMENTS[transport]
    ):
        assert said.status == 0, said.err
        head, *lines, values = said.out.splitlines()
        assert head.startswith("collective mismatch: call 3 of group 0")
        assert [line.split(">:")[1].partition(": ")[2] for line in lines] == [
            "all_reduce of 4 float32, op sum",
            told,
        ]
        assert values == "[4.0, 4.0, 4.0, 4.0]"


_LATE = """
import datetime
import flambeau as torch, flambeau.distributed as dist
try:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=0.2))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_rank_that_never_starts_is_waited_for_as_long_as_asked() -> None:
    said = finish(
        start("-c", _LATE, RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    )
    assert (
        "DistStoreError Timed out after 0.2 seconds waiting for clients. 1/2 clients joined." in said.out
    ), said.err


_OTHERS = """
import os, sys
import flambeau as torch, flambeau.distributed as dist
dist.init_process_group("gloo")
first = dist.get_rank()
dist.destroy_process_group()
if first < 2:
    try:
        dist.init_process_group(sys.argv[1], world_size=2, rank=1 - first, init_method=os.environ["AGAIN"])
        t = torch.ones(2)
        dist.all_reduce(t)
        print(dist.group.WORLD.backend_of("cpu").kind, t.tolist())
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("word", "wanted"),
    [("gloo", "tcp [2.0, 2.0]"), ("mpi", "MPI can be joined once in the life of a process")],
)
def test_a_process_joins_one_mpi_in_its_life(tmp_path: Path, word: str, wanted: str) -> None:
    said = run_ranks(3, "-c", _OTHERS, word, AGAIN=f"file://{tmp_path}/again")
    assert [s.status for s in said] == [0, 0, 0], said[0].err
    for one in said[:2]:
        assert wanted in one.out


def test_without_mpi4py_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setattr(mpi_world, "_why_not", "")
    assert not mpi_world.available()
    assert not mpi_world.join(HashStore(), 0, 1, DEFAULT_TIMEOUT)
    with pytest.raises(RuntimeError, match="install Flambeau's extra 'mpi'"):
        mpi_world.current_world()


def test_the_process_manager_answers_as_pmi_1_has_it() -> None:
    """The lines are those that MPICH's library sends and expects ("PMI-1 wire protocol")."""
    manager = ProcessManager(HashStore(), 1, 2, "world", DEFAULT_TIMEOUT)
    told = {
        "cmd=init pmi_version=1 pmi_subversion=1": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
        "cmd=get_appnum": "cmd=appnum appnum=0",
        "cmd=get_my_kvsname": "cmd=my_kvsname kvsname=world",
        "cmd=get_universe_size": "cmd=universe_size size=2",
        "cmd=get kvsname=world key=a": "cmd=get_result rc=-1 msg=key_a_not_found value=unknown",
        "cmd=put kvsname=world key=a value=x=1 y#2": "cmd=put_result rc=0 msg=success",
        "cmd=get  kvsname=world key=a": "cmd=get_result rc=0 msg=success value=x=1 y#2",
        "cmd=finalize": "cmd=finalize_ack",
        "cmd=spawn": "cmd=spawn rc=-1 msg=not_supported",
    }
    with manager.announce(), manager._theirs.makefile("rw", newline="\n") as stream:
        for line, answer in told.items():
            stream.write(line + "\n")
            stream.flush()
            assert stream.readline() == answer + "\n"
