"""`Runs`: runs of the explored program, each on a separate machine, and their outcomes.

# Note [Explained outcomes]
Problem: a program that prints a time, an address or a random number has another outcome in each order, and a report
of "1 order, 11 outcomes" does not help.
Rule: each run belongs to a class, defined by the commands that the program requested, the answers to its polls, and
the conflicting pairs that ran in the reverse order. By docs/determinism.md all runs of a class leave the same memory.
Two runs of one class with two outcomes are therefore a separate failure, not one of the order. The first of them is
run again, which shows whether anything that a schedule controls decides the outcome.
Consequences: there are no more distinct outcomes than distinct orders unless the report says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import flambeau as torch
from flambeau.core.callsite import file_of, is_inside, line_of, place, source
from flambeau.distributed import world
from flambeau.distributed.setup import _abort_process_group
from flambeau.observe.reporting.operator_names import public_name
from flambeau.observe.reports import Race
from flambeau.runtime import system
from flambeau.testing.conflicts import Conflicts, Pair
from flambeau.testing.exploration import Exploration
from flambeau.testing.failures import Answer, CommandUse, Failure, Swap, add_failure, is_example
from flambeau.testing.outcome import Outcome, frozen, without_addresses

_ADDRESS = re.compile("0x[0-9a-f]+")  # each machine has its own


@dataclass
class Run:
    """A run of the program.

    Attributes:
        outcome: Its result.
        schedule: The schedule that it ran under.
        trace: A hash of the commands with their times.
        token: The choices of its schedule.
        graph: Its command graph.
        certificate: What the race detector proves, if it was on.
    """

    schedule: str
    outcome: Outcome
    trace: str
    token: str
    graph: Any
    certificate: Any


@dataclass(frozen=True)
class ExplorationPlan:
    """The settings of an exploration: the program and its limits. `deadline` is a time of `monotonic`."""

    function: Callable[[], Any]
    devices: int
    profile: str | None
    schedules: int | None
    seconds: float | None
    stop: int
    check: bool
    shrink: bool
    replay: Callable[[str], str] | None
    watch: Callable[[Exploration, Failure | None], None]
    reseed: Callable[[], None]


class Runs:
    """The runs of a program. `found` holds the results so far."""

    def __init__(self, plan: ExplorationPlan) -> None:
        self.plan = plan
        self._deadline = None if plan.seconds is None else monotonic() + plan.seconds
        self._conflicts: dict[int, Conflicts] = {}  # by the program's commands and the answers it got
        self._classes: dict[Any, tuple[str, Run]] = {}  # see Note [Explained outcomes]
        self.first = first = self.once("earliest", races="warn")
        self.found = found = Exploration(
            first.outcome, schedules=1, runs=1, commands=sum(s.free for s in first.graph.steps)
        )
        found.races, found.violated = list(first.certificate.races), list(first.certificate.violated)
        self._outcomes = {first.outcome: None}
        self._by_threads = (
            False  # True once two runs of one order gave commands in different orders by host threads
        )
        self._explain("earliest", first)
        plan.watch(found, None)
        if plan.check and not self._same(first, again := self.once("earliest", races="warn")):
            self._note_difference("earliest", first, again)

    @property
    def going(self) -> bool:
        """Return True if more may be looked at."""
        found, plan = self.found, self.plan
        plan.watch(found, None)
        if self.late:
            found.ended = f"the {plan.seconds:g} s that it was given are over"
        elif self._by_threads:
            found.ended = "host threads give commands in an order that no schedule controls"
        elif self.unreliable:
            found.ended = (
                "the program is nondeterministic by itself, so outcomes of orders cannot be compared"
            )
        elif len(found.failures) >= plan.stop:
            found.ended = f"{len(found.failures)} kinds of failures were found"
        return not found.ended and (plan.schedules is None or found.schedules < plan.schedules)

    @property
    def late(self) -> bool:
        """Return True if the exploration's time limit has passed."""
        return self._deadline is not None and monotonic() >= self._deadline

    @property
    def unreliable(self) -> bool:
        """Return True if two runs of one order differed, so that the program itself is nondeterministic."""
        return self._by_threads or any(failure.nondeterministic for failure in self.found.failures)

    @property
    def patient(self) -> bool:
        """Return True if more runs may be spent on a simpler example of a failure."""
        return not self.late and not self.unreliable

    def once(self, schedule: str, races: str = "off") -> Run:
        """Run the program once."""
        plan = self.plan
        plan.reseed()
        with system.virtual(plan.devices, plan.profile, schedule, races) as machine, _own_groups():
            graph = machine.driver.record()
            outcome = without_addresses(_outcome(plan.function), machine.driver.address_range())
            driver: Any = system.accelerator()
            certificate = driver.detector.certificate() if races != "off" else None
            trace, token = machine.driver.trace_hash(), machine.driver.token()
            return Run(schedule, outcome, trace, token, graph, certificate)

    def again(self, name: str, schedule: str, races: str = "off") -> Run:
        """Run the program once more, count the run, and compare the run with others of its class."""
        self.found.runs += 1
        run = self.once(schedule, races)
        self._outcomes[run.outcome] = None
        self.found.outcomes = len(self._outcomes)
        self._explain(name, run)
        return run

    def judge(self, name: str, schedule: str, races: str = "off") -> Run | None:
        """Run the program in an order called `name`. Return None if a failure was found that no order explains.

        That is noted then: two runs of it differ, or its class has another outcome.
        """
        failures = self.found.failures
        known = [failure for failure in failures if failure.cause]
        run = self.again(name, schedule, races)
        if self.plan.check and not self._same(run, second := self.once(schedule, races)):
            self._note_difference(name, run, second)
        return run if [failure for failure in failures if failure.cause] == known else None

    def learn(self, races: list[Race], violated: list[str]) -> None:
        """Add another run's races, one for each pair of lines, and the violations of its certificate."""
        found = self.found
        known = {_lines(race) for race in found.races}
        found.races += [race for race in races if _lines(race) not in known]
        found.violated += [text for text in violated if text not in found.violated]

    # -- failures -----------------------------------------------------------------------------------------
    def failure(self, name: str, run: Run, token: str) -> Failure:
        """Describe a run whose outcome is not the expected one. `token` repeats the run."""
        graph = run.graph
        swaps = _swaps(graph, self.reversed_pairs(run))
        answers = _other_answers(graph, self.first.graph)
        cause = "" if swaps or answers else self._other_commands(graph)
        unlike = run.outcome.unlike(self.found.expected)
        replay = self._line("replay:" + token)
        return Failure(name, token, run.outcome, replay, swaps, answers, cause, unlike=unlike)

    def fail(self, name: str, run: Run, simpler: Callable[[Run], tuple[str, Run]]) -> None:
        """Record an outcome that is not the expected one, after reducing its order with `simpler`.

        Another example of a known failure is not reduced.
        """
        failure = self.failure(name, run, run.token)
        try:
            self.plan.watch(self.found, failure)
            if self.plan.shrink and not any(is_example(failure, known) for known in self.found.failures):
                token, run = simpler(run)
                failure = self.failure(name, run, token).with_outcome(failure.outcome)
        finally:  # an interrupt keeps what was found, too
            self._add(failure)

    def reversed_pairs(self, run: Run) -> list[Pair]:
        """Return the conflicting pairs that a run had in the reverse order of the requests. The first of a pair ran
        first.
        """
        return self.conflicts(run.graph).reversed_pairs(run.graph.steps_of_token(run.token))

    def conflicts(self, graph: Any) -> Conflicts:
        """Return the conflicts of a graph, computed once for all runs with equal commands and answers."""
        commands = [(s.mark, s.name, s.named.digest if s.named is not None else 0) for s in graph.steps]
        key = hash((*commands, *[s.poll.done for s in graph.polls]))
        found = self._conflicts.get(key)
        if found is None:
            found = self._conflicts[key] = Conflicts(graph)
        return found

    def _add(self, failure: Failure) -> None:
        add_failure(self.found.failures, failure)

    def _explain(self, name: str, run: Run) -> None:
        """Add a run to its class. A class with two outcomes is a failure. See Note [Explained outcomes]."""
        if self.conflicts(run.graph).cut:
            return  # not all pairs are known, so nor is the class
        graph = run.graph
        requested = hash(tuple([(s.name, s.stream.handle) for s in graph.steps if s.free]))
        answers = tuple([s.poll.done for s in graph.polls if not s.poll.internal])
        swaps = frozenset([(graph.steps[a].seq, graph.steps[b].seq) for a, b in self.reversed_pairs(run)])
        earlier, one = self._classes.setdefault((requested, answers, swaps), (name, run))
        self.found.orders = len(self._classes)
        if one.outcome != run.outcome:
            self._add(self._explain_difference(earlier, one, name, run))

    def _explain_difference(self, earlier: str, one: Run, name: str, run: Run) -> Failure:
        """Return a failure for two runs of one class that differ, and True if other choices of the schedule explain
        it.
        """
        same = "the same commands, with the same answers, in the same order of all that conflict"
        differ = f"{earlier} and {name} run {same}, and yet {_differ(earlier, one, name, run)}"
        again = self.once(one.schedule)
        if again.outcome != one.outcome:
            why = f"Nor does {earlier} repeat ({again.outcome}): the program is nondeterministic by itself"
            outside = "clocks, random numbers without a seed, host threads, files or the network"
            return replace(
                self.failure(name, run, run.token),
                cause=f"{differ}. {why}; look for {outside}", swaps=(), answers=(), nondeterministic=True,
            )  # fmt: skip
        inside = "simulated times, memory statistics and addresses do"
        why = f"Each repeats, so it depends on what else differs between schedules; {inside}{self._times()}"
        return replace(self.failure(name, run, run.token), cause=f"{differ}. {why}", swaps=(), answers=())

    def _times(self) -> str:
        """Return the call sites at which the recorded run read times."""
        read = [text for text in self.first.certificate.assumptions if text.startswith("times read")]
        return f" ({read[0].partition(' are only')[0]})" if read else ""

    def _other_commands(self, graph: Any) -> str:
        """Return the first difference from the recorded run, for a run without swaps and with equal answers."""
        ours, theirs = [[s for s in g.steps if s.free] for g in (graph, self.first.graph)]
        pairs = enumerate(zip(ours, theirs, strict=False))
        unlike = (i for i, (a, b) in pairs if (a.name, a.stream.handle) != (b.name, b.stream.handle))
        at = next(unlike, min(len(ours), len(theirs)))
        mine, other = [str(_use(s[at])) if at < len(s) else "no more commands" for s in (ours, theirs)]
        text = "No swap of commands and no answer of the host explains it"
        if mine == other:
            return text
        return f"{text}: the program itself went another way. It gave {mine}; in the recorded run {other}"

    def _same(self, one: Run, other: Run) -> bool:
        return one.outcome == other.outcome and one.trace == other.trace

    def _note_difference(self, name: str, one: Run, other: Run) -> None:
        """Note that two runs of one order differ, as a failure unless the order of host threads alone differs."""
        if self.first.certificate.unordered and one.outcome == other.outcome:
            self._by_threads = True
        else:
            self._add(self._nondeterministic(name, one, other))

    def _nondeterministic(self, name: str, one: Run, other: Run) -> Failure:
        why = "two runs of this schedule differ, and nothing that a schedule controls explains it"
        differ = f"{why}: {_differ('the first', one, 'the second', other)}"
        return Failure(
            name, other.token, other.outcome, self._line(one.schedule), cause=differ, nondeterministic=True
        )

    def _line(self, schedule: str) -> str:
        """Return the line that repeats a schedule."""
        plan = self.plan
        if plan.replay is not None:
            return plan.replay(schedule)
        profile = f", profile={plan.profile!r}" if plan.profile else ""
        return f"flambeau.virtual(devices={plan.devices}{profile}, schedule={schedule!r})"


