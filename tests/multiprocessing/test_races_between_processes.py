"""The race detector where memory and events are shared: what it sees on this side, what it says of the other."""

from __future__ import annotations

import peer_kit as kit
import pytest

import flambeau as torch
import flambeau.multiprocessing as mp
from flambeau.core.errors import RaceError
from flambeau.runtime import system


@pytest.fixture(scope="module")
def peer():
    with torch.virtual(1):
        made = kit.Peer()
    yield made
    assert made.stop() == 0


@pytest.fixture(autouse=True)
def machine(peer):
    with torch.virtual(1, races="error"):
        yield
        torch.cuda.ipc_collect()
        peer.call(kit.collect)


def certificate():
    return system.context_of(torch.device("cuda:0")).driver.detector.certificate()


def written_on(side):
    x = torch.zeros(4, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.add_(1)
    return x


def test_the_certificate_says_that_memory_was_shared(peer):
    x = torch.empty(4, device="cuda")
    peer.call(kit.fill, x, 3)
    assert x.tolist() == [3, 3, 3, 3]  # nobody wrote it here, and that is right
    assert not certificate().races and not certificate().race_free
    assert "memory is shared with other processes at " in str(certificate())


def test_a_race_on_this_side_is_one_still(peer):
    side = torch.cuda.Stream()
    x = written_on(side)
    with torch.cuda.stream(side):
        peer.call(kit.keep, "x", x)
    with pytest.raises(RaceError):
        x.add_(1)
    peer.call(kit.drop, "x")


@pytest.mark.parametrize("waits", [True, False])
def test_an_event_that_the_other_process_recorded_orders_what_we_gave_it_before(peer, waits):
    """The side stream's write comes before the event, that before the peer's work, that before its record of the event."""
    side, event = torch.cuda.Stream(), torch.cuda.Event(interprocess=True)
    x = written_on(side)
    event.record(side)
    peer.call(kit.keep, "event", event)
    with torch.cuda.stream(side):
        peer.call(kit.wait_and_double, "event", x)
    if waits:
        event.wait()
        assert x.tolist() == [2, 2, 2, 2]
    else:
        with pytest.raises(RaceError):
            x.add_(1)
    peer.call(kit.drop, "event")


def test_another_event_of_the_other_process_does_so_too(peer):
    side, event = torch.cuda.Stream(), torch.cuda.Event(interprocess=True)
    x = written_on(side)
    event.record(side)
    peer.call(kit.keep, "event", event)
    with torch.cuda.stream(side):
        theirs = peer.call(kit.double_after, "event", x)
    theirs.wait()
    x.add_(1)
    assert x.tolist() == [3, 3, 3, 3]
    peer.call(kit.drop, "event")
    peer.call(kit.drop, "their event")


def test_what_comes_back_is_ordered_by_its_own_event():
    side, queue = torch.cuda.Stream(), mp.get_context("spawn").SimpleQueue()
    x = written_on(side)
    with torch.cuda.stream(side):
        queue.put(x)
    queue.get().add_(1)
    assert x.tolist() == [2, 2, 2, 2]


def test_memory_that_comes_and_goes_is_no_reuse():
    """Another tensor at the same address of an opened segment: nothing is left of the one before."""
    with torch.virtual(1):
        watching = kit.Peer()
    watching.call(kit.watch_for_races)
    for number in range(4):
        assert (
            watching.call(kit.sum_on_a_stream, torch.full((1000,), float(number), device="cuda"))
            == 1000 * number
        )
    assert watching.call(kit.races) == 0
    assert watching.stop() == 0
