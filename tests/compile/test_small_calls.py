"""Compiled functions launch calls of small tensors immediately, as eager code does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import flambeau as torch
from flambeau.runtime.hooks import launch_deferral
from flambeau.tensor import call
from flambeau.tensor.fusion import collecting

SMALL, LARGE = 16, 64  # rows of 16 floats; calls are collected from the size of LARGE on


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(collecting, "LEAST_NBYTES", LARGE * 16 * 4)
    monkeypatch.setattr(collecting, "_LEAST_ROW", 2)
    monkeypatch.setenv("FLAMBEAU_LOGS", "fusion")
    with torch.virtual(devices=1, races="error"):
        yield


@pytest.fixture
def groups(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """Return a function that returns the lines of the log about groups."""
    return lambda: [line for line in capsys.readouterr().err.splitlines() if line.startswith("fusion: ")]


def chain(x: Any) -> Any:
    return ((x * 2 + 1).tanh() - x).abs()


@pytest.mark.parametrize("rows", [1, SMALL, LARGE - 1, LARGE, LARGE + 1])
def test_calls_wait_from_the_least_size_on(rows: int, groups: Callable[[], list[str]]) -> None:
    x = torch.randn(rows, 16, device="cuda")
    assert torch.equal(torch.compile(chain)(x), chain(x))
    assert len(groups()) == (rows >= LARGE)


def test_small_calls_take_the_fast_path() -> None:
    x = torch.randn(SMALL, 16, device="cuda")
    seen = []

    def body() -> Any:
        y = chain(x)
        seen.append((launch_deferral.pending, call.fast_plans is call.immediate, len(call.immediate)))
        return y

    compiled = torch.compile(body)
    for _ in range(2):
        compiled()
    assert seen == [(None, True, 5)] * 2
    assert call.fast_plans is call.plans


def test_small_call_joins_the_group_whose_result_it_reads(groups: Callable[[], list[str]]) -> None:
    """Fuse a normalization by hand, whose results of rows are small, into one kernel."""

    def normalize(x: Any) -> Any:
        centered = x - x.mean(-1, keepdim=True)
        return centered * ((centered * centered).mean(-1, keepdim=True) + 1e-5).rsqrt()

    x = torch.randn(LARGE, 16, device="cuda")
    assert torch.equal(torch.compile(normalize)(x), normalize(x))
    assert len(groups()) == 1


def test_small_calls_see_writes_of_pending_calls(groups: Callable[[], list[str]]) -> None:
    def body(x: Any) -> Any:
        x.mul_(2)
        small = x[0] + 1  # not a result of the group, but memory that it writes
        x.add_(1)
        return small, x[0] * 1

    x = torch.ones(LARGE, 16, device="cuda")
    first, second = torch.compile(body)(x)
    assert first.unique().tolist() == [3.0] == second.unique().tolist()
    assert [line.split("issued because: ")[1] for line in groups() if "issued" in line]


def test_graphs_fuse_calls_of_all_sizes(groups: Callable[[], list[str]]) -> None:
    x = torch.randn(SMALL, 16, device="cuda")
    replayed = torch.compile(chain, mode="reduce-overhead")
    for _ in range(3):
        assert torch.equal(replayed(x), chain(x))
    assert any("captured 1 launches" in line for line in groups())


def test_sizes_of_calls_follow_the_compiled_function() -> None:
    """Change the least size from function to function."""
    x = torch.randn(SMALL, 16, device="cuda")
    pending = []

    def body() -> Any:
        y = x * 2
        pending.append(launch_deferral.pending is not None)
        return y

    for least in (1 << 20, 0, 1 << 20, 0):
        with collecting.CollectedLaunches(least), collecting.CollectedLaunches(1 << 20):
            body()
    assert pending == [False, True, False, True]
