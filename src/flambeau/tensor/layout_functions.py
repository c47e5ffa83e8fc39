"""Tables of the functions for tensors that are not strided, which `tensor/sparse` fills.

See Note [Sparse tensors] in core/sparse_meta.py. The slow paths of calls and views use them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from flambeau.tensor.tensor import Tensor

calls: dict[Any, Callable[..., Any]] = {}
"""Operator -> function of (args, params) that returns the result."""

changes: dict[Any, Callable[..., Any]] = {}
"""Operator -> function of (target, args, params) that changes the target in place."""

views: dict[Any, Callable[..., Any]] = {}
"""View -> function of (tensor, *params)."""


functions: dict[str, Any] = {}
"""Name -> the function or operator that strided code uses where an argument, a result or a gradient is sparse."""


def find(name: str) -> Any:
    """Return the function of this name in `functions`, after importing its package."""
    import_module("flambeau.tensor.sparse")
    return functions[name]


def any_sparse(args: Sequence[Any]) -> bool:
    """Return True if one of the arguments is a sparse tensor."""
    return any(isinstance(a, Tensor) and a.meta.sparse for a in args)


def run_call(op: Any, args: Sequence[Any], params: tuple[Any, ...]) -> Any:
    """Run an operator of which an argument is sparse."""
    define = calls.get(op)
    if define is None:
        raise not_implemented(op.name, args)
    return define(args, params)


def run_change(
    op: Any, outputs: Sequence[Tensor], args: Sequence[Any], params: tuple[Any, ...], resize: bool
) -> Any:
    """Run an operator with a sparse tensor in place, or into `out=` with `resize`."""
    define = changes.get(op)
    if define is None or len(outputs) != 1:
        raise not_implemented(op.name if resize else f"{op.name}_", (*outputs, *args))
    return define(outputs[0], args, params)


def run_view(view: Any, t: Tensor, params: tuple[Any, ...]) -> Tensor:
    """Return the result of a view operator for a sparse tensor: a new tensor."""
    define = views.get(view)
    if define is None:
        raise not_implemented(view.name, (t,))
    result: Tensor = define(t, *params)
    return result


def not_implemented(name: str, args: Sequence[Any]) -> NotImplementedError:
    """Return the error of an operator that has no sparse form, in PyTorch's words."""
    meta = next(a.meta for a in args if isinstance(a, Tensor) and a.meta.sparse)
    where = {"cpu": "CPU", "cuda": "CUDA", "meta": "Meta"}[meta.device.type]
    kind = "Sparse" if meta.layout == "sparse_coo" else "SparseCsr"
    return NotImplementedError(
        f"Could not run 'aten::{name}' with arguments from the '{kind}{where}' backend. Flambeau has no such operator "
        f"for layout torch.{meta.layout}: use to_dense() first, or compute with indices and values."
    )
