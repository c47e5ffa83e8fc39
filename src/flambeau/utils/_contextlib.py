"""torch.utils._contextlib: context managers that decorate functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.autograd.grad_mode import DecoratorContextManager as _DecoratorContextManager
from flambeau.core.public_names import explain_absent_names

__all__ = ["_DecoratorContextManager", "_NoParamDecoratorContextManager", "context_decorator"]

explain_absent_names(globals(), "torch.utils._contextlib")


class _NoParamDecoratorContextManager(_DecoratorContextManager):
    """A context manager without arguments, which also decorates without parentheses."""

    def __new__(cls, orig_func: Callable[..., Any] | None = None) -> Any:
        manager = super().__new__(cls)
        return manager if orig_func is None else manager(orig_func)


class _Contexts(_DecoratorContextManager):
    """A decorator that enters a context manager from a function for each call.

    Args:
        create: Returns the context manager.
    """

    def __init__(self, create: Callable[[], Any]) -> None:
        self.clone = create  # type: ignore[method-assign]


def context_decorator(ctx: Any, func: Any) -> Any:
    """Return a function or class that runs `func` in a context.

    Args:
        ctx: A context manager that can be entered again, or a function that returns one for each call.
        func: A function, a generator function or a class.

    Raises:
        RuntimeError: If `ctx` is both a function and a context manager.
    """
    if callable(ctx) and hasattr(ctx, "__enter__"):
        raise RuntimeError(
            f"Passed in {ctx} is both callable and also a valid context manager (has __enter__), making it ambiguous "
            "which interface to use. Pass a function that returns the context manager."
        )
    return _Contexts(ctx if callable(ctx) else lambda: ctx)(func)