def _differ(first: str, one: Run, second: str, other: Run) -> str:
    """Return a description of the difference between the outcomes of two runs."""
    if one.outcome == other.outcome:
        return "they differ in what they gave to the devices, or when"
    unlike = other.outcome.unlike(one.outcome)
    return f"{first} {one.outcome}, {second} {other.outcome}" + (f"; {unlike}" if unlike else "")


def _swaps(graph: Any, pairs: list[Pair]) -> tuple[Swap, ...]:
    """Return one swap for each pair of lines and operators."""
    kinds: dict[Any, list[Pair]] = {}
    for a, b in pairs:
        one, other = graph.steps[a], graph.steps[b]
        kinds.setdefault((one.name, one.site, other.name, other.site), []).append((a, b))
    return tuple([
        Swap(_use(graph.steps[alike[0][0]]), _use(graph.steps[alike[0][1]]), len(alike)) for alike in kinds.values()
    ])  # fmt: skip


def _use(step: Any) -> CommandUse:
    site = step.site
    return CommandUse(
        step.seq,
        public_name(step.name, site),
        str(step.stream),
        place(site),
        file_of(site),
        line_of(site),
        source(site),
    )


def questions(graph: Any) -> list[Any]:
    """Return the steps in which the program itself polled whether work is done."""
    return [step for step in graph.polls if not step.poll.internal]


