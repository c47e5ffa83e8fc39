"""`Fuzzer`: random hostile inputs for one reader, each within limits of time, memory and length of its error text.

A run draws inputs from a seed and hands each to the reader. The reader accepts the input, or raises an error of a
documented type whose text is short. Anything else is a failure: another exception, more than `_SECONDS` of CPU time,
or more memory than the input explains.
"""

from __future__ import annotations

import faulthandler
import random
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flambeau.core.brief import brief

_SECONDS = 10.0  # CPU time of one input
_MOST_BYTES = (
    192 << 20
)  # growth of the process's peak memory by one input, which is at most some kilobytes long
_LONGEST = 3000  # letters of an error's text
_PEAK = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


class Endless(BaseException):
    """An input took too much CPU time. Not an Exception: the reader under test cannot catch it."""


@dataclass(frozen=True)
class Fuzzer:
    """A reader with a source of inputs.

    Attributes:
        name: Its name on the command line.
        draw: Returns an input.
        take: Hands an input to the reader, and raises AssertionError if what it accepted is not sound.
        refusals: Exceptions that the reader documents.
        mentions: Words that each error text must have, such as the name of the file.
    """

    name: str
    draw: Callable[[random.Random], Any]
    take: Callable[[Any], object]
    refusals: tuple[type[Exception], ...]
    mentions: str = ""


@dataclass
class Failure:
    """An input that went wrong, first of its kind."""

    number: int
    input: Any
    why: str
    times: int = 1


@dataclass
class Findings:
    """What a run has found."""

    name: str
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    failures: dict[tuple[str, ...], Failure] = field(default_factory=dict)
    slowest: float = 0.0
    most: int = 0

    @property
    def summary(self) -> str:
        """One line: the name, the seed, the counts and the most that one input took."""
        return (
            f"{self.name}: seed {self.seed}, {self.counts.total()} inputs: {self.counts['accepted']} accepted, "
            f"{self.counts['refused']} refused, {self.counts['failed']} failures of {len(self.failures)} kinds; "
            f"at most {self.slowest:.2f} s and {self.most >> 20} MiB an input"
        )

    def report(self) -> str:
        """Return the summary, below each kind of failure with its input and the line that repeats it."""
        lines = []
        for failure in self.failures.values():
            lines += [
                f"{failure.why}  ({failure.times} times)",
                f"  input {failure.number}: {_shown(failure.input)}",
                f"  repeat: python tests/fuzz/fuzz.py {self.name} --seed {self.seed} --begin {failure.number} --count 1",
                "",
            ]
        return "\n".join([*lines, self.summary])


def fuzz(fuzzer: Fuzzer, seed: int, begin: int, count: int, stop: int = 10) -> Findings:
    """Hand `count` inputs to a reader, from number `begin` of a seed on. End after `stop` kinds of failures."""
    found = Findings(fuzzer.name, seed)
    with _limited():
        for number in range(begin, begin + count):
            data = fuzzer.draw(random.Random(f"{seed}:{number}"))
            _try(fuzzer, data, number, found)
            if len(found.failures) >= stop:
                break
    return found


def _try(fuzzer: Fuzzer, data: Any, number: int, found: Findings) -> None:
    before, start = _peak(reset=True), time.process_time()
    outcome, key, why = "accepted", (), ""
    try:
        _arm(_SECONDS)
        try:
            fuzzer.take(data)
        finally:
            _arm(0)
    except fuzzer.refusals as error:
        outcome, why = "refused", _wrong_text(error, fuzzer.mentions)
        key = (why, *_place(error)) if why else ()
    except (Exception, Endless) as error:
        why = "".join(traceback.format_exception(error)[-12:])[-3000:]
        key = (type(error).__name__, *_place(error))
    taken, grown = time.process_time() - start, _peak() - before
    if grown > _MOST_BYTES and not key:
        key, why = ("memory",), f"{grown >> 20} MiB of memory"
    found.slowest, found.most = max(found.slowest, taken), max(found.most, grown)
    if not key:
        found.counts[outcome] += 1
        return
    found.counts["failed"] += 1
    known = found.failures.setdefault(key, Failure(number, data, why, 0))
    known.times += 1


def _arm(seconds: float) -> None:
    """Limit the CPU time, and the whole time of an input that only waits: by much more, for the machine may be busy."""
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 12 * seconds)
    if seconds:  # a loop in C hears no signal: this ends the process, with the line
        faulthandler.dump_traceback_later(30 * seconds, exit=True, file=sys.__stderr__)
    else:
        faulthandler.cancel_dump_traceback_later()


def _wrong_text(error: Exception, mentions: str) -> str:
    """Return what is wrong with a documented error's text; "" if nothing is."""
    text = "\n".join([str(error), *getattr(error, "__notes__", [])])
    if len(text) > _LONGEST:
        return f"{type(error).__name__} with {len(text)} letters: {text[:300]}..."
    commands = [one for one in text if not (one.isprintable() or one in "\n\t")]
    if commands or "\n::" in text:
        return f"{type(error).__name__} with {commands[:3]} as they are: {text[:300]!r}"
    if mentions not in text:
        return f"{type(error).__name__} does not say {mentions!r}: {text[:300]}"
    return ""


def _place(error: BaseException) -> tuple[str, ...]:
    """The innermost lines that raised."""
    frames = traceback.extract_tb(error.__traceback__)[-2:]
    return tuple([f"{frame.filename}:{frame.lineno}" for frame in frames])


def _shown(data: Any) -> str:
    if isinstance(data, (str, bytes)):
        text = repr(data)
    else:  # `__str__` of a class of inputs is short
        text = brief(data, 3) if type(data).__str__ is object.__str__ else str(data)
    return text if len(text) <= 1000 else f"{text[:1000]}... ({len(text)} letters)"


@contextmanager
def _limited() -> Iterator[None]:
    """Let the timers raise `Endless`."""

    def expire(number: int, frame: Any) -> None:
        raise Endless(f"more than {_SECONDS:.0f} s of CPU time, or waiting for {12 * _SECONDS:.0f} s")

    former = {number: signal.signal(number, expire) for number in (signal.SIGVTALRM, signal.SIGALRM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _peak(reset: bool = False) -> int:
    """The most memory that the process has held since the last reset, in bytes."""
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if reset:
        with suppress(OSError):
            _RESET.write_text("5")
    (line,) = [line for line in _PEAK.read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10
