"""Compiled functions on a GPU that has not enough memory for the results of a group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import flambeau as torch

BYTES = 12 << 20  # of a tensor; two of them do not fit


@pytest.fixture(autouse=True)
def small_gpu() -> Iterator[None]:
    with torch.virtual(devices=1, profile="a100-40g", races="error"):
        torch.cuda.set_per_process_memory_fraction(0.0005)
        yield


def test_writes_are_not_lost() -> None:
    x = torch.ones(BYTES, dtype=torch.int8, device="cuda")
    kept: list[Any] = []

    def body() -> None:
        x.add_(1)
        kept.append(x * 5)  # eager code raises here
        kept.append(kept[0] + 1)
        x.mul_(3)

    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.compile(body)()
    assert (x[0].item(), x[-1].item(), x._version) == (6, 6, 2)
    with pytest.raises(RuntimeError, match="never allocated, because the launch that computes it failed"):
        kept[1].sum()
    kept.clear()
    torch.compile(lambda: x.sub_(5))()
    assert x[0].item() == 1
    assert torch.cuda.memory_allocated() == BYTES


def test_results_before_the_shortage_exist() -> None:
    kept: list[Any] = []

    def body() -> None:
        kept.append(x + 1)
        kept.append(x.to(torch.int64))

    x = torch.ones(BYTES // 3, dtype=torch.int8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        torch.compile(body)()
    assert kept[0][0].item() == 2


def test_write_that_needs_a_lost_result_is_lost_alone() -> None:
    """Check that nothing reads memory that was never allocated."""
    x, flag = (torch.ones(BYTES // 2, dtype=torch.int8, device="cuda") for _ in range(2))

    def body() -> Any:
        flag.mul_(2)
        wide = x.to(torch.int64)
        x.copy_(wide)
        flag.add_(3)
        return wide

    with pytest.raises(torch.OutOfMemoryError):
        torch.compile(body)()
    assert (x[0].item(), flag[0].item()) == (1, 5)