def answers_of(graph: Any) -> str:
    """Return the answers to the program's polls, as a letter y or n for each."""
    return "".join(["y" if step.poll.done else "n" for step in questions(graph)])


def _other_answers(graph: Any, recorded: Any) -> tuple[Answer, ...]:
    """Return the answers to polls that differ from those of the recorded run."""
    usual, said = answers_of(recorded), answers_of(graph)
    polls = [step.poll for i, step in enumerate(questions(graph)) if said[i] != usual[i : i + 1]]
    return tuple([Answer(place(poll.site), poll.what, poll.done) for poll in polls])


@contextmanager
def _own_groups() -> Iterator[None]:
    """Destroy the process groups that a run leaves behind, so that the next run has none."""
    had_default = world.world().default is not None
    try:
        yield
    finally:
        if not had_default and world.world().default is not None:
            _abort_process_group()


def _lines(race: Race) -> tuple[str, str]:
    return place(race.first.site), place(race.second.site)


def _outcome(function: Callable[[], Any]) -> Outcome:
    """Run a function and return its result or exception, after all of its work has finished."""
    try:
        value = function()
        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)
    except Exception as error:
        text = f"{type(error).__name__}: {_ADDRESS.sub('0x...', str(error))}"
        return Outcome(error=text, line=_line_of(error))
    return Outcome(frozen(value))


def _line_of(error: Exception) -> str:
    """Return the program's line that it was raised at, as `train.py:14`; "" for none."""
    found, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_inside(code) and not code.co_filename.startswith("<frozen"):
            found = place((code, trace.tb_lasti))
        trace = trace.tb_next
    return found
