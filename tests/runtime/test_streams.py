"""SPEC E: streams, their guards, and what orders them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

import flambeau as torch
from flambeau.core.errors import NotSupportedError

LONG = 10**7  # clock cycles


@pytest.fixture(autouse=True)
def two_gpus() -> Iterator[None]:
    with torch.virtual(devices=2):
        yield


def busy(stream: torch.cuda.Stream, cycles: int = LONG) -> None:
    with torch.cuda.stream(stream):
        torch.cuda._sleep(cycles)


def test_e02_each_device_has_a_default_stream_whose_handle_is_0() -> None:
    for index in range(2):
        stream = torch.cuda.default_stream(index)
        assert stream.cuda_stream == 0
        assert stream.device == torch.device("cuda", index)
        assert torch.cuda.current_stream(index) is stream
        assert repr(stream) == f"<torch.cuda.Stream device=cuda:{index} cuda_stream=0x0>"
    assert torch.cuda.default_stream(0) != torch.cuda.default_stream(1)


@pytest.mark.parametrize(
    "which", [None, -1, -5, 1, "cuda", "cuda:1", torch.device("cuda:1"), torch.device("cuda")]
)
def test_e03_e04_the_device_of_a_stream(which: object) -> None:
    torch.cuda.set_device(1)
    stream = torch.cuda.Stream(which)
    assert stream.device == torch.device("cuda:1")
    assert stream.device_index == 1
    assert stream.cuda_stream != 0
    assert torch.cuda.current_device() == 1


def test_e04_a_stream_of_another_device_does_not_select_it() -> None:
    assert torch.cuda.Stream(device=1).device_index == 1
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("which", ["cpu", torch.device("cpu")])
def test_e04_no_stream_on_the_cpu(which: object) -> None:
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        torch.cuda.Stream(which)


@pytest.mark.parametrize(("given", "got"), [(0, 0), (-1, -1), (-2, -1), (-100, -1), (1, 0), (7, 0)])
def test_e05_e06_two_levels_of_priority(given: int, got: int) -> None:
    assert torch.cuda.Stream(priority=given).priority == got
    assert torch.cuda.Stream.priority_range() == (0, -1)


def test_e05_low_priority_is_the_default() -> None:
    assert torch.cuda.Stream().priority == 0
    assert torch.cuda.default_stream().priority == 0


def test_streams_have_the_names_of_every_accelerators() -> None:
    streams = [torch.cuda.default_stream(1), torch.cuda.Stream(1), torch.cuda.Stream(1)]
    assert (
        [s.stream_id for s in streams]
        == [s.native_handle for s in streams]
        == [s.cuda_stream for s in streams]
    )
    assert streams[0].stream_id == 0 and len({s.stream_id for s in streams}) == 3
    assert {(s.device_index, s.device_type) for s in streams} == {(1, 1)}
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=streams[1]):
        assert [s.is_capturing() for s in streams] == [False, True, False]
    assert not streams[1].is_capturing()


def test_malformed_streams() -> None:
    with pytest.raises(TypeError, match="priority"):
        torch.cuda.Stream(priority="high")  # type: ignore[arg-type]
    with pytest.raises(NotSupportedError, match="stream_id"):
        torch.cuda.Stream(stream_id=1)
    with pytest.raises(TypeError, match="stream_ptr"):
        torch.cuda.Stream(stream_ptr="1")
    for make in (torch.cuda.ExternalStream, torch.cuda.get_stream_from_external):
        with pytest.raises(
            NotSupportedError, match="is another library's, which virtual GPUs do not take over"
        ):
            make(0x12345)


def test_streams_by_their_native_value() -> None:
    stream = torch.cuda.Stream(1)
    for same in (
        torch.cuda.ExternalStream(stream.cuda_stream, device=1),
        torch.cuda.get_stream_from_external(stream.cuda_stream, torch.device("cuda", 1)),
    ):
        assert same == stream and same.device == stream.device and isinstance(same, torch.cuda.Stream)
        assert same.cuda_stream == stream.cuda_stream and f"{stream.cuda_stream:#x}" in repr(same)
        del same  # and the stream goes on
    stream.synchronize()
    assert torch.cuda.ExternalStream(0) == torch.cuda.default_stream()
    with pytest.raises(NotSupportedError):
        torch.cuda.ExternalStream(stream.cuda_stream, device=0)


def test_e07_stream_in_lower_case_needs_a_stream() -> None:
    with pytest.raises(TypeError):
        torch.cuda.stream()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="expected a Stream"), torch.cuda.stream(0):  # type: ignore[arg-type]
        pass


def test_e08_a_guard_selects_and_puts_back_also_nested_and_on_exceptions() -> None:
    a, b = torch.cuda.Stream(), torch.cuda.Stream()
    before = torch.cuda.current_stream()
    with torch.cuda.stream(a):
        assert torch.cuda.current_stream() is a
        with pytest.raises(KeyError), torch.cuda.stream(b):
            assert torch.cuda.current_stream() is b
            raise KeyError
        assert torch.cuda.current_stream() is a
        with a:
            assert torch.cuda.current_stream() is a
        assert torch.cuda.current_stream() is a
    assert torch.cuda.current_stream() is before


def test_e09_none_is_a_no_op() -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        with torch.cuda.stream(None):
            assert torch.cuda.current_stream() is stream
        torch.cuda.set_stream(None)
        assert torch.cuda.current_stream() is stream


def test_e10_a_stream_of_another_device_selects_it_and_both_come_back() -> None:
    here, there = torch.cuda.Stream(device=0), torch.cuda.Stream(device=1)
    torch.cuda.set_stream(here)
    for guard in (torch.cuda.stream(there), there, torch.cuda.StreamContext(there)):
        with guard:
            assert torch.cuda.current_device() == 1
            assert torch.cuda.current_stream() is there
            assert torch.cuda.current_stream(0) is here
            torch.cuda.set_stream(torch.cuda.Stream(device=0))  # selects device 0
            assert torch.cuda.current_device() == 0
        assert torch.cuda.current_device() == 0
        assert torch.cuda.current_stream() is here
        assert torch.cuda.current_stream(1) is torch.cuda.default_stream(1)


def test_e10_a_guard_survives_set_device_inside() -> None:
    there = torch.cuda.Stream(device=1)
    with torch.cuda.stream(there):
        torch.cuda.set_device(0)
    assert torch.cuda.current_device() == 0
    assert torch.cuda.current_stream(1) is torch.cuda.default_stream(1)


def test_e08_one_guard_may_be_entered_while_it_is_entered() -> None:
    a, b = torch.cuda.Stream(), torch.cuda.Stream()
    guard = torch.cuda.stream(a)
    with guard, torch.cuda.stream(b):
        with guard:
            assert torch.cuda.current_stream() is a
        assert torch.cuda.current_stream() is b
    assert torch.cuda.current_stream() is torch.cuda.default_stream()


def test_a_guard_whose_machine_closes_inside_puts_nothing_back() -> None:
    machine = torch.virtual(devices=1)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.cuda.device(0):
        machine.close()
    assert torch.cuda.current_stream() is torch.cuda.default_stream()


def test_e11_e12_current_and_default_streams_of_a_device() -> None:
    stream = torch.cuda.Stream(device=1)
    torch.cuda.set_stream(stream)
    for which in (None, 1, -1, "cuda", "cuda:1", torch.device("cuda:1")):
        assert torch.cuda.current_stream(which) is stream
        assert torch.cuda.default_stream(which).cuda_stream == 0
        assert torch.cuda.default_stream(which).device_index == 1
    assert torch.cuda.current_stream(0) is torch.cuda.default_stream(0)


def test_streams_compare_and_hash_by_device_and_handle() -> None:
    streams = [torch.cuda.Stream(device=i % 2) for i in range(40)]
    assert len(set(streams)) == 40
    assert streams[0] != streams[2]
    assert streams[0] == streams[0]
    assert streams[0] != 0
    assert torch.cuda.default_stream(0) == torch.cuda.current_stream(0)
    assert hash(torch.cuda.default_stream(0)) == hash(torch.cuda.current_stream(0))


def test_repr_of_a_stream() -> None:
    stream = torch.cuda.Stream(device=1)
    assert repr(stream) == f"<torch.cuda.Stream device=cuda:1 cuda_stream={stream.cuda_stream:#x}>"
    assert str(type(stream)) == "<class 'flambeau.cuda.Stream'>"


def test_e13_e17_e19_query_and_synchronize() -> None:
    stream = torch.cuda.Stream()
    assert stream.query()
    busy(stream)
    assert stream.query() is False
    assert torch.cuda.default_stream().query()
    stream.synchronize()
    assert stream.query() is True


def test_e17_polling_ends() -> None:
    stream = torch.cuda.Stream()
    busy(stream)
    while not stream.query():
        pass


def test_e14_streams_run_beside_each_other() -> None:
    def both(second: torch.cuda.Stream, first: torch.cuda.Stream) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(first)
        busy(first)
        busy(second)
        first.wait_stream(second)
        end.record(first)
        end.synchronize()
        return start.elapsed_time(end)

    a, b = torch.cuda.Stream(), torch.cuda.Stream()
    assert both(a, b) < 1.1 * both(a, a) / 2


def test_e18_record_event() -> None:
    stream = torch.cuda.Stream(device=1)
    busy(stream)
    made, given = stream.record_event(), torch.cuda.Event()
    assert stream.record_event(given) is given
    assert made.device == given.device == torch.device("cuda:1")
    assert not made.query()
    assert not given.query()
    stream.synchronize()
    assert made.query()
    assert given.query()


def test_e20_e21_e22_waiting_is_asynchronous_and_takes_what_was_queued_until_then() -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream(device=1)
    busy(first)
    second.wait_stream(first)
    after = torch.cuda.Event()
    after.record(second)
    busy(first, 1000 * LONG)  # not waited for: it comes later
    assert not after.query()
    after.synchronize()
    assert not first.query()
    third = torch.cuda.Stream()
    third.wait_event(first.record_event())
    end = third.record_event()
    end.synchronize()
    assert first.query()


def test_waiting_for_oneself_is_allowed() -> None:
    stream = torch.cuda.Stream()
    busy(stream)
    stream.wait_stream(stream)
    stream.synchronize()


def test_e27_the_selected_stream_is_per_thread() -> None:
    stream, seen = torch.cuda.Stream(), []
    torch.cuda.set_stream(stream)

    def other() -> None:
        seen.append(torch.cuda.current_stream())
        with stream:
            seen.append(torch.cuda.current_stream())

    thread = threading.Thread(target=other)
    with stream:
        thread.start()
        thread.join()
    assert seen == [torch.cuda.default_stream(), stream]
    assert torch.cuda.current_stream() is stream


def test_a_collected_streams_work_still_runs() -> None:
    stream, end = torch.cuda.Stream(), torch.cuda.Event()
    busy(stream)
    end.record(stream)
    del stream
    gc.collect()
    assert not end.query()
    end.synchronize()
    assert end.query()


def test_streams_leave_no_reference_cycles() -> None:
    gc.collect()
    gc.disable()
    try:
        stream = torch.cuda.Stream()
        with stream, torch.cuda.stream(stream):
            torch.cuda._sleep(1)
        torch.cuda.synchronize()
        del stream
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_stream_may_be_subclassed() -> None:
    class Named(torch.cuda.Stream):
        def __new__(cls, name: str, device: object = None) -> Named:
            self = super().__new__(cls, device, priority=-1)
            self.name = name
            return self

    named = Named("copies", device=1)
    assert (named.name, named.device_index, named.priority) == ("copies", 1, -1)
    with torch.cuda.stream(named):
        assert torch.cuda.current_stream() is named


@pytest.mark.parametrize("cycles", ["1", 1.5, True])
def test_sleep_takes_an_int(cycles: object) -> None:
    with pytest.raises(TypeError):
        torch.cuda._sleep(cycles)  # type: ignore[arg-type]


def test_sleep_takes_time_in_proportion() -> None:
    times = []
    for cycles in (10**6, 4 * 10**6):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    assert 3.9 < times[1] / times[0] < 4.1


def test_a_stream_may_be_collected_together_with_the_memory_that_it_used() -> None:
    """Of one piece of garbage the collector finalizes the members in any order: here the stream goes first."""
    side, pinned = torch.cuda.Stream(), torch.ones(1000).pin_memory()
    with torch.cuda.stream(side):
        pinned.cuda(non_blocking=True)
    torch.cuda.synchronize()  # a copy that is queued would keep the memory, and with it the stream
    ptr = pinned.data_ptr()
    kept = [side, pinned]
    kept.append(kept)  # a cycle
    del kept, side, pinned
    gc.collect()  # an error in a destructor fails the test: it is a warning, and those are errors
    assert torch.empty(1000).pin_memory().data_ptr() == ptr


def test_native_streams_do_not_pile_up() -> None:
    driver = torch.virtual(devices=1).driver
    torch.cuda.init()
    for _ in range(5):
        torch.cuda.Stream()
    assert len(driver._queues.streams) <= 2
