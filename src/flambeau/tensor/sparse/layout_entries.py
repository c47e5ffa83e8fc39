"""Moves, copies, creations, text and pickles of sparse tensors, which functions of strided tensors call.

They are called through `layouts.functions`, as those functions lie below this package.
"""

from __future__ import annotations

from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any

from flambeau.core.device import CPU, META
from flambeau.core.dtype import dtype, int64
from flambeau.core.errors import NO_META_DATA, type_name
from flambeau.core.meta import Meta
from flambeau.ops import copy as copies
from flambeau.tape.autograd_node import Leaf
from flambeau.tape.mode import recording
from flambeau.tensor import layout_functions, printing
from flambeau.tensor.arguments.options import CreationOptions
from flambeau.tensor.arguments.public import functions as torch
from flambeau.tensor.autograd.autograd_meta import node_of
from flambeau.tensor.autograd.recording import record_result
from flambeau.tensor.sparse.construction import BLOCKED, empty_coo, refuse_blocks
from flambeau.tensor.sparse.elementwise import empty_like
from flambeau.tensor.sparse.primitives import record
from flambeau.tensor.sparse.sparse_storage import (
    is_coo,
    make_compressed,
    make_coo,
    meta_of,
    nnz_of,
    storage_of,
)
from flambeau.tensor.tensor import Tensor

_TO = record("_to_copy", lambda grad: grad, node="ToCopyBackward0")


def _hook(define: Callable[..., Any]) -> Callable[..., Any]:
    layout_functions.functions[define.__name__.strip("_")] = define
    return define


@_hook
def _to(t: Tensor, where: Any, kind: dtype | None, non_blocking: bool, copy: bool) -> Tensor:
    """Return a sparse tensor on another device, or of another dtype: itself if nothing changes."""
    meta, storage = meta_of(t), storage_of(t)
    device, kind = where or meta.device, kind or meta.dtype
    if device is meta.device and kind is meta.dtype and not copy:
        return t
    if meta.device is META and device is not META:
        raise NotImplementedError(NO_META_DATA)
    with recording(False):
        indices = [part.to(device, non_blocking=non_blocking, copy=copy) for part in storage.parts()[:-1]]
        values = storage.values.to(device, kind, non_blocking=non_blocking, copy=copy)
        if is_coo(t):
            made = make_coo(indices[0], values, meta.shape, storage.coalesced)
        else:
            made = make_compressed(meta.layout, indices[0], indices[1], values, meta.shape)
    record_result(_TO, (), (t,), (made,))
    return made


@_hook
def for_parts(t: Tensor, define: Callable[[Tensor], Any]) -> None:
    """Call a function with each of the tensors that hold a sparse tensor's data."""
    for part in storage_of(t).parts():
        define(part)


def _copy(target: Tensor, source: Tensor) -> None:
    version = target.counter.version
    layout_functions.changes[copies.copy](target, (source,), ())
    target.counter.version = version  # `copy_` counts the change


layout_functions.functions["copy_"] = _copy


def _fill(target: Tensor, number: Any) -> Tensor:
    result: Tensor = layout_functions.changes[copies.fill](target, (number,), ())
    return result


layout_functions.functions["fill_"] = _fill


@_hook
def stride(t: Tensor) -> tuple[int, ...]:
    """Return zeros, as PyTorch does for COO tensors.

    Raises:
        RuntimeError: For a compressed one.
    """
    if is_coo(t):
        return (0,) * t.meta.ndim
    raise RuntimeError(f"Sparse {meta_of(t).layout[-3:].upper()} tensors do not have strides")


# -- creations --------------------------------------------------------------------------------------------------


@_hook
def empty(layout: str, shape: tuple[int, ...], kind: dtype, where: Any) -> Tensor:
    """Return a sparse tensor without values."""
    if layout == "sparse_coo":
        return empty_coo(shape, kind, where)
    if layout in BLOCKED:
        raise refuse_blocks(f"layout=torch.{layout}")
    if layout not in ("sparse_csr", "sparse_csc"):
        raise NotImplementedError(f"layout torch.{layout}: Flambeau has no such tensors")
    if len(shape) < 2:
        raise RuntimeError(
            f"torch.empty: Only batched sparse compressed (non-block) tensors are supported, but got size {list(shape)}"
        )
    lines = shape[-2] if layout == "sparse_csr" else shape[-1]
    batch = shape[:-2]
    compressed = torch["zeros"]((*batch, lines + 1), dtype=int64, device=where)
    plain = torch["empty"]((*batch, 0), dtype=int64, device=where)
    return make_compressed(
        layout, compressed, plain, torch["empty"]((*batch, 0), dtype=kind, device=where), shape
    )


