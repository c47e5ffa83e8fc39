"""Hooks for `queue`: a put happens before the uses of its item if puts are ordered and takes are ordered.

# Note [Queues] `Queue` and `SimpleQueue` are first in, first out. The n-th item taken is the n-th item put
in every run, as long as the puts are ordered and the takes are ordered. A bounded queue blocks a put until
an item was taken, which is an edge, too. `join` happens after every `task_done` of earlier puts. The item
that `LifoQueue` and `PriorityQueue` return depends on their contents. It is the same in every run only if
the taker finds one item, or happens after all puts, and every later put happens after the take.
"""

from __future__ import annotations

import _queue
import queue
import threading
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

from flambeau.observe.handovers.listeners import Changes, asker, beyond_standard, listening, notes_of
from flambeau.observe.handovers.words import Polled, ThreadRole, Word

_FILLED, _EMPTIED = "a queue.Queue is filled", "a queue.Queue is emptied"


def changes(module: ModuleType) -> Changes:
    sorted_ones: Changes = {
        kind: {"_put": _put_sorted, "_get": _get_sorted} for kind in (queue.LifoQueue, queue.PriorityQueue)
    }
    return {
        queue.Queue: {
            "_put": _put, "_get": _get, "put": _ask_put, "get": _ask_get,
            "put_nowait": _ask_nowait("put"), "get_nowait": _ask_nowait("get"),
            "qsize": _ask("Queue.qsize()"), "empty": _ask("Queue.empty()"), "full": _ask("Queue.full()"),
            "task_done": _task_done, "join": _join,
        },
        **sorted_ones,
        queue: {"SimpleQueue": lambda original: SimpleQueue},
    }  # fmt: skip


class Mail:
    """The data that the detector attaches to a queue.

    Attributes:
        words: The positions of the puts in the queue, oldest first; None for a put before a detector was
            attached.
        items: For a sorted queue: (item, position of its put).
        room: For a bounded queue: the positions of takes that make room for later puts; None before the
            first put.
        done: Thread -> position of its last `task_done`.
        taken: The polls that takes from a sorted queue make: their result depends on later puts.
    """

    def __init__(self) -> None:
        self.puts, self.takes = ThreadRole(), ThreadRole()
        self.asked, self.taken = Polled(), Polled()
        self.words: deque[Word | None] = deque()
        self.items: list[tuple[Any, Word]] = []
        self.room: deque[Word] | None = None
        self.done: dict[tuple[Any, ...], Word] = {}
        self._free = 0  # number of puts for which a bounded queue has room before any take

    def fill(self, held: int, size: int) -> None:
        """Record a put of this thread into a queue that holds `held` items and has maximum size `size` (0:
        unbounded).
        """
        self.words.extend([None] * (held - len(self.words)))
        self.puts.step(_FILLED)
        if size > 0 and self.room is None:
            self.room, self._free = deque(), size - held
        if self.room is not None:
            self._free -= 1
            if self._free < 0 and self.room:
                self.room.popleft().receive()
        self.asked.change()
        self.words.append(Word())

    def empty(self) -> None:
        """Record that this thread has taken an item."""
        self.takes.step(_EMPTIED)
        word = self.words.popleft() if self.words else None
        if word is not None:
            word.receive()
        self.asked.change()
        if self.room is not None:
            self.room.append(Word())


def _put(put: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: queue.Queue[Any], item: Any) -> None:
        notes_of(self, Mail).fill(len(self.queue), self.maxsize)
        put(self, item)

    return wrapper


def _get(get: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: queue.Queue[Any]) -> Any:
        item = get(self)
        notes_of(self, Mail).empty()
        return item

    return wrapper


def _task_done(task_done: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: queue.Queue[Any]) -> None:
        word = Word()
        notes_of(self, Mail).done[tuple([point[0] for _, point in word.points])] = word
        task_done(self)

    return wrapper


def _join(join: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: queue.Queue[Any]) -> None:
        join(self)
        mail = notes_of(self, Mail)
        if mail.puts.is_known():
            done, mail.done = mail.done, {}
            for word in done.values():
                word.receive()

    return wrapper


# -- sorted queues --------------------------------------------------------------------------------------------


def _put_sorted(put: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: queue.Queue[Any], item: Any) -> None:
        mail = notes_of(self, Mail)
        mail.asked.change()
        mail.taken.change()
        mail.items.append((item, Word()))
        put(self, item)

    return wrapper


def _get_sorted(get: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: queue.Queue[Any]) -> Any:
        mail, site, what = notes_of(self, Mail), beyond_standard(), f"{type(self).__name__}.get()"
        unknown = [word for _, word in mail.items if not word.is_known()]
        held = len(self.queue)
        item = get(self)
        at = next((i for i, (other, _) in enumerate(mail.items) if other is item), None)
        if at is not None:
            mail.items.pop(at)[1].receive()
        mail.asked.change()
        if site is not None:
            mail.taken.ask(what, site)
            for detector in listening() if unknown and held > 1 else ():
                detector.findings.thread_asked(what, site)
        return item

    return wrapper


# -- questions ------------------------------------------------------------------------------------------------


def _ask(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(self: queue.Queue[Any]) -> Any:
            site = asker()
            if site is not None:
                notes_of(self, Mail).asked.ask(what, site)
            return function(self)

        return wrapper

    return wrap


def _ask_put(put: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: queue.Queue[Any], item: Any, block: bool = True, timeout: float | None = None) -> None:
        if self.maxsize > 0 and (timeout is not None or not block):
            notes_of(self, Mail).asked.ask("Queue.put with a timeout, or without a wait,", asker())
        put(self, item, block, timeout)

    return wrapper


def _ask_get(get: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: queue.Queue[Any], block: bool = True, timeout: float | None = None) -> Any:
        if timeout is not None or not block:
            notes_of(self, Mail).asked.ask("Queue.get with a timeout, or without a wait,", asker())
        return get(self, block, timeout)

    return wrapper


def _ask_nowait(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(self: queue.Queue[Any], *item: Any) -> Any:
            if name == "get" or self.maxsize > 0:
                notes_of(self, Mail).asked.ask(f"Queue.{name}_nowait()", asker())
            return function(self, *item)

        return wrapper

    return wrap


class SimpleQueue(_queue.SimpleQueue):  # type: ignore[type-arg]
    """The program's `queue.SimpleQueue`. The standard library's own queues stay unchanged."""

    def __new__(cls) -> Any:
        if cls is SimpleQueue and asker() is None:
            return _queue.SimpleQueue()
        return super().__new__(cls)

    def __init__(self) -> None:
        self._mail, self._turn = Mail(), threading.RLock()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        with self._turn:
            self._mail.fill(super().qsize(), 0)
            super().put(item, block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if timeout is not None or not block:
            self._mail.asked.ask("SimpleQueue.get with a timeout, or without a wait,", asker())
        return self._take_item(super().get(block, timeout))

    def put_nowait(self, item: Any) -> None:
        self.put(item)

    def get_nowait(self) -> Any:
        self._mail.asked.ask("SimpleQueue.get_nowait()", asker())
        return self._take_item(super().get_nowait())

    def _take_item(self, item: Any) -> Any:
        with self._turn:
            self._mail.empty()
        return item

    def empty(self) -> bool:
        self._mail.asked.ask("SimpleQueue.empty()", asker())
        return super().empty()

    def qsize(self) -> int:
        self._mail.asked.ask("SimpleQueue.qsize()", asker())
        return super().qsize()
