"""Threads that take turns: one runs at a time, the order repeats, and a wait in vain is told at once."""

from __future__ import annotations

import random
import threading
from itertools import chain, repeat

import pytest

from flambeau.core.errors import DriverError
from flambeau.core.host import turn_scheduler
from flambeau.core.host.turn_scheduler import Baton, local, seat


def waits_for(condition, what="a thing"):
    seat().wait(condition, lambda: f"waits for {what}")


def test_threads_run_one_after_the_other_until_they_wait():
    seen = []
    flags = set()

    def body(number):
        seen.append((number, "begins"))
        waits_for(lambda: number == 0 or number - 1 in flags)
        seen.append((number, "goes on"))
        flags.add(number)

    baton = Baton(3)
    assert baton.run([lambda n=n: body(n) for n in range(3)]) is None
    begins, goes_on = [(n, "begins") for n in range(3)], [(n, "goes on") for n in range(3)]
    assert seen == [begins[0], goes_on[0], begins[1], goes_on[1], begins[2], goes_on[2]]
    assert seat() is None and local.seat is None


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_gives_one_order(seed):
    def run():
        seen, rng = [], random.Random(seed)
        baton = Baton(4, choose=rng.choice)

        def body(number):
            for round_ in range(3):
                seen.append((number, round_))
                waits_for(chain([False], repeat(True)).__next__)

        assert baton.run([lambda n=n: body(n) for n in range(4)]) is None
        return seen

    first = run()
    assert first == run()
    assert sorted(first) == [(n, r) for n in range(4) for r in range(3)]


def test_switches_are_told_of_and_only_real_ones():
    told, done = [], set()
    baton = Baton(2, switched=lambda a, b: told.append((a, b)))

    def body(number):
        waits_for(lambda: True)
        waits_for(lambda: number or 1 in done)
        done.add(number)

    assert baton.run([lambda: body(0), lambda: body(1)]) is None
    assert told == [(0, 1), (1, 0)]


def test_nobody_can_go_on():
    errors = {}

    def body(number):
        try:
            waits_for(lambda: False, f"thing {number}")
        except DriverError as error:
            errors[number] = str(error)
            raise

    baton = Baton(2)
    error = baton.run([lambda: body(0), lambda: body(1)])
    assert isinstance(error, DriverError) and list(errors) == [baton.failed]
    for number in (0, 1):
        assert f"rank {number} at " in str(error) and f"waits for thing {number}" in str(error)


def test_one_has_ended_and_the_other_waits_for_it():
    baton = Baton(2)
    error = baton.run([lambda: waits_for(lambda: False, "rank 1"), lambda: None])
    assert isinstance(error, DriverError) and baton.failed == 0
    assert (
        "rank 0 at " in str(error) and "waits for rank 1" in str(error) and "rank 1 has ended" in str(error)
    )


def test_the_first_error_ends_all():
    ended = []

    def waiting(number):
        try:
            waits_for(lambda: False)
        finally:
            ended.append(number)

    def failing():
        raise KeyError("x")

    baton = Baton(3)
    error = baton.run([lambda: waiting(0), lambda: waiting(1), failing])
    assert isinstance(error, KeyError) and baton.failed == 2
    assert sorted(ended) == [0, 1]


def test_a_thread_may_go_on_after_a_wait_in_vain():
    done = set()

    def body():
        with pytest.raises(DriverError):
            waits_for(lambda: False)
        done.add(0)

    assert Baton(2).run([lambda: waits_for(lambda: 0 in done), body]) is None  # who finds out is told


def test_a_turn_that_lasts_is_named(monkeypatch):
    lines, named = [], threading.Event()

    def write(line, **where):
        lines.append(line)
        named.set()

    def turn():
        named.wait()

    monkeypatch.setattr(turn_scheduler, "print", write, raising=False)
    monkeypatch.setattr(turn_scheduler, "_LOOK_S", 0.01)
    assert Baton(3).run([lambda: waits_for(named.is_set), turn, lambda: None]) is None
    assert "rank 1 has run for" in lines[0] and "test_baton.py:" in lines[0]
    assert lines[0].endswith("meanwhile these ranks wait: 0, 2")
