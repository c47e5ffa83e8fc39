"""Arguments by the signatures of functions and modules."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from flambeau.core.public_names import explain_absent_names, publish

__all__ = ["ArgsKwargsPair", "get_signature_for_torch_op", "normalize_function", "normalize_module"]


class ArgsKwargsPair(NamedTuple):
    """The positional and keyword arguments of a call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def get_signature_for_torch_op(op: Callable[..., Any], return_schemas: bool = False) -> Any:
    """Return the signatures of a function in a list, or None if it has none.

    Args:
        op: The function.
        return_schemas: Return a pair whose second element is None, because Flambeau's functions have no schemas.
    """
    try:
        found: list[inspect.Signature] | None = [inspect.signature(op)]
    except (TypeError, ValueError):
        found = None
    return (found, None) if return_schemas else found


def normalize_function(
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    arg_types: Any = None,
    kwarg_types: Any = None,
    normalize_to_only_use_kwargs: bool = False,
) -> ArgsKwargsPair | None:
    """Return a call's arguments with defaults, according to the function's signature; None if they do not match it."""
    signatures = get_signature_for_torch_op(target)
    return _normalize(signatures, args, kwargs or {}, normalize_to_only_use_kwargs)


def normalize_module(
    root: Any,
    target: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    normalize_to_only_use_kwargs: bool = False,
) -> ArgsKwargsPair | None:
    """Return a call's arguments with defaults, by the signature of a submodule's `forward`.

    Raises:
        RuntimeError: If there is no such submodule.
    """
    try:
        module = root.get_submodule(target)
    except AttributeError as error:
        raise RuntimeError(
            f"Tried to normalize arguments with the call target {target}. This is not a submodule of the root"
        ) from error
    signatures = get_signature_for_torch_op(module.forward)
    return _normalize(signatures, args, kwargs or {}, normalize_to_only_use_kwargs)


def _normalize(signatures: Any, args: Any, kwargs: Any, has_only_keywords: bool) -> ArgsKwargsPair | None:
    for signature in signatures or ():
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            continue
        bound.apply_defaults()
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in signature.parameters.values()):
            return None
        given = dict(bound.arguments)
        if has_only_keywords:
            return ArgsKwargsPair((), given)
        count = len(args)
        names = list(given)
        return ArgsKwargsPair(tuple(given[n] for n in names[:count]), {n: given[n] for n in names[count:]})
    return None


publish(globals())
explain_absent_names(globals(), "torch.fx.operator_schemas")
