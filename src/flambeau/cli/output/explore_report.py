"""`write_exploration`: the report of `flambeau explore`: coverage, races, failures, the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from flambeau.cli.output.console import GREEN, MARGIN, RED, YELLOW, Screen
from flambeau.cli.output.race_entries import write_races
from flambeau.observe.reports import Race
from flambeau.report.document import Document, head
from flambeau.report.recorder import race_fields
from flambeau.testing.exploration import Exploration
from flambeau.testing.failures import Failure
from flambeau.testing.outcome import Outcome

_SWAPS = 4  # swaps of a failure that are shown


def exploration_document(found: Exploration, status: int) -> Document:
    """Return the report of an exploration in the form of its JSON file."""
    numbers = {
        name: getattr(found, name)
        for name in (
            "schedules",
            "runs",
            "outcomes",
            "orders",
            "answers",
            "pairs",
            "commands",
            "complete",
            "ended",
        )
    }
    exploration = {
        **numbers,
        "coverage": found.coverage,
        "limits": [*found.remarks, *found.violated],
        "verdict": found.verdict if found.ok else None,
        "expected": _outcome_fields(found.expected),
        "failures": [_failure_fields(failure) for failure in found.failures],
        "races": [race_fields(race) for race in found.races],
    }
    return {**head("explore", status), "exploration": exploration}


def _outcome_fields(outcome: Outcome) -> Document:
    return {"text": str(outcome), "error": outcome.error, "line": outcome.line or None}


def _failure_fields(failure: Failure) -> Document:
    swaps = [{"first": asdict(s.first), "second": asdict(s.second), "count": s.count} for s in failure.swaps]
    return {
        "schedule": failure.schedule, "token": failure.token, "replay": failure.replay, "count": failure.count,
        "outcome": _outcome_fields(failure.outcome), "unlike": failure.unlike or None,
        "other_outcomes": [str(outcome) for outcome in failure.others], "swaps": swaps,
        "answers": [str(answer) for answer in failure.answers], "cause": failure.cause or None,
        "nondeterministic": failure.nondeterministic,
    }  # fmt: skip


def write_exploration(
    found: Exploration, file: TextIO, notes: Iterable[str], written: Sequence[Path] = ()
) -> None:
    """Print the report of an exploration, in colour if the file is a terminal with colours."""
    screen = Screen(file)
    screen.title("flambeau explore")
    screen.entry("explored", found.coverage)
    for text in (*found.remarks, *notes):
        screen.entry("", text)
    if found.races:
        write_races([race_fields(race) for race in found.races], screen)
    if found.expected.error is not None:
        screen.entry("failure", f"the recorded run {found.expected}", RED)
    if found.failures:
        _write_failures(found, screen)
    if found.ok:
        _write_verdict(found, screen)
    for path in written:
        screen.entry("written", str(path))
    screen.end()


def write_first(found: Exploration, first: Race | Failure, file: TextIO) -> None:
    """Print a race or failure while the exploration goes on."""
    screen = Screen(file)
    screen.title(f"flambeau explore: found in run {found.runs} of the program; the exploration continues")
    if isinstance(first, Race):
        write_races([race_fields(first)], screen)
    else:
        _write_failure("failure", first, screen)
    screen.end()


def _write_failures(found: Exploration, screen: Screen) -> None:
    count, kinds = sum(failure.count for failure in found.failures), len(found.failures)
    of = f", of {kinds} kinds" if kinds > 1 else ""
    screen.entry("failures", f"{count} order{'s' if count > 1 else ''} with another outcome{of}", RED)
    for number, failure in enumerate(found.failures, 1):
        screen.line()
        _write_failure(f"{number}.".rjust(MARGIN - 2), failure, screen)
    if not all(failure.nondeterministic for failure in found.failures):
        screen.line()
        screen.entry("expected", f"as in the recorded run: {found.expected}")


def _write_failure(label: str, failure: Failure, screen: Screen) -> None:
    screen.entry(label, failure.headline)
    if failure.unlike:
        screen.detail("differs", failure.unlike)
    if failure.others:
        screen.detail("also", failure.other_outcomes)
    for answer in failure.answers[:_SWAPS]:
        screen.detail("answer", str(answer))
    for swap in failure.swaps[:_SWAPS]:
        screen.detail("swapped", f"{swap.first.described} runs before")
        screen.code(swap.first.source)
        screen.detail("", f"{swap.second.described}{swap.often}")
        screen.code(swap.second.source)
    rest = len(failure.reorderings) - len(failure.answers[:_SWAPS]) - len(failure.swaps[:_SWAPS])
    if rest:
        screen.detail("", f"and {rest} more")
    if failure.cause:
        screen.detail("cause", failure.cause)
    if not failure.nondeterministic:
        screen.line()
        screen.line(f"{' ' * MARGIN}{failure.replay_label}:")
        screen.line(f"{' ' * MARGIN}{failure.replay}")  # not wrapped, because users copy the line


def _write_verdict(found: Exploration, screen: Screen) -> None:
    proved = found.complete and not found.violated
    first, *rest = found.verdict.split("\n  - ")
    screen.entry("verdict", first, GREEN if proved else YELLOW)
    screen.items(rest)
