"""Hooks for `threading`'s threads, timers and events."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType

from flambeau.observe.detector import Detector
from flambeau.observe.handovers import locks, meeting_points
from flambeau.observe.handovers.listeners import (
    Changes,
    act,
    all_noted,
    asker,
    beyond_standard,
    find_notes,
    listening,
    notes_of,
)
from flambeau.observe.handovers.words import Polled, ThreadRole, Word

_SETS = 16  # calls of Event.set that are stored


def changes(module: ModuleType) -> Changes:
    return {
        threading.Thread: {"start": _start, "join": _join, "is_alive": _is_alive},
        threading.Timer: {"cancel": _cancel},
        threading.Event: {"set": _set, "clear": _clear, "wait": _wait, "is_set": _is_set},
        **meeting_points.CHANGES,
        **locks.CHANGES,
    }


# -- threads --------------------------------------------------------------------------------------------------


class ThreadLifetime:
    """The data that the detector attaches to a thread: its end and the queries of whether it runs."""

    def __init__(self) -> None:
        self.end: Word | None = None
        self.asked = Polled()


def name_open_questions(detector: Detector) -> None:
    """Report the queries for threads that still run. In another run such a thread may have ended before the query."""
    for thread, life in all_noted(ThreadLifetime):
        if _is_alive_itself(thread):
            life.asked.name_open(detector)


def _start(start: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: threading.Thread) -> None:
        run = self.run
        life = notes_of(self, ThreadLifetime)

        def begin() -> None:
            word.receive()
            word.thread_begins()
            try:
                run()
            finally:
                life.asked.change()
                life.end = Word()
                for detector in listening():
                    detector.thread_ends()

        life.asked.begin()
        word = Word()
        if beyond_standard() is not None:
            for detector in listening():
                detector.findings.has_threads = True
            word.announce()
        self.run = begin  # type: ignore[method-assign]
        try:
            start(self)
        except BaseException:
            self.run = run  # type: ignore[method-assign]
            word.thread_begins()
            raise

    return wrapper


def _join(join: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: threading.Thread, timeout: float | None = None) -> None:
        life = notes_of(self, ThreadLifetime)
        if timeout is not None:
            life.asked.ask("Thread.join(timeout)", asker())
        join(self, timeout)
        if life.end is not None and not _is_alive_itself(self):
            life.end.receive()

    return wrapper


_is_alive_itself = threading.Thread.is_alive


def _is_alive(is_alive: Callable[..., bool]) -> Callable[..., bool]:
    def wrapper(self: threading.Thread) -> bool:
        notes_of(self, ThreadLifetime).asked.ask("Thread.is_alive()", asker())
        return is_alive(self)

    return wrapper


def _cancel(cancel: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: threading.Timer) -> None:
        act()
        notes_of(self, ThreadLifetime).asked.ask("Timer.cancel()", asker())
        cancel(self)

    return wrapper


# -- events ---------------------------------------------------------------------------------------------------


class Signal:
    """The data that the detector attaches to a `threading.Event`."""

    def __init__(self) -> None:
        self.changes = ThreadRole()
        self.asked = Polled()
        self._sets: list[Word] = []  # oldest first

    def step(self) -> None:
        self.changes.step("a threading.Event is set or cleared")
        self.asked.change()

    def set(self) -> None:
        if self._sets and self._sets[-1].taken_back is None:
            return
        self._sets.append(Word())
        if (
            len(self._sets) > _SETS
        ):  # join the two oldest: the clock of the first and the end of the second are safe for both
            self._sets[0].taken_back = self._sets[1].taken_back
            del self._sets[1]

    def clear(self) -> None:
        if self._sets and self._sets[-1].taken_back is None:
            self._sets[-1].take_back()

    def receive(self) -> None:
        """Join the clock of the earliest call of `set` that may have ended this thread's wait."""
        for word in self._sets:
            if not word.is_over():
                word.receive()
                return


def _is_threads_own() -> bool:
    """Return True if `threading` itself called, which sets an event at the start of a thread, not a thread's target."""
    code = sys._getframe(2).f_code
    return code.co_filename == threading.__file__ and code.co_name != "run"


def _set(set_: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: threading.Event) -> None:
        if not _is_threads_own():
            notes = notes_of(self, Signal)
            notes.step()
            notes.set()
        set_(self)

    return wrapper


def _clear(clear: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: threading.Event) -> None:
        notes = notes_of(self, Signal)
        notes.step()
        notes.clear()
        clear(self)

    return wrapper


def _wait(wait: Callable[..., bool]) -> Callable[..., bool]:
    def wrapper(self: threading.Event, timeout: float | None = None) -> bool:
        if _is_threads_own():
            return wait(self, timeout)
        if timeout is not None:
            notes_of(self, Signal).asked.ask("Event.wait(timeout)", asker())
        done = wait(self, timeout)
        notes = find_notes(self)
        if done and notes is not None:
            notes.receive()
        return done

    return wrapper


def _is_set(is_set: Callable[..., bool]) -> Callable[..., bool]:
    def wrapper(self: threading.Event) -> bool:
        site = asker()
        if site is not None:
            notes_of(self, Signal).asked.ask("Event.is_set()", site)
        return is_set(self)

    return wrapper
