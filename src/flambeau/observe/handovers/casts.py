"""Hooks for autocast's cache of casts, which all host threads share.

# Note [Shared casts]
Problem: A thread that leaves its outermost autocast block clears the cache for all threads. A thread that then uses a
weight again casts it again, on another stream perhaps, and its gradient is rounded in another order.
Rule: The certificate is withheld if a thread repeats the use of a cast, and nothing orders a clear by another thread
before the first of these uses or after the last. It is also withheld if two threads use one cast and nothing orders
these uses. Both hold in whichever order the calls are made.
Consequences: Threads that use each weight once in each block keep the certificate, because a clear by another thread
changes no result of theirs. Nothing is noted before there is a second thread. What the cache holds then was used
before, as all threads know.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, ref

from flambeau.core.callsite import Site, caller, place
from flambeau.observe.clocks import NOBODY, LogicalThread
from flambeau.observe.detector import Detector
from flambeau.observe.handovers.listeners import Changes, listening, notes_of

_THREADS = 64  # threads that are kept before those are dropped that all others know
_CASTS = 1024  # casts that are kept before those of weights are dropped that are gone

_CLEARED, _USED = "autocast's cache of casts is cleared", "and used"

Call = tuple[int, Site]
"""A thread's call: the number of messages that the thread had sent, and the call site."""


def changes(module: ModuleType) -> Changes:
    return {module.Casts: {"cast": _cast, "clear": _clear}}


def _cast(cast: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, weight: Any, to: Any) -> Any:
        for notes, detector in _notes(self):
            with notes.lock:
                notes.use(detector, weight, to)
        return cast(self, weight, to)

    return wrapper


def _clear(clear: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: Any) -> None:
        for notes, detector in _notes(self):
            with notes.lock:
                notes.clear(detector)
        clear(self)

    return wrapper


def _notes(cache: Any) -> Iterator[tuple[CacheNotes, Detector]]:
    """Yield the notes on a cache for each detector that has several threads."""
    for detector in listening():
        if detector.several:
            by_detector: WeakKeyDictionary[Detector, CacheNotes] = notes_of(cache, WeakKeyDictionary)
            notes = by_detector.get(detector)
            yield notes or by_detector.setdefault(detector, CacheNotes(cache.list_casts())), detector


class CastUse:
    """The uses of one cast by one host thread, since the last clear that is ordered after its former uses.

    Attributes:
        last: The last of them.
        cleared: Thread -> its last clear that happens after them, as the number of messages that it had sent.
        doubt: The call site of a clear that nothing orders with the first of them; None if there is none.
    """

    __slots__ = ("cleared", "doubt", "last")

    def __init__(self, last: Call, doubt: Site | None) -> None:
        self.last, self.doubt = last, doubt
        self.cleared: dict[LogicalThread, int] = {}


class WeightNotes:
    """The uses of a weight's cast in one dtype, by thread.

    Attributes:
        weight: The weight.
        version: Its version at these uses.
        uses: Thread -> its uses.
    """

    __slots__ = ("uses", "version", "weight")

    def __init__(self, weight: Any) -> None:
        self.weight: ref[Any] = ref(weight)
        self.version = weight.counter.version
        self.uses: dict[LogicalThread, CastUse] = {}

    def is_about(self, weight: Any) -> bool:
        return bool(self.version == weight.counter.version) and self.weight() is weight


class CacheNotes:
    """The calls at one cache that one detector has observed.

    Attributes:
        lock: Reentrant, because the garbage collector may leave an autocast block.
        weights: Identity of a weight and dtype -> the uses of the cast. Uses before there were several threads belong
            to `NOBODY`.
        clears: Thread -> its last clear.
        repeats: Thread -> its last use of a cast that was used before, and that no known clear had dropped.
    """

    __slots__ = ("clears", "lock", "repeats", "weights")

    def __init__(self, casts: Iterable[tuple[Any, Any]]) -> None:
        self.lock = threading.RLock()
        self.weights = {(id(weight), to): WeightNotes(weight) for weight, to in casts}
        for notes in self.weights.values():
            notes.uses[NOBODY] = CastUse((0, caller()), None)  # known to all threads
        self.clears: dict[LogicalThread, Call] = {}
        self.repeats: dict[LogicalThread, Call] = {}

    def use(self, detector: Detector, weight: Any, to: Any) -> None:
        notes = self.weights.get((id(weight), to))
        if notes is None or not notes.is_about(weight):
            if len(self.weights) >= _CASTS:
                self._drop_gone()
            notes = self.weights[id(weight), to] = WeightNotes(weight)
        mine, time = detector.here()
        here = time, caller(2)
        doubt = self._compare(detector, notes, mine, here)
        own = notes.uses.get(mine)
        if own is None or own.cleared:
            notes.uses[mine] = CastUse(here, doubt)
        else:
            own.last = here

    def _compare(
        self, detector: Detector, notes: WeightNotes, mine: LogicalThread, here: Call
    ) -> Site | None:
        """Compare a use with the other threads' calls. Return the call site of a clear that nothing orders with it."""
        knows = functools.cache(detector.knows)
        for thread, use in notes.uses.items():
            if not knows((thread, use.last[0])):
                _report(detector, "autocast's cast of a weight is used", use.last[1], "and", here[1])
        clears = [site for thread, (at, site) in self.clears.items() if not knows((thread, at))]
        kept = [use for use in notes.uses.values() if not any(map(knows, use.cleared.items()))]
        if kept:
            self.repeats[mine] = here
            for site in [*clears, *[use.doubt for use in kept if use.doubt is not None]]:
                _report(detector, _CLEARED, site, _USED, here[1])
        return clears[0] if clears else None

    def clear(self, detector: Detector) -> None:
        knows, (mine, time) = functools.cache(detector.knows), detector.here()
        here = time, caller(2)
        for thread, (at, site) in self.repeats.items():
            if not knows((thread, at)):
                _report(detector, _CLEARED, here[1], _USED, site)
        for notes in self.weights.values():
            for thread, use in notes.uses.items():
                if knows((thread, use.last[0])):
                    use.cleared[mine] = time
                else:
                    use.doubt = here[1]
        self.clears[mine] = here
        if len(self.clears) > _THREADS:
            self._drop_known(detector)

    def _drop_gone(self) -> None:
        for key in [key for key, notes in self.weights.items() if notes.weight() is None]:
            del self.weights[key]

    def _drop_known(self, detector: Detector) -> None:
        """Drop the calls that all calls from now on happen after."""
        for calls in (self.clears, self.repeats):
            for thread in [t for t, (at, _) in calls.items() if detector.all_come_after((t, at))]:
                del calls[thread]
        for notes in self.weights.values():
            for thread, use in list(notes.uses.items()):
                if any(map(detector.all_come_after, use.cleared.items())):
                    del notes.uses[thread]


def _report(detector: Detector, what: str, first: Site, then: str, second: Site) -> None:
    detector.findings.threads_unordered(f"{what} at {place(first)} {then}", second)
