"""Waits for other processes are reported while they last: of a DataLoader, of `spawn` and for a store."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

import flambeau
import flambeau.distributed as dist
from flambeau.core import callsite
from flambeau.core.host import long_waits
from flambeau.core.host.long_waits import LongWait
from flambeau.core.host.process_state import state_of
from flambeau.core.ipc import server_watch
from flambeau.distributed.backends import process_work, rank_processes
from flambeau.distributed.launching import stalls
from flambeau.distributed.stores import store_server
from flambeau.distributed.stores.store import require_keys
from flambeau.multiprocessing.spawn import start_processes
from flambeau.utils.data import DataLoader, Dataset


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_waits, "EVERY_S", 0.05)


def test_a_wait_is_reported_every_30_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(long_waits, "time", SimpleNamespace(monotonic=lambda: now[0]))
    wait = LongWait(lambda: "for a sign" if now[0] < 200 else "")
    lines = []
    for now[0] in range(100, 261, 10):
        wait.report()
        lines += capsys.readouterr().err.splitlines()
    assert lines == [f"flambeau: this process has waited {second} s for a sign" for second in (30, 60, 90)]
    assert wait.left_s == 20.0


class Stopping(Dataset[flambeau.Tensor]):
    """A data set whose second item stops the worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> flambeau.Tensor:
        if index == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return flambeau.ones(2)


@pytest.mark.skipif(not os.path.exists("/proc"), reason="this system does not report what processes do")
def test_a_stopped_worker_of_a_data_loader_is_named(often: None, capfd: pytest.CaptureFixture[str]) -> None:
    batches = iter(DataLoader(Stopping(), num_workers=2, timeout=1))
    next(batches)
    with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        next(batches)
    for process in batches._pool._processes:  # type: ignore[attr-defined]
        process.kill()
    assert "s for a batch of DataLoader workers: process" in (said := capfd.readouterr().err)
    assert "(is stopped)" in said


def sleep(rank: int) -> None:
    signal.pause()


@pytest.mark.skipif(not os.path.exists("/proc"), reason="this system does not report what processes do")
def test_spawned_processes_that_sleep_are_named(often: None, capfd: pytest.CaptureFixture[str]) -> None:
    context = start_processes(sleep, (), 2, join=False, start_method="fork")
    assert context is not None
    try:
        while "none of them works" not in capfd.readouterr().err:
            assert not context.join(timeout=0.2)
    finally:
        for process in context.processes:
            process.kill()
            process.join()


def work_or_sleep(rank: int) -> None:
    while not rank:
        pass
    signal.pause()


@pytest.mark.skipif(not os.path.exists("/proc"), reason="this system does not report what processes do")
def test_a_spawned_process_that_sleeps_is_named_while_another_works(
    often: None, capfd: pytest.CaptureFixture[str]
) -> None:
    context = start_processes(work_or_sleep, (), 2, join=False, start_method="fork")
    assert context is not None
    working, sleeping = context.pids()
    said = ""
    try:
        while "some of them do not work" not in said:
            assert not context.join(timeout=0.2)
            said = capfd.readouterr().err
        assert f"process {sleeping} (sleeps)" in said and f"process {working} " not in said.splitlines()[-1]
    finally:
        for process in context.processes:
            process.kill()
            process.join()


def test_a_client_without_a_server_reports_its_wait(often: None, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(dist.DistNetworkError, match="timed out"):
        dist.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=0.3))
    assert f"s for a process that serves the store at 127.0.0.1:{port}" in capsys.readouterr().err


def test_a_server_without_all_clients_reports_its_wait(
    often: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(dist.DistStoreError, match="1/3 clients joined"):
        dist.TCPStore("127.0.0.1", 0, 3, True, timedelta(seconds=0.3))
    assert "s for the ranks of its store at 127.0.0.1:" in (said := capsys.readouterr().err)
    assert "1 of 3 have joined" in said


def test_the_state_of_a_process_is_known() -> None:
    if not os.path.exists("/proc"):
        pytest.skip("this system does not report what processes do")
    child = os.fork()
    if not child:
        with suppress(BaseException):
            signal.pause()
        os._exit(0)
    wanted = [(signal.SIGSTOP, "is stopped"), (signal.SIGCONT, "sleeps"), (signal.SIGKILL, "has ended")]
    for number, state in wanted:
        os.kill(child, number)
        while state_of(child) != state:
            time.sleep(0.001)
    os.waitpid(child, 0)
    assert state_of(child) == "runs", "nothing is known of it"


@pytest.mark.parametrize("kind", ["hash", "file", "tcp"])
def test_a_wait_for_a_key_is_reported_without_ranks(
    kind: str,
    often: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(stalls, "_EVERY_S", 0.05)
    monkeypatch.setattr(store_server, "_WATCH_S", 0.01)
    stores = {
        "hash": dist.HashStore,
        "file": lambda: dist.FileStore(str(tmp_path / "store")),
        "tcp": lambda: dist.TCPStore("127.0.0.1", 0, None, True),
    }
    store = stores[kind]()
    store.set("here", "1")
    with pytest.raises(RuntimeError, match="never"):
        store.wait(["here", "never"] if kind == "tcp" else ["never"], timedelta(seconds=1))
    assert "has waited 0 s for 'never' of the store at" in capfd.readouterr().err.replace("'/", "'")


def test_ranks_that_do_not_join_are_named(often: None, capsys: pytest.CaptureFixture[str]) -> None:
    store = dist.PrefixStore("job", dist.HashStore())
    with pytest.raises(RuntimeError, match="Wait timeout"):
        require_keys(store, rank_processes.keys_of([0, 1]), timedelta(seconds=0.5))
    assert "for 'process of rank 0', 'process of rank 1' of the store at" in capsys.readouterr().err


@pytest.mark.parametrize("answers", [True, False])
def test_a_server_is_reported_only_if_it_does_not_answer(
    answers: bool, often: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server_watch, "_ANSWER_S", 10.0 if answers else 0.01)
    monkeypatch.setattr(long_waits, "EVERY_S", 0.0)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with closing(store_server.StoreServer(listener) if answers else listener):
        server_watch.ServerWatch("127.0.0.1", port).report()
    said = capsys.readouterr().err
    assert said == "" if answers else f"serves the store at 127.0.0.1:{port}, which does not answer" in said


def test_a_wait_that_no_store_knows_is_reported(
    often: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # of a CPU transport whose store does not answer; the first reason is kept
    monkeypatch.setattr(process_work, "_LOOK_S", -1.0)
    monkeypatch.setattr(long_waits, "EVERY_S", 0.0)
    reasons = iter(["the store does not answer", "Bad file descriptor", ""])
    work = SimpleNamespace(
        _backend=SimpleNamespace(transport=SimpleNamespace(waits=SimpleNamespace(mark=lambda: 1))),
        _test=lambda: False, _check_others=lambda: None, _report_wait=lambda mark, looks: next(reasons), words="a sum",
        site=callsite.caller(0),
    )  # fmt: skip
    work._backend.place = SimpleNamespace(name="0")
    wait = process_work._Waiting(work, timedelta())  # type: ignore[arg-type]
    for _ in range(3):
        assert not wait.over()
    (first, second) = capsys.readouterr().err.splitlines()
    for line in (first, second):
        assert re.search("waits for a sum of CPU tensors in group 0 at .*; the store does not answer", line)
