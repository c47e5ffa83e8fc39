"""Failures of an exploration: one for each bug, each outcome explained, and what is found is kept when it ends early."""

import itertools

import pytest

import flambeau as torch
from flambeau.testing import runs
from flambeau.testing.explore import explore
from flambeau.testing.outcome import Outcome, without_addresses


def steps(count):
    """A loop that lacks a wait: each way of swapping its steps gives another sum."""
    x, side = torch.zeros(1, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    for i in range(count):
        x.add_(i + 1)
        with torch.cuda.stream(side):
            x.mul_(i + 2)
    torch.cuda.synchronize()
    return x


def test_a_loop_is_one_failure_with_all_its_outcomes():
    found = explore(lambda: steps(3), 1000, ["exhaustive"], check=False)
    (failure,) = found.failures
    assert found.complete and failure.count == found.orders - 1  # but the recorded one
    assert 1 + 1 + len(failure.others) == found.outcomes > 3
    assert "more of the orders that were run" in str(failure) and "also: gives" in str(failure)
    assert f"and {len(failure.others) - 3} more outcomes" in str(failure)


def test_two_bugs_are_two_failures():
    def program():
        side, out = torch.cuda.Stream(), []
        for value in (1.0, 2.0):
            x = torch.zeros(4, device="cuda")
            torch.cuda.synchronize()
            x.fill_(value)
            with torch.cuda.stream(side):
                out.append(x + 0 if value == 1.0 else x * 2)
            torch.cuda.synchronize()
        return out

    found = explore(program, 100, ["exhaustive"], check=False)
    assert sorted(f.swaps[0].first.operator for f in found.failures) == ["add", "mul"]
    assert all(len(f.swaps) == 1 for f in found.failures)


def test_a_failure_names_the_two_commands_in_its_replay_line():
    def program():
        x, side = torch.zeros(4, device="cuda"), torch.cuda.Stream()
        torch.cuda.synchronize()
        x.fill_(1.0)
        with torch.cuda.stream(side):
            y = x * 2
        torch.cuda.synchronize()
        return y

    (failure,) = explore(program, 10).failures
    line = program.__code__.co_firstlineno
    assert failure.replay_label.replace("tests/explore/", "") == (
        f"replay, with mul at test_failures.py:{line + 5} before fill_ at test_failures.py:{line + 3}"
    )
    assert failure.swaps[0].first.source == "y = x * 2"


# -- outcomes that no order explains ----------------------------------------------------------------------


def explained(found):
    """Each outcome has an order, or a failure says why it has none."""
    return found.outcomes <= found.orders or any(failure.cause for failure in found.failures)


def test_times_that_are_returned_are_named_as_the_cause():
    def program():
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        side = torch.cuda.Stream()
        begin.record()
        for _ in range(3):
            with torch.cuda.stream(side):
                torch.ones(5_000_000, device="cuda").record_stream(torch.cuda.current_stream())
            torch.ones(10_000_000, device="cuda")
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end)

    found = explore(program, 12, ["random", "adversarial"])
    (failure,) = found.failures
    assert found.outcomes > 1 and explained(found) and not failure.nondeterministic
    line = program.__code__.co_firstlineno + 10
    assert "Each repeats" in failure.cause and f"test_failures.py:{line}" in failure.cause


@pytest.mark.parametrize("every", [2, 4, 5, 7])
def test_a_program_that_seldom_differs_is_nondeterministic_by_itself(every):
    """Its runs agree two by two, so that running each order twice shows nothing."""
    calls = itertools.count()

    def program():
        return [steps(2), next(calls) // every]

    found = explore(program, 200)
    assert found.failures[-1].nondeterministic or found.failures[0].nondeterministic, str(found)
    assert explained(found) and "ended early: the program is nondeterministic by itself" in str(found)
    (cause,) = [failure.cause for failure in found.failures if failure.nondeterministic]
    assert "the second" in cause or "Nor does" in cause


def test_another_way_of_the_program_is_named():
    calls = itertools.count()

    def program():
        x = torch.ones(3, device="cuda")
        torch.cuda.current_stream().query()
        if next(calls) in (2, 3):  # in both runs of the second schedule
            x.add_(5)
        return x

    found = explore(program, 2, ["random"])
    line = program.__code__.co_firstlineno + 4
    (failure,) = found.failures
    assert "the program itself went another way. It gave command #1 'add_'" in failure.cause
    assert (
        f"test_failures.py:{line} (x.add_(5)); in the recorded run command #1 'copy to the host (explore)'"
        in failure.cause
    )
    assert explained(found)


@pytest.mark.parametrize("show", [hex, str, "at {:#x}.".format])
def test_addresses_are_no_outcomes(show):
    found = explore(lambda: show(torch.ones(3, device="cuda").data_ptr()), 3)
    assert found.ok and "<address 0x10000200000>" in str(found.expected), str(found)


def test_numbers_that_are_no_addresses_are_outcomes():
    texts = itertools.cycle([f"{0xABCDEF0123456789:#x}", f"{0xABCDEF0123456780:#x}"])
    (failure,) = explore(lambda: next(texts), 3).failures
    assert failure.nondeterministic and "0xabcdef0123456789" in str(failure)


@pytest.mark.parametrize("form", ["29.{}", "{}.5", "{}e3", "x{}"])
def test_digits_of_other_numbers_are_no_addresses(form):
    ptr = 0x1010000200000
    text = form.format(ptr)
    assert without_addresses(Outcome(text), (ptr, ptr + 1)).value == text
    assert without_addresses(Outcome(f"at {ptr}."), (ptr, ptr + 1)).value == "at <address 0x0>."


def test_objects_are_shown_without_their_addresses():
    assert explore(lambda: repr(object()), 3).ok


# -- ends -------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """A clock of the test's own: each look at it lasts a second."""
    seconds = itertools.count()
    monkeypatch.setattr(runs, "monotonic", lambda: next(seconds))
    return seconds


def test_the_time_budget_ends_an_exploration(clock):
    found = explore(lambda: steps(4), None, ["random"], seconds=30, check=False, shrink=False)
    assert 1 < found.schedules <= 30 and found.ended == "the 30 s that it was given are over"
    assert "ended early: the 30 s" in str(found)


def test_the_time_budget_ends_the_search_for_a_simpler_order(clock):
    found = explore(lambda: steps(4), None, ["random"], seconds=4, check=False)
    assert found.failures and found.runs < 6


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"schedules": None}, ValueError),
        ({"seconds": 0}, ValueError),
        ({"seconds": -1.0}, ValueError),
        ({"seconds": float("nan")}, ValueError),
    ],
)
def test_budgets_without_an_end_are_refused(options, error):
    with pytest.raises(error):
        explore(lambda: None, **options)


def test_a_failure_is_shown_before_it_is_reduced():
    seen = []
    found = explore(
        lambda: steps(3), 30, ["adversarial"], watch=lambda found, failure: seen.append((failure, found.runs))
    )
    failure, at = next((failure, at) for failure, at in seen if failure is not None)
    assert at == 2 < found.runs and sum(s.count for s in failure.swaps) > sum(
        s.count for s in found.failures[0].swaps
    )


def test_an_interrupt_leaves_what_was_found():
    calls, last = itertools.count(), []

    def program():
        if next(calls) == 3:  # while the first failure is reduced
            raise KeyboardInterrupt
        return steps(3)

    with pytest.raises(KeyboardInterrupt):
        explore(program, 30, ["adversarial"], check=False, watch=lambda found, failure: last.append(found))
    (failure,) = last[-1].failures
    assert failure.swaps and last[-1].outcomes >= 2
