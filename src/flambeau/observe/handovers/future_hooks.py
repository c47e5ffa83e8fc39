"""Hooks for `concurrent.futures`: the order that a future's result carries, and queries for the first future
to finish.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, _base
from types import ModuleType
from typing import Any

from flambeau.observe.handovers.listeners import Changes, act, asker, listening, notes_of
from flambeau.observe.handovers.words import Polled, Word


def changes(module: ModuleType) -> Changes:
    return {
        Future: {
            "set_result": _end, "set_exception": _end, "cancel": _cancel,
            "set_running_or_notify_cancel": _begin, "result": _result("result"), "exception": _result("exception"),
            "done": _ask("Future.done()"), "running": _ask("Future.running()"),
            "cancelled": _ask("Future.cancelled()"), "add_done_callback": _ask("Future.add_done_callback()"),
        },
        _base: {"wait": _wait, "as_completed": _as_completed},
        module: {"wait": _wait, "as_completed": _as_completed},
        _base.Executor: {"map": _map},
    }  # fmt: skip


class Promise:
    """The data that the detector attaches to a future: its end and the queries of its state."""

    def __init__(self) -> None:
        self.end: Word | None = None
        self.asked = Polled()

    def receive(self) -> None:
        if self.end is not None:
            self.end.receive()

    @property
    def is_known(self) -> bool:
        """Return True if this thread happens after the future's end."""
        return self.end is not None and self.end.is_known()


def _end(set_: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: Future[Any], value: Any) -> None:
        promise = notes_of(self, Promise)
        promise.asked.change()
        promise.end = Word()
        set_(self, value)

    return wrapper


def _cancel(cancel: Callable[..., bool]) -> Callable[..., bool]:
    def wrapper(self: Future[Any]) -> bool:
        promise = notes_of(self, Promise)
        act()
        promise.asked.ask("Future.cancel()", asker())
        promise.asked.change()
        return cancel(self)

    return wrapper


def _begin(begin: Callable[..., bool]) -> Callable[..., bool]:
    def wrapper(self: Future[Any]) -> bool:
        notes_of(self, Promise).asked.change()
        return begin(self)

    return wrapper


def _ask(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(self: Future[Any], *args: Any) -> Any:
            site = asker()
            if site is not None:
                notes_of(self, Promise).asked.ask(what, site)
            return function(self, *args)

        return wrapper

    return wrap


def _result(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(self: Future[Any], timeout: float | None = None) -> Any:
            promise = notes_of(self, Promise)
            if timeout is not None:
                promise.asked.ask(f"Future.{name}(timeout)", asker())
            try:
                return function(self, timeout)
            finally:
                caller = sys._getframe(1).f_globals.get("__name__", "")
                # tasks of an event loop join the future's clock when they resume
                if not caller.startswith("asyncio."):
                    promise.receive()

        return wrapper

    return wrap


def _wait(wait: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(
        fs: Iterable[Any], timeout: float | None = None, return_when: str = _base.ALL_COMPLETED
    ) -> Any:
        fs = set(fs)
        if timeout is not None:
            _ask_all(fs, "concurrent.futures.wait(timeout)", 1)
        elif return_when != _base.ALL_COMPLETED:
            _ask_all(fs, f"concurrent.futures.wait(return_when={return_when})", 2)
        found = wait(fs, timeout, return_when)
        if timeout is None and return_when == _base.ALL_COMPLETED:
            for future in fs:
                notes_of(future, Promise).receive()
        return found

    return wrapper


def _as_completed(as_completed: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def wrapper(fs: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
        fs = list(fs)
        _ask_all(set(fs), "concurrent.futures.as_completed()", 2 if timeout is None else 1)
        return as_completed(fs, timeout)

    return wrapper


def _map(map_: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def wrapper(self: Any, fn: Callable[..., Any], *iterables: Any, **options: Any) -> Iterator[Any]:
        site = asker()
        for detector in listening() if site is not None and options.get("timeout") is not None else ():
            detector.findings.thread_asked("Executor.map(timeout)", site)  # type: ignore[arg-type]
        return map_(self, fn, *iterables, **options)

    return wrapper


def _ask_all(fs: set[Any], what: str, least: int) -> None:
    """Record that the thread asked which of at least `least` futures are done. `what` names the call."""
    site = asker(2)
    if site is not None and len(fs) >= least:
        for detector in listening() if not all(notes_of(f, Promise).is_known for f in fs) else ():
            detector.findings.thread_asked(what, site)
