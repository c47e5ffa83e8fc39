"""torch.utils._contextlib: context managers that decorate functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.autograd.grad_mode import DecoratorContextManager as _DecoratorContextManager
from flambeau.core.public_names import explain_absent_names

__all__ = ["_DecoratorContextManager", "_NoParamDecoratorContextManager"]

explain_absent_names(globals(), "torch.utils._contextlib")


class _NoParamDecoratorContextManager(_DecoratorContextManager):
    """A context manager without arguments, which also decorates without parentheses."""

    def __new__(cls, orig_func: Callable[..., Any] | None = None) -> Any:
        manager = super().__new__(cls)
        return manager if orig_func is None else manager(orig_func)
