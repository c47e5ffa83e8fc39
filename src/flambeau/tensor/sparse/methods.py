"""Methods of tensors that return or change the parts and the layout of a sparse tensor.

The signatures in tensor/functions/sparse_names.py have the docstrings.
"""

from __future__ import annotations

from typing import Any

from flambeau.core.errors import NotSupportedError, argument_type
from flambeau.core.sparse_meta import LAYOUT_NAMES, SparseMeta
from flambeau.tape.mode import recording
from flambeau.tensor.arguments.integers import is_int
from flambeau.tensor.arguments.options import checked_shape, integer, kind_of
from flambeau.tensor.arguments.public import functions as torch
from flambeau.tensor.sparse import primitives, products
from flambeau.tensor.sparse.construction import BLOCKED, convert, layout_name, refuse_blocks
from flambeau.tensor.sparse.elementwise import change, empty_like
from flambeau.tensor.sparse.sparse_storage import (
    detach_alias,
    is_coo,
    meta_of,
    nnz_of,
    storage_of,
)
from flambeau.tensor.tensor import Tensor


def _layout_text(t: Tensor) -> str:
    return LAYOUT_NAMES[meta_of(t).layout] if t.meta.sparse else "Strided"


def _require(t: Tensor, name: str, layout: str = "sparse_coo") -> Any:
    """Return the storage of a tensor. Raises RuntimeError if the tensor has another layout."""
    if t.meta.sparse and meta_of(t).layout == layout:
        return storage_of(t)
    wanted = {
        "sparse_coo": "sparse coordinate tensor layout", "sparse_csr": "sparse row compressed tensor layout",
        "sparse_csc": "sparse column compressed tensor layout",
    }[layout]  # fmt: skip
    raise RuntimeError(f"{name} expected {wanted} but got {_layout_text(t)}")


# -- parts ------------------------------------------------------------------------------------------------------


def coalesce(self: Tensor) -> Tensor:
    _require(self, "coalesce")
    return primitives.coalesce(self)


def is_coalesced(self: Tensor) -> bool:
    return bool(_require(self, "is_coalesced").coalesced)


def _set_coalesced(self: Tensor, coalesced: bool) -> Tensor:
    _require(self, "_coalesced_").coalesced = bool(coalesced)
    return self


def indices(self: Tensor) -> Tensor:
    storage = _require(self, "indices")
    if not storage.coalesced:
        raise RuntimeError("Cannot get indices on an uncoalesced tensor, please call .coalesce() first")
    return detach_alias(storage.indices)


def values(self: Tensor) -> Tensor:
    if not self.meta.sparse:
        raise RuntimeError("values expected sparse tensor layout but got Strided")
    if is_coo(self) and not storage_of(self).coalesced:
        raise RuntimeError("Cannot get values on an uncoalesced tensor, please call .coalesce() first")
    return primitives.values_of(self)


def _indices(self: Tensor) -> Tensor:
    return detach_alias(_require(self, "_indices").indices)


def _values(self: Tensor) -> Tensor:
    if not self.meta.sparse:
        raise RuntimeError("_values expected sparse tensor layout but got Strided")
    return detach_alias(storage_of(self).values)


def _nnz(self: Tensor) -> int:
    if not self.meta.sparse:
        raise NotImplementedError(
            "Could not run 'aten::_nnz' with arguments from a strided backend: only sparse tensors have it"
        )
    return nnz_of(self)


def sparse_dim(self: Tensor) -> int:
    return meta_of(self).sparse_dim if self.meta.sparse else 0


def dense_dim(self: Tensor) -> int:
    return meta_of(self).dense_dim if self.meta.sparse else self.meta.ndim


def _dimI(self: Tensor) -> int:  # noqa: N802
    return sparse_dim(self)


def _dimV(self: Tensor) -> int:  # noqa: N802
    return dense_dim(self)


def crow_indices(self: Tensor) -> Tensor:
    return detach_alias(_require(self, "crow_indices", "sparse_csr").compressed)


def col_indices(self: Tensor) -> Tensor:
    return detach_alias(_require(self, "col_indices", "sparse_csr").plain)


def ccol_indices(self: Tensor) -> Tensor:
    return detach_alias(_require(self, "ccol_indices", "sparse_csc").compressed)


def row_indices(self: Tensor) -> Tensor:
    return detach_alias(_require(self, "row_indices", "sparse_csc").plain)


# -- conversions ------------------------------------------------------------------------------------------------


def to_dense(self: Tensor, dtype: Any = None, *, masked_grad: bool | None = None) -> Tensor:
    made = primitives.to_dense(self, masked_grad is not False) if self.meta.sparse else self
    return made if dtype is None else made.to(kind_of(dtype, "to_dense"))


def to_sparse(
    self: Tensor,
    sparse_dim: Any = None,
    *,
    layout: Any = None,
    blocksize: Any = None,
    dense_dim: int | None = None,
) -> Tensor:
    name = "sparse_coo" if layout is None else layout_name(layout)
    if blocksize is not None or name in BLOCKED:
        raise refuse_blocks(f"to_sparse(layout={layout}, blocksize={blocksize})")
    if isinstance(sparse_dim, Tensor) and not is_int(sparse_dim):
        raise TypeError(argument_type("to_sparse", "sparse_dim", 1, "int", sparse_dim))
    if sparse_dim is not None:
        sparse_dim = integer(sparse_dim, "to_sparse", "sparse_dim", 1)
    count = sparse_dim if dense_dim is None else self.meta.ndim - dense_dim
    if count is not None and name == "sparse_coo" and self.meta.ndim and not 0 < count <= self.meta.ndim:
        raise RuntimeError(f"sparse_dim argument must be in >0 and <={self.meta.ndim}, but got {count}")
    return convert(self, name, count)


