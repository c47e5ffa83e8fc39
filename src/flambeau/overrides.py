"""torch.overrides: helpers for tensor classes and other objects that override public functions.

Importing this module makes all public functions check their arguments for overrides
(`tensor/arguments/torch_function.py`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from flambeau.core.public_names import explain_absent_names, publish
from flambeau.tensor.arguments import torch_function
from flambeau.tensor.arguments.torch_function import TorchFunctionMode
from flambeau.tensor.subclasses import kept_plain
from flambeau.tensor.tensor import Tensor

__all__ = [
    "BaseTorchFunctionMode", "TorchFunctionMode", "get_default_nowrap_functions", "get_ignored_functions",
    "get_overridable_functions",
    "get_testing_overrides", "handle_torch_function", "has_torch_function", "has_torch_function_unary",
    "has_torch_function_variadic", "is_tensor_like", "is_tensor_method_or_property", "resolve_name",
    "wrap_torch_function",
]  # fmt: skip


class BaseTorchFunctionMode(TorchFunctionMode):
    """A mode that calls each function unchanged; other modes inherit from it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


_IMPORTED_ON_USE = tuple([
    f"flambeau.{name}" for name in (
        "_native_functions", "_symbolic", "distributions.rejection", "linalg._lobpcg", "nn.init", "sparse", "special",
        "tensor.sparse.segment_reduce",
    )
])  # fmt: skip


def has_torch_function(relevant_args: Iterable[Any]) -> bool:
    """Return True if one of the arguments overrides functions, and may do so now. Parameters and plain tensors do
    not.
    """
    return torch_function.in_mode() or (
        torch_function.is_enabled() and bool(torch_function.overriding(relevant_args))
    )


def has_torch_function_unary(arg: Any) -> bool:
    """Return `has_torch_function` of one argument."""
    return has_torch_function((arg,))


def has_torch_function_variadic(*args: Any) -> bool:
    """Return `has_torch_function` of several arguments."""
    return has_torch_function(args)


def handle_torch_function(
    public_api: Callable[..., Any], relevant_args: Iterable[Any], *args: Any, **kwargs: Any
) -> Any:
    """Call the override that one of the arguments has for `public_api`, a function of the program, and return its
    result.

    The arguments are asked by `__torch_function__(public_api, types, args, kwargs)` until one gives something
    else than NotImplemented.

    Raises:
        TypeError: If none handled the call.
    """
    return torch_function.handle(public_api, torch_function.overriding(relevant_args), args, kwargs)


def wrap_torch_function(dispatcher: Callable[..., Iterable[Any]]) -> Callable[..., Any]:
    """Return a decorator that makes a function overridable by the arguments that `dispatcher` returns for a call."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def asking(*args: Any, **kwargs: Any) -> Any:
            relevant = dispatcher(*args, **kwargs)
            if has_torch_function(relevant):
                return handle_torch_function(asking, relevant, *args, **kwargs)
            return function(*args, **kwargs)

        return asking

    return decorate


def is_tensor_like(inp: Any) -> bool:
    """Return True if an object is a tensor or defines `__torch_function__`."""
    return type(inp) is Tensor or hasattr(inp, "__torch_function__")


def get_overridable_functions() -> dict[Any, list[Callable[..., Any]]]:
    """Return the functions that classes may override, by the module or class that has them. Properties are included."""
    for module in map(import_module, _IMPORTED_ON_USE):
        for attribute in dir(module):  # some functions of these modules exist after their first use only
            getattr(module, attribute)
    found: dict[Any, list[Callable[..., Any]]] = {}
    for function in torch_function.overridable() - torch_function.silent():
        name = resolve_name(function)
        if name is None:  # the program has replaced it
            continue
        place = name.removeprefix("torch.").split(".")[:-1]
        owner: Any = Tensor if place[:1] == ["Tensor"] else import_module(".".join(["flambeau", *place]))
        found.setdefault(owner, []).append(function)
    return found


def get_testing_overrides() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return a function that returns -1 for each function that classes may override.

    It has the parameters of the function that it stands for, and refuses other arguments. Setters are not included.
    """
    functions = [each for owned in get_overridable_functions().values() for each in owned]
    return {each: _stand_in(each) for each in functions if each.__name__ != "__set__"}


def _stand_in(function: Callable[..., Any]) -> Callable[..., int]:
    shown = inspect.signature(_get if function.__name__ == "__get__" else function)

    def override(*args: Any, **kwargs: Any) -> int:
        shown.bind(*args, **kwargs)
        return -1

    override.__signature__ = shown  # type: ignore[attr-defined]
    return override


def _get(self: Tensor) -> Any:
    """Show the parameter of a getter."""


def get_ignored_functions() -> set[Callable[..., Any]]:
    """Return the public functions that never call `__torch_function__`."""
    return torch_function.silent()


def get_default_nowrap_functions() -> set[Callable[..., Any]]:
    """Return the functions whose results the default `__torch_function__` does not convert to the subclass."""
    return kept_plain()


def is_tensor_method_or_property(func: Callable[..., Any]) -> bool:
    """Return True if a function that `__torch_function__` received is a method or a property of Tensor."""
    return (resolve_name(func) or "").startswith("torch.Tensor.")


def resolve_name(f: Any) -> str | None:
    """Return the name of a function that classes may override, such as "torch.Tensor.add"; None for other objects."""
    return torch_function.name_of(f)


explain_absent_names(globals(), "torch.overrides")
torch_function.arm()
publish(globals())
