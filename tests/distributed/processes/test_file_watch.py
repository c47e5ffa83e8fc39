"""Ranks that share a `FileStore`, or differ in the number of ranks: waits that nothing ends are reported."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from rank_kit import finish, start

from flambeau.core.host import long_waits
from flambeau.distributed.backends import rank_processes
from flambeau.distributed.backends.wait_reports import Wait, waits_of
from flambeau.distributed.dist_errors import DeadlockError, DistStoreError
from flambeau.distributed.launching import file_watch
from flambeau.distributed.launching.file_watch import FileWatch
from flambeau.distributed.stores.file_store import FileStore
from flambeau.distributed.stores.store import HashStore, JobStore, PrefixStore, require_keys
from flambeau.distributed.stores.tcp_store import TCPStore

ENDED = 4_000_000  # a process id beyond the largest that Linux gives


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobStore:
    """Return the store of rank 0 of two, which looks at each pause."""
    monkeypatch.setattr(file_watch, "_LOOK_S", 0.0)
    monkeypatch.setattr(file_watch, "alone", lambda: True)  # pytest may have threads
    monkeypatch.setattr(file_watch, "children_of", lambda process: [])
    base = FileStore(str(tmp_path / "store"), 2)
    store = JobStore("job", base)
    base.watch = FileWatch(store, 0, 2)
    return store


def other_rank(job: JobStore, process: int) -> JobStore:
    """Let rank 1 join as a process, and return its store."""
    base = FileStore(job._underlying_non_prefix_store.path, 2)  # type: ignore[attr-defined]
    store = JobStore("job", base)
    store.set("member/1", rank_processes.here().replace(str(os.getpid()), str(process), 1))
    return store


def test_get_raises_if_the_only_other_rank_has_ended(job: JobStore) -> None:
    other_rank(job, ENDED)
    with pytest.raises(
        DeadlockError, match=rf"'job/never' of the store; the process of rank 1, {ENDED}, has ended"
    ):
        job.get("never")


def test_get_raises_if_the_other_rank_waits_for_this_one(job: JobStore) -> None:
    theirs = waits_of(other_rank(job, os.getpid()), 1, 2)
    stop = threading.Event()

    def receive() -> None:
        looks = 0
        while not stop.wait(0.001):
            looks += 1
            theirs._say(Wait(1, "rank 1 at line 3: recv", "0", peers=(0,), looks=looks))

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    try:
        with pytest.raises(DeadlockError, match=r"(?s)rank 0 at .*rank 1 at line 3: recv"):
            job.get("never")
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("why", ["rank 1 works", "rank 1 is on another host", "a child", "a short wait"])
def test_get_waits_while_a_rank_may_set_the_key(
    job: JobStore, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    other = other_rank(job, os.getpid() if why == "rank 1 works" else ENDED)
    if why == "rank 1 is on another host":
        other.set("member/1", f"{ENDED} elsewhere pid:[1]")
    if why == "a child":
        monkeypatch.setattr(file_watch, "children_of", lambda process: [1])
    if why == "a short wait":
        with pytest.raises(RuntimeError, match="Wait timeout"):
            job.wait(["never"], timedelta(seconds=0.1))
    timer = threading.Timer(0.3, other.set, ("late", "value"))
    timer.daemon = True
    timer.start()
    if why != "a short wait":
        assert job.get("late") == b"value"


def test_long_waits_name_what_the_other_ranks_do(
    job: JobStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(long_waits, "EVERY_S", 0.0)
    other_rank(job, ENDED)
    with pytest.raises(DeadlockError):
        job.get("never")
    line = capsys.readouterr().err.splitlines()[0]
    assert "rank 0 at" in line and line.endswith(
        f"'job/never' of the store; the process of rank 1, {ENDED}, has ended; other ranks: process {ENDED} (runs)"
    )


def test_waits_for_joining_ranks_end_if_one_refuses() -> None:
    store = HashStore()
    here, there = JobStore("job", store), JobStore("job", store)
    there.refuse("the ranks disagree on their number")
    with pytest.raises(DistStoreError, match="the ranks disagree"):
        require_keys(PrefixStore("part", PrefixStore("group", here)), ["key"], timedelta(minutes=5))
    with pytest.raises(DistStoreError, match=r"Wait timeout: .*key"):
        require_keys(PrefixStore("part", store), ["key"], timedelta(milliseconds=10))


def test_a_master_counts_ranks_that_expect_other_numbers() -> None:
    """Rank 1 of three joins rank 0 of two."""
    joined: list[TCPStore] = []
    master = TCPStore("127.0.0.1", 0, None, True)
    first = threading.Thread(
        target=lambda: joined.append(TCPStore("127.0.0.1", master.port, 2, False, wait_for_workers=False)),
        daemon=True,
    )
    first.start()
    first.join()
    TCPStore("127.0.0.1", master.port, 3, False)
    joined[0]._join(2, wait=True)  # counts a third member: at least two are here


PROGRAM = """
import os, sys
import flambeau as torch, flambeau.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=sys.argv[2], rank=rank, world_size=int(sys.argv[3]))
if rank:
    os._exit(0)
dist.distributed_c10d._get_default_store().get("never")
"""


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_of_a_file_end_with_words(tmp_path: Path, size: int) -> None:
    """Rank 1 exits while rank 0 waits for a key, or was started with another number of ranks."""
    url = f"file://{tmp_path}/store"
    ranks = [
        start("-c", PROGRAM, str(rank), url, n, FLAMBEAU_GLOO="tcp") for rank, n in ((0, "2"), (1, str(size)))
    ]
    waits, _ = map(finish, ranks)
    assert waits.status == 1
    words = r"DeadlockError: deadlock" if size == 2 else "the ranks disagree on their number"
    assert words in waits.err