@_hook
def like(t: Tensor, options: CreationOptions) -> Tensor:
    """Return a sparse tensor without values, in the shape of another tensor."""
    with recording(False):
        made = empty_like(t)
    kind, where = options.kind or t.meta.dtype, options.device or t.meta.device
    return made.to(device=where, dtype=kind)


@_hook
def new_empty(meta: Meta, options: CreationOptions, t: Tensor) -> Tensor:
    """Return a sparse tensor without values, in the layout of another tensor."""
    return empty(meta_of(t).layout, meta.shape, meta.dtype, meta.device)


# -- text -------------------------------------------------------------------------------------------------------

_PARTS = {
    "sparse_coo": ("indices",),
    "sparse_csr": ("crow_indices", "col_indices"),
    "sparse_csc": ("ccol_indices", "row_indices"),
}


@_hook
def text(t: Tensor) -> str:
    """Return the `repr` of a sparse tensor: its parts, size and layout."""
    meta, storage = meta_of(t), storage_of(t)
    prefix = "tensor(" if type(t) in printing.unnamed else f"{type(t).__name__}("
    indent = len(prefix)
    names = (*_PARTS[meta.layout], "values")
    parts = [_show_part(*each, indent) for each in zip(names, storage.parts(), strict=True)]
    body = prefix + (",\n" + " " * indent).join(parts)
    shown = printing.with_suffixes(body, _suffixes(t), indent, begins_line=is_coo(t))
    return f"Parameter({shown})" if "_is_param" in t.__dict__ else shown


def _show_part(name: str, part: Tensor, indent: int) -> str:
    head = f"{name}=tensor("
    size = f", size={tuple(part.meta.shape)}" if part.meta.device is META or not part.meta.numel else ""
    return f"{head}{printing.content_of(part, indent + len(head))}{size})"


def _suffixes(t: Tensor) -> list[str]:
    meta, node = meta_of(t), node_of(t)
    found = [] if meta.device is CPU else [f"device='{meta.device}'"]
    found.append(f"size={tuple(meta.shape)}")
    if meta.device is not META:
        found.append(f"nnz={nnz_of(t)}")
    if meta.dtype not in printing.usual_dtypes():
        found.append(f"dtype={meta.dtype}")
    found.append(f"layout=torch.{meta.layout}")
    if node is not None:
        found.append("requires_grad=True" if isinstance(node, Leaf) else f"grad_fn=<{node.name()}>")
    return found


# -- pickles ----------------------------------------------------------------------------------------------------


@_hook
def recipe(t: Tensor) -> tuple[Any, tuple[Any, ...]]:
    """Return the function's arguments with which a sparse tensor can be built again: its layout and its parts."""
    meta, storage = meta_of(t), storage_of(t)
    layout = t.layout
    parts: tuple[Any, ...] = storage.parts()
    if is_coo(t):
        return layout, (*parts, tuple(meta.shape), storage.coalesced)
    return layout, (*parts, tuple(meta.shape))


@_hook
def rebuild(layout: Any, data: Any) -> Tensor:
    """Return a sparse tensor of its parts, which are checked.

    Raises:
        RuntimeError or TypeError: If they do not fit together.
        UnpicklingError: If they have no data.
    """
    name = getattr(layout, "name", None)
    if not isinstance(data, tuple) or not all(
        isinstance(part, Tensor) for part in data[: 2 if name == "sparse_coo" else 3]
    ):
        raise TypeError(f"a sparse tensor is rebuilt from a tuple of its parts, not from {type_name(data)}")
    if any(part.is_meta for part in data if isinstance(part, Tensor)):
        raise UnpicklingError(
            "the file has a sparse tensor, and Flambeau has no sparse tensors without data. Load it with "
            "map_location='cpu' instead of 'meta'"
        )
    if name == "sparse_coo":
        indices, values, size, *flag = data
        made: Tensor = torch["sparse_coo_tensor"](
            indices, values, size, check_invariants=True, is_coalesced=bool(flag and flag[0])
        )
        return made
    if name in ("sparse_csr", "sparse_csc"):
        compressed, plain, values, size = data
        return torch["sparse_compressed_tensor"](
            compressed, plain, values, size, layout=layout, check_invariants=True
        )
    raise NotImplementedError(f"rebuilding sparse tensor for layout {layout}: Flambeau has no such layout")
