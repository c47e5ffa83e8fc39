"""`threading`'s conditions, semaphores and locks.

# Note [Conditions]
Who gets a lock first differs from run to run, so locks and semaphores order nothing, and only questions are named
(`acquire(blocking=False)`, `locked()`). A condition may order: a thread that waits for it goes on after a notification.
What it waits for is a state of the program that is not seen from here. So a wait is an edge only where one notification
alone comes into question, by the assumption, printed with both lines, that this one's `with` block changed the state,
which a loop (`wait_for`) looks at. Where the waiting thread does not know of several notifications, or another one
comes that does not know of the wait, the thread may find another state in another run: the wait is named.
"""

from __future__ import annotations

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
    """What is noted of a condition: each thread's last two notifications, and who has waited since."""

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
        """This thread has waited; `sure`: for as long as it takes."""
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
    """A lock of the program: `threading`'s own, and who asks whether it is free."""

    __slots__ = ("__weakref__", "_asked", "_lock")

    def __init__(self, lock: Any) -> None:
        self._lock = lock
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
        return getattr(self._lock, name)  # what conditions, and forks, need of a lock

    def __repr__(self) -> str:
        return repr(self._lock)


def _create(create: Callable[[], Any]) -> Callable[[], Any]:
    """Give the program locks that tell; the standard library keeps its own."""

    def wrapper() -> Any:
        return create() if asker() is None else Lock(create())

    return wrapper


CHANGES: Changes = {
    threading.Condition: {"wait": _wait, "wait_for": _wait_for, "notify": _notify, "notify_all": _notify},
    threading.Semaphore: {"acquire": _acquire, "__enter__": _acquire, "release": _release},
    threading.BoundedSemaphore: {"release": _release},
    threading: {"Lock": _create, "RLock": _create},
}
