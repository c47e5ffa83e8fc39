"""SPEC F (events): the rows that no test of the runtime bears in its name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gpus import either, gpus

import flambeau as torch

pytestmark = either


@pytest.fixture(autouse=True)
def one_gpu() -> Iterator[None]:
    with gpus(devices=1):
        yield


def test_f01_events_monitor_time_and_order() -> None:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    side = torch.cuda.Stream()
    start.record()
    torch.cuda._sleep(10**6)
    end.record()
    assert not end.query()  # monitor
    side.wait_event(end)  # synchronize streams
    with torch.cuda.stream(side):
        torch.cuda._sleep(1)
    side.synchronize()
    assert end.query() and start.elapsed_time(end) > 0.5  # measure


def test_f02_arguments_of_the_constructor() -> None:
    for arguments in (
        {},
        {"enable_timing": True},
        {"blocking": True},
        {"enable_timing": True, "blocking": True},
    ):
        event = torch.cuda.Event(**arguments)
        event.record()
        event.synchronize()
        assert event.query()
    with pytest.raises(TypeError):
        torch.cuda.Event(timing=True)
