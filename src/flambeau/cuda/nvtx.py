"""torch.cuda.nvtx: ranges and marks of the program, for the trace of `flambeau run`, profilers and NVIDIA's tools."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.driver.driver_registry import nvtx_tool
from flambeau.runtime.hooks import annotations
from flambeau.runtime.hooks.annotations import pop, push

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]

explain_absent_names(globals(), "torch.cuda.nvtx")


def range_push(msg: str) -> int:
    """Begin a range on this thread's stack and return its depth, from 0.

    Args:
        msg: ASCII message to associate with the range.

    Raises:
        TypeError: If it is not a str.
    """
    return push(msg if msg.__class__ is str else _text("range_push", msg))


def range_pop() -> int:
    """End this thread's last range. Returns its depth, or -1 if no range was pushed."""
    return pop()


def range_start(msg: str) -> int:
    """Begin a range that may end in another thread and return its handle.

    Raises:
        TypeError: If `msg` is not a str.
    """
    return annotations.start(_text("range_start", msg))


def range_end(range_id: int) -> None:
    """End the range of a handle. Does nothing if there is none.

    Raises:
        TypeError: If it is not an int.
    """
    if not isinstance(range_id, int):
        raise TypeError(f"range_end(): expected int, got {type(range_id).__name__}")
    annotations.end(range_id)


def mark(msg: str) -> None:
    """Describe an instantaneous event that occurred at some point.

    Args:
        msg: ASCII message to associate with the event.

    Raises:
        TypeError: If it is not a str.
    """
    annotations.mark(_text("mark", msg))


class range:
    """A context manager and decorator: a range around a block or a function, called `msg.format(*args, **kwargs)`.

    Args:
        msg: ASCII message to associate with the range.

    Raises:
        AttributeError: If it is not a str.
    """

    __slots__ = ("_text",)

    def __init__(self, msg: str, *args: Any, **kwargs: Any) -> None:
        self._text = msg.format(*args, **kwargs)

    def __enter__(self) -> None:
        push(self._text)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        pop()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call_in_range(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return call_in_range


def _text(function: str, msg: Any) -> str:
    if not isinstance(msg, str):
        raise TypeError(f"{function}(): msg must be str, not {type(msg).__name__}")
    return msg


_tool = nvtx_tool()
if _tool is not None:
    annotations.subscribe(_tool)
