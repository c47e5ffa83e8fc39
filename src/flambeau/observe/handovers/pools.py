"""Hooks for `concurrent.futures.ThreadPoolExecutor`: each task counts as a separate thread.

# Note [Tasks of pools] A task happens after its `submit`, and before any thread that gets its result or
waits for the pool's shutdown. It varies which of the pool's threads runs a task, and after which other
task. Two tasks on one thread are therefore unordered, and a task begins with the clock of its `submit`
alone. A pool of one thread runs its tasks in the order of their submits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.thread import _WorkItem
from types import ModuleType
from typing import Any

from flambeau.observe.handovers.listeners import Changes, asker, find_notes, listening, notes_of
from flambeau.observe.handovers.words import ThreadRole, Word


def changes(module: ModuleType) -> Changes:
    return {
        ThreadPoolExecutor: {"submit": _submit, "shutdown": _shutdown},
        _WorkItem: {"__init__": _item, "run": _run},
    }


class Pool:
    """The data that the detector attaches to a pool of one thread: the order of submits, and the end of the last
    task.
    """

    def __init__(self) -> None:
        self.submits = ThreadRole()
        self.last: Word | None = None


class PoolTask:
    """The data that the detector attaches to a submitted task."""

    def __init__(self, pool: Pool | None) -> None:
        self.word = Word()
        self.word.announce()
        self.pool = pool


class _Submitting(threading.local):
    pool: Pool | None = None


_submitting = _Submitting()


def _submit(submit: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    def wrapper(
        self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        outer = _submitting.pool
        _submitting.pool = notes_of(self, Pool) if self._max_workers == 1 else None
        try:
            return submit(self, fn, *args, **kwargs)
        finally:
            _submitting.pool = outer

    return wrapper


def _shutdown(shutdown: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: ThreadPoolExecutor, wait: bool = True, *, cancel_futures: bool = False) -> None:
        site = asker()
        for detector in listening() if cancel_futures and site is not None else ():
            detector.findings.thread_asked("Executor.shutdown(cancel_futures=True)", site)  # type: ignore[arg-type]
        shutdown(self, wait, cancel_futures=cancel_futures)

    return wrapper


def _item(init: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        pool = _submitting.pool
        if pool is not None:
            pool.submits.step("tasks are submitted to a pool of one thread")
        notes_of(self, lambda: PoolTask(pool))

    return wrapper


def _run(run: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: Any, *args: Any) -> None:
        task: PoolTask | None = find_notes(self)
        if task is None:
            run(self, *args)
            return
        outer = [(detector, detector.begin_task(task.word.point_of(detector))) for detector in listening()]
        task.word.thread_begins()
        if task.pool is not None and task.pool.last is not None:
            task.pool.last.receive()
        try:
            run(self, *args)
        finally:
            if task.pool is not None:
                task.pool.last = Word()
            for detector, thread in outer:
                detector.end_task(thread)

    return wrapper
