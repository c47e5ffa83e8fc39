"""Hooks for `threading.Barrier`: all arrivals of a round happen before each thread continues.

# Note [Parties] The edge is the same in every run if each round has the same parties. That holds if each
thread that arrives happens after the previous round: it took part in that round, or knows all its parties.
Any other thread might have been in the previous round.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from flambeau.core.callsite import program_site
from flambeau.observe.handovers.listeners import Changes, act, asker, listening, notes_of
from flambeau.observe.handovers.words import Polled, Word

_ACTION = "Barrier.wait() of a Barrier with an action, which the last thread to arrive runs,"


class Rounds:
    """The data that the detector attaches to a barrier: the arrivals of this round and of the previous one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: list[Word] = []
        self._arrived: list[Word] = []
        self.asked = Polled()

    def arrive(self, parties: int) -> list[Word]:
        """Add this thread's arrival. Return the arrivals of its round, which are complete when the barrier
        opens.
        """
        if not all(word.is_known() for word in self._last):
            for detector in listening():
                detector.findings.threads_unordered("a Barrier is waited for", program_site())
        word = Word()
        self.asked.change()
        with self._lock:
            mine = self._arrived
            mine.append(word)
            if len(mine) == parties:
                self._last, self._arrived = mine, []
        return mine

    def abandon(self) -> None:
        """Begin a new round, because the barrier was broken."""
        with self._lock:
            self._last, self._arrived = [], []


def _wait(wait: Callable[..., int]) -> Callable[..., int]:
    def wrapper(self: threading.Barrier, timeout: float | None = None) -> int:
        rounds, site = notes_of(self, Rounds), asker()
        act()
        if timeout is not None or self._timeout is not None:  # type: ignore[attr-defined]
            rounds.asked.ask("Barrier.wait(timeout)", site)
        for what in [_ACTION] if self._action is not None else []:  # type: ignore[attr-defined]
            rounds.asked.ask(what, site)
        mine = rounds.arrive(self.parties)
        try:
            index = wait(self, timeout)
        except threading.BrokenBarrierError:
            rounds.abandon()
            raise
        for word in mine:
            word.receive()
        if self.parties > 1 and site is not None and _takes_result(sys._getframe(1)):
            for detector in listening():
                detector.findings.thread_asked("Barrier.wait() for the index that it returns", site)
        return index

    return wrapper


def _takes_result(frame: FrameType | None) -> bool:
    """Return False if a frame drops the result of its present call, directly or through its own caller."""
    while frame is not None and frame.f_code.co_filename != threading.__file__:
        name = _instruction_after(frame.f_code, frame.f_lasti)
        if name != "RETURN_VALUE":
            return name != "POP_TOP"
        frame = frame.f_back
    return False


@lru_cache(256)
def _instruction_after(code: CodeType, offset: int) -> str:
    after = (i.opname for i in dis.get_instructions(code) if i.offset > offset)
    return next((name for name in after if name not in ("CACHE", "NOP")), "")


def _broken(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def wrap(function: Callable[..., None]) -> Callable[..., None]:
        def wrapper(self: threading.Barrier) -> None:
            rounds = notes_of(self, Rounds)
            act()
            rounds.asked.ask(what, asker())
            function(self)
            rounds.abandon()

        return wrapper

    return wrap


def _state(what: str) -> Callable[[Any], Any]:
    def wrap(original: property) -> property:
        def wrapper(self: threading.Barrier) -> Any:
            site = asker()
            if site is not None:
                notes_of(self, Rounds).asked.ask(what, site)
            return original.fget(self)  # type: ignore[misc]

        return property(wrapper, doc=original.__doc__)

    return wrap


CHANGES: Changes = {
    threading.Barrier: {
        "wait": _wait,
        "reset": _broken("Barrier.reset()"),
        "abort": _broken("Barrier.abort()"),
        "n_waiting": _state("Barrier.n_waiting"),
        "broken": _state("Barrier.broken"),
    }
}
