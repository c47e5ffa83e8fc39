"""`Failure`: an order of commands with a wrong outcome, what distinguishes it from the recorded run, and its kind."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from flambeau.testing.outcome import Outcome

_OTHERS = 3  # number of further outcomes of one kind that a report shows


@dataclass(frozen=True, slots=True)
class CommandUse:
    """A command of the explored program: its number, operator and stream, and the line that requested it."""

    number: int
    operator: str
    stream: str
    place: str
    file: str
    line: int
    source: str

    def __str__(self) -> str:
        text = f" ({self.source})" if self.source else ""
        return f"{self.described}{text}"

    @property
    def described(self) -> str:
        return f"command #{self.number} '{self.operator}' of {self.stream} at {self.place}"

    @property
    def brief(self) -> str:
        return f"{self.operator} at {self.place}"


@dataclass(frozen=True, slots=True)
class Swap:
    """Two commands that the failing order runs in the reverse order of the program's requests.

    Attributes:
        first: The command that runs first in the failing order.
        second: The command that was requested first.
        count: Number of swapped pairs of commands from these two lines.
    """

    first: CommandUse
    second: CommandUse
    count: int = 1

    def __str__(self) -> str:
        return f"{self.first} runs before {self.second}{self.often}"

    @property
    def often(self) -> str:
        return f" ({self.count} such pairs)" if self.count > 1 else ""

    @property
    def brief(self) -> str:
        return f"{self.first.brief} before {self.second.brief}"


@dataclass(frozen=True, slots=True)
class Answer:
    """A poll whose answer differs from that in the recorded run."""

    place: str
    what: str
    done: bool

    def __str__(self) -> str:
        return f"asked at {self.place} whether {self.what} is done: {'yes' if self.done else 'no'}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A kind of wrong outcome, represented by the simplest order of commands that leads to it.

    Attributes:
        schedule: The schedule that found it.
        token: The choices of that order; `replay` is the line that repeats it.
        outcome: The program's result or exception.
        swaps: Pairs of commands that the order swaps.
        answers: Answers to polls that differ.
        cause: Why no swap and no answer explains the outcome; empty if they do.
        nondeterministic: Two runs of one order differ: the program depends on something that no schedule controls.
        unlike: The first difference from the expected outcome, if both look equal in the report.
        count: Number of orders of this kind that were run.
        others: Further outcomes of this kind.
    """

    schedule: str
    token: str
    outcome: Outcome
    replay: str
    swaps: tuple[Swap, ...] = ()
    answers: tuple[Answer, ...] = ()
    cause: str = ""
    nondeterministic: bool = False
    unlike: str = ""
    count: int = 1
    others: tuple[Outcome, ...] = ()

    @property
    def reorderings(self) -> tuple[str, ...]:
        """Return the swaps and answers that distinguish the order from the recorded run, as text."""
        return (*map(str, self.answers), *map(str, self.swaps))

    @property
    def kind(self) -> frozenset[Hashable]:
        """Return the call sites that a fix must consider. They are equal for all failures of one bug."""
        if self.cause:
            return frozenset([self.nondeterministic])
        swaps = [frozenset([s.first.brief, s.second.brief]) for s in self.swaps]
        return frozenset([*swaps, *[(a.place, a.done) for a in self.answers]])

    @property
    def headline(self) -> str:
        """Return one line with the schedule that found the failure, and the outcome."""
        often = f" (and {self.count - 1} more of the orders that were run)" if self.count > 1 else ""
        return f"{self.schedule}{often}: {self.outcome}"

    @property
    def other_outcomes(self) -> str:
        """Return the further outcomes of this kind, as text; empty for none."""
        texts = [str(outcome) for outcome in self.others[:_OTHERS]]
        rest = len(self.others) - _OTHERS
        return "; ".join(texts) + (f"; and {rest} more outcomes" if rest > 0 else "")

    @property
    def replay_label(self) -> str:
        """Return the label of the replay line in the report."""
        texts = [swap.brief for swap in self.swaps]
        texts += [f"the answer {'yes' if a.done else 'no'} at {a.place}" for a in self.answers]
        rest = f" and {len(texts) - 1} more" if len(texts) > 1 else ""
        return f"replay, with {texts[0]}{rest}" if texts else "replay"

    def __str__(self) -> str:
        lines = [self.headline, *([f"  {self.unlike}"] if self.unlike else [])]
        lines += [f"  also: {self.other_outcomes}"] if self.others else []
        lines += [f"  {text}" for text in self.reorderings]
        lines += [f"  {self.cause}"] if self.cause else []
        lines += [] if self.nondeterministic else [f"  {self.replay_label}: {self.replay}"]
        return "\n".join(lines)

    def with_outcome(self, *outcomes: Outcome) -> Failure:
        """Return this failure with further outcomes of its kind."""
        others = dict.fromkeys([*self.others, *outcomes])
        others.pop(self.outcome, None)
        return replace(self, others=tuple(others))

    def merge(self, other: Failure) -> Failure:
        """Return this failure with `other` added to the orders that it represents."""
        return replace(self.with_outcome(other.outcome, *other.others), count=self.count + other.count)


def add_failure(failures: list[Failure], new: Failure) -> None:
    """Add a failure. If it is of the same bug as a former one, the simpler of the two represents both."""
    for i, old in enumerate(failures):
        if old.kind == new.kind or is_example(new, old):
            failures[i] = old.merge(new)
            return
        if is_example(old, new):
            failures[i] = new.merge(old)
            return
    failures.append(new)


def is_example(one: Failure, known: Failure) -> bool:
    """Return True if `one` swaps all pairs that `known` swaps and more, which may not matter for its outcome.

    After several outcomes of a kind, another outcome does not count as new.
    """
    if one.cause or known.cause or not known.kind <= one.kind:
        return False
    return one.outcome in (known.outcome, *known.others) or len(known.others) >= _OTHERS
