"""Ranks that wait in vain are ended with every rank's line, and long waits are named, by the launcher of one node."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rank_kit import run_ranks
from test_launch import finish, script, start

import flambeau.distributed as dist
from flambeau.distributed.backends import rank_processes
from flambeau.distributed.backends.wait_reports import Wait, said_by
from flambeau.distributed.launching import stalls
from flambeau.distributed.launching.rank_watch import ForeignRank, ForeignRanks
from flambeau.distributed.launching.stalls import Stalls
from flambeau.distributed.launching.workers import Worker

LEFT = """
import os, torch, torch.distributed as dist
dist.init_process_group("{backend}")
store = dist.distributed_c10d._get_default_store()
if dist.get_rank() == 0:
    os._exit(0)
store.get("never")
"""


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_key_that_no_rank_will_set_is_a_deadlock(tmp_path: Path, backend: str) -> None:
    program = script(tmp_path, LEFT.format(backend=backend))
    done = finish(start("-m", "flambeau", "launch", "--nproc-per-node", "2", program))
    assert done.status == 1
    assert "DeadlockError: deadlock: no rank can go on" in done.err
    assert "has ended, exit status 0" in done.err
    assert "waits for '/default_pg/1/never' of the store at program.py:7" in done.err


MIXED = """
import threading, torch, torch.distributed as dist
dist.init_process_group("gloo")
store, x = dist.distributed_c10d._get_default_store(), torch.ones(4)
if dist.get_rank() == 0:
    {first}
{second}
"""
SECOND = {
    "store.get('never')": "waits for '/default_pg/1/never' of the store at program.py:7",
    "dist.new_group([0, 1])": " of the store at program.py:7",
    "dist.monitored_barrier()": "waits for '/default_pg/1/0/monitored/1/over' of the store at program.py:7",
}


@pytest.mark.parametrize("transport", ["", "tcp"])
@pytest.mark.parametrize("second", SECOND)
def test_waits_for_keys_and_messages_are_a_deadlock(tmp_path: Path, second: str, transport: str) -> None:
    program = script(tmp_path, MIXED.format(first="dist.recv(x)", second=second))
    done = finish(
        start("-m", "flambeau", "launch", "--nproc-per-node", "2", program, FLAMBEAU_GLOO=transport)
    )
    assert done.status == 1
    assert "DeadlockError: deadlock: no rank can go on" in done.err
    assert "waits for others at program.py:6: recv of 4 float32 from any rank in group 0" in done.err
    assert SECOND[second] in done.err


ALONE = """
import os, flambeau as torch, flambeau.distributed as dist
dist.init_process_group("gloo")
store, x = dist.distributed_c10d._get_default_store(), torch.ones(4)
if dist.get_rank() == 1:
    {first}
store.get("never")
"""
FIRST = {
    "os._exit(0)": "has ended, exit status unknown",
    "store.wait(['no'])": "waits for '/default_pg/1/no' of the store at <string>:6",
    "dist.recv(x)": "waits for others at <string>:6: recv of 4 float32 from any rank in group 0",
}


@pytest.mark.parametrize("first", FIRST)
def test_rank_0_reports_a_deadlock_without_a_launcher(first: str) -> None:
    said = run_ranks(2, "-c", ALONE.format(first=first))[0]
    assert said.status == 1
    assert "DeadlockError: deadlock: no rank can go on" in said.err
    assert "waits for '/default_pg/1/never' of the store at <string>:7" in said.err
    assert FIRST[first] in said.err


STOPPED = """
import os, signal, flambeau as torch, flambeau.distributed as dist
from flambeau.distributed.launching import rank_watch, stalls
stalls._EVERY_S = 0.5
stopped, print_line = [], stalls.print_line

def report(line):
    print_line(line)
    if "is stopped" in line:
        os.kill(stopped[0], signal.SIGCONT)

rank_watch.print_line = report
dist.init_process_group("nccl")
rank = dist.get_rank()
store, x = dist.distributed_c10d._get_default_store(), torch.ones(4, device=f"cuda:{rank}")
if rank == 1:
    store.set("process", str(os.getpid()))
stopped.append(int(store.get("process")))
dist.all_reduce(x)
if rank == 1:
    x.tolist()
    os.kill(os.getpid(), signal.SIGSTOP)
