"""Waits for other processes are reported while they last: of a DataLoader, of `spawn` and for a store."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import closing, suppress
from datetime import timedelta
from types import SimpleNamespace

import pytest

import flambeau
import flambeau.distributed as dist
from flambeau.core.host import long_waits
from flambeau.core.host.long_waits import LongWait
from flambeau.core.host.process_state import state_of
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
