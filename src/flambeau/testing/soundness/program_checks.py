"""`Check`: the properties of a program: the detector agrees with the model, outcomes repeat, races can be forced."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flambeau.testing.soundness.executor import HAS_PLACEMENTS, Execution, Executor
from flambeau.testing.soundness.forcing import UNFORCED, Forcing
from flambeau.testing.soundness.model import ModelRace
from flambeau.testing.soundness.program_steps import OPERATIONS, Step
from flambeau.testing.soundness.programs import Program, Where

REASONS = {
    "unwritten": "never written|undefined",
    "question": r"query\(\)",
    "graph": "was there when it was captured",
    "threads": "host threads",
    "casts": "autocast's cache",
    "asking": "depends on timing",
    "export": "shows pinned memory that",
}
_ROUNDS = 3  # rounds of inserting fixes, because a race may hide another one
# a write through an array, which the detector notices by the changed bytes at a later line
_SEEN_LATER = "through a view"
SCHEDULES = (
    "earliest",
    "random:1",
    "random:2",
    "random:3",
    "adversarial:0",
    "adversarial:1",
    "pct:1:2",
    "pct:2:3",
)
PLACED = [
    ("pytorch", "earliest"),
    ("pytorch", "random:4"),
    ("random:5", "earliest"),
    ("random:6", "adversarial:1"),
]


@dataclass(frozen=True)
class Problem:
    """A property that a program violates. `kind` is "verdict", "report", "bits", "fix", "unforced" or "error"."""

    kind: str
    program: Program
    text: str


class Check:
    """The checks of one program. `counts` counts the properties that were checked."""

    def __init__(self, program: Program, counts: Counter[str]) -> None:
        self.program, self.counts = program, counts
        self.executor = Executor(program)
        self.races, self.reasons = program.model.verdict()
        self.surely = self.races and not (
            program.model.ranks and not Program(program.steps, True).model.races
        )
        # Such steps differ from run to run or are not visible: memory of a graph, unordered threads, casts, arrays.
        self.loosely = not self.reasons.isdisjoint(("export", "graph", "threads", "casts"))
        self.threads = len(program.model.hosts) > 1 and not program.model.ranks

    def verdict(self, schedule: str = "earliest") -> Iterator[Problem]:
        """Compare the detector's verdict, and the lines of its races, with those of the model."""
        run = self.run = self._run(schedule, "warn")
        if run.error and not self.races and not self.loosely:
            yield self._problem("error", run.error)
        elif problem := self._unlike(run):
            yield self._problem("verdict", f"{problem}\n{run.certificate}")
        else:
            for race in run.certificate.races:
                if not self._is_known(race):
                    yield self._problem("report", f"the model orders these:\n{race}")

    def _is_named(self, certificate: Any) -> bool:
        """Return True if the copies of all races are named as assumptions: unseen arrays use their memory."""
        model, lines = self.program.model, self.executor.lines
        named = " ".join(a for a in certificate.assumptions + certificate.violated if "pinned memory" in a)
        copies = {lines[self.program.where[model.lines[race.first]]] for race in model.races}
        kinds = {race.kind for race in model.races}
        return kinds == {"array"} and all(re.search(rf"program\.py:{line}\b", named) for line in copies)

    def _is_known(self, race: Any) -> bool:
        """Return True if the model contains the reported race, or the race that caused it.

        A stream may reuse memory that another stream has freed. A race on that memory may then be reported a second
        time, for the accesses of the stream that reuses it.
        """
        if _SEEN_LATER in str(race.second):
            return any(each.kind == "array" for each in self.program.model.races)
        pair = self.executor.place(race.first.site), self.executor.place(race.second.site)
        known = self._lines([*self.program.model.races, *self.program.model.doubtful])
        if self.threads:  # threads may reach the two in either order
            known |= {(second, first) for first, second in known}
        carried = race.reused and any(pair[0] == one or pair[1] == other for one, other in known)
        return pair in known or carried or self.loosely

    def _unlike(self, run: Execution) -> str:
        """Return the difference between the verdicts of the detector and the model; "" if they agree."""
        found = run.certificate
        # A question that is answered by yes orders. What threads did in this run may order more than they always do.
        perhaps = "question" in self.reasons or self.threads
        if self.surely and not found.races and not (perhaps and found.violated) and not self._is_named(found):
            return "the model has races, the detector none"
        if self.races:
            return ""
        if found.races and not self.program.model.doubtful and not self.loosely:
            return "the detector has races, the model none"
        if not self.reasons:
            known = not found.violated or self.program.model.conservative
            return "" if known else "withheld, and the model knows no reason"
        text = "\n".join(found.violated)
        known = found.races or any(re.search(REASONS[reason], text) for reason in self.reasons)
        return "" if known else f"the detector has none of the reasons {sorted(self.reasons)}"

    def check_unmodelled(self) -> Iterator[Problem]:
        """Check a program that the model does not cover: if it is certified, it must repeat under every schedule."""
        self.run = self._run("earliest", "warn")
        if self.run.error and "modified by an inplace operation" not in self.run.error:
            yield self._problem("error", self.run.error)
        elif self.run.certificate.race_free:
            yield from self.bits()

    def bits(self) -> Iterator[Problem]:
        """Run a certified program under other schedules and placements, and check that it prints the same bits."""
        expected = self.executor.run_waiting().outcome
        self.counts["runs"] += 1
        for placement, schedule in [
            *[("default", s) for s in SCHEDULES],
            *(PLACED if HAS_PLACEMENTS else ()),
        ]:
            if self._run(schedule, placement=placement).outcome != expected:
                yield self._problem(
                    "bits", f"certified, but {schedule} with placement {placement} prints other values"
                )
                return

    def force_races(self, most: int) -> Iterator[Problem]:
        """Turn reported races into other outcomes."""
        forcing = Forcing(self.executor)
        reports = [race for race in self.run.certificate.races if _SEEN_LATER not in str(race.second)]
        for race in reports[:most]:
            result = forcing.attempt(race)
            self.counts["reports"] += 1
            self.counts[result] += 1
            if result == UNFORCED:
                yield self._problem("unforced", str(race))

    def check_fixes(self) -> Iterator[Problem]:
        """Insert the lines that the reports propose, and check that the program has no race with them."""
        executor, run = Executor(self.program), self.run
        for _ in range(_ROUNDS):
            edits = [edit for race in run.certificate.races for edit in race.fix.edits]
            self.counts["runs"] += 1
            try:
                run = executor.run_edited(edits)
            except SyntaxError as error:
                yield self._problem("fix", f"{error}\n{executor.source}")
                return
            if not run.certificate.races:
                break
        has_new_error = bool(run.error) and not self.run.error
        self.counts["still racy" if run.certificate.races or has_new_error else "repaired"] += 1

    def _run(self, schedule: str, races: str = "off", placement: str = "default") -> Execution:
        self.counts["runs"] += 1
        return self.executor.run(schedule, races, placement)

    def _lines(self, races: list[ModelRace]) -> set[tuple[Where, Where]]:
        model, where = self.program.model, self.program.where
        return {(where[model.lines[race.first]], where[model.lines[race.second]]) for race in races}

    def _problem(self, kind: str, text: str) -> Problem:
        return Problem(kind, self.program, text)


def deletions(program: Program) -> Iterator[tuple[Where, Program]]:
    """Yield each synchronization of a program, and the program without it."""
    for at, step in enumerate(program.steps):
        if OPERATIONS[step.operation].synchronizes:
            yield (at,), Program(without(program.steps, (at,)))
        for within, inner in enumerate(step.inner):
            if OPERATIONS[inner.operation].synchronizes:
                fewer = Program(without(program.steps, (at, within)))
                if len(fewer.steps) == len(
                    program.steps
                ):  # otherwise it belongs to a capture, which is invalid without it
                    yield (at, within), fewer


def without(steps: tuple[Step, ...], place: Where) -> tuple[Step, ...]:
    """Return the steps without the one at a position."""
    at = place[0]
    if len(place) == 1:
        return steps[:at] + steps[at + 1 :]
    inner = without(steps[at].inner, place[1:])
    return (*steps[:at], steps[at]._replace(inner=inner), *steps[at + 1 :])