dist.all_reduce(x)
assert x.tolist() == [4.0] * 4
"""


def test_a_stopped_rank_is_named_without_a_launcher() -> None:
    said = run_ranks(2, "-c", STOPPED, FLAMBEAU_VIRTUAL_DEVICES="2")
    assert [each.status for each in said] == [0, 0], said
    assert re.search(
        r"rank 0 has waited \d+ s for collectives of its virtual GPUs; rank 1 \(process \d+\) is stopped",
        said[0].err,
    )


def test_ranks_that_disagree_on_their_number_are_told(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        "import os, torch.distributed as dist\n"
        "if os.environ['RANK'] == '1':\n    os.environ['WORLD_SIZE'] = '3'\n"
        "dist.init_process_group('gloo')\n",
    )
    done = finish(start("-m", "flambeau", "launch", "--nproc-per-node", "2", program))
    assert done.status == 1
    assert "ValueError: the ranks disagree on their number: WORLD_SIZE or world_size is" in done.err


@pytest.mark.parametrize("size", [1, 1 << 40])
def test_a_rank_that_cannot_be_is_told(size: int) -> None:
    with pytest.raises(ValueError, match=rf"rank 1 is out of range: .* here {size}, from 1 to"):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=1, world_size=size)
    assert not dist.is_initialized()


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_PORT"])
def test_a_variable_that_is_no_number_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for variable, value in (sound | {name: "two"}).items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=f"{name} must be an int, not 'two'"):
        dist.init_process_group("gloo")


class Server:
    """A store's server in which each process waits for a key since time 0."""

    def __init__(self, waiting: set[int], connected: set[int]) -> None:
        self.waiting, self.connected = waiting, connected
        self.reports: list[str] = []
        self.process = 0

    def call(self, function: Any) -> None:
        function()

    def processes(self) -> set[int]:
        return self.connected

    def waits(self) -> dict[int, tuple[str, object]]:
        return {process: (f"'key {process}' at line 1", process) for process in self.waiting}

    def value_of(self, ending: str) -> bytes:
        return b""

    def blocked_processes(self, least_s: float) -> dict[int, float]:
        return dict.fromkeys(self.waiting, 0.0)

    def give_up(self, report: str) -> None:
        self.reports.append(report)


@pytest.fixture
def ranks() -> Any:
    """Two ranks: processes that read what nobody writes."""
    found = [
        Worker(rank, rank, subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE), Path())
        for rank in range(2)
    ]
    yield found
    for worker in found:
        worker.process.kill()
        worker.process.communicate()


def looked(server: Server, ranks: list[Worker] | list[ForeignRank], times: int = 10) -> list[str]:
    said: list[str] = []
    stall = Stalls(server, lambda: ranks, said.append)  # type: ignore[arg-type]
    for _ in range(times):
        stall.look()
    return said


def test_only_waits_of_all_ranks_are_given_up(ranks: list[Worker]) -> None:
    first, second = (worker.process.pid for worker in ranks)
    both, one = {first, second}, {first}
    for waiting, connected, given_up in (
        (both, both, True),
        (one, both, False),
        (one, one, False),  # the other has not connected yet
        (both, both | {1}, False),  # another process may set the key
        (set(), both, False),
    ):
        server = Server(waiting, connected)
        looked(server, ranks)
        assert bool(server.reports) is given_up, (waiting, connected)
    ranks[1].code = 0
    server = Server(one, one)
    looked(server, ranks)
    assert server.reports[0] == (
        f"deadlock: no rank can go on\n  rank 0 (process {first}): waits for 'key {first}' at line 1\n"
        f"  rank 1 (process {second}): has ended, exit status 0"
    )


WAIT = {
    "mark": 1, "text": "rank 0 at x.py:3: all_reduce", "group": "g", "number": 1, "tag": 0, "sends": False,
    "peers": [1], "any_peer": False, "alone": True, "looks": 2, "report": "",
    "pending": [],
}  # fmt: skip


def test_only_waits_count_of_what_stands_under_the_key_of_a_wait(ranks: list[Worker]) -> None:
    assert said_by(json.dumps(WAIT).encode()) == Wait(**WAIT | {"peers": (1,), "pending": ()})
    hostile: list[Any] = [None, 3, [], [WAIT], {}, {"peers": 3}, WAIT | {"more": 1}]
    hostile += [WAIT | {name: wrong} for name in WAIT for wrong in (None, {}, ["x"], 0.5)]
    texts = [
        b"",
        b"{",
        b"\xff",
        b"user's own",
        b"[" * 100_000,
        *[json.dumps(one).encode() for one in hostile],
    ]
    for text in texts:
        assert said_by(text) is None, text[:80]
        server = Server(set(), set())
        server.value_of = lambda ending, text=text: text  # type: ignore[method-assign, misc]
        assert looked(server, ranks, 1) == []


def test_waits_in_transports_count_if_only_others_can_end_them(ranks: list[Worker]) -> None:
    first, second = (worker.process.pid for worker in ranks)
    for change, given_up in (
        ({}, True),
        ({"alone": False}, False),  # a thread of rank 0 may set the key
        ({"any_peer": True, "peers": [0]}, True),
        ({"peers": [2]}, False),
        ({"looks": 5}, False),  # it has not looked again
    ):
        server, looks = Server({second}, {first, second}), iter(range(1000))

        def published(ending: str, change: Any = change, looks: Any = looks) -> bytes:
            wait = WAIT | {"number": 0, "looks": next(looks)} | change
            return json.dumps(wait).encode() if ending == "waits/0" else b"{}"

        server.value_of = published  # type: ignore[method-assign]
        looked(server, ranks)
        assert bool(server.reports) is given_up, change


