"""Hooks for `asyncio`: the parts of an event loop that depend on other threads, on time and on input.

# Note [Event loops] A loop runs its callbacks in the order in which they become ready. For one thread
without external waits, that order is the same in every run. External events (an executor's task, a timer,
input, another thread's call) arrive at varying times. A single task is not affected, because it continues
after its event. For two tasks that do not wait for each other, the arrival decides which continues first;
this is named. So are queries (`Future.done`), waits for the first of several futures, and waits with a
timeout.

The order that an executor's task carries holds for a task that has waited for it. It does not hold for the
whole loop from the time at which the result arrived, because that time varies. It is therefore received
where exactly one task can continue and has waited for the result.
"""

from __future__ import annotations

import asyncio
import asyncio.futures
import asyncio.tasks
import concurrent.futures
import threading
from collections.abc import Callable, Generator, Iterable
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from flambeau.core.callsite import Site, is_program, place, program_site
from flambeau.observe.detector import Detector
from flambeau.observe.handovers.future_hooks import Promise
from flambeau.observe.handovers.listeners import (
    Changes,
    asker,
    beyond_standard,
    find_notes,
    listening,
    notes_of,
)
from flambeau.observe.handovers.words import Word
from flambeau.observe.order import Caller

_FIRST = (asyncio.FIRST_COMPLETED, asyncio.FIRST_EXCEPTION)
_LIMITS = ("_release_waiter", "Timeout._on_timeout")  # timer callbacks that end waits with a timeout


def changes(module: ModuleType) -> Changes:
    return {
        asyncio.BaseEventLoop: {
            "call_at": _call_at, "call_soon_threadsafe": _call_from_thread, "run_in_executor": _in_executor,
        },
        asyncio.Handle: {"_run": _run},
        asyncio.futures: {"_copy_future_state": _copy_state, "wrap_future": _wrap_future},
        asyncio.tasks: {"_wait": _wait, "as_completed": _as_completed},
        asyncio: {"wrap_future": _wrap_future, "as_completed": _as_completed},
    }  # fmt: skip


class Loop:
    """The data that the detector attaches to an event loop.

    Attributes:
        waiting: Futures of executors, until they are done.
        latest: The external event that it waited for last, and the call site.
        started: The number of external operations that were started.
        arrived: True if an external event arrived in the present callback.
        first: Futures of which the program takes the first to finish -> call site.
        active: Detector -> the last step of the program in this loop.
        named: True once it was reported that the order of tasks depends on timing.
    """

    def __init__(self) -> None:
        self.waiting: WeakSet[Any] = WeakSet()
        self.latest: tuple[str, Site] | None = None
        self.started = 0
        self.arrived = False
        self.first: list[tuple[WeakSet[Any], Site]] = []
        self.active: WeakKeyDictionary[Detector, Caller] = WeakKeyDictionary()
        self.named = False

    def begin(self, what: str) -> None:
        self.started += 1
        self.latest = what, program_site()

    def outside(self, loop: Any) -> bool:
        """Return True if an external event may arrive, or has just arrived."""
        if self.arrived or any(not timer.cancelled() for timer in getattr(loop, "_scheduled", ())):
            return True
        selector = getattr(loop, "_selector", None)
        return bool(self.waiting) or (selector is not None and len(selector.get_map() or ()) > 1)

    def look(self, loop: Any) -> None:
        """Check, after a callback, whether external events may decide which task continues first."""
        if self.named or not self.outside(loop):
            return
        self.first = [(fs, site) for fs, site in self.first if sum(not f.done() for f in fs) > 1]
        for _, site in self.first:
            _name("asyncio.as_completed()", site)
        if len(_independent(loop)) > 1:
            self.named = True
            what, site = self.latest or ("input", program_site())
            for detector in listening():
                detector.findings.depends(
                    f"asyncio runs several tasks while one waits for {what} at {place(site)}: which goes on first "
                    "depends on timing"
                )


def _name(what: str, site: Site) -> None:
    for detector in listening():
        detector.findings.thread_asked(what, site)


# -- tasks ----------------------------------------------------------------------------------------------------


def _is_programs(task: Any) -> bool:
    coroutine = task.get_coro()
    code = getattr(coroutine, "cr_code", None) or getattr(coroutine, "gi_code", None)
    return code is None or is_program(code)


def _futures_awaited_by(future: Any) -> Iterable[Any]:
    """Return all futures that must be done before a task, or a gathering of futures, continues."""
    todo = [future]
    while todo:
        one = todo.pop()
        waiter = getattr(one, "_fut_waiter", None)
        for after in [waiter, *getattr(one, "_children", ())]:
            if after is not None:
                yield after
                todo.append(after)


def _independent(loop: Any) -> list[Any]:
    """Return the program's tasks that do not wait for another task of the program."""
    tasks = [task for task in asyncio.all_tasks(loop) if _is_programs(task)]
    return [task for task in tasks if not any(other in tasks for other in _futures_awaited_by(task))]


def _run(run: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: Any) -> None:
        loop, callback = self._loop, self._callback
        run(self)
        detectors = listening()
        if detectors:
            notes = notes_of(loop, Loop)
            if _of_program(callback):
                for detector in detectors:
                    notes.active[detector] = detector.here()
            notes.look(loop)
            notes.arrived = False

    return wrapper


