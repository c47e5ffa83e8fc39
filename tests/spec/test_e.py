"""SPEC E (streams): the rows that no test of the runtime bears in its name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gpus import either, gpus, simulated

import flambeau as torch

pytestmark = either

LONG = 10**7  # clock cycles
SCHEDULES = ["earliest", *[f"random:{i}" for i in range(6)], "adversarial:0", "adversarial:1"]


@pytest.fixture(autouse=True)
def two_gpus() -> Iterator[None]:
    with gpus(devices=2):
        yield


def test_e01_a_stream_belongs_to_one_device() -> None:
    a, b = torch.cuda.Stream(0), torch.cuda.Stream(1)
    with torch.cuda.stream(a):
        torch.cuda._sleep(LONG)
    assert (a.query(), b.query()) == (False, True)
    assert (a.device.index, b.device.index) == (0, 1)


def test_e08_kernels_within_the_guard_go_to_its_stream() -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG)
    assert not side.query() and torch.cuda.default_stream().query()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_e13_one_stream_is_serial_under_every_schedule(schedule: str) -> None:
    with gpus(devices=1, schedule=schedule):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            x = torch.zeros(1, device="cuda")
            for _ in range(10):
                x.mul_(2).add_(1)
            assert x.item() == 2.0**10 - 1


@simulated
def test_e14_any_relative_order_unless_synchronized() -> None:
    def result(schedule: str, wait: bool) -> float:
        with torch.virtual(devices=1, schedule=schedule):
            side, x = torch.cuda.Stream(), torch.ones(1, device="cuda")
            torch.cuda.synchronize()
            x.add_(1)
            if wait:
                side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                x.mul_(10)
            torch.cuda.synchronize()
            return x.item()

    assert {result(s, wait=False) for s in SCHEDULES} == {20.0, 11.0}
    assert {result(s, wait=True) for s in SCHEDULES} == {20.0}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_e15_moving_data_on_the_default_stream_needs_nothing(schedule: str) -> None:
    with gpus(devices=2, schedule=schedule, races="error"):
        x = torch.arange(100.0).cuda() * 2
        y = x.to("cuda:1") + 1
        assert (y.cpu() + x.cpu()).tolist() == [4.0 * i + 1 for i in range(100)]


@simulated
def test_e16_side_streams_are_the_users_to_order_and_are_checked() -> None:
    with torch.virtual(devices=1, races="error"):
        x, side = torch.ones(100, device="cuda"), torch.cuda.Stream()
        with torch.cuda.stream(side), pytest.raises(torch.RaceError, match="wait_stream"):
            x.sum()


def test_e23_record_stream_keeps_memory_until_the_use_is_done() -> None:
    def reused(record: bool) -> bool:
        side = torch.cuda.Stream()
        x = torch.ones(1000, device="cuda")
        ptr = x.data_ptr()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)
            x * 2
        if record:
            x[500:].record_stream(side)  # a shifted view protects the whole block
        del x
        y = torch.empty(1000, device="cuda")
        torch_ptr = y.data_ptr()
        torch.cuda.synchronize()
        return torch_ptr == ptr

    assert reused(record=False)
    assert not reused(record=True)


def test_e23_the_block_is_reused_when_the_use_is_done() -> None:
    side, x = torch.cuda.Stream(), torch.ones(1000, device="cuda")
    ptr = x.data_ptr()
    x.record_stream(side)
    del x
    torch.cuda.synchronize()
    pieces = [torch.empty(1000, device="cuda") for _ in range(3)]
    assert ptr in [piece.data_ptr() for piece in pieces]


def test_e25_synchronize_waits_for_all_streams() -> None:
    streams = [torch.cuda.Stream() for _ in range(3)]
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG)
    assert not any(stream.query() for stream in streams)
    torch.cuda.synchronize()
    assert all(stream.query() for stream in streams)
