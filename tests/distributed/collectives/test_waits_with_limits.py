"""How long a host waits for collectives of GPUs. A device that never comes so far stands for a real one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import flambeau as torch
import flambeau.distributed as dist
from flambeau.distributed import work
from flambeau.distributed.backends.nccl_backend import BarrierWork
from flambeau.testing.ranks import ranks

SHORT = timedelta(milliseconds=1)


class Far:
    """A stream's or an event's place that is never reached, or after some questions."""

    def __init__(self, questions: float = float("inf")) -> None:
        self.left = questions

    def query(self) -> bool:
        self.left -= 1
        return self.left <= 0


@pytest.fixture(autouse=True)
def _real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work.system, "is_virtual", lambda: False)


def test_a_wait_with_a_limit_ends_when_the_device_has_come_or_the_time() -> None:
    work.wait_on_host(Far(5), timedelta(minutes=5))  # type: ignore[arg-type]
    with pytest.raises(dist.DistBackendError, match="timed out after 1ms"):
        work.wait_on_host(Far(), SHORT)  # type: ignore[arg-type]


class Left:
    """A backend that notes that it was left."""

    timeout = SHORT
    failed: Exception | None = None

    def explain_error(self, error: Exception) -> Exception:
        return dist.DistBackendError(f"{error}: explained")

    def fail(self, error: Exception) -> None:
        self.failed = error


class Begun(work.Work):
    def __init__(self) -> None:
        super().__init__([torch.zeros(1, device="cuda")])


@pytest.mark.parametrize("says", ["group", "work", "wait"])
def test_a_barrier_waits_no_longer_than_is_said(says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.virtual(1):
        monkeypatch.setattr(
            "flambeau.distributed.backends.nccl_backend.current.stream_at", lambda index: Far()
        )
        backend: Any = Left()
        barrier = BarrierWork(Begun(), backend)
        if says != "group":
            backend.timeout = timedelta(minutes=5)
        if says == "work":
            barrier.limit = SHORT
        with pytest.raises(dist.DistBackendError, match="timed out after 1ms: explained") as told:
            barrier.wait(SHORT if says == "wait" else None)
        assert backend.failed is told.value


def on_virtual_gpus() -> float:
    dist.init_process_group("nccl")
    if dist.get_rank():
        torch.cuda._sleep(10**9)
    dist.barrier(device_ids=[dist.get_rank()], timeout=timedelta(microseconds=1))
    works = dist.all_reduce(total := torch.ones(1, device="cuda"), async_op=True)
    works.wait(timedelta(microseconds=1))
    return total.item()


def test_on_virtual_gpus_no_time_of_the_host_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert ranks(on_virtual_gpus, 2) == [2.0, 2.0]