def to_sparse_coo(self: Tensor) -> Tensor:
    return convert(self, "sparse_coo")


def to_sparse_csr(self: Tensor, dense_dim: int | None = None) -> Tensor:
    return convert(self, "sparse_csr", None if dense_dim is None else self.meta.ndim - dense_dim)


def to_sparse_csc(self: Tensor, dense_dim: int | None = None) -> Tensor:
    return convert(self, "sparse_csc", None if dense_dim is None else self.meta.ndim - dense_dim)


def to_sparse_bsr(self: Tensor, blocksize: Any, dense_dim: int | None = None) -> Tensor:
    raise refuse_blocks("to_sparse_bsr")


def to_sparse_bsc(self: Tensor, blocksize: Any, dense_dim: int | None = None) -> Tensor:
    raise refuse_blocks("to_sparse_bsc")


def sparse_mask(self: Tensor, mask: Tensor) -> Tensor:
    if not mask.meta.sparse:
        raise NotImplementedError(
            "Could not run 'aten::sparse_mask' with a strided mask: the mask's places say which elements are taken"
        )
    if mask.meta.shape != self.meta.shape:
        raise RuntimeError(
            f"sparse_mask(): operands have incompatible sizes; self has size {list(self.meta.shape)} but mask has size "
            f"{list(mask.meta.shape)}"
        )
    return primitives.sparse_mask(self, mask)


# -- changes ----------------------------------------------------------------------------------------------------


def _resize(t: Tensor, size: Any, sparse_dim: int, dense_dim: int) -> tuple[int, ...]:
    shape = checked_shape(tuple(size), "sparse_resize_")
    if sparse_dim + dense_dim != len(shape):
        raise RuntimeError(
            f"'len(size) == sparse_dim + dense_dim' is not satisfied: len(size) = {len(shape)}, sparse_dim = "
            f"{sparse_dim}, dense_dim = {dense_dim}"
        )
    return shape


def sparse_resize_(self: Tensor, size: Any, sparse_dim: int, dense_dim: int) -> Tensor:
    """Give a COO tensor another size; with values, its sizes may only grow."""
    storage, meta = _require(self, "sparse_resize_"), meta_of(self)
    shape = _resize(self, size, sparse_dim, dense_dim)
    if nnz_of(self) and (sparse_dim, dense_dim) != (meta.sparse_dim, meta.dense_dim):
        raise RuntimeError(
            f"changing the number of sparse or dense dimensions (from {meta.sparse_dim} and {meta.dense_dim}) on a "
            "non-empty sparse tensor is not supported."
        )
    if nnz_of(self):
        if any(new < old for new, old in zip(shape, meta.shape, strict=True)):
            raise RuntimeError("shrinking the size of a non-empty sparse tensor is not supported.")
        values = storage.values
        if values.meta.shape[1:] != shape[sparse_dim:]:
            grown = values.new_zeros((values.meta.shape[0], *shape[sparse_dim:]))
            grown[tuple(slice(n) for n in values.meta.shape)] = values
            storage.values = grown
    else:
        storage.indices = storage.indices.new_empty((sparse_dim, 0))
        storage.values = storage.values.new_empty((0, *shape[sparse_dim:]))
    self.meta = SparseMeta.sparse_of("sparse_coo", shape, sparse_dim, dense_dim, meta.dtype, meta.device)
    return self


def sparse_resize_and_clear_(self: Tensor, size: Any, sparse_dim: int, dense_dim: int) -> Tensor:
    """Give a COO tensor another size and no values."""
    _require(self, "sparse_resize_and_clear_")
    change("zero_", self, (), (), lambda: empty_like(self)) if not self.requires_grad else None
    return sparse_resize_(self, size, sparse_dim, dense_dim)


# -- products ---------------------------------------------------------------------------------------------------


def smm(input: Tensor, mat2: Tensor) -> Tensor:
    _require(input, "smm")
    return primitives.to_sparse_coo(products.mm(input, mat2), 2)


def sspaddmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1, out: Tensor | None = None
) -> Tensor:
    if out is not None:
        raise NotSupportedError("sspaddmm: out= is not supported for sparse tensors")
    if mat2.meta.sparse:
        raise RuntimeError(
            f"sspaddmm: expected 'mat2' to have strided layout, got 'mat2' with layout {_layout_text(mat2)}"
        )
    _require(input, "sspaddmm")
    return input * beta + primitives.to_sparse_coo(products.mm(mat1, mat2), 2) * alpha


def hspmm(mat1: Tensor, mat2: Tensor, *, out: Tensor | None = None) -> Tensor:
    if out is not None:
        raise NotSupportedError("hspmm: out= is not supported for sparse tensors")
    _require(mat1, "hspmm")
    made = products.mm(mat1, mat2)
    with recording(False):
        rows = torch["unique"](storage_of(mat1).indices[0]).view(1, -1)
    return primitives.build(rows, primitives.values_at(made, rows), made.meta.shape, coalesced=True)