def _of_program(callback: Any) -> bool:
    """Return True if a callback is a step of the program's task, or a function of the program."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return _is_programs(owner)
    code = getattr(callback, "__code__", None)
    return code is not None and is_program(code)


# -- executors ------------------------------------------------------------------------------------------------


class ObservedFuture(asyncio.Future):  # type: ignore[type-arg]
    """The event loop's future of a task that runs in an executor. It records queries and orders waiting tasks."""

    promise: Promise

    def done(self) -> bool:
        site = asker()
        if site is not None:
            self.promise.asked.ask("Future.done()", site)
        return super().done()

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            return (yield from super().__await__())
        finally:
            _receive_outcome(self.get_loop(), self, self.promise)

    __iter__ = __await__


def _receive_outcome(loop: Any, future: Any, promise: Promise) -> None:
    """Join the clock of an executor's task if the continuing task has waited for it."""
    task = asyncio.current_task(loop)
    if task is not None and _is_programs(task):
        promise.receive()
        return
    if task is not None:
        notes_of(task, _AwaitedPromises).promises.append(promise)
    alone = _independent(loop)
    if all(future in (waits := list(_futures_awaited_by(one))) or task in waits for one in alone):
        promise.receive()


class _AwaitedPromises:
    """The promises that a task of the standard library has waited for."""

    def __init__(self) -> None:
        self.promises: list[Promise] = []


def _in_executor(in_executor: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        if beyond_standard() is not None:
            notes_of(self, Loop).begin("an executor's task")
        return in_executor(self, executor, func, *args)

    return wrapper


def _wrap_future(wrap_future: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(future: Any, *, loop: Any = None) -> Any:
        if not isinstance(future, concurrent.futures.Future):
            return wrap_future(future, loop=loop)
        found = ObservedFuture(loop=loop)
        found.promise = notes_of(future, Promise)
        notes_of(found.get_loop(), Loop).waiting.add(found)
        asyncio.futures._chain_future(future, found)  # type: ignore[attr-defined]
        return found

    return wrapper


def _copy_state(copy_state: Callable[..., None]) -> Callable[..., None]:
    def wrapper(source: Any, dest: Any) -> None:
        copy_state(source, dest)
        if isinstance(dest, ObservedFuture):
            loop = dest.get_loop()
            notes = notes_of(loop, Loop)
            notes.arrived = True
            notes.waiting.discard(dest)
            if asyncio.current_task(loop) is None:
                _receive_outcome(loop, dest, dest.promise)

    return wrapper


# -- timers, other threads, the first of several --------------------------------------------------------------


def _call_at(call_at: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, when: float, callback: Callable[..., Any], *args: Any, **options: Any) -> Any:
        site = beyond_standard()
        if site is not None:
            if getattr(callback, "__qualname__", "") in _LIMITS:
                _name("asyncio with a limit of time", site)
            elif _of_program(callback):
                _name("call_later(), or call_at(),", site)
            else:
                notes_of(self, Loop).begin("time to pass")
        return call_at(self, when, callback, *args, **options)

    return wrapper


def _call_from_thread(call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, callback: Callable[..., Any], *args: Any, **options: Any) -> Any:
        site = beyond_standard()
        if site is None or self._thread_id in (None, threading.get_ident()):
            return call(self, callback, *args, **options)
        word = Word()

        def run_receiver(*args: Any) -> Any:
            notes = notes_of(self, Loop)
            notes.arrived, notes.latest = True, ("another thread's call", site)
            for detector in listening():
                active, point = notes.active.get(detector), word.point_of(detector)
                if active is not None and (point is None or point[2].get(active[0], 0) < active[1]):
                    detector.findings.depends(
                        f"another thread gives a loop work at {place(site)}: between which of the loop's steps it runs "
                        "depends on timing"
                    )
            word.receive()
            return callback(*args)

        return call(self, run_receiver, *args, **options)

    return wrapper


def _wait(wait: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(fs: Any, timeout: float | None, return_when: str, loop: Any) -> Any:
        notes, site = notes_of(loop, Loop), program_site()
        started, several = notes.started, sum(not f.done() for f in fs) > 1
        # computed now, because all input may have arrived by the end of the wait
        outside = notes.outside(loop)
        found = await wait(fs, timeout, return_when, loop)
        if return_when in _FIRST and several and (outside or notes.started > started or notes.outside(loop)):
            _name(f"asyncio.wait(return_when={return_when})", site)
        if timeout is None and return_when not in _FIRST:
            for future in fs:
                reported_by = find_notes(future)
                for promise in reported_by.promises if isinstance(reported_by, _AwaitedPromises) else ():
                    promise.receive()
                if isinstance(future, ObservedFuture):
                    future.promise.receive()
        return found

    return wrapper


def _as_completed(as_completed: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(fs: Iterable[Any], *, timeout: float | None = None) -> Any:
        site = asker()
        if site is None:
            return as_completed(fs, timeout=timeout)
        futures = [asyncio.ensure_future(f) for f in fs]
        notes_of(asyncio.get_running_loop(), Loop).first.append((WeakSet(futures), site))
        return as_completed(futures, timeout=timeout)

    return wrapper
