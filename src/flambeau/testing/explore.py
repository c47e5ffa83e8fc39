"""`explore`: run a program in every order of its commands that can make a difference, or in many.

The program runs once and its command graph is recorded. Policies then put the graph into other legal orders, without
kernels; only an order that runs an unordered conflicting pair another way round than all before is run in earnest.
Without such pairs nothing runs again: that is the certificate at work. See Note [Classes].

Where the host polled, a graph says too little, and each schedule is a run of the whole program.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import flambeau as torch
from flambeau.core.collector import without_collections
from flambeau.observe.reports import Race
from flambeau.runtime import system
from flambeau.testing import called
from flambeau.testing.conflicts import MOST_PAIRS, Conflicts, Pair
from flambeau.testing.outcome import Outcome, frozen

_ADDRESS = re.compile("0x[0-9a-f]+")  # each machine has its own
_LEFT = "in some orders the program gave other commands, whose own orders were not looked at"
POLICIES = ("exhaustive", "random", "pct:1", "pct:2", "pct:3", "adversarial")


@dataclass(frozen=True, slots=True)
class Failure:
    """An order with another outcome than the recorded run's. `replay` repeats it; `reorderings` were forced.

    `schedule` found it. `nondeterministic` says that the same schedule gave two outcomes or traces in two runs, so
    that something steers the program that no schedule controls.
    """

    schedule: str
    token: str
    outcome: Outcome
    replay: str
    reorderings: tuple[str, ...] = ()
    nondeterministic: bool = False

    def __str__(self) -> str:
        if self.nondeterministic:
            return f"{self.schedule}: two runs of this schedule differ; nothing that a schedule controls explains it"
        lines = [f"{self.schedule}: {self.outcome}", *[f"  {text}" for text in self.reorderings]]
        return "\n".join([*lines, f"  replay: {self.replay}"])


@dataclass(slots=True)
class Exploration:
    """What was tried and what came of it.

    schedules: orders looked at; runs: how many of them ran the program; outcomes: distinct ones; orders: distinct ways
    round of the `pairs` conflicting pairs; commands: in the recorded graph; complete: whether every way round was run.
    `whole` says why each schedule was a run of the whole program; empty where the graph was enough.
    """

    expected: Outcome
    schedules: int = 0
    runs: int = 0
    outcomes: int = 1
    orders: int = 0
    pairs: int = 0
    commands: int = 0
    complete: bool = False
    whole: str = ""
    failures: list[Failure] = field(default_factory=list)
    races: list[Race] = field(default_factory=list)
    violated: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failures and not self.races and self.expected.error is None

    def check(self) -> None:
        """Raise AssertionError, with every replay line, unless all is well."""
        if not self.ok:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        lines = [self.coverage, *([f"each a run of the whole program: {self.whole}"] if self.whole else [])]
        if self.expected.error is not None:
            lines.append(f"failure: earliest: the recorded run {self.expected}")
        lines += [f"race: {race}" for race in self.races]
        lines += [f"failure: {failure}" for failure in self.failures]
        if self.ok:
            lines.append(self._verdict())
        return "\n".join(lines)

    @property
    def coverage(self) -> str:
        counts = [
            f"{self.schedules} schedules of {self.commands} commands",
            f"{self.outcomes} distinct outcomes",
            f"{self.runs} runs of the program",
        ]
        if not self.whole:  # else pairs were not looked for
            counts.insert(1, f"{self.orders} distinct orders of {self.pairs} unordered conflicting pairs")
        return ", ".join(counts)

    def _verdict(self) -> str:
        if self.violated:
            return "\n  - ".join(["The same outcome in all of them. Not proved for others:", *self.violated])
        if self.complete:
            return "The same outcome in every legal order of these commands: all that can differ were run."
        if self.whole:  # by the runtime itself, which no outcome depends on: else it were violated
            return "The same outcome in all of them; by the first run's certificate, in every legal order."
        return "The same outcome in all of them; more orders can differ."


def explore(
    function: Callable[[], Any],
    schedules: int = 100,
    policies: Sequence[str] = POLICIES,
    *,
    seed: int = 0,
    devices: int = 2,
    profile: str | None = None,
    check: bool = True,
    shrink: bool = True,
    stop: int = 10,
    replay: Callable[[str], str] | None = None,
) -> Exploration:
    """Run `function()` on fresh virtual GPUs in up to `schedules` orders and compare what it returns or raises.

    Args:
        function: makes its own tensors; what it returns is compared bit for bit.
        schedules: how many orders to look at.
        policies: "exhaustive" (each order that can differ once, while conflicting pairs are few), "random",
            "pct:DEPTH", "adversarial": taken in turns with rising seeds from `seed` on.
        check: run each order twice; two different runs are a failure of their own.
        shrink: reduce a failure to the fewest forced reorderings.
        stop: after so many failures.
        replay: the line that repeats a schedule, for reports; by default a call of `flambeau.virtual`.

    Raises:
        ValueError: a policy of another name, a number below 1; TypeError: results that cannot be compared.
    """
    search = _Search(function, devices, profile, check, shrink, replay)
    kinds = _kinds(policies)
    if schedules < 1 or stop < 1:
        raise ValueError(f"schedules and stop must be at least 1, got {schedules} and {stop}")
    with _quiet_collector(), _same_seeds() as reseed:
        search.reseed = reseed
        return search.run(schedules, kinds, seed, stop)


def _kinds(policies: Sequence[str]) -> list[str]:
    for policy in policies:
        kind, _, depth = policy.partition(":")
        good = depth.isdigit() and int(depth) > 0 if kind == "pct" else not depth
        if kind not in ("exhaustive", "random", "pct", "adversarial") or not good:
            raise ValueError(f"policy {policy!r} is none of exhaustive, random, pct:DEPTH, adversarial")
    if not policies:
        raise ValueError("policies must name at least one")
    return list(policies)


@dataclass
class _Run:
    outcome: Outcome
    trace: str
    token: str
    graph: Any
    certificate: Any


class _Search:
    """One exploration: how to run the program, and what is known so far."""

    reseed: Callable[[], None]

    def __init__(
        self, function: Callable[[], Any], devices: int, profile: str | None, check: bool, shrink: bool,
        replay: Callable[[str], str] | None,
    ) -> None:  # fmt: skip
        self.function, self.devices, self.profile = function, devices, profile
        self.check, self.shrink = check, shrink
        self.replay = replay or self._call
        self.outcomes: dict[Outcome, None] = {}

    def run(self, schedules: int, kinds: list[str], seed: int, stop: int) -> Exploration:
        first = self.once("earliest", races="warn")
        found = Exploration(
            first.outcome, schedules=1, runs=1, commands=sum(s.free for s in first.graph.steps)
        )
        found.races, found.violated = first.certificate.races, first.certificate.violated
        self.outcomes[first.outcome] = None
        if self.check and not self.same(first, again := self.once("earliest", races="warn")):
            found.failures.append(self.nondeterministic("earliest", again))
            return found
        if first.graph.polls:
            found.whole = "the host asked whether work is done, and its answers depend on the order"
            self._whole(found, schedules, kinds, seed, stop)
        else:
            _Orders(self, first, found).look(schedules, kinds, seed, stop)
        found.outcomes = len(self.outcomes)
        return found

    def once(self, schedule: str, races: str = "off") -> _Run:
        """One run of the program on machines of its own."""
        self.reseed()
        with system.virtual(self.devices, self.profile, schedule, races) as machine:
            graph = machine.driver.record()
            outcome = _outcome(self.function)
            driver: Any = system.accelerator()
            certificate = driver.detector.certificate() if races != "off" else None
            return _Run(outcome, machine.driver.trace_hash(), machine.driver.token(), graph, certificate)

    def same(self, one: _Run, other: _Run) -> bool:
        return one.outcome == other.outcome and one.trace == other.trace

    def nondeterministic(self, schedule: str, run: _Run) -> Failure:
        return Failure(schedule, run.token, run.outcome, self.replay(schedule), nondeterministic=True)

    def judge(self, found: Exploration, schedule: str, how: str) -> _Run | None:
        """Run the program as `how` says; None if it did not do the same twice, which is then noted."""
        run = self.once(how)
        found.runs += 1
        self.outcomes[run.outcome] = None
        if self.check and not self.same(run, again := self.once(how)):
            found.failures.append(self.nondeterministic(schedule, again))
            return None
        return run

    def _whole(self, found: Exploration, schedules: int, kinds: list[str], seed: int, stop: int) -> None:
        kinds = [kind for kind in kinds if kind != "exhaustive"] or ["random"]
        for schedule in _names(kinds, seed, schedules - 1):
            found.schedules += 1
            run = self.judge(found, schedule, schedule)
            if run is not None and run.outcome != found.expected:
                token, outcome = self._shortest(found, run) if self.shrink else (run.token, run.outcome)
                found.failures.append(Failure(schedule, token, outcome, self.replay("replay:" + token)))
            if len(found.failures) >= stop:
                return

    def _shortest(self, found: Exploration, run: _Run) -> tuple[str, Outcome]:
        """A beginning of a run's choices whose last one it takes for the outcome to be wrong."""
        low, high = 0, run.graph.choices(run.token)
        token, outcome = run.token, run.outcome
        while low < high:
            middle = (low + high) // 2
            shorter = run.graph.cut(run.token, middle)
            again = self.once("replay:" + shorter)
            found.runs += 1
            if again.outcome != found.expected:
                high, token, outcome = middle, shorter, again.outcome
            else:
                low = middle + 1
        return token, outcome

    def _call(self, schedule: str) -> str:
        profile = f", profile={self.profile!r}" if self.profile else ""
        return f"flambeau.virtual(devices={self.devices}{profile}, schedule={schedule!r})"


