"""Calls of modules with other parameters and buffers than those that they store."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flambeau.nn.modules.module import Module
from flambeau.tensor.tensor import Tensor

__all__ = ["functional_call"]
_MISSING = object()


def functional_call(
    module: Module, parameters_and_buffers: dict[str, Tensor], args: Any = None, kwargs: Any = None, *,
    tie_weights: bool = True, strict: bool = False,
) -> Any:  # fmt: skip
    """Call a module with these tensors instead of its parameters and buffers of the same (dotted) names.

    Buffers that the call replaces are put into the dict. Deprecated in PyTorch for `torch.func.functional_call`.

    Args:
        args: A tuple, or one argument.
        tie_weights: Replace a tensor under all names that the module has for it.
        strict: Require that the names are those of the module.

    Raises:
        RuntimeError: If `strict` is True and names differ.
        ValueError: If a tied tensor has several values.
    """
    warnings.warn(
        "`torch.nn.utils.stateless.functional_call` is deprecated as of PyTorch 2.0 and will be removed in a future "
        "version of PyTorch. Please use `torch.func.functional_call` instead which is a drop-in replacement.",
        FutureWarning,
        stacklevel=2,
    )
    return call_with(module, parameters_and_buffers, args, kwargs, tie_weights, strict)


def call_with(
    module: Module, given: dict[str, Tensor], args: Any, kwargs: Any, tie_weights: bool, strict: bool
) -> Any:
    """Implement `functional_call` and `torch.func.functional_call`."""
    positional = () if args is None else args if isinstance(args, tuple) else (args,)
    tensors = _add_tied_names(module, given) if tie_weights else given
    if strict:
        _check_names(module, tensors)
    with _replace_tensors(module, tensors, given):
        return module(*positional, **(kwargs or {}))


def _named_tensors(module: Module) -> dict[str, Tensor]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _add_tied_names(module: Module, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the caller's tensors, also under other names of the tensors that they replace (tied weights)."""
    names: dict[int, list[str]] = {}
    for name, tensor in _named_tensors(module).items():
        names.setdefault(id(tensor), []).append(name)
    all_given = dict(given)
    for tied in names.values():
        values = [given[name] for name in tied if name in given]
        if any(value is not values[0] for value in values):
            raise ValueError(
                f"functional_call got multiple values for keys {sorted(tied)}, which are tied. Consider using "
                "tie_weights=False"
            )
        all_given |= dict.fromkeys(tied, values[0]) if values else {}
    return all_given


def _check_names(module: Module, given: dict[str, Tensor]) -> None:
    own = _named_tensors(module)
    listed = {"Unexpected": [k for k in given if k not in own], "Missing": [k for k in own if k not in given]}
    problems = [f"{kind} key(s): {', '.join(map(repr, keys))}." for kind, keys in listed.items() if keys]
    if problems:
        text = "\n\t".join(problems)
        raise RuntimeError(f"Error(s) in reparametrizing for {module._get_name()}:\n\t{text}")


@contextmanager
def _reparametrize_module(
    module: Module,
    parameters_and_buffers: dict[str, Tensor],
    tie_weights: bool = False,
    strict: bool = False,
    stack_weights: bool = False,
) -> Iterator[None]:
    """Give a module other parameters and buffers inside a `with` block. Buffers that it replaces are put into the dict.

    Args:
        module: The module.
        parameters_and_buffers: The tensors by their (dotted) names.
        tie_weights: Replace a tensor under all names that the module has for it.
        strict: Require that the names are those of the module.
        stack_weights: Restore in reverse order, which is done always.

    Raises:
        RuntimeError: If `strict` is True and names differ.
        ValueError: If a tied tensor has several values.
    """
    tensors = _add_tied_names(module, parameters_and_buffers) if tie_weights else parameters_and_buffers
    if strict:
        _check_names(module, tensors)
    with _replace_tensors(module, tensors, parameters_and_buffers):
        yield


@contextmanager
def _replace_tensors(module: Module, tensors: dict[str, Tensor], given: dict[str, Tensor]) -> Iterator[None]:
    before: dict[str, Any] = {}
    try:
        for name, tensor in tensors.items():
            before[name] = _swap(module, name, tensor)
        yield
    finally:
        after = {name: _swap(module, name, own) for name, own in reversed(before.items())}
        given.update({name: after[name] for name in given if name in after})


def _swap(module: Module, name: str, tensor: Any) -> Any:
    """Replace a tensor of a module and return the previous one. `_MISSING` represents an absent one."""
    path, _, own = name.rpartition(".")
    part = module.get_submodule(path)
    place: Any = next((p for p in (part._parameters, part._buffers) if own in p), part.__dict__)
    before = place.get(own, _MISSING)
    if tensor is _MISSING:
        del place[own]
    else:
        place[own] = tensor
    return before
