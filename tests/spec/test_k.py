"""SPEC K: pinned memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gpus import either, gpus, simulated

import flambeau as torch

pytestmark = either


@pytest.fixture(autouse=True)
def one_gpu() -> Iterator[None]:
    with gpus(devices=1):
        yield


def test_k01_pin_memory_copies_into_pinned_memory() -> None:
    x = torch.arange(5.0)
    y = x.pin_memory()
    assert (x.is_pinned(), y.is_pinned()) == (False, True)
    assert y.data_ptr() != x.data_ptr() and y.tolist() == x.tolist()
    assert y.device == torch.device("cpu")
    assert y.pin_memory() is y
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        x.cuda().pin_memory()


def test_k02_storages_are_pinned_too() -> None:
    storage = torch.arange(5.0).untyped_storage()
    pinned = storage.pin_memory()
    assert (storage.is_pinned(), pinned.is_pinned()) == (False, True)
    assert pinned.tolist() == storage.tolist()


def test_k01_k02_the_device_of_pinned_memory_is_deprecated() -> None:
    x = torch.arange(5.0)
    for pinned in (x, x.untyped_storage()):
        with pytest.warns(
            DeprecationWarning, match=r"The argument 'device' of Tensor\.pin_memory\(\) is deprecated"
        ):
            there = pinned.pin_memory("cuda")
        with pytest.warns(DeprecationWarning, match="is_pinned"):
            assert there.is_pinned("cuda")
        with (
            pytest.warns(DeprecationWarning),
            pytest.raises(RuntimeError, match="CPU device type not an acc"),
        ):
            pinned.pin_memory("cpu")
        with pytest.warns(DeprecationWarning):
            assert not there.is_pinned(device="cpu")
    with pytest.raises(TypeError, match="only CPU memory can be pinned"):
        x.cuda().untyped_storage().pin_memory()


@pytest.mark.parametrize(
    "way", [lambda x, n: x.cuda(non_blocking=n), lambda x, n: x.to("cuda", non_blocking=n)]
)
def test_k03_k04_pinned_copies_are_asynchronous(way) -> None:
    stream = torch.cuda.current_stream()
    pageable = torch.ones(1 << 20)
    pinned = pageable.pin_memory()
    busy = []
    for source in (pinned, pageable):
        for non_blocking in (True, False):
            torch.cuda.synchronize()
            way(source, non_blocking)
            busy.append(not stream.query())
    assert busy[0] is True
    assert busy[1:2] == [False] and busy[3] is False


def test_k06_copies_from_pinned_memory_are_faster() -> None:
    """By events: on the GPU's clock."""
    pageable, target = torch.ones(1 << 24), torch.empty(1 << 24, device="cuda")
    times = []
    for source in (pageable, pageable.pin_memory()):
        best = float("inf")
        for _ in range(5):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            target.copy_(source, non_blocking=True)
            end.record()
            torch.cuda.synchronize()
            best = min(best, start.elapsed_time(end))
        times.append(best)
    assert times[1] < times[0]


@simulated  # a real GPU may be shared with other tests
def test_k05_copies_overlap_computation() -> None:
    batch = torch.ones(1 << 22).pin_memory()
    copies = torch.cuda.Stream()

    def elapsed(copy: bool, sleep: bool) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        copies.wait_stream(torch.cuda.current_stream())
        if copy:
            with torch.cuda.stream(copies):
                kept = batch.cuda(non_blocking=True)
                kept.record_stream(copies)
        if sleep:
            torch.cuda._sleep(10**6)
        torch.cuda.current_stream().wait_stream(copies)
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    elapsed(True, True)  # what is allocated the first time costs host time
    alone, work, both = elapsed(True, False), elapsed(False, True), elapsed(True, True)
    assert alone > 0.3 and work > 0.3
    assert both < 0.8 * (alone + work)
    assert both >= max(alone, work) * 0.99


def test_k07_the_loader_gives_pinned_batches() -> None:
    loader = torch.utils.data.DataLoader(list(range(6)), batch_size=2, pin_memory=True)
    batches = list(loader)
    assert all(batch.is_pinned() for batch in batches)
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(3, pin_memory=True),
        lambda: torch.zeros(2, 2, pin_memory=True),
        lambda: torch.ones(3, dtype=torch.int64, pin_memory=True),
        lambda: torch.full((3,), 2.0, pin_memory=True),
        lambda: torch.tensor([1.0, 2.0], pin_memory=True),
        lambda: torch.rand(3, pin_memory=True),
        lambda: torch.arange(4, pin_memory=True),
    ],
)
def test_k09_factories_pin(make) -> None:
    assert make().is_pinned()


def test_k09_only_cpu_memory_is_pinned() -> None:
    with pytest.raises(RuntimeError, match=r"[Oo]nly dense CPU tensors can be pinned"):
        torch.empty(3, device="cuda", pin_memory=True)
