"""`Orders`: the orders of a recorded graph: which are new, the runs of those, and failures shrunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from flambeau.testing.conflicts import MOST_PAIRS
from flambeau.testing.runs import Run, Runs

_LEFT = (
    "in some orders the program gave other commands, or other indices, whose own orders were not looked at"
)


class Orders:
    """The orders of a run's graph. `cut` is True if there are too many to explore all."""

    def __init__(self, runs: Runs, first: Run) -> None:
        self.runs, self.found, self.graph = runs, runs.found, first.graph
        self.conflicts = runs.conflicts(self.graph)
        self._seen = {self.conflicts.signature(self.graph.steps_of_token(first.token))}
        self.cut = self.conflicts.cut

    def count(self) -> Orders:
        """Add the graph's pairs to those that are explored."""
        self.found.pairs += len(self.conflicts.pairs)
        if self.cut:
            self._doubt(f"only the first {len(self.conflicts.pairs)} conflicting pairs were looked at")
        return self

    def look(self, kinds: list[str], seed: int) -> None:
        """Explore orders of these kinds until all are seen or a limit is reached."""
        for name, order in self._orders(kinds, seed):
            if not self.runs.going:
                return
            self._consider(name, order)
        self.found.complete = not self.cut

    def exhaust(self) -> Iterator[None]:
        """Explore all classes of orders, one in each step."""
        if len(self.conflicts.pairs) > MOST_PAIRS:
            self.cut = True
            return
        for forced in self.conflicts.classes() if self.conflicts.pairs else ():
            self._consider(f"exhaustive:{self.found.schedules}", self.graph.oldest(forced))
            yield

    def _orders(self, kinds: list[str], seed: int) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield orders forever, or until an exhaustive search has yielded all."""
        if not self.conflicts.pairs:
            return
        rest = [kind for kind in kinds if kind != "exhaustive"]
        if len(rest) < len(kinds) and len(self.conflicts.pairs) <= MOST_PAIRS:
            yield from self._mix_policies(rest, seed)
            return
        for schedule in names(rest or ["random"], seed):
            yield schedule, self.graph.order(schedule)

    def _mix_policies(self, rest: list[str], seed: int) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield all classes of orders, alternating with orders of the other policies."""
        others = names(rest, seed) if rest else iter(())
        for number, forced in enumerate(self.conflicts.classes()):
            yield f"exhaustive:{number}", self.graph.oldest(forced)
            for schedule in islice(others, 1):
                yield schedule, self.graph.order(schedule)

    def _consider(self, name: str, order: Sequence[Any]) -> None:
        """Run the program in an order, if none of its class was run before."""
        self.found.schedules += 1
        signature = self.conflicts.signature(order)
        if signature not in self._seen:
            self._seen.add(signature)
            self._try(name, order)

    def _try(self, name: str, order: Sequence[Any]) -> None:
        run = self.runs.judge(name, "follow:" + self.graph.token(order))
        if run is None:
            return
        if self._has_diverged(run):
            self._doubt(_LEFT)
        if run.outcome != self.found.expected:
            self.runs.fail(name, run, lambda run: self.simplest(run, order))

    def _has_diverged(self, run: Run) -> bool:
        """Return True if the run had other commands or indices than the recorded one, so only its own token repeats
        it.
        """
        return _course(run.graph) != _course(self.graph)

    def _doubt(self, text: str) -> None:
        if text not in self.found.violated:
            self.found.violated = [*self.found.violated, text]

    def simplest(self, run: Run, order: Sequence[Any]) -> tuple[str, Run]:
        """Remove swaps, halves first, while the outcome stays wrong. Returns a token of the remaining swaps, and its
        run.
        """
        token, forced = self.graph.token(order), self.conflicts.reversed_pairs(order)
        size = max(len(forced) // 2, 1)
        while size:
            for begin in range(0, len(forced), size):
                order = self.graph.oldest(forced[:begin] + forced[begin + size :])
                fewer = forced if order is None else self.conflicts.reversed_pairs(order)
                if order is None or len(fewer) >= len(forced) or not self.runs.patient:
                    continue
                again = self.runs.again("a simpler order", "follow:" + self.graph.token(order))
                if again.outcome != self.found.expected and self.runs.patient:
                    token, forced, run = self.graph.token(order), fewer, again
                    break
            else:
                size //= 2
        return run.token if self._has_diverged(run) else token, run


def names(kinds: list[str], seed: int) -> Iterator[str]:
    """Yield `random:0, pct:0:1, ..., random:1, ...` without end, as schedules are written."""
    while True:
        for kind in kinds:
            name, _, depth = kind.partition(":")
            yield f"{name}:{seed}:{depth}" if depth else f"{name}:{seed}"
        seed += 1


def _course(graph: Any) -> tuple[list[int], list[bool], list[int]]:
    """Return the program's commands, its answers, and the elements that its indices selected."""
    named = [s.named.digest for s in graph.steps if s.named is not None]
    return [s.mark for s in graph.steps if s.free], [s.poll.done for s in graph.polls], named