class _Orders:
    """The orders of a recorded graph: which are new, and the runs of those."""

    def __init__(self, search: _Search, first: _Run, found: Exploration) -> None:
        self.search, self.graph, self.found = search, first.graph, found
        self.conflicts = Conflicts(self.graph)
        self.recorded = self.conflicts.signature(self.graph.replayed(first.token))
        self.seen = {self.recorded}
        found.pairs, found.orders = len(self.conflicts.pairs), 1
        if self.conflicts.cut:
            found.violated = [
                *found.violated,
                f"only the first {found.pairs} conflicting pairs were looked at",
            ]

    def look(self, schedules: int, kinds: list[str], seed: int, stop: int) -> None:
        found = self.found
        for schedule, order in self._orders(kinds, seed):
            if found.schedules >= schedules or len(found.failures) >= stop:
                return
            found.schedules += 1
            signature = self.conflicts.signature(order)
            if signature not in self.seen:
                self.seen.add(signature)
                found.orders += 1
                self._try(schedule, order)
        found.complete = not self.conflicts.cut

    def _orders(self, kinds: list[str], seed: int) -> Iterator[tuple[str, Sequence[Any]]]:
        """Orders without end; where the exhaustive search comes to its end there are no others to see."""
        if not self.conflicts.pairs:
            return
        rest = [kind for kind in kinds if kind != "exhaustive"]
        if len(rest) < len(kinds) and len(self.conflicts.pairs) <= MOST_PAIRS:
            yield from self._mixed(rest, seed)
            return
        for schedule in _names(rest or ["random"], seed):
            yield schedule, self.graph.order(schedule)

    def _mixed(self, rest: list[str], seed: int) -> Iterator[tuple[str, Sequence[Any]]]:
        """All classes, with the other policies' orders in between: bugs far from the recorded order come early."""
        others = _names(rest, seed) if rest else iter(())
        for number, forced in enumerate(self.conflicts.classes()):
            yield f"exhaustive:{number}", self.graph.oldest(forced)
            for schedule in islice(others, 1):
                yield schedule, self.graph.order(schedule)

    def _try(self, schedule: str, order: Sequence[Any]) -> None:
        token = self.graph.token(order)
        run = self.search.judge(self.found, schedule, "follow:" + token)
        if run is None:
            return
        if self._left(run) and _LEFT not in self.found.violated:
            self.found.violated = [*self.found.violated, _LEFT]
        if run.outcome == self.found.expected:
            return
        forced = self._forced(order)
        if self.search.shrink:
            token, forced, run = self._shrunk(token, forced, run)
        steps = self.graph.steps
        texts = tuple([f"{_called(steps[a])} runs before {_called(steps[b])}" for a, b in forced])
        replay = self.search.replay("replay:" + (run.token if self._left(run) else token))
        failure = Failure(schedule, token, run.outcome, replay, texts)
        if all((f.outcome, f.reorderings) != (failure.outcome, texts) for f in self.found.failures):
            self.found.failures.append(failure)

    def _left(self, run: _Run) -> bool:
        """Whether the run gave other commands than the recorded one, so that only its own token repeats it."""
        return [s.mark for s in run.graph.steps if s.free] != [s.mark for s in self.graph.steps if s.free]

    def _forced(self, order: Sequence[Any]) -> list[Pair]:
        """The pairs that run the other way round than requested."""
        place = {step.at: i for i, step in enumerate(order)}
        return [(b, a) for a, b in self.conflicts.pairs if place[b] < place[a]]

    def _shrunk(self, token: str, forced: list[Pair], run: _Run) -> tuple[str, list[Pair], _Run]:
        """Take reorderings away, halves first, as long as the outcome stays wrong."""
        size = max(len(forced) // 2, 1)
        while size:
            for begin in range(0, len(forced), size):
                order = self.graph.oldest(forced[:begin] + forced[begin + size :])
                fewer = forced if order is None else self._forced(order)
                if order is None or len(fewer) >= len(forced):
                    continue
                again = self.search.once("follow:" + self.graph.token(order))
                self.found.runs += 1
                if again.outcome != self.found.expected:
                    token, forced, run = self.graph.token(order), fewer, again
                    break
            else:
                size //= 2
        return token, forced, run


def _outcome(function: Callable[[], Any]) -> Outcome:
    """What it returns or raises, once all that it asked for is done."""
    try:
        value = function()
        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)
    except Exception as error:
        return Outcome(error=f"{type(error).__name__}: {_ADDRESS.sub('0x...', str(error))}")
    return Outcome(frozen(value))


def _names(kinds: list[str], seed: int, count: int | None = None) -> Iterator[str]:
    """`random:0, pct:0:1, ..., random:1, ...`, as schedules are written."""
    given = 0
    while True:
        for kind in kinds:
            if given == count:
                return
            given += 1
            name, _, depth = kind.partition(":")
            yield f"{name}:{seed}:{depth}" if depth else f"{name}:{seed}"
        seed += 1


def _called(step: Any) -> str:
    return f"command #{step.seq} '{step.name}' of {step.stream}"


@contextmanager
def _same_seeds() -> Iterator[Callable[[], None]]:
    """Give what puts the CPU's generator back to where it is now: each run draws the same numbers."""
    state = torch.get_rng_state()
    try:
        yield lambda: torch.set_rng_state(state)
    finally:
        torch.set_rng_state(state)


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """No collection of cycles meanwhile: when it comes depends on the process's past, and it frees memory."""
    gc.collect()
    with without_collections():
        yield


called(__name__)
