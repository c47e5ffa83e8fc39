"""CUDA IPC on a real GPU: what virtual ones cannot show. tests/multiprocessing runs on real GPUs, too."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu_kit import alone, needs_gpu

import flambeau as torch
from flambeau.runtime.devices import device_ipc

sys.path.append(str(Path(__file__).parents[2] / "multiprocessing"))
import peer_kit as kit

pytestmark = needs_gpu

MIB = 1 << 20
CYCLES = 200_000_000  # a tenth of a second


@pytest.fixture(scope="module")
def peer() -> Iterator[kit.Peer]:
    made = kit.Peer()
    made.call(kit.values, torch.ones(1).cuda())  # whatever has to be loaded there
    yield made
    assert made.stop() == 0


def test_the_receivers_stream_waits_for_work_that_is_still_running(peer: kit.Peer) -> None:
    side = torch.cuda.Stream()
    x = torch.zeros(MIB, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(CYCLES)
        x.fill_(3)
        peer.pipe.send((kit.total, (x,)))
        assert not side.query()  # sending waited for nothing
    assert peer.answer() == 3 * MIB


def test_memory_is_kept_until_the_receivers_work_is_done(peer: kit.Peer) -> None:
    """The receiver drops the tensor while its kernels still use it; the sender reuses the memory after that alone."""
    x = torch.full((MIB,), 1.0, device="cuda")
    at = x.data_ptr()
    torch.cuda.synchronize()
    peer.call(kit.slow_copy, "copy", x, CYCLES)
    del x
    torch.cuda.ipc_collect()
    y = torch.full((MIB,), 2.0, device="cuda")
    torch.cuda.synchronize()
    assert peer.call(kit.total_of_kept, "copy") == MIB
    peer.call(kit.drop, "copy")
    del y
    torch.cuda.ipc_collect()
    assert torch.full((MIB,), 3.0, device="cuda").data_ptr() == at


def test_a_gibibyte_arrives_to_the_bit(peer: kit.Peer) -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 256, (1 << 30,), dtype=torch.uint8, device="cuda")
    assert peer.call(kit.total, x.view(torch.int64)) == int(x.view(torch.int64).sum())
    part = x[12345 * 8 : 12345 * 8 + 8000].view(torch.int64)
    assert peer.call(kit.values, part) == part.tolist()
    del x, part
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()


def test_events_are_recorded_and_waited_for_on_both_sides(peer: kit.Peer) -> None:
    ours, x = torch.cuda.Event(interprocess=True), torch.zeros(1000, device="cuda")
    ours.record()
    peer.call(kit.keep, "event", ours)
    for turn in range(20):
        torch.cuda._sleep(CYCLES // 100)
        x.add_(1)
        ours.record()
        peer.call(kit.wait_and_double, "event", x)
        ours.wait()
        x.sub_(turn + 1)
    expected = 0.0
    for turn in range(20):
        expected = (expected + 1) * 2 - (turn + 1)
    assert x[::100].tolist() == [expected] * 10
    peer.call(kit.drop, "event")


def test_more_sendings_than_events(peer: kit.Peer) -> None:
    torch.cuda.ipc_collect()
    made = [torch.full((2,), float(n), device="cuda") for n in range(1200)]
    peer.call(kit.keep, "many", made)
    assert 900 < device_ipc._state.events <= 1000
    assert peer.call(kit.totals_of_kept, "many") == [2.0 * n for n in range(1200)]
    peer.call(kit.drop, "many")
    del made
    torch.cuda.ipc_collect()
    assert not device_ipc._state.limbo and not device_ipc._state.events


@alone
def test_memory_that_runs_out_is_looked_for_in_limbo(peer: kit.Peer) -> None:
    size = torch.cuda.mem_get_info()[0] // 4 * 3
    x = torch.empty(size, dtype=torch.uint8, device="cuda")
    peer.call(kit.keep, "x", x)
    del x
    peer.call(kit.drop, "x")
    assert torch.empty(size, dtype=torch.uint8, device="cuda").numel() == size
    torch.cuda.empty_cache()


def test_what_a_sending_costs(peer: kit.Peer) -> None:
    """No promise, a figure: run with -s."""
    x = torch.ones(MIB, device="cuda")
    for _ in range(5):
        peer.call(kit.nothing, x)
    rounds = 50
    start = time.perf_counter()
    for _ in range(rounds):
        peer.call(kit.nothing, x)
    there = (time.perf_counter() - start) / rounds
    start = time.perf_counter()
    for _ in range(rounds):
        peer.call(kit.nothing, 1)
    print(f"\na CUDA tensor there and an answer back: {1e6 * there:.0f} us, of which the pipe takes "
          f"{1e6 * (time.perf_counter() - start) / rounds:.0f} us")  # fmt: skip
