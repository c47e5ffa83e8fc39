"""Hooks for `threading`'s conditions, semaphores and locks.

# Note [Conditions] The order in which threads acquire a lock differs from run to run. Locks and semaphores
therefore order nothing, and only queries are named (`acquire(blocking=False)`, `locked()`). A condition may
order: a thread that waits for it continues after a notification. What it waits for is a state of the
program that the detector cannot see. A wait is therefore an edge only if exactly one notification may have
ended it. The printed assumption, with both call sites, is that the notifier's `with` block changed the
state, which a loop (`wait_for`) tests. If the waiting thread does not know of several notifications, or
another notification does not know of the wait, the thread may find another state in another run. The wait
is named then.
"""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from flambeau.core.callsite import Site, place, program_site
from flambeau.observe.clocks import LogicalThread
from flambeau.observe.detector import Detector
from flambeau.observe.handovers.listeners import Changes, asker, beyond_standard, listening, notes_of
from flambeau.observe.handovers.words import Polled, Word
from flambeau.observe.order import Caller

# -- conditions -----------------------------------------------------------------------------------------------


class Notices:
    """The data that the detector attaches to a condition: each thread's last two notifications, and the waits since."""

    def __init__(self) -> None:
        self._sent: WeakKeyDictionary[Detector, dict[LogicalThread, deque[tuple[Caller, Word, Site]]]] = (
            WeakKeyDictionary()
        )
        self.waits = Polled()

    def send(self) -> None:
        self.waits.change()
        for detector in listening():
            me = detector.here()
            sent = self._sent.setdefault(detector, {}).setdefault(me[0], deque(maxlen=2))
            sent.append((me, Word(), program_site()))

    def on_wait(self, what: str, site: Site, sure: bool) -> None:
        """Record a wait of this thread. `sure` is True if the wait had no timeout."""
        for detector in listening():
            sent = [each for sent in self._sent.get(detector, {}).values() for each in sent]
            unknown = [each for each in sent if not detector.knows(each[0])]
            if len(unknown) == 1 and sure:
                _, word, notified = unknown[0]
                word.receive()
                detector.findings.relies(
                    f"what {what} at {place(site)} waits for is changed in the block that notifies at {place(notified)}"
                )
            elif unknown:
                detector.findings.thread_asked(what, site)
        self.waits.ask(what, site)


def _wait(wait: Callable[..., bool]) -> Callable[..., bool]:
    def wrapper(self: threading.Condition, timeout: float | None = None) -> bool:
        done = wait(self, timeout)
        site = asker()
        if site is not None:
            what = "Condition.wait()" if timeout is None else "Condition.wait(timeout)"
            notes_of(self, Notices).on_wait(what, site, timeout is None)
        return done

    return wrapper


def _wait_for(wait_for: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: threading.Condition, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        found = wait_for(self, predicate, timeout)
        site = asker()
        if site is not None:
            what = "Condition.wait_for()" if timeout is None else "Condition.wait_for(timeout)"
            notes_of(self, Notices).on_wait(what, site, timeout is None)
        return found

    return wrapper


def _notify(notify: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: threading.Condition, *args: Any, **options: Any) -> None:
        if asker() is not None:
            notes_of(self, Notices).send()
        notify(self, *args, **options)

    return wrapper


# -- semaphores -----------------------------------------------------------------------------------------------


def _acquire(acquire: Callable[..., bool]) -> Callable[..., bool]:
    def wrapper(self: threading.Semaphore, blocking: bool = True, timeout: float | None = None) -> bool:
        site = asker()
        if site is None:
            return acquire(self, blocking, timeout)
        asked = notes_of(self, Polled)
        if not blocking or timeout is not None:
            asked.ask("Semaphore.acquire() with a timeout, or without a wait,", site)
        got = acquire(self, blocking, timeout)
        if got:
            asked.change()
        return got

    return wrapper


def _release(release: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: threading.Semaphore, n: int = 1) -> None:
        if beyond_standard() is not None:
            notes_of(self, Polled).change()
        release(self, n)

    return wrapper


# -- locks ----------------------------------------------------------------------------------------------------


class Lock:
    """A lock of the program that reports queries of its state. It wraps `threading`'s own lock.

    Programs may derive classes from it: it is `type(threading.Lock())` to them.

    Args:
        lock: The lock that it wraps; a new one if None.
    """

    __slots__ = ("__weakref__", "_asked", "_lock")
    _create: Callable[[], Any] = staticmethod(_thread.allocate_lock)

    def __init__(self, lock: Any = None) -> None:
        self._lock = self._create() if lock is None else lock
        self._asked = Polled()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not blocking or timeout >= 0:
            self._asked.ask("Lock.acquire() with a timeout, or without a wait,", asker())
        got: bool = self._lock.acquire(blocking, timeout)
        if got:
            self._asked.change()
        return got

    def release(self) -> None:
        self._asked.change()
        self._lock.release()

    def locked(self) -> bool:
        self._asked.ask("Lock.locked()", asker())
        return self._lock.locked()

    def __enter__(self) -> bool:
        got: bool = self._lock.__enter__()
        self._asked.change()
        return got

    def __exit__(self, *error: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)  # the methods that conditions and forks need

    def __repr__(self) -> str:
        return repr(self._lock)


class ReentrantLock(Lock):
    """A lock that its thread may acquire again: `type(threading.RLock())` to programs."""

    __slots__ = ()
    _create = staticmethod(_thread.RLock)


def _creating(kind: type[Lock]) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Return a wrapper for a lock constructor: the program gets observed locks, the standard library ordinary ones."""

    def change(create: Callable[[], Any]) -> Callable[[], Any]:
        def wrapper() -> Any:
            return create() if asker() is None else kind(create())

        return wrapper

    return change


CHANGES: Changes = {
    threading.Condition: {"wait": _wait, "wait_for": _wait_for, "notify": _notify, "notify_all": _notify},
    threading.Semaphore: {"acquire": _acquire, "__enter__": _acquire, "release": _release},
    threading.BoundedSemaphore: {"release": _release},
    threading: {"Lock": _creating(Lock), "RLock": _creating(ReentrantLock)},
}
