"""What PyTorch's argument parser says of an argument of the wrong type, asked only once a call has failed.

# Note [Arguments of wrong types]
Functions do not look at the types of their arguments first, as PyTorch's parser does: that would cost each call what it
is there to tell few. A function that was given a list where it wants a tensor runs into an AttributeError, or the like,
that says nothing; then its signature says what was meant.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

from flambeau.core.dtype import dtype
from flambeau.core.errors import type_name
from flambeau.tensor.tensor import Tensor

SIGNS = (AssertionError, AttributeError, StopIteration, TypeError, ValueError)
"""The errors that come of an argument of a wrong type: of them, the parser raises TypeError alone."""

_KINDS: dict[str, tuple[type, str]] = {
    "Tensor": (Tensor, "Tensor"), "bool": (bool, "bool"), "dtype": (dtype, "torch.dtype"),
}  # fmt: skip


def explained(
    define: Callable[..., Any], name: str, args: tuple[Any, ...], given: dict[str, Any], method: bool
) -> TypeError | None:
    """The TypeError of PyTorch's parser for the first argument that is not of its parameter's type; None if all are."""
    parameters = signature(define).parameters
    named = list(zip(parameters.values(), args, strict=False))
    named += [(parameters[key], value) for key, value in given.items() if key in parameters]
    for at, (parameter, value) in enumerate(named):
        expected = _lacking(parameter, value)
        if expected is not None:
            where = "" if parameter.kind is Parameter.KEYWORD_ONLY else f" (position {at + (not method)})"
            argument = f"argument '{parameter.name}'{where}"
            return TypeError(f"{name}(): {argument} must be {expected}, not {type_name(value)}")
    return None


def _lacking(parameter: Parameter, value: Any) -> str | None:
    """What PyTorch calls the type that the value should have; None if it has it, or may have any."""
    kind, _, other = str(parameter.annotation).partition(" | ")
    if kind not in _KINDS or other not in ("", "None") or (value is None and other):
        return None
    right, name = _KINDS[kind]
    return None if isinstance(value, right) else name
