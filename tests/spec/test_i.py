"""SPEC I: the cuFFT plan caches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gpus import either, gpus, needs

import flambeau as torch

pytestmark = either
caches = torch.backends.cuda.cufft_plan_cache


@pytest.fixture(autouse=True)
def two_gpus() -> Iterator[None]:
    with gpus(devices=2):
        for index in range(torch.cuda.device_count()):
            caches[index].clear()
            caches[index].max_size = 4096
        yield


def transform(size: int, where: int = 0, **options: object) -> None:
    torch.fft.fft(torch.ones(size, device=f"cuda:{where}"), **options)


def test_i01_i04_plans_of_one_geometry_are_used_again() -> None:
    for _ in range(3):
        transform(16)
    first = caches.size
    assert first >= 1
    transform(32)
    assert caches.size == 2 * first
    transform(16, norm="ortho")
    transform(32)
    assert caches.size <= 3 * first
    assert all(caches[other].size == 0 for other in range(1, torch.cuda.device_count()))
    with pytest.raises(RuntimeError, match=r"\.size is a read-only property"):
        caches.size = 3


def test_i01_the_least_recently_used_gives_way() -> None:
    transform(16)
    each = caches.size
    caches.max_size = 2 * each
    transform(32), transform(16), transform(64)
    assert caches.size == 2 * each
    held = caches.size
    caches.max_size = 3 * each
    transform(16)
    assert caches.size == held, "16 was used last, so 32 gave way"
    transform(32)
    assert caches.size == held + each


def test_i02_i03_capacity() -> None:
    assert caches.max_size == 4096
    for size in (8, 16, 32):
        transform(size)
    caches.max_size = 1
    assert (caches.max_size, caches.size) == (1, 1)
    caches.max_size = 0
    transform(8)
    assert caches.size == 0
    with pytest.raises(RuntimeError, match="must be non-negative"):
        caches.max_size = -1


def test_i05_clear() -> None:
    transform(8)
    caches.clear()
    assert caches.size == 0
    transform(8)
    assert caches.size > 0


def test_i06_i07_devices() -> None:
    needs(2)
    transform(8, where=1)
    assert (
        caches.size == 0
        and caches[1].size == caches["cuda:1"].size == caches[torch.device("cuda:1")].size > 0
    )
    with torch.cuda.device(1):
        assert caches.size == caches[1].size
        caches.max_size = 7
    caches[torch.device("cuda:0")].max_size = 10
    assert (caches.max_size, caches[0].max_size, caches[1].max_size) == (10, 10, 7)
    with pytest.raises(RuntimeError, match="expected 0 <= device index < "):
        caches[99]


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "fft2", "fftn", "hfft"])
def test_i08_the_functions_of_torch_fft_use_them(name: str) -> None:
    getattr(torch.fft, name)(torch.ones(4, 4, device="cuda"))
    assert caches.size > 0
    torch.fft.fft(torch.ones(4))
    held = caches.size
    getattr(torch.fft, name)(torch.ones(4, 4))
    assert caches.size == held


def test_i09_what_plans_hold_is_given_back() -> None:
    transform(8)
    caches.clear()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    for size in range(8, 40):
        transform(size)
    caches.clear()
    assert torch.cuda.memory_allocated() == held
