"""Ranks that ask without end whether work is done that never can be: told at once; and those that only have to wait."""

from __future__ import annotations

from typing import Any

import pytest

import flambeau as torch
from flambeau import distributed as dist
from flambeau.driver.virtual.collectives import collectives
from flambeau.testing.ranks import ranks

SCHEDULES = ["earliest", "random:1", "adversarial:2", "pct:3:2"]


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "_PATIENCE", 300)


def begun() -> tuple[int, Any]:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    dist.all_reduce(x)
    return dist.get_rank(), x


def ask(work: Any) -> None:
    while not work.is_completed():
        pass


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_rank_that_asks_for_what_never_comes_is_told(schedule: str) -> None:
    def program() -> None:
        rank, x = begun()
        if rank == 0:
            ask(dist.all_reduce(x, async_op=True))

    with pytest.raises(torch.DriverError, match="the program asks without end at") as caught:
        ranks(program, 2, schedule=schedule)
    text = str(caught.value)
    assert "test_endless_questions.py:" in text.splitlines()[0]
    assert "'all_reduce' of side stream" in text and "rank 1 (cuda:1), which has not arrived" in text
    assert "rank 1 has ended" in text


def test_ranks_that_ask_each_other_are_told() -> None:
    def program() -> None:
        rank, x = begun()
        ask(dist.irecv(x, 1 - rank))

    with pytest.raises(torch.DriverError, match="the program asks without end at") as caught:
        ranks(program, 2)
    assert "recv" in str(caught.value)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_who_only_has_to_wait_is_not(schedule: str) -> None:
    """A long kernel of the other rank, or before the work itself: more questions than patience, and then a yes."""
    asked = []

    def program() -> None:
        rank, x = begun()
        if rank == 1:
            torch.cuda._sleep(3 * 10**6)
        work = dist.all_reduce(x, async_op=True)
        count = 0
        while not work.is_completed():
            count += 1
        asked.append(count)
        torch.cuda._sleep(3 * 10**6)
        done = torch.cuda.Event()
        done.record()
        dist.all_reduce(x, async_op=True)
        while not done.query():
            count += 1

    ranks(program, 2, schedule=schedule)
    assert len(asked) == 2
    if schedule == "earliest":
        assert max(asked) > 300
