"""torch.compiler: what is true of it where nothing is compiled, so that programs written for both ways run.

`torch.compile` itself is not here, nor is what changes how it compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.names import lacking, publish

__all__ = [
    "allow_in_graph", "assume_constant_result", "cudagraph_mark_step_begin", "disable", "is_compiling",
    "is_dynamo_compiling", "is_exporting", "list_backends", "reset",
]  # fmt: skip


def is_compiling() -> bool:
    """Whether the program is being compiled or exported: never."""
    return False


def is_dynamo_compiling() -> bool:
    """Whether the program is being traced: never."""
    return False


def is_exporting() -> bool:
    """Whether the program is being exported: never."""
    return False


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """A decorator, with arguments or without: `fn` itself, which nobody compiles."""
    return fn if fn is not None else lambda fn: fn


def allow_in_graph(fn: Any) -> Any:
    """A decorator of a function that a compiler need not look into, or a list of such: `fn` itself.

    Raises RuntimeError: it cannot be called.
    """
    if not (callable(fn) or (isinstance(fn, list | tuple) and all(map(callable, fn)))):
        raise RuntimeError("allow_in_graph expects a callable")
    return fn


def assume_constant_result(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of a function that gives the same each time: `fn` itself."""
    return fn


def cudagraph_mark_step_begin() -> None:
    """Tell the graphs that a compiler has captured that a step begins: there are none."""


def reset() -> None:
    """Forget what was compiled: nothing was."""


def list_backends(exclude_tags: Sequence[str] = ("debug", "experimental")) -> list[str]:
    """The compilers that there are: none."""
    return []


__getattr__ = lacking("torch.compiler")
publish(globals())
