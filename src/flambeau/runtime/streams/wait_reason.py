"""The wait reason: why the runtime itself makes streams wait, for traces. Owner of each thread's reason.

A reason is a function and its arguments: its text is created only when a trace reads it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class _ThreadReason(threading.local):
    text: Callable[..., str] | None = None
    arguments: tuple[Any, ...] = ()


_current = _ThreadReason()


class wait_reason:
    """A context manager that gives events and waits of this thread the wait reason `text(*arguments)`."""

    __slots__ = ("_arguments", "_outer", "_text")

    def __init__(self, text: Callable[..., str], *arguments: Any) -> None:
        self._text = text
        self._arguments = arguments

    def __enter__(self) -> None:
        current = _current
        self._outer = current.text, current.arguments
        current.text, current.arguments = self._text, self._arguments

    def __exit__(self, *error: object) -> None:
        _current.text, _current.arguments = self._outer


def reason() -> str:
    """Return the innermost wait reason of this thread; "" if the program itself requested the wait."""
    text = _current.text
    return "" if text is None else text(*_current.arguments)
