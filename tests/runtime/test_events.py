"""SPEC F: events."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import flambeau as torch

LONG = 10**7


@pytest.fixture(autouse=True)
def two_gpus() -> Iterator[None]:
    with torch.virtual(devices=2):
        yield


def timed() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def test_f03_an_unrecorded_event_has_no_device_and_counts_as_complete() -> None:
    event = torch.cuda.Event()
    assert not torch.cuda.is_initialized()
    assert event.device is None
    assert event.cuda_event == 0
    assert repr(event) == "<torch.cuda.Event uninitialized>"
    assert event.query() is True
    event.synchronize()
    event.wait()
    event.wait(torch.cuda.Stream())
    torch.cuda.current_stream().wait_event(event)
    assert torch.cuda.current_stream().query()


def test_f03_the_first_record_decides_the_device() -> None:
    event = torch.cuda.Event()
    event.record(torch.cuda.Stream(device=1))
    assert event.device == torch.device("cuda:1")
    assert repr(event) == f"<torch.cuda.Event {event.cuda_event:#x}>"
    assert event.cuda_event != 0


def test_f04_f07_only_streams_of_its_device_record_it() -> None:
    event = torch.cuda.Event()
    event.record(torch.cuda.Stream(device=1))
    with pytest.raises(RuntimeError, match=r"Event device 1 does not match recording stream's device 0\."):
        event.record()
    with pytest.raises(RuntimeError, match=r"does not match recording stream's device 0"):
        torch.cuda.Stream(device=0).record_event(event)
    event.record(torch.cuda.default_stream(1))


def test_f05_streams_of_any_device_wait_for_it() -> None:
    event = torch.cuda.Event()
    torch.cuda._sleep(LONG)
    event.record()
    there = torch.cuda.Stream(device=1)
    event.wait(there)
    after = there.record_event()
    assert not after.query()
    event.synchronize()
    after.synchronize()
    assert there.query()


def test_f06_record_takes_the_current_stream() -> None:
    event, stream = torch.cuda.Event(), torch.cuda.Stream(device=1)
    with torch.cuda.stream(stream):
        event.record()
        torch.cuda._sleep(LONG)
    assert event.device == torch.device("cuda:1")
    event.synchronize()
    assert not stream.query()


def test_f06_a_later_record_replaces_the_earlier() -> None:
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    torch.cuda._sleep(LONG)
    event.record()
    assert event.query() is False
    event.synchronize()
    assert event.query() is True


def test_f08_f13_the_timing_example() -> None:
    start, end = timed(), timed()
    start.record()
    torch.cuda._sleep(LONG)
    end.record()
    torch.cuda.synchronize()
    milliseconds = start.elapsed_time(end)
    assert type(milliseconds) is float
    assert 1 < milliseconds < 100  # 10 M cycles at about 1 to 2 GHz
    assert end.elapsed_time(start) == -milliseconds
    assert start.elapsed_time(start) == 0.0


def test_f08_the_same_program_takes_the_same_time() -> None:
    times = []
    for _ in range(2):
        with torch.virtual(devices=1):
            start, end = timed(), timed()
            start.record()
            torch.cuda._sleep(12345)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
    assert times[0] == times[1]


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (False, False)])
def test_f08_without_timing(first: bool, second: bool) -> None:
    start, end = torch.cuda.Event(enable_timing=first), torch.cuda.Event(enable_timing=second)
    start.record()
    end.record()
    torch.cuda.synchronize()
    with pytest.raises(ValueError, match=r"Both events must be created with argument 'enable_timing=True'."):
        start.elapsed_time(end)


def test_f08_unrecorded() -> None:
    start, end = timed(), timed()
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"Both events must be recorded before calculating elapsed time."
        ):
            start.elapsed_time(end)
        start.record()


def test_f08_incomplete() -> None:
    start, end = timed(), timed()
    start.record()
    torch.cuda._sleep(1000 * LONG)
    end.record()
    with pytest.raises(RuntimeError, match=r"Both events must be completed before calculating elapsed time."):
        start.elapsed_time(end)


def test_f08_of_two_devices() -> None:
    start, end = timed(), timed()
    start.record()
    end.record(torch.cuda.default_stream(1))
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    with pytest.raises(RuntimeError, match=r"invalid resource handle"):
        start.elapsed_time(end)


def test_f09_polling_ends() -> None:
    event = torch.cuda.Event()
    torch.cuda._sleep(LONG)
    event.record()
    while not event.query():
        pass


def test_f10_synchronize_waits_for_what_the_event_marks_and_no_more() -> None:
    event = torch.cuda.Event(blocking=True)
    torch.cuda._sleep(LONG)
    event.record()
    torch.cuda._sleep(1000 * LONG)
    event.synchronize()
    assert event.query()
    assert not torch.cuda.current_stream().query()


def test_f11_a_handle_of_an_event_that_was_not_recorded_is_of_the_current_device() -> None:
    event = torch.cuda.Event(interprocess=True)
    with torch.cuda.device(1):
        handle = event.ipc_handle()
    assert isinstance(handle, bytes) and len(handle) == 64
    assert event.device == torch.device("cuda:1") and event.ipc_handle() == handle
    event.record(torch.cuda.current_stream(1))
    assert event.ipc_handle() == handle  # recording moves the event, it makes no other
    with pytest.raises(RuntimeError, match="invalid argument"):
        torch.cuda.Event().ipc_handle()


def test_f11_an_event_of_several_processes_carries_no_timing() -> None:
    event = torch.cuda.Event(enable_timing=True, interprocess=True)
    for use in (event.record, event.ipc_handle):
        with pytest.raises(RuntimeError, match=r"CUDA error: invalid argument.*carries no timing"):
            use()
    assert event.query()


def test_f12_a_handle_has_64_bytes_and_names_an_event_of_its_device() -> None:
    with pytest.raises(RuntimeError, match="expects byte-like object of size 64, but got 3"):
        torch.cuda.Event.from_ipc_handle(0, b"abc")
    with pytest.raises(RuntimeError):
        torch.cuda.Event.from_ipc_handle(0, bytes(64))
    with pytest.raises(ValueError, match="cpu"):
        torch.cuda.Event.from_ipc_handle("cpu", bytes(64))


def test_f14_wait_takes_the_current_stream() -> None:
    event, other = torch.cuda.Event(), torch.cuda.Stream()
    torch.cuda._sleep(LONG)
    event.record()
    with torch.cuda.stream(other):
        event.wait()
        after = other.record_event()
    assert not after.query()
    other.synchronize()
    assert event.query()


def test_a_collected_events_wait_still_holds() -> None:
    event, other = torch.cuda.Event(), torch.cuda.Stream()
    torch.cuda._sleep(LONG)
    event.record()
    other.wait_event(event)
    del event
    gc.collect()
    assert not other.record_event().query()
    other.synchronize()
    assert torch.cuda.current_stream().query()


def test_an_event_may_be_subclassed() -> None:
    class Stamp(torch.cuda.Event):
        pass

    stamp = Stamp(enable_timing=True)
    stamp.record()
    stamp.note = "first"
    assert stamp.note == "first"