def test_ranks_without_a_launcher_are_known_by_what_they_left() -> None:
    place, server = rank_processes.here().partition(" ")[2], Server(set(), set())
    for text in (
        b"",
        b"1",
        f"x {place}".encode(),
        b"\xff",
        f"-1 {place}".encode(),
        b"1 elsewhere",
        b"9" * 9999,
    ):
        server.value_of = lambda ending, text=text: text  # type: ignore[method-assign, misc]
        members = ForeignRanks(server, "default_pg/1", 2)()  # type: ignore[arg-type]
        assert [(member.rank, member.pid, member.code) for member in members] == [(0, 0, None), (1, 0, None)]
        assert members[1].absence == ("is not on this host" if text else "has not joined")
    server.value_of = lambda ending: rank_processes.here().encode()  # type: ignore[method-assign]
    (first, second) = ForeignRanks(server, "default_pg/1", 2)()  # type: ignore[arg-type]
    assert (first.pid, second.rank, first.code) == (os.getpid(), 1, None)


def test_ranks_that_are_not_seen_keep_a_job_going_and_are_named(
    ranks: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stalls, "_EVERY_S", 0.0)
    pid = ranks[0].process.pid
    server, here = Server({pid, 7}, {pid, 0}), rank_processes.here().partition(" ")[2]
    for address, absence in ((b"", "has not joined"), (b"9 another host", "is not on this host")):
        members = [ForeignRank(0, f"{pid} {here}".encode()), ForeignRank(1, address)]
        said = looked(server, members)
        assert not server.reports
        assert f"rank 0 has waited 0 s for 'key {pid}' at line 1; rank 1 {absence}" in said
        assert any(line.startswith("process 7 has waited 0 s for 'key 7'") for line in said)


@pytest.mark.parametrize(
    "init, size, words",
    [("env://", 1, "rank 1 is out of range"), ("file", 3, "the ranks disagree on their number")],
)
def test_virtual_gpus_learn_that_a_rank_refuses_the_group(
    tmp_path: Path, init: str, size: int, words: str
) -> None:
    # without a launcher, nothing else ends the rank that has joined
    url = f"file://{tmp_path}/store" if init == "file" else init
    program = (
        "import os, flambeau.distributed as dist\n"
        "rank = int(os.environ['RANK'])\n"
        f"dist.init_process_group('nccl', init_method={url!r}, rank=rank, world_size=(2, {size})[rank])\n"
    )
    for said in run_ranks(2, "-c", program, FLAMBEAU_VIRTUAL_DEVICES="2"):
        assert said.status == 1 and words in said.err


def test_a_wait_that_moves_on_is_not_given_up(ranks: list[Worker]) -> None:
    both = {worker.process.pid for worker in ranks}
    server, begun = Server(both, both), iter(range(1000))
    server.blocked_processes = lambda least_s: dict.fromkeys(both, float(next(begun)))  # type: ignore[method-assign]
    looked(server, ranks)
    assert not server.reports


def test_a_rank_with_children_is_not_given_up(ranks: list[Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    both = {worker.process.pid for worker in ranks}
    monkeypatch.setattr(stalls, "children_of", lambda process: [1])
    server = Server(both, both)
    looked(server, ranks)
    assert not server.reports


def test_a_long_wait_names_the_ranks_that_others_wait_for(
    ranks: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 29.0, 31.0, 40.0, 60.0, 62.0])
    monkeypatch.setattr(stalls.time, "monotonic", lambda: next(clock))
    first, second = (worker.process.pid for worker in ranks)
    ranks[1].process.send_signal(signal.SIGSTOP)
    while "\nState:\tT" not in Path(f"/proc/{second}/status").read_text():
        pass
    said = looked(Server({first}, {first, second}), ranks, 6)
    ranks[1].process.send_signal(signal.SIGCONT)
    assert said == [
        f"rank 0 has waited {seconds} s for 'key {first}' at line 1; rank 1 (process {second}) is stopped"
        for seconds in (31, 62)
    ]


def test_waits_one_after_another_are_not_one_long_wait(
    ranks: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(stalls.time, "monotonic", lambda: float(next(clock)))
    first = ranks[0].process.pid
    server, number = Server({first}, {first}), iter(range(1000))
    server.waits = lambda: {first: ("others at line 3", next(number) // 8)}  # type: ignore[method-assign]
    assert looked(server, ranks, 200) == []
    server.waits = lambda: {first: ("'k'", "'k'")} if next(number) % 3 else {}  # type: ignore[method-assign]
    assert len(looked(server, ranks, 100)) == 3, "a rank that asks again and again waits"
