"""The processing of arguments by every public function: before the call, and after a failure.

NumPy's names of arguments are PyTorch's too: `x.sum(axis=1, keepdims=True)`, `torch.cat(arrays, axis=1)`,
`torch.add(x1=a, x2=b)`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import CO_VARKEYWORDS, unwrap
from types import FunctionType
from typing import Any

from flambeau.core.errors import RaceError
from flambeau.tensor.arguments.arg_errors import HOT, KINDS, Parser, explain_mismatch, standing_for
from flambeau.tensor.arguments.torch_function import arm_for
from flambeau.tensor.signatures import renamed, signatures_of

OURS = {"axis": "dim", "keepdims": "keepdim", "x": "input", "a": "input", "x1": "input", "x2": "other"}

# Names of first arguments that PyTorch's parser calls `input`, unlike its documentation.
_FIRST = {"A", "B", "L", "b", "self", "tensor", "x"}

_COMPARED = KINDS.keys() - {"None"}
_DIMS = {"dim", "keepdim"}

_SIGNS = (AssertionError, AttributeError, StopIteration, TypeError, ValueError)
"""What functions raise of objects that are not tensors, and may override them."""


def accepting(define: Any, name: str, *, method: bool = False) -> Any:
    """Return the public function of this name, which accepts NumPy's argument names and refuses wrong types.

    Methods without arguments that have a type are returned as they are. See Note [Arguments of wrong types].
    """
    if not isinstance(define, FunctionType):
        return define
    own = _arguments(define)
    typed = not _DIMS.isdisjoint(own) or name in renamed or _has_types(define, own)
    if method and not typed and not signatures_of(name, method):
        return define
    if (f"Tensor.{name}" if method else name) in HOT:
        return _comparing_late(define, name, method)
    fitting: set[Any] = set()  # types of arguments that need no comparison
    built: list[Parser] = []

    def mistake(args: tuple[Any, ...], given: dict[str, Any]) -> TypeError | None:
        if not built:
            built.append(Parser(define, name, method, fitting))
        return built[0].mistake(args, given)

    def call(*args: Any, **given: Any) -> Any:
        if given:
            kinds: tuple[Any, ...] = (*map(type, args), *given, *map(type, given.values()))
        elif len(args) == 2:  # as most calls have: written out
            kinds = type(args[0]), type(args[1])
        else:
            kinds = (type(args[0]),) if len(args) == 1 else tuple(map(type, args))
        if kinds not in fitting:
            refusal = mistake(args, given)
            if refusal is not None:
                again = _again(call, call, define, name, method, args, given)
                if again is None:
                    try:
                        raise refusal
                    finally:
                        del refusal  # a reference would keep this frame's arguments alive
                return again()
            if kinds not in fitting:
                args, given = built[0].convert(args, given)
        try:
            return define(*args, **given)
        except RaceError:
            raise
        except _SIGNS:
            again = _again(call, define, define, name, method, args, given)
            if again is None:
                raise
        return again()

    return standing_for(call, define)


def _comparing_late(define: FunctionType, name: str, method: bool) -> Any:
    """Return a function that checks its arguments against its annotations only after it has failed."""

    def call(*args: Any, **given: Any) -> Any:
        try:
            return define(*args, **given)
        except RaceError:
            raise
        except Exception as error:
            known = isinstance(error, _SIGNS)
            again = _again(call, call, define, name, method, args, given) if known else None
            if again is None:
                mistake = explain_mismatch(define, name, args, given, method)
                if mistake is None:
                    raise
                raise mistake from error
        return again()

    return standing_for(call, define)


def _again(
    call: Any, renaming: Any, define: FunctionType, name: str, method: bool, args: Any, given: dict[str, Any]
) -> Callable[[], Any] | None:
    """Return the function to call after a failure, for overriding objects or other argument names; otherwise None."""
    if arm_for((*args, *given.values())):
        return partial(call, *args, **given)
    ours = _names(define, name, method)
    named = {ours.get(key, key): value for key, value in given.items()}
    if len(named) == len(given) and named.keys() != given.keys():
        # the call failed at an unknown name, so it had no effect yet
        return partial(renaming, *args, **named)
    return None


def _arguments(define: FunctionType) -> set[str]:
    """Return the names of a function's arguments. A function of a tensor and `**` reads keywords itself."""
    code = (unwrap(define) if hasattr(define, "__wrapped__") else define).__code__
    own = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    if code.co_flags & CO_VARKEYWORDS and ("input" in own or "self" in own):
        own |= {"dim", "keepdim", "other"}
    return own


def _has_types(define: FunctionType, own: set[str]) -> bool:
    """Return True if an argument after the first has an annotation that can be checked."""
    kinds = [str(kind).partition(" | ")[0] for at, kind in define.__annotations__.items() if at in own]
    return not _COMPARED.isdisjoint(kinds[1:])


def _names(define: FunctionType, name: str, method: bool) -> dict[str, str]:
    """Return a function's argument names, as a map from their other names."""
    own = _arguments(define)
    code = unwrap(define).__code__
    names = OURS | renamed.get(name, {})
    first = code.co_varnames[0] if code.co_argcount and "input" not in own and not method else ""
    if first in _FIRST:
        names = {theirs: first if mine == "input" else mine for theirs, mine in names.items()}
        names["input"] = first
    return {theirs: mine for theirs, mine in names.items() if mine in own and theirs not in own}
