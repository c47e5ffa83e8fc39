"""Streams, tensors and machines that end while others still hold on to them."""

import gc
import weakref

import pytest

import flambeau
import flambeau as torch
from flambeau.runtime import system


def allocator():
    return system.context_of(torch.device("cuda:0")).allocator


@pytest.mark.parametrize("races", ["off", "warn"])
def test_a_stream_per_iteration_reserves_no_more_and_more(races):
    with flambeau.virtual(devices=1, races=races) as machine:
        reserved = []
        for _ in range(600):
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                x = torch.ones(1000, device="cuda").add_(1)
            torch.cuda.current_stream().wait_stream(side)
            reserved.append(torch.cuda.memory_reserved())
        assert max(reserved) == max(reserved[:150])
        assert x.tolist() == [2.0] * 1000
        del x
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == 0
        assert len(allocator()._heap.pools) < 150
        del side
        torch.cuda.Stream()  # the streams that went before it are destroyed now
        assert len(machine.driver._machine.devices[0].state.streams) < 4


def test_tensors_outlive_the_streams_that_they_were_made_on():
    with flambeau.virtual(devices=1, poison=True, races="warn"):
        kept = []
        for i in range(200):
            with torch.cuda.stream(torch.cuda.Stream()):
                kept.append(torch.full((3,), i, device="cuda"))
        torch.cuda.synchronize()
        assert [x[0].item() for x in kept] == list(range(200))
        torch.cuda.Stream()
        del kept
        assert torch.cuda.memory_allocated() == 0
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0


def test_a_device_side_assert_keeps_nobodys_tensors_alive():
    with flambeau.virtual(devices=1):
        gc.disable()
        try:
            assert _asserted()() is None
            assert torch.cuda.memory_allocated() == 0
        finally:
            gc.enable()


def _asserted():
    """Fails on the device while this function's own tensors live. A weak reference to one."""
    x = torch.arange(4, device="cuda")
    y = x[torch.tensor([9], device="cuda")]
    text = ""
    try:
        y.tolist()
    except RuntimeError as error:
        text = str(error)
    assert "'index'" in text and "IndexError: index 9 is out of bounds" in text
    return weakref.ref(x)


def test_record_stream_of_a_closed_machines_tensor_is_refused():
    with flambeau.virtual(devices=1):
        x, side = torch.ones(3, device="cuda"), torch.cuda.Stream()
    with pytest.raises(RuntimeError, match="closed"):
        x.record_stream(side)
