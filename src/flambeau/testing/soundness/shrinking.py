"""`shrink`: the fewest steps of a program that still have a property."""

from __future__ import annotations

from collections.abc import Callable

from flambeau.testing.soundness.programs import Program
from flambeau.testing.soundness.steps import Step

_TRIES = 400


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
