"""`Hunt`: checks random programs, counts the checks, and shrinks programs for which a property does not hold."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from flambeau.testing.soundness.forcing import FORCED, HIDDEN, UNFORCED, WAITED
from flambeau.testing.soundness.program_checks import Check, Problem, deletions
from flambeau.testing.soundness.program_generator import FEATURES, generate
from flambeau.testing.soundness.program_steps import Step
from flambeau.testing.soundness.programs import Program

_TRIES = 400  # the largest number of tries to remove steps when a program is shrunk


@dataclass
class Hunt:
    """A search from one seed.

    Attributes:
        deletions: Greatest number of synchronizations of a certified program that are deleted, one at a time.
        forced: Greatest number of reports of a program that are forced.
        counts: Number of checks, by name.
        problems: Seed and shrunk problem of each property that does not hold.
    """

    seed: int
    features: frozenset[str] = FEATURES
    deletions: int = 3
    forced: int = 3
    stop: int = 5
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[tuple[str, Problem]] = field(default_factory=list)

    def run(self, begin: int, end: int, progress: Callable[[int], None] = lambda number: None) -> None:
        """Check the programs of some numbers, until there are `stop` problems."""
        started = time.perf_counter()
        gc.collect()
        gc.freeze()  # each capture of a graph collects garbage: of the hunt's own programs alone
        for number in range(begin, end):
            seed = f"{self.seed}:{number}"
            for problem in self._problems(generate(seed, self.features)):
                self.problems.append((seed, self._shrunk(problem)))
            progress(number)
            gc.collect()  # closed machines are in cycles, and keep their address space
            if len(self.found) >= self.stop:
                break
        self.counts["seed"], self.counts["problems"] = self.seed, len(self.found)
        self.counts["milliseconds"] += int(1000 * (time.perf_counter() - started))

    def _problems(self, program: Program) -> Iterator[Problem]:
        counts, check = self.counts, Check(program, self.counts)
        counts["programs"] += 1
        if not program.model.is_judged:
            counts["unjudged"] += 1
            yield from check.check_unmodelled()
            return
        counts["races" if check.races else "withheld" if check.reasons else "certified"] += 1
        found = list(check.verdict())
        yield from found
        if found:
            return
        if check.races:
            yield from check.force_races(self.forced)
            if check.run.certificate.races:
                yield from check.check_fixes()
        elif check.run.certificate.race_free:
            yield from check.verdict("random:7")
            yield from check.bits()
            yield from self._without(program)

    def _without(self, program: Program) -> Iterator[Problem]:
        """Check the verdict of a certified program after deleting one synchronization, for several of them."""
        every = list(deletions(program))
        step = max(-(-len(every) // self.deletions), 1) if self.deletions else 1
        for _, fewer in every[::step] if self.deletions else ():
            check = Check(fewer, self.counts)
            self.counts["deletions"] += 1
            self.counts["noticed" if check.races or check.reasons else "redundant"] += 1
            yield from check.verdict()

    def _shrunk(self, problem: Problem) -> Problem:
        if problem.kind == UNFORCED:
            return problem
        last = [problem]

        def has(program: Program) -> bool:
            check = Check(program, Counter())
            found = list(check.verdict() if program.model.is_judged else check.check_unmodelled())
            if (
                program.model.is_judged
                and not found
                and problem.kind == "bits"
                and check.run.certificate.race_free
            ):
                found = list(check.bits())
            last[:] = [p for p in found if p.kind == problem.kind] or last
            return any(p.kind == problem.kind for p in found)

        smallest = shrink(problem.program, has)
        return last[0] if has(smallest) else problem

    @property
    def found(self) -> list[tuple[str, Problem]]:
        """Return the problems, without reports of races that no run has confirmed by another outcome."""
        return [(seed, problem) for seed, problem in self.problems if problem.kind != UNFORCED]

    # -- what it says -------------------------------------------------------------------------------------
    @property
    def summary(self) -> str:
        """Return a summary in one line."""
        return summed_up([self.counts])

    def report(self, unforced: bool = False) -> str:
        """Return the problems with their programs and, if requested, the reports that no run has turned into another
        outcome.
        """
        texts = [
            f"{problem.kind}: {problem.text}\n# program {seed}\n{problem.program.source}"
            for seed, problem in (self.problems if unforced else self.found)
        ]
        return "\n".join([*texts, self.summary])


def share_forced(counts: Counter[str]) -> float:
    """Return the share of reports with a visible effect that were turned into another outcome."""
    shown = counts[FORCED] + counts[WAITED] + counts[UNFORCED]
    return counts[FORCED] / shown if shown else 1.0


def summed_up(hunts: Iterable[Mapping[str, int]]) -> str:
    """Return the counts of several searches in one line."""
    n: Counter[str] = Counter()
    for counts in hunts:
        seed = counts["seed"]
        n.update(counts)
    return (
        f"soundness: {n['programs']:,} programs ({n['certified']:,} certified, {n['races']:,} with races, "
        f"{n['withheld']:,} withheld, {n['unjudged']:,} not judged), {n['runs']:,} runs; "
        f"{n['reports']:,} reports: {n[FORCED]:,} forced, "
        f"{n[HIDDEN]:,} hidden, {n[WAITED]:,} waited, {n[UNFORCED]:,} not "
        f"({share_forced(n):.1%} of those that show); fixes repair {n['repaired']:,} programs, "
        f"{n['still racy']:,} not; {n['deletions']:,} deletions: {n['noticed']:,} noticed, "
        f"{n['redundant']:,} redundant; {n['problems']:,} problems; seed {seed}, {n['milliseconds'] / 1000:.0f} s"
    )


def shrink(program: Program, has: Callable[[Program], bool]) -> Program:
    """Return a program with few of the steps for which `has` is True. It must be True for the argument."""
    left = [_TRIES]

    def attempt(steps: tuple[Step, ...]) -> Program | None:
        left[0] -= 1
        candidate = Program(steps)
        fewer = _size(candidate.steps) < _size(best.steps)
        return candidate if left[0] >= 0 and fewer and has(candidate) else None

    best, size = program, max(len(program.steps) // 2, 1)
    while size and left[0] > 0:
        begin, smaller = 0, False
        while begin < len(best.steps):
            found = attempt(best.steps[:begin] + best.steps[begin + size :])
            if found is None:
                begin += size
            else:
                best, smaller = found, True
        size = size // 2 if size > 1 or not smaller else 1
    for at in range(len(best.steps) - 1, -1, -1):
        for within in range(len(best.steps[at].inner) - 1, -1, -1):
            if at < len(best.steps) and within < len(best.steps[at].inner):
                step = best.steps[at]
                fewer = step._replace(inner=step.inner[:within] + step.inner[within + 1 :])
                best = attempt((*best.steps[:at], fewer, *best.steps[at + 1 :])) or best
    return best


def _size(steps: tuple[Step, ...]) -> int:
    return sum(1 + len(step.inner) for step in steps)
