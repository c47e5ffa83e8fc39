"""`torch.Stream` and `torch.Event`: queues and markers of the accelerator, by PyTorch's device-independent names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import flambeau as torch


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with torch.virtual(devices=1, races="error"):
        yield


def test_cuda_classes_derive_from_them() -> None:
    assert issubclass(torch.cuda.Stream, torch.Stream)
    assert issubclass(torch.cuda.Event, torch.Event)
    assert isinstance(torch.cuda.current_stream(), torch.Stream)
    assert not issubclass(torch.Stream, torch.cuda.Stream)


@pytest.mark.parametrize("place", [None, 0, "cuda", "cuda:0", torch.device("cuda", 0)])
def test_streams_are_created_on_the_accelerator(place: object) -> None:
    stream = torch.Stream(place, priority=-1)
    assert type(stream) is torch.Stream
    assert (stream.device, stream.device_index, stream.device_type) == (torch.device("cuda", 0), 0, 1)
    assert repr(stream) == f"torch.Stream device_type=cuda, device_index=0, stream_id={stream.stream_id}"
    assert stream != torch.Stream(place)
    assert not hasattr(stream, "cuda_stream")


def test_work_is_in_their_order() -> None:
    x = torch.zeros(8, device="cuda")
    stream = torch.Stream("cuda")
    stream.wait_stream(torch.cuda.current_stream())
    with stream:
        assert torch.cuda.current_stream() is stream
        x.add_(1)
    event = stream.record_event()
    assert type(event) is torch.Event
    torch.cuda.current_stream().wait_event(event)
    assert x.tolist() == [1.0] * 8
    assert stream.query()


def test_work_without_their_order_is_a_race() -> None:
    x = torch.zeros(8, device="cuda")
    with pytest.raises(torch.RaceError), torch.Stream("cuda"):
        x.add_(1)


def test_events_measure_time() -> None:
    start, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
    assert repr(start) == "torch.Event device_type=cuda, device_index=-1, event_flag=1, event_id=0"
    assert start.query()
    start.record()
    torch.cuda._sleep(1000)
    end.record(torch.cuda.current_stream())
    end.synchronize()
    assert start.elapsed_time(end) > 0
    assert end.device == torch.device("cuda", 0)


@pytest.mark.parametrize("create", [torch.Stream, torch.Event])
def test_other_devices_are_refused_by_name(create: type) -> None:
    with pytest.raises(torch.NotSupportedError, match="CUDA devices only"):
        create("cpu")


def test_streams_take_no_positional_priority() -> None:
    with pytest.raises(TypeError):
        torch.Stream("cuda", -1)
    with pytest.raises(TypeError, match="priority must be an int"):
        torch.Stream("cuda", priority="high")
