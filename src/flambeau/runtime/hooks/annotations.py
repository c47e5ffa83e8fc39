"""Ranges and marks that a program puts into its own run, told to whoever listens. Owner of the listeners.

With nobody listening a range costs a list's append and pop. Listeners are the trace of `flambeau run`, profilers, and
NVIDIA's tools by way of NVTX.
"""

from __future__ import annotations

import itertools
import threading
from typing import Protocol


class Listener(Protocol):
    """`number` is None for a range on its thread's stack; else it tells apart ranges that end anywhere."""

    def on_range_begin(self, text: str, number: int | None, /) -> None:
        """A range begins now."""

    def on_range_end(self, number: int | None, /) -> None:
        """The last range of this thread's stack ends now, or the one of that number."""

    def on_mark(self, text: str, /) -> None:
        """Something happens now."""


class _Stack(threading.local):
    def __init__(self) -> None:
        self.texts: list[str] = []


_stack = _Stack()
_listeners: tuple[Listener, ...] = ()
_numbers = itertools.count(1)
_lock = threading.Lock()


def subscribe(listener: Listener) -> None:
    """Tell `listener` of everything from now on."""
    global _listeners
    with _lock:
        _listeners = (*_listeners, listener)


def unsubscribe(listener: Listener) -> None:
    """Tell it no more."""
    global _listeners
    with _lock:
        _listeners = tuple([other for other in _listeners if other is not listener])


def heard() -> bool:
    """Return True if anybody listens: ranges that the package puts in of its own are made only then."""
    return bool(_listeners)


def open_here() -> tuple[str, ...]:
    """Return the ranges on this thread's stack, the outermost first: for who begins to listen, and shows them from
    then on.
    """
    return tuple(_stack.texts)


def push(text: str) -> int:
    """Begin a range on this thread's stack; its depth, from 0."""
    texts = _stack.texts
    texts.append(text)
    for listener in _listeners:
        listener.on_range_begin(text, None)
    return len(texts) - 1


def pop() -> int:
    """End this thread's last range; its depth, or -1 if there is none."""
    texts = _stack.texts
    if texts:
        texts.pop()
        for listener in _listeners:
            listener.on_range_end(None)
        return len(texts)
    return -1


def start(text: str) -> int:
    """Begin a range that may end in another thread; its number."""
    number = next(_numbers)
    for listener in _listeners:
        listener.on_range_begin(text, number)
    return number


def end(number: int) -> None:
    """End the range of that number."""
    for listener in _listeners:
        listener.on_range_end(number)


def mark(text: str) -> None:
    """Something happens now."""
    for listener in _listeners:
        listener.on_mark(text)
