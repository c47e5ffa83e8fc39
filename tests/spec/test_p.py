"""SPEC P: deprecated, renamed and discouraged names."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

import flambeau as torch
from flambeau import nn


@pytest.fixture(autouse=True)
def one_gpu() -> Iterator[None]:
    with torch.virtual(devices=1):
        yield


@pytest.mark.parametrize(
    ("old", "new"), [("memory_cached", "memory_reserved"), ("max_memory_cached", "max_memory_reserved")]
)
def test_p01_p02_the_names_of_1_0_warn_and_answer_the_same(old: str, new: str) -> None:
    x = torch.ones(1000, device="cuda")
    with pytest.warns(FutureWarning, match=f"`torch.cuda.{old}` has been renamed to `torch.cuda.{new}`"):
        assert getattr(torch.cuda, old)() == getattr(torch.cuda, new)() == 2 << 20
    del x


@pytest.mark.parametrize("name", ["reset_max_memory_allocated", "reset_max_memory_cached"])
def test_p03_p04_old_resets_warn_that_they_reset_all_peaks(name: str) -> None:
    torch.ones(1000, device="cuda")
    with pytest.warns(FutureWarning, match=f"torch.cuda.{name} now calls torch.cuda.reset_peak_memory_stats"):
        getattr(torch.cuda, name)()
    assert torch.cuda.max_memory_allocated() == 0


def test_p05_async_is_non_blocking() -> None:
    x, y = torch.zeros(3, device="cuda"), torch.arange(3.0)
    with pytest.warns(UserWarning, match="'async' is now called 'non_blocking'"):
        x.copy_(y, **{"async": True})
    assert x.tolist() == [0, 1, 2]
    x.copy_(y * 2, non_blocking=True)
    assert x.tolist() == [0, 2, 4]


def test_p06_streams_are_constructed_by_their_class() -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side


def test_p07_data_parallel_runs_a_module() -> None:
    net = nn.DataParallel(nn.Linear(3, 2).cuda())
    assert net(torch.ones(4, 3, device="cuda")).shape == (4, 2)


def test_p08_p09_set_device_and_the_new_names_give_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.cuda.set_device(0)
        torch.cuda.memory_reserved()
        torch.cuda.max_memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        torch.ones(2).pin_memory().cuda(non_blocking=True)
