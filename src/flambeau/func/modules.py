"""`torch.func.functional_call`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from flambeau.nn.modules.module import Module
from flambeau.nn.utils.stateless import call_with
from flambeau.tensor.tensor import Tensor


def functional_call(
    module: Module, parameter_and_buffer_dicts: dict[str, Tensor] | Sequence[dict[str, Tensor]], args: Any = None,
    kwargs: dict[str, Any] | None = None, *, tie_weights: bool = True, strict: bool = False,
) -> Any:  # fmt: skip
    """Call a module with these tensors in the place of its own of the same (dotted) names.

    parameter_and_buffer_dicts: one dict, or several without a common name. args: a tuple, or one argument.
    tie_weights: what a module has under several names is replaced under all of them.
    strict: the names must be those of the module, else RuntimeError.
    Raises ValueError: no dict, names in two dicts, or several values for a tied tensor.
    """
    tensors = _merge_dicts(parameter_and_buffer_dicts)
    return call_with(module, tensors, args, kwargs, tie_weights, strict)


def _merge_dicts(given: Any) -> dict[str, Tensor]:
    if isinstance(given, dict):
        return given
    if not isinstance(given, Sequence):
        raise ValueError(
            f"Expected parameter_and_buffer_dicts to be a dict, or a list/tuple of dicts, but got {type(given)}"
        )
    if not all(isinstance(part, dict) for part in given):
        raise ValueError("Expected all elements of parameter_and_buffer_dicts to be dictionaries")
    names = [name for part in given for name in part]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(
            f"{repeated} appeared in multiple dictionaries; behavior of functional call is ambiguous"
        )
    return {name: tensor for part in given for name, tensor in part.items()}
