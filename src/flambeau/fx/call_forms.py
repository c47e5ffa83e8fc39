"""The form in which PyTorch passes a call on to `__torch_function__`.

# Note [Forms of recorded calls]
Problem: PyTorch's functions that are written in Python pass all of their parameters on, with defaults: `relu(x)` is
recorded as `relu(x, inplace = False)`. Functions written in C++ pass on what the program wrote. Flambeau's functions
all pass on what the program wrote.
Rule: `normalize_call` gives a call of the first kind the form that PyTorch would record. The parameters without
defaults are positional, the others are keywords in the order of the signature.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from flambeau.fx.qualified_names import find_name
from flambeau.nn import functional as nn_functional

__all__ = ["normalize_call"]

_KEYWORD_ORDER = {
    "torch.functional.norm": ("p", "dim", "keepdim", "out", "dtype"),
    "torch.functional.unravel_index": ("shape",),
    "torch.nn.functional.multi_head_attention_forward": (
        "training", "key_padding_mask", "need_weights", "attn_mask", "is_causal", "use_separate_proj_weight",
        "q_proj_weight", "k_proj_weight", "v_proj_weight", "static_k", "static_v", "average_attn_weights",
    ),
    "torch.nn.functional.rrelu": ("lower", "upper", "training", "inplace"),
    "torch.nn.functional.l1_loss": ("size_average", "reduce", "reduction"),
}  # fmt: skip
_METHODS = {"torch.nn.functional.sigmoid": "sigmoid", "torch.nn.functional.tanh": "tanh"}
_VERBATIM = {
    "torch.functional.block_diag", "torch.functional.broadcast_tensors", "torch.functional.cartesian_prod",
    "torch.functional.chain_matmul", "torch.functional.atleast_1d", "torch.functional.atleast_2d",
    "torch.functional.atleast_3d", "torch.functional.align_tensors", "torch.functional.broadcast_shapes",
}  # fmt: skip


@cache
def _sign(function: Callable[..., Any]) -> inspect.Signature:
    """Return a function's signature. A function that always returns indices has the signature of the one that may."""
    name = function.__name__
    if name.endswith("_with_indices"):
        function = getattr(nn_functional, name.removesuffix("_with_indices"))
    return inspect.signature(function)


def _resize(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return the call of `interpolate` that the deprecated names represent."""
    if function.__name__ == "upsample_bilinear":
        kwargs = {**kwargs, "mode": "bilinear", "align_corners": True}
    elif function.__name__ == "upsample_nearest":
        kwargs = {**kwargs, "mode": "nearest"}
    return nn_functional.interpolate, args, kwargs


def normalize_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, Any, tuple[Any, ...], dict[str, Any]]:
    """Return the operation, target and arguments that PyTorch records for a call of a public function."""
    full = find_name(function) or ""
    if full in _METHODS:
        return "call_method", _METHODS[full], args, kwargs
    if full == "torch.functional.einsum":
        return "call_function", function, _spread(args), kwargs
    if full == "torch.functional.meshgrid":
        return ("call_function", function, args, {"indexing": kwargs.get("indexing")})
    if not full.startswith(("torch.nn.functional.", "torch.functional.")) or full in _VERBATIM:
        return "call_function", function, args, kwargs
    if function.__name__.startswith("upsample"):
        function, args, kwargs = _resize(function, args, kwargs)
        full = "torch.nn.functional.interpolate"
    try:
        bound = _sign(function).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return "call_function", function, args, kwargs
    bound.apply_defaults()
    given = bound.arguments
    parameters = _sign(function).parameters
    order = _KEYWORD_ORDER.get(full)
    required = [n for n, p in parameters.items() if p.default is p.empty and n not in (order or ())]
    names = order or tuple(n for n in parameters if n not in required)
    positional = tuple(given[name] for name in required)
    if given.get("return_indices"):  # PyTorch dispatches to the function that always returns them
        function = getattr(nn_functional, f"{function.__name__}_with_indices", function)
    return "call_function", function, positional, {name: given[name] for name in names if name in given}


def _spread(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of einsum with the operands of a list in its place."""
    if len(args) == 2 and isinstance(args[1], list | tuple):
        return (args[0], *args[1])
    return args
