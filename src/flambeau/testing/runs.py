"""`Runs`: runs of the program that is explored, each on machines of its own, and what they gave."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import flambeau as torch
from flambeau.core.sites import is_inside, place
from flambeau.distributed import world
from flambeau.distributed.setup import _abort_process_group
from flambeau.observe.reports import Race
from flambeau.runtime import system
from flambeau.testing.exploration import Exploration, Failure
from flambeau.testing.outcome import Outcome, frozen

_ADDRESS = re.compile("0x[0-9a-f]+")  # each machine has its own


@dataclass
class Run:
    """Its outcome, a hash of what ran and when, the choices made, the graph, and with races on what it proves."""

    outcome: Outcome
    trace: str
    token: str
    graph: Any
    certificate: Any


class Runs:
    """How to run the program, and what is known so far: `found`, for up to `schedules` orders and `stop` failures.

    The rest is as `explore` says.
    """

    def __init__(
        self, function: Callable[[], Any], devices: int, profile: str | None, schedules: int, stop: int, check: bool,
        shrink: bool, replay: Callable[[str], str] | None, reseed: Callable[[], None],
    ) -> None:  # fmt: skip
        self.function, self.devices, self.profile = function, devices, profile
        self.schedules, self.stop = schedules, stop
        self.check, self.shrink, self.reseed = check, shrink, reseed
        self.replay = replay or self._call
        self.first = first = self.once("earliest", races="warn")
        self.found = found = Exploration(
            first.outcome, schedules=1, runs=1, commands=sum(s.free for s in first.graph.steps)
        )
        found.races, found.violated = list(first.certificate.races), list(first.certificate.violated)
        self._outcomes = {first.outcome: None}
        if self.check and not self._same(first, again := self.once("earliest", races="warn")):
            found.failures.append(self._nondeterministic("earliest", "earliest", first, again))

    @property
    def going(self) -> bool:
        """Whether more may be looked at."""
        return self.found.schedules < self.schedules and len(self.found.failures) < self.stop

    def once(self, schedule: str, races: str = "off") -> Run:
        """One run of the program."""
        self.reseed()
        with system.virtual(self.devices, self.profile, schedule, races) as machine, _own_groups():
            graph = machine.driver.record()
            outcome = _outcome(self.function)
            driver: Any = system.accelerator()
            certificate = driver.detector.certificate() if races != "off" else None
            return Run(outcome, machine.driver.trace_hash(), machine.driver.token(), graph, certificate)

    def again(self, schedule: str, races: str = "off") -> Run:
        """One more run, counted."""
        self.found.runs += 1
        return self.once(schedule, races)

    def judge(self, name: str, schedule: str, races: str = "off") -> Run | None:
        """Run the program in an order called `name`; None if it did not do the same twice, which is then noted."""
        run = self.again(schedule, races)
        self._outcomes[run.outcome] = None
        self.found.outcomes = len(self._outcomes)
        if self.check and not self._same(run, second := self.once(schedule, races)):
            self.found.failures.append(self._nondeterministic(name, schedule, run, second))
            return None
        return run

    def learn(self, races: list[Race], violated: list[str]) -> None:
        """Another run's races, one for each pair of lines, and what stood against its certificate."""
        found = self.found
        known = {_lines(race) for race in found.races}
        found.races += [race for race in races if _lines(race) not in known]
        found.violated += [text for text in violated if text not in found.violated]

    def fail(self, name: str, run: Run, token: str, reorderings: tuple[str, ...] = ()) -> None:
        """Note an outcome that is not the expected one, once for what leads to it: the less that takes the better."""
        failures = self.found.failures
        alike = [f for f in failures if f.outcome == run.outcome and not f.nondeterministic]
        if any(not reorderings or (f.reorderings and {*f.reorderings} <= {*reorderings}) for f in alike):
            return
        unlike = run.outcome.unlike(self.found.expected)
        failure = Failure(
            name, token, run.outcome, self.replay("replay:" + token), reorderings, unlike=unlike
        )
        said_nothing = next(
            (i for i, f in enumerate(failures) if f in alike and not f.reorderings), len(failures)
        )
        failures[said_nothing : said_nothing + 1] = [failure]

    def is_told(self, outcome: Outcome) -> bool:
        """Whether a failure has this outcome."""
        return any(f.outcome == outcome and not f.nondeterministic for f in self.found.failures)

    def _same(self, one: Run, other: Run) -> bool:
        return one.outcome == other.outcome and one.trace == other.trace

    def _nondeterministic(self, name: str, schedule: str, one: Run, other: Run) -> Failure:
        differ = f"the first {one.outcome}, the second {other.outcome}"
        if one.outcome == other.outcome:
            differ = "in what they gave to the devices, or when"
        elif unlike := other.outcome.unlike(one.outcome):
            differ += f"; {unlike}"
        return Failure(
            name, other.token, other.outcome, self.replay(schedule), (differ,), nondeterministic=True
        )

    def _call(self, schedule: str) -> str:
        profile = f", profile={self.profile!r}" if self.profile else ""
        return f"flambeau.virtual(devices={self.devices}{profile}, schedule={schedule!r})"


@contextmanager
def _own_groups() -> Iterator[None]:
    """The process groups that a run makes and leaves are not there in the next."""
    begun = world.world().default is not None
    try:
        yield
    finally:
        if not begun and world.world().default is not None:
            _abort_process_group()


def _lines(race: Race) -> tuple[str, str]:
    return place(race.first.site), place(race.second.site)


def _outcome(function: Callable[[], Any]) -> Outcome:
    """What it returns or raises, once all that it asked for is done."""
    try:
        value = function()
        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)
    except Exception as error:
        text = f"{type(error).__name__}: {_ADDRESS.sub('0x...', str(error))}"
        return Outcome(error=text, line=_line_of(error))
    return Outcome(frozen(value))


def _line_of(error: Exception) -> str:
    """The program's line that it was raised at, as `train.py:14`; "" for none."""
    found, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_inside(code) and not code.co_filename.startswith("<frozen"):
            found = place((code, trace.tb_lasti))
        trace = trace.tb_next
    return found
