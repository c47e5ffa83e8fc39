"""Decorators and types for the TorchScript compiler: they mark functions and change nothing else."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")


class FunctionModifiers:
    """The values of a function's `_torchscript_modifier`, which the decorators of this module set."""

    UNUSED = "unused (ignored and replaced with raising of an exception)"
    IGNORE = "ignore (leave as a call to Python, cannot be torch.jit.save'd)"
    EXPORT = "export (compile this function even if nothing calls it)"
    DEFAULT = "default (compile if called from an exported function / forward)"
    COPY_TO_SCRIPT_WRAPPER = "if this method is not scripted, copy the python method onto the scripted model"
    _DROP = "_drop (function is fully ignored, declaration can be unscriptable)"


def is_scripting() -> bool:
    """Return True if TorchScript is being compiled, which is never so."""
    return False


def export(fn: _F) -> _F:
    """Mark a method that TorchScript should compile; return it unchanged."""
    return _mark(fn, FunctionModifiers.EXPORT)


def unused(fn: _F) -> _F:
    """Mark a function or property that TorchScript should replace by an error; return it unchanged."""
    if isinstance(fn, property):
        for accessor in filter(None, (fn.fget, fn.fset)):
            _mark(accessor, FunctionModifiers.UNUSED)
        return fn
    return _mark(fn, FunctionModifiers.UNUSED)


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """Mark a function that TorchScript should call as Python; return it unchanged.

    Args:
        drop: The function, if this is used as `@ignore`. Otherwise True to mark it as `unused` does.
        kwargs: `drop_on_export=True`, PyTorch's deprecated name for `drop=True`.

    Raises:
        RuntimeError: If `drop` is neither a function nor a bool.
    """
    if callable(drop):
        return _mark(drop, FunctionModifiers.IGNORE)
    if not isinstance(drop, bool):
        raise RuntimeError(f"Argument to @torch.jit.ignore must be a bool or a function but got {drop}")
    is_dropped = drop or kwargs.get("drop_on_export", False)
    return lambda fn: _mark(fn, FunctionModifiers.UNUSED if is_dropped else FunctionModifiers.IGNORE)


def _drop(fn: _F) -> _F:
    return _mark(fn, FunctionModifiers._DROP)


def _copy_to_script_wrapper(fn: _F) -> _F:
    return _mark(fn, FunctionModifiers.COPY_TO_SCRIPT_WRAPPER)


def _overload(func: _F) -> _F:
    """Return the declaration of an overload for TorchScript unchanged; Python calls the last definition."""
    return func


def _overload_method(func: _F) -> _F:
    return func


def get_torchscript_modifier(fn: Any) -> str | None:
    """Return the modifier that a decorator of this module set; None for an object that is not a function."""
    function = getattr(fn, "__func__", fn)
    return getattr(function, "_torchscript_modifier", FunctionModifiers.DEFAULT) if callable(fn) else None


def is_ignored_fn(fn: Any) -> bool:
    """Return True if TorchScript does not compile `fn`."""
    return get_torchscript_modifier(fn) in (
        FunctionModifiers.UNUSED, FunctionModifiers.IGNORE, FunctionModifiers._DROP,
    )  # fmt: skip


def boolean_dispatch(
    arg_name: str, arg_index: int, default: bool, if_true: Callable[..., Any], if_false: Callable[..., Any],
    module_name: str, func_name: str,
) -> Callable[..., Any]:  # fmt: skip
    """Return a function that calls `if_true` or `if_false` by the value of one of its boolean arguments.

    Args:
        arg_name: The argument's name.
        arg_index: The argument's position.
        default: The argument's value where it is not passed.
        if_true: Called with all arguments where the value is true.
        if_false: Called with all arguments otherwise.
        module_name: The `__module__` of the result; None leaves it.
        func_name: The `__name__` of the result; None leaves it.
    """

    def fn(*args: Any, **kwargs: Any) -> Any:
        value = args[arg_index] if arg_index < len(args) else kwargs.get(arg_name, default)
        return (if_true if value else if_false)(*args, **kwargs)

    fn.__doc__ = if_true.__doc__ if if_false.__doc__ is None else if_false.__doc__
    fn.__module__ = module_name or fn.__module__
    fn.__name__ = func_name or fn.__name__
    return fn


class BroadcastingListCls:
    """A type for annotations: `BroadcastingList2[int]` is an int or a list of two."""

    def __getitem__(self, types: Any) -> None:
        return None


BroadcastingList1 = BroadcastingList2 = BroadcastingList3 = BroadcastingListCls()
BroadcastingList4 = BroadcastingList5 = BroadcastingList6 = BroadcastingList1


class RRef(Generic[_T]):
    """A type for annotations: a reference to an object of another process, which `torch.distributed.rpc` makes."""


class _IgnoreContextManager(AbstractContextManager[None]):
    """A context manager without effect: `with torch.jit._IgnoreContextManager(x="inp:Tensor"):`."""

    def __init__(self, **kwargs: str) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        return None


def _disable_emit_hooks() -> AbstractContextManager[None]:
    return nullcontext()


def _isinstance(obj: object, target_type: Any) -> bool:
    """Return True if `obj` is of a type that may name what a container holds, such as `List[int]`.

    Args:
        obj: The object.
        target_type: A type, or a tuple of types of which one must fit.

    Raises:
        RuntimeError: If a container's type does not say what it contains.
    """
    if isinstance(target_type, tuple):
        return any(_isinstance(obj, each) for each in target_type)
    origin, args = get_origin(target_type), get_args(target_type)
    if target_type in (list, dict, tuple) or (origin in (list, dict, tuple) and not args):
        name = target_type.__name__
        if name.lower() == "dict":
            advice = f"contained types. Please add contained type, e.g. {name}[int, int]"
        else:
            advice = f"a contained type. Please add a contained type, e.g. {name}[int]"
        raise RuntimeError(f"Attempted to use {name} without {advice}")
    if origin in (Union, UnionType):  # None is of each union for PyTorch, also without None in it
        return obj is None or any(_isinstance(obj, each) for each in args)
    if origin in (list, set, frozenset):
        return isinstance(obj, origin) and all(_isinstance(each, args[0]) for each in obj)
    if origin is dict:
        return isinstance(obj, dict) and all(
            _isinstance(key, args[0]) and _isinstance(value, args[1]) for key, value in obj.items()
        )
    if origin is tuple:
        return _is_tuple_of(obj, args)
    return builtins.isinstance(obj, origin or target_type)


def _is_tuple_of(obj: object, args: tuple[Any, ...]) -> bool:
    if not isinstance(obj, tuple):
        return False
    if len(args) == 2 and args[1] is Ellipsis:
        return all(_isinstance(each, args[0]) for each in obj)
    return len(obj) == len(args) and all(map(_isinstance, obj, args))


def _mark(fn: _F, modifier: str) -> _F:
    fn._torchscript_modifier = modifier  # type: ignore[attr-defined]
    return fn
