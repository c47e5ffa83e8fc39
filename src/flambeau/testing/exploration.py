"""`Exploration`: the orders that an exploration of a program has tried, its results, and its report as text."""

from __future__ import annotations

from dataclasses import dataclass, field

from flambeau.observe.reports import Race
from flambeau.testing.failures import Failure
from flambeau.testing.outcome import Outcome


@dataclass(slots=True)
class Exploration:
    """The extent and the results of an exploration.

    Attributes:
        schedules: Number of orders that were examined.
        runs: Number of these that ran the program.
        outcomes: Number of distinct outcomes.
        orders: Number of distinct combinations of directions of the conflicting pairs.
        pairs: Number of unordered conflicting pairs.
        commands: Number of commands in the recorded graph.
        complete: True if every combination of directions was run.
        answers: Number of combinations of answers of a program that polls; each has its own orders.
        most_refusals: Greatest number of times that a repeated poll returned False; 0 if there was none.
        whole: Reasons why each schedule was a run of the whole program; empty if graphs were enough.
        ended: Reason why the exploration stopped early; empty if it did not.
    """

    expected: Outcome
    schedules: int = 0
    runs: int = 0
    outcomes: int = 1
    orders: int = 0
    answers: int = 0
    most_refusals: int = 0
    pairs: int = 0
    commands: int = 0
    complete: bool = False
    whole: str = ""
    ended: str = ""
    failures: list[Failure] = field(default_factory=list)
    races: list[Race] = field(default_factory=list)
    violated: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failures and not self.races and self.expected.error is None

    def check(self) -> None:
        """Raise AssertionError, with a replay line for each kind of failure, if there is a failure."""
        if not self.ok:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        lines = [self.coverage, *self.remarks]
        if self.expected.error is not None:
            lines.append(f"failure: earliest: the recorded run {self.expected}")
        lines += [f"race: {race}" for race in self.races]
        lines += [f"failure: {failure}" for failure in self.failures]
        if any(not failure.nondeterministic for failure in self.failures):
            lines.append(f"expected, as in the recorded run: {self.expected}")
        if self.ok:
            lines.append(self.verdict)
        return "\n".join(lines)

    @property
    def remarks(self) -> list[str]:
        """Return the limits of the coverage, one line each."""
        whole = [f"each a run of the whole program: {self.whole}"] if self.whole else []
        return [*whole, *([f"ended early: {self.ended}"] if self.ended else [])]

    @property
    def coverage(self) -> str:
        counts = [f"{_many(self.schedules, 'schedule')} of {_many(self.commands, 'command')}"]
        if self.answers:
            counts.append(f"{_many(self.answers, 'way')} of answering the host's questions")
        if not self.whole:  # else pairs were not looked for
            orders = _many(self.orders, "distinct order")
            counts.append(f"{orders} of {_many(self.pairs, 'unordered conflicting pair')}")
        counts += [_many(self.outcomes, "distinct outcome"), f"{_many(self.runs, 'run')} of the program"]
        return ", ".join(counts)

    @property
    def verdict(self) -> str:
        """Return the text that says what the exploration proves if it found no failure."""
        if self.violated:
            return "\n  - ".join(["The same outcome in all of them. Not proved for others:", *self.violated])
        if self.complete:
            orders = f"every legal order of these commands{self._asked}"
            return f"The same outcome in {orders}: all that can differ were run."
        if self.whole:  # by the runtime itself, which no outcome depends on: else it were violated
            return "The same outcome in all of them; by the first run's certificate, in every legal order."
        return "The same outcome in all of them; more orders can differ."

    @property
    def _asked(self) -> str:
        if self.answers < 2:
            return ""
        again = (
            f" (the same again and again: no at most {self.most_refusals} times)"
            if self.most_refusals
            else ""
        )
        return f", whatever its queries about finished work return{again}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
