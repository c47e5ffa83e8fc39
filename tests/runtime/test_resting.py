"""Objects of a machine that rests inside an inner `flambeau.virtual(...)`: they refuse, they die well, they come back."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

import flambeau as torch

LONG = 10**7  # clock cycles


def belongings() -> SimpleNamespace:
    """What a program may hold of the machine in use."""
    own = SimpleNamespace(
        tensor=torch.ones(4, device="cuda"),
        other=torch.ones(4, device="cuda:1"),
        stream=torch.cuda.Stream(),
        default=torch.cuda.default_stream(),
        event=torch.cuda.Event(enable_timing=True),
        later=torch.cuda.Event(enable_timing=True),
    )
    own.event.record()
    own.later.record()
    return own


@pytest.fixture
def own() -> Iterator[SimpleNamespace]:
    with torch.virtual(devices=2):
        yield belongings()


USES: dict[str, Callable[[SimpleNamespace, SimpleNamespace], object]] = {
    "record_stream": lambda own, new: own.tensor.record_stream(own.stream),
    "record_stream of its stream": lambda own, new: new.tensor.record_stream(own.stream),
    "record_stream of its tensor": lambda own, new: own.tensor.record_stream(new.stream),
    "stream.synchronize": lambda own, new: own.stream.synchronize(),
    "default_stream.synchronize": lambda own, new: own.default.synchronize(),
    "stream.query": lambda own, new: own.stream.query(),
    "stream.record_event": lambda own, new: own.stream.record_event(),
    "stream.record_event of its event": lambda own, new: own.stream.record_event(own.event),
    "stream.wait_event": lambda own, new: own.stream.wait_event(own.event),
    "stream.wait_stream": lambda own, new: own.stream.wait_stream(new.stream),
    "a new stream waits for it": lambda own, new: new.stream.wait_stream(own.stream),
    "a new stream waits for its event": lambda own, new: new.stream.wait_event(own.event),
    "stream.cuda_stream": lambda own, new: own.stream.cuda_stream,
    "torch.cuda.stream": lambda own, new: torch.cuda.stream(own.stream).__enter__(),
    "torch.cuda.set_stream": lambda own, new: torch.cuda.set_stream(own.stream),
    "event.query": lambda own, new: own.event.query(),
    "event.synchronize": lambda own, new: own.event.synchronize(),
    "event.record": lambda own, new: own.event.record(),
    "event.record on its stream": lambda own, new: own.event.record(own.stream),
    "event.wait": lambda own, new: own.event.wait(),
    "event.elapsed_time": lambda own, new: own.event.elapsed_time(own.later),
    "copy_ into it": lambda own, new: own.tensor.copy_(new.tensor),
    "copy_ from it": lambda own, new: new.tensor.copy_(own.tensor),
    "copy_ from the host": lambda own, new: own.tensor.copy_(torch.ones(4)),
    "copy_ to the host": lambda own, new: torch.ones(4).copy_(own.tensor),
    "copy_ to another device": lambda own, new: new.other.copy_(own.tensor),
    "cuda": lambda own, new: own.tensor.cuda(1),
    "operator": lambda own, new: own.tensor + new.tensor,
    "repr": lambda own, new: repr(own.tensor),
    "dlpack": lambda own, new: torch.from_dlpack(own.tensor),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_belongs_to_a_resting_machine_refuses(own: SimpleNamespace, use: Callable[..., object]) -> None:
    with torch.virtual(devices=2):
        new = belongings()
        with pytest.raises(RuntimeError, match="belongs to virtual GPUs that have been closed or left"):
            use(own, new)
        torch.cuda.synchronize()
        assert new.tensor.tolist() == new.other.tolist() == [1.0] * 4  # a call that raises changed nothing
    assert own.tensor.tolist() == own.other.tolist() == [1.0] * 4


def test_it_names_itself_all_the_same(own: SimpleNamespace) -> None:
    said = [repr(x) for x in (own.stream, own.default, own.event)]
    with torch.virtual(devices=1):
        assert [repr(x) for x in (own.stream, own.default, own.event)] == said
        assert own.tensor.device == own.stream.device == own.event.device == torch.device("cuda:0")


def test_it_dies_well_while_it_rests(own: SimpleNamespace) -> None:
    """A destructor that raises fails the test; what waits for streams of the resting machine is not lost."""
    own.stream.synchronize()
    before = torch.cuda.memory_allocated()
    pinned = torch.ones(1 << 12).pin_memory()
    with torch.cuda.stream(own.stream):
        torch.cuda._sleep(LONG)
        copied = pinned.to("cuda", non_blocking=True)
        spectrum = torch.fft.fft(torch.ones(8, device="cuda"))  # a library plan
    used = torch.zeros(1 << 12, device="cuda")
    used.record_stream(own.stream)
    with torch.virtual(devices=1):
        torch.ones(3, device="cuda")
        del pinned, copied, used, spectrum, own.event, own.later, own.stream
        gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
