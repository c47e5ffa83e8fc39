"""`Forcing`: runs that turn a reported race into a different outcome, or the reason why no run does."""

from __future__ import annotations

from functools import partial
from typing import Any

from flambeau.testing.conflicts import Conflicts
from flambeau.testing.soundness.executor import HAS_PLACEMENTS, Executor
from flambeau.testing.soundness.model import ModelRace
from flambeau.testing.soundness.programs import Where
from flambeau.testing.soundness.values import is_visible

_PLACEMENTS = ("pytorch", *[f"random:{n}" for n in range(16)]) if HAS_PLACEMENTS else ()
_PAIRS = 4  # pairs of commands of two lines that are tried

_WAITING = ("empty_cache", "collective", "all_reduce")
_Recorded = tuple[Any, dict[tuple[int, int], tuple[Where | None, Where | None]], bytes]

FORCED, HIDDEN, WAITED, UNFORCED = "forced", "hidden", "waited", "unforced"


class Forcing:
    """The search for orders that show the reported races of one program."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self._program = executor, executor.program
        self._known: dict[tuple[str, range], _Recorded] = {}

    def attempt(self, race: Any) -> str:
        """Try to turn a reported race into a different outcome.

        Returns:
            FORCED if a run printed other values. HIDDEN if no printed value depends on the order of the two steps.
            WAITED if
            this run waited although nothing promises a wait: for the users of memory that returns to the driver, or for
            all ranks before a collective. UNFORCED otherwise.
        """
        place = self._executor.place
        first, second = place(race.first.site), place(race.second.site)
        assert first is not None and second is not None
        sides = [{first}, {second}]  # a graph's command is known by its launch, too
        for side, access in zip(sides, (race.first, race.second), strict=True):
            side |= {place(access.launched)} if access.launched else set()
        races = self._races(first, second)
        if races and not any(is_visible(self._program.model, each) for each in races):
            return HIDDEN
        if self._by_order(*sides, race.reused) or self._by_host(first, second):
            return FORCED
        between = self._program.steps[first[0] : second[0] + 1]
        return WAITED if any(step.operation in _WAITING for step in between) else UNFORCED

    def _races(self, first: Where, second: Where) -> list[ModelRace]:
        model, where = self._program.model, self._program.where
        of = [where[line] for line in model.lines]
        return [race for race in model.races if (of[race.first], of[race.second]) == (first, second)]

    def _by_order(self, first: set[Any], second: set[Any], reused: bool) -> bool:
        """Run the commands of the two steps in the reverse order, and all others in the order of the program.

        The run also waits for the devices after the second step, because an early read by the host could hide the
        difference.
        """
        after = range(max(where[0] for where in second), len(self._program.steps))
        elsewhere = [(placement, after[:0]) for placement in _PLACEMENTS] if reused else []
        for placement, waits in [("default", after[:0]), ("default", after), *elsewhere]:
            run = partial(self._executor.run_waiting, waits, placement=placement)
            graph, pairs, usual = self._record_run(placement, waits)
            mine = [
                pair
                for pair, (a, b) in pairs.items()
                if (a in first and b in second) or (b in first and a in second)
            ]
            for one, other in mine[:_PAIRS]:
                if run(schedule=f"follow:{graph.token(graph.oldest([(other, one)]))}").outcome != usual:
                    return True
        return False

    def _record_run(self, placement: str, waits: range) -> _Recorded:
        """Return a run's graph, its unordered conflicting pairs with their steps, and the output of the usual order."""
        key = placement, waits
        if key not in self._known:
            run, place = partial(self._executor.run_waiting, waits, placement=placement), self._executor.place
            graph = run(record=True).graph
            sites = [step.site for step in graph.steps]
            pairs = {(a, b): (place(sites[a]), place(sites[b])) for a, b in Conflicts(graph).pairs}
            usual = run(schedule=f"follow:{graph.token(graph.oldest())}").outcome
            self._known[key] = graph, pairs, usual
        return self._known[key]

    def _by_host(self, first: Where, second: Where) -> bool:
        """Return True if the outcome changes when the host does not wait for the devices between the two steps of a
        race.
        """
        if not any(race.kind == "host" for race in self._races(first, second)):
            return False
        count = len(self._program.steps)
        waits = {*range(first[0]), *range(second[0], count)}
        return self._executor.run_waiting(waits).outcome != self._executor.run_waiting().outcome
