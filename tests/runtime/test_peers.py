"""Peer access: on the first use of a pair, tried with a pattern, and given up where that arrives changed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

import flambeau as torch
from flambeau.observe.faults import Fault, FaultDriver
from flambeau.runtime import system
from flambeau.runtime.devices import peers


def state(i: int, j: int) -> str:
    return peers.state(system.contexts()[i], system.contexts()[j])


def corrupting(**when) -> FaultDriver:
    """From now on the machine's copies between devices deliver wrong bytes."""
    contexts = system.contexts()
    faulty = FaultDriver(contexts[0].driver, [Fault("copy", corrupts=True, **when)])
    for context in contexts:
        context.driver = context.backing = faulty
    return faulty


@pytest.fixture
def canary(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FLAMBEAU_PEER_CANARY", "1")
    with torch.virtual(devices=3):
        yield


def test_access_is_enabled_by_the_first_copy_both_ways() -> None:
    with torch.virtual(devices=3) as machine:
        assert state(0, 1) == "not used yet"
        torch.ones(3, device="cuda:0").to("cuda:1")
        assert state(0, 1) == state(1, 0) == "direct" and state(0, 2) == "not used yet"
        assert [sorted(d.peers) for d in machine.driver._machine.devices] == [[1], [0], []]


def test_devices_without_a_link_copy_through_the_host() -> None:
    with torch.virtual(devices=2, profile="rtx4090"):
        assert not torch.cuda.can_device_access_peer(0, 1)
        assert torch.arange(3, device="cuda:0").to("cuda:1").tolist() == [0, 1, 2]
        assert state(0, 1) == "through the host"


def test_the_pattern_goes_there_and_back_once(canary: None) -> None:
    faulty = corrupting(nth=99)
    queued = []
    original = faulty.copy
    faulty.copy = lambda *args: (queued.append(args[2]), original(*args))[1]
    x = torch.arange(5, device="cuda:0")
    assert x.to("cuda:1").to("cuda:0").tolist() == [0, 1, 2, 3, 4]
    assert queued == [peers.NBYTES, peers.NBYTES, 40, 40]
    assert state(1, 0) == "direct"


def test_the_pattern_waits_for_no_work_of_the_program(canary: None) -> None:
    x = torch.ones(4, device="cuda:0")
    torch.cuda._sleep(10**9)
    held = torch.cuda.memory_reserved(0), torch.cuda.memory_allocated(1)
    y = x.to("cuda:1")
    assert not torch.cuda.current_stream(0).query()
    assert (torch.cuda.memory_reserved(0), torch.cuda.memory_allocated(1) - 512) == held
    assert y.tolist() == [1] * 4


@pytest.mark.parametrize("nth", [1, 2], ids=["there", "back"])
def test_where_it_arrives_changed_copies_are_staged(canary: None, nth: int) -> None:
    faulty = corrupting(nth=nth)
    x = torch.arange(100_000, device="cuda:0")
    with pytest.warns(
        RuntimeWarning, match="cuda:0 and cuda:1 can reach .* of 131072 bytes .* arrived changed"
    ) as told:
        y = x.to("cuda:1")
    assert told[0].filename == __file__
    assert faulty.injected == ["copy corrupted"]
    assert state(0, 1) == state(1, 0) == "corrupt, so through the host"
    assert torch.equal(y.cpu(), x.cpu())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(y.add_(1).to("cuda:0"), x + 1)
        z = torch.zeros(100, 1000, device="cuda:1").t()
        z.copy_(x.view(1000, 100))
        assert torch.equal(z.cpu(), x.view(1000, 100).cpu().float())
        assert torch.equal(x.to("cuda:2").cpu(), x.cpu())
    assert state(0, 2) == "direct"


@pytest.mark.parametrize("schedule", ["adversarial:1", "random:7", "earliest"])
def test_staged_copies_are_ordered_as_direct_ones(monkeypatch: pytest.MonkeyPatch, schedule: str) -> None:
    monkeypatch.setenv("FLAMBEAU_PEER_CANARY", "1")
    with torch.virtual(devices=2, schedule=schedule, races="error"):
        corrupting(probability=1.0)
        with pytest.warns(RuntimeWarning, match="go through host memory"):
            torch.ones(1, device="cuda:0").to("cuda:1")
        side = torch.cuda.Stream(1)
        for i in range(5):
            x = torch.full((1000,), float(i), device="cuda:0")
            torch.cuda._sleep(10**6)
            x += 1
            with torch.cuda.stream(side):
                y = x.to("cuda:1")
                y *= 2
            x.zero_()
            torch.cuda.current_stream(1).wait_stream(side)
            assert y.sum().item() == 2000 * (i + 1)


def test_a_new_machine_meets_anew(canary: None) -> None:
    torch.ones(1, device="cuda:0").to("cuda:1")
    with torch.virtual(devices=2):
        assert state(0, 1) == "not used yet"
    assert state(0, 1) == "direct"


def test_what_the_variable_may_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMBEAU_PEER_CANARY", "yes")
    with (
        torch.virtual(devices=2),
        pytest.raises(ValueError, match="FLAMBEAU_PEER_CANARY='yes': must be 0 or 1"),
    ):
        torch.ones(1, device="cuda:0").to("cuda:1")
    with pytest.raises(ValueError, match="corrupts copies between devices, not launch"):
        Fault("launch", nth=1, corrupts=True)
