"""Where public names are bound: `torch.*` functions and `Tensor` methods, each defined once beside its code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from flambeau.tensor.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])

functions: dict[str, Any] = {}
"""The functions of the `torch` namespace by name."""


def function(define: F) -> F:
    """Make it `torch.<name>`."""
    if define.__name__ in functions:
        raise ValueError(f"torch.{define.__name__} is bound twice")
    functions[define.__name__] = define
    return define


def method(define: F) -> F:
    """Make it `Tensor.<name>`."""
    if define.__name__ in Tensor.__dict__:
        raise ValueError(f"Tensor.{define.__name__} is bound twice")
    setattr(Tensor, define.__name__, define)
    return define


def both(define: F) -> F:
    """Make it `torch.<name>` and `Tensor.<name>`: the first argument is the tensor."""
    return method(function(define))


def alias(name: str, define: Callable[..., Any], *, as_function: bool = True, as_method: bool = True) -> None:
    """Give a bound function another public name (`mul` and `multiply`)."""
    if as_function:
        if name in functions:
            raise ValueError(f"torch.{name} is bound twice")
        functions[name] = define
    if as_method:
        if name in Tensor.__dict__:
            raise ValueError(f"Tensor.{name} is bound twice")
        setattr(Tensor, name, define)
