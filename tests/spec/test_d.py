"""SPEC D: asynchronous execution."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from gpus import either, gpus, simulated

import flambeau as torch

pytestmark = either

LONG = 10**7  # clock cycles


@pytest.fixture(autouse=True)
def two_gpus() -> Iterator[None]:
    with gpus(devices=2):
        yield


def idle(index: int = 0) -> bool:
    return torch.cuda.current_stream(index).query()


def test_d01_operations_are_queued() -> None:
    x = torch.ones(4, device="cuda")
    x + 1  # on a real GPU its kernel is made now, not while the stream sleeps
    torch.cuda._sleep(LONG)
    y = x + 1  # returns at once
    assert not idle()
    assert y.tolist() == [2.0] * 4
    assert idle()


def test_d02_gpus_and_the_cpu_work_beside_each_other() -> None:
    x = torch.ones(3)
    for index in range(2):
        with torch.cuda.device(index):
            torch.cuda._sleep(LONG)
    assert (x + 1).tolist() == [2.0] * 3  # the CPU goes on
    assert not idle(0) and not idle(1)


@simulated
def test_d02_gpus_overlap_in_time() -> None:
    def elapsed(devices: list[int]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(0), torch.cuda.synchronize(1)
        start.record(torch.cuda.current_stream(0))
        for index in devices:
            with torch.cuda.device(index):
                torch.cuda._sleep(LONG)
        torch.cuda.current_stream(0).wait_stream(torch.cuda.current_stream(1))
        end.record(torch.cuda.current_stream(0))
        end.synchronize()
        return start.elapsed_time(end)

    one, two, in_turn = elapsed([0]), elapsed([0, 1]), elapsed([0, 0])
    assert two < 1.1 * one
    assert in_turn > 1.9 * one


def test_d03_a_device_works_in_the_order_of_requests() -> None:
    x = torch.zeros(1, device="cuda")
    for i in range(20):
        x.mul_(2).add_(i % 3)
    expected = 0.0
    for i in range(20):
        expected = expected * 2 + i % 3
    assert x.item() == expected


@pytest.mark.parametrize("schedule", ["earliest", *[f"random:{i}" for i in range(4)], "adversarial:1"])
def test_d04_d05_copies_synchronize_by_themselves(schedule: str) -> None:
    with gpus(devices=2, schedule=schedule, races="error"):
        x = torch.arange(1000.0)
        a = x.cuda(0)
        torch.cuda._sleep(LONG)
        a *= 2
        b = a.to("cuda:1") + 1
        x.zero_()  # the copy has taken it
        c = b.to("cuda:0") + a
        assert c.cpu().tolist() == [4.0 * i + 1 for i in range(1000)]


@simulated
def test_d06_launch_blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with torch.virtual(devices=1):
        x = torch.ones(1 << 20, device="cuda")
        x + 1
        assert idle()
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING")
    with torch.virtual(devices=1):
        x = torch.ones(1 << 20, device="cuda")
        x + 1
        assert not idle()


@simulated
def test_d07_d08_where_an_error_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong() -> None:
        torch.ones(3, device="cuda")[torch.tensor([7], device="cuda")]

    with torch.virtual(devices=1):
        wrong()
        with pytest.raises(RuntimeError, match="index"):
            torch.cuda.synchronize()
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with torch.virtual(devices=1), pytest.raises(RuntimeError, match="index"):
        wrong()


@simulated
def test_d09_only_synchronized_time_counts_the_work() -> None:
    """The host's clock (of the simulation: it has no other) passes the work only where it waits."""
    machine = torch.virtual(devices=1)
    torch.cuda.synchronize()
    begin = machine.driver.time_ns()
    torch.cuda._sleep(LONG)
    queued = machine.driver.time_ns()
    torch.cuda.synchronize()
    done = machine.driver.time_ns()
    machine.close()
    assert queued - begin < 100_000  # a launch
    assert done - queued > 5_000_000


@pytest.mark.parametrize("way", ["to", "copy_", "cuda"])
def test_d10_d11_non_blocking_bypasses_the_wait(way: str) -> None:
    x = torch.ones(1 << 20).pin_memory()
    target = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    copy = {
        "to": lambda n: x.to("cuda", non_blocking=n),
        "copy_": lambda n: target.copy_(x, non_blocking=n),
        "cuda": lambda n: x.cuda(non_blocking=n),
    }[way]
    copy(True)
    assert not idle()
    torch.cuda.synchronize()
    copy(False)
    assert idle()


def test_d12_the_old_name_of_non_blocking() -> None:
    x = torch.ones(1 << 20).pin_memory()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = torch.empty(1 << 20, device="cuda").copy_(x, **{"async": True})
    assert ["async" in str(w.message) and "non_blocking" in str(w.message) for w in caught] == [True]
    assert not idle()
    assert y.sum().item() == 1 << 20


def test_d13_streams_are_not_ordered_with_each_other() -> None:
    side = torch.cuda.Stream()
    torch.cuda._sleep(LONG)
    with torch.cuda.stream(side):
        torch.ones(2, device="cuda")
    side.synchronize()
    assert side.query() and not torch.cuda.default_stream().query()
