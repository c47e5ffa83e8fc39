"""What host threads tell each other, for race detectors. Owner of who listens; see Note [Host threads].

While somebody does, `threading.Thread`, `threading.Event` and `queue.Queue` tell: a start, a join, a set and a wait,
what is put into a queue and taken out. That is the same in every run as long as the puts into a queue are in order, the
takes out of it, and the sets of an event: so that is looked at, too. What depends on timing (a timeout, `get_nowait`)
is named. Locks, conditions, semaphores, `SimpleQueue` and what is built upon them alone tell nothing: who gets them
first differs from run to run.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary, ref

from flambeau.core.sites import caller
from flambeau.observe.clocks import Snapshot
from flambeau.observe.detector import Detector
from flambeau.observe.order import Caller

_listeners: list[ref[Detector]] = []
_originals: dict[tuple[type, str], Any] = {}
_SETS = 16  # of an event that are remembered


def listen(detector: Detector) -> None:
    """Tell `detector` from now on, while it lives."""
    _listeners.append(ref(detector, _remove))
    if not _originals:
        _replace()


def forget(detector: Detector) -> None:
    """Tell it no more. Again is allowed."""
    _remove(ref(detector))


def listening() -> list[Detector]:
    return [detector for each in list(_listeners) if (detector := each()) is not None]


def _remove(gone: ref[Detector]) -> None:
    for each in [each for each in _listeners if each == gone]:
        _listeners.remove(each)
    if not _listeners:
        for (owner, name), function in _originals.items():
            setattr(owner, name, function)
        _originals.clear()


class Line:
    """One role at an object, as those who put into a queue: its threads must be in order."""

    def __init__(self) -> None:
        self._last: WeakKeyDictionary[Detector, Caller] = WeakKeyDictionary()

    def step(self, what: str) -> None:
        for detector in listening():
            self._last[detector] = detector.stepped(self._last.get(detector), what)


class Word:
    """What one thread has told at an object, for each listener; and who took it back, if anybody did."""

    def __init__(self) -> None:
        self._points: list[tuple[ref[Detector], Snapshot]] = [(ref(d), d.tell()) for d in listening()]
        self.taken_back: WeakKeyDictionary[Detector, Caller] | None = None

    def take_back(self) -> None:
        self.taken_back = WeakKeyDictionary({d: d.stepped(None, "") for d in listening()})

    def hear(self) -> None:
        for each, point in self._points:
            if (detector := each()) is not None:
                detector.hear(point)

    def is_over(self) -> bool:
        """Whether this thread knows that it was taken back: what it waits for is a later one."""
        return self.taken_back is not None and all(d.knows(who) for d, who in self.taken_back.items())


class _Notes:
    """What is known of an event, or of a queue."""

    def __init__(self) -> None:
        self.changes, self.takes = Line(), Line()
        self.sets: list[Word] = []  # of an event, the first first
        self.words: deque[Word | None] = deque()  # of what lies in a queue

    def set(self) -> None:
        if self.sets and self.sets[-1].taken_back is None:
            return
        self.sets.append(Word())
        if len(self.sets) > _SETS:  # the second tells more than the first, and stays until later
            self.sets[0].taken_back = self.sets[1].taken_back
            del self.sets[1]

    def clear(self) -> None:
        if self.sets and self.sets[-1].taken_back is None:
            self.sets[-1].take_back()

    def hear(self) -> None:
        """What a thread that has waited is sure to have learned: from the first set that it could have seen."""
        for word in self.sets:
            if not word.is_over():
                word.hear()
                return


_notes: WeakKeyDictionary[Any, _Notes] = WeakKeyDictionary()
_ends: WeakKeyDictionary[threading.Thread, Word] = WeakKeyDictionary()


def _notes_of(thing: Any) -> _Notes:
    return _notes.setdefault(thing, _Notes())


def _replace() -> None:
    for owner, names in _WRAPPERS.items():
        for name, wrap in names.items():
            function = _originals[owner, name] = getattr(owner, name)
            setattr(owner, name, wraps(function)(wrap(function)))


# -- threads --------------------------------------------------------------------------------------------------


def _start(start: Callable[..., None]) -> Callable[..., None]:
    def told(self: threading.Thread) -> None:
        run = self.run
        word = Word()

        def begin() -> None:
            word.hear()
            try:
                run()
            finally:
                _ends[self] = Word()
                for detector in listening():
                    detector.thread_ends()

        self.run = begin  # type: ignore[method-assign]
        try:
            start(self)
        except BaseException:
            self.run = run  # type: ignore[method-assign]
            raise

    return told


def _join(join: Callable[..., None]) -> Callable[..., None]:
    def told(self: threading.Thread, timeout: float | None = None) -> None:
        join(self, timeout)
        _timed(timeout, "Thread.join(timeout)")
        word = None if self.is_alive() else _ends.get(self)
        if word is not None:
            word.hear()

    return told


# -- events ---------------------------------------------------------------------------------------------------


def _set(set_: Callable[..., None]) -> Callable[..., None]:
    def told(self: threading.Event) -> None:
        if not _is_threads_own():
            notes = _notes_of(self)
            notes.changes.step("a threading.Event is set or cleared")
            notes.set()
        set_(self)

    return told


def _clear(clear: Callable[..., None]) -> Callable[..., None]:
    def told(self: threading.Event) -> None:
        notes = _notes_of(self)
        notes.changes.step("a threading.Event is set or cleared")
        notes.clear()
        clear(self)

    return told


def _wait(wait: Callable[..., bool]) -> Callable[..., bool]:
    def told(self: threading.Event, timeout: float | None = None) -> bool:
        done = wait(self, timeout)
        if not _is_threads_own():
            _timed(timeout, "Event.wait(timeout)")
            notes = _notes.get(self)
            if done and notes is not None:
                notes.hear()
        return done

    return told


def _is_threads_own() -> bool:
    """Whether `threading.Thread` itself calls, which says by an event that it has begun."""
    return sys._getframe(2).f_code.co_filename == threading.__file__


# -- queues ---------------------------------------------------------------------------------------------------


def _put(put: Callable[..., None]) -> Callable[..., None]:
    def told(self: queue.Queue[Any], item: Any) -> None:
        notes = _notes_of(self)
        notes.words.extend([None] * (len(self.queue) - len(notes.words)))  # put before anybody listened
        notes.changes.step("a queue.Queue is filled")
        notes.words.append(Word())
        put(self, item)

    return told


def _get(get: Callable[..., Any]) -> Callable[..., Any]:
    def told(self: queue.Queue[Any]) -> Any:
        notes = _notes_of(self)
        item = get(self)
        notes.takes.step("a queue.Queue is emptied")
        word = notes.words.popleft() if notes.words else None
        if word is not None:
            word.hear()
        return item

    return told


def _ask(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def told(self: queue.Queue[Any], *args: Any, **options: Any) -> Any:
            given = args[1:] if name == "put" else args
            block = given[0] if given else options.get("block", True)
            timeout = given[1] if len(given) > 1 else options.get("timeout")
            _timed(timeout if block else 0, f"Queue.{name} with a timeout, or without a wait,")
            return function(self, *args, **options)

        return told

    return wrap


def _timed(timeout: float | None, what: str) -> None:
    """Say that the program waits for no longer than that; the standard library may, for its own ends."""
    if timeout is not None:
        for detector in listening():
            detector.findings.thread_asked(what, caller(2))


_WRAPPERS: dict[type, dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    threading.Thread: {"start": _start, "join": _join},
    threading.Event: {"set": _set, "clear": _clear, "wait": _wait},
    queue.Queue: {"_put": _put, "_get": _get, "put": _ask("put"), "get": _ask("get")},
}
