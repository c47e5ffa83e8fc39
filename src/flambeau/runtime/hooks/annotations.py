"""Ranges and marks that a program adds to its run, and the subscribers that receive them. Owner of both.

Without a subscriber a range costs one append and one pop of a list. Subscribers are the trace of `flambeau run`,
profilers, and NVIDIA's tools through NVTX.
"""

from __future__ import annotations

import itertools
import threading
from typing import Protocol

from flambeau.runtime.hooks.subscribers import Subscribers


class Listener(Protocol):
    """A subscriber to ranges and marks. `number` is None for a range on its thread's stack, else it identifies the
    range.
    """

    def on_range_begin(self, text: str, number: int | None, /) -> None:
        """Handle the beginning of a range."""

    def on_range_end(self, number: int | None, /) -> None:
        """Handle the end of the last range of this thread's stack, or of the range with that number."""

    def on_mark(self, text: str, /) -> None:
        """Handle a mark."""


class _Stack(threading.local):
    def __init__(self) -> None:
        self.texts: list[str] = []


_stack = _Stack()
_listeners: Subscribers[Listener] = Subscribers()
_numbers = itertools.count(1)


def subscribe(listener: Listener) -> None:
    """Call `listener` for all later ranges and marks."""
    _listeners.add(listener)


def unsubscribe(listener: Listener) -> None:
    """Stop calling `listener`."""
    _listeners.remove(listener)


def has_subscribers() -> bool:
    """Return True if there is a subscriber. The package's own ranges exist only then."""
    return bool(_listeners.members)


def open_here() -> tuple[str, ...]:
    """Return the open ranges of this thread's stack, the outermost first, for a new subscriber to show."""
    return tuple(_stack.texts)


def push(text: str) -> int:
    """Begin a range on this thread's stack. Returns its depth, from 0."""
    texts = _stack.texts
    texts.append(text)
    for listener in _listeners.members:
        listener.on_range_begin(text, None)
    return len(texts) - 1


def pop() -> int:
    """End this thread's last range. Returns its depth, or -1 if there is none."""
    texts = _stack.texts
    if texts:
        texts.pop()
        for listener in _listeners.members:
            listener.on_range_end(None)
        return len(texts)
    return -1


def start(text: str) -> int:
    """Begin a range that may end in another thread. Returns its number."""
    number = next(_numbers)
    for listener in _listeners.members:
        listener.on_range_begin(text, number)
    return number


def end(number: int) -> None:
    """End the range with this number."""
    for listener in _listeners.members:
        listener.on_range_end(number)


def mark(text: str) -> None:
    """Notify all subscribers of a mark."""
    for listener in _listeners.members:
        listener.on_mark(text)
