"""Names of sparse tensors in the `torch` namespace and among tensors' methods. The code behind them is imported later.

Most programs have no sparse tensor, so `tensor/sparse` is imported when a program calls the first of these functions.
They are signatures only; the functions of the same names in construction.py and methods.py run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, TypeVar

from flambeau.tensor.arguments.public import both, function, functions, method
from flambeau.tensor.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])
_PUBLIC = {"_set_coalesced": "_coalesced_"}  # public names that are no verbs


def _run_later(module: str, bind: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that binds a public name and imports its implementation from `tensor/sparse` at the first
    call.
    """

    def decorate(signature: F) -> F:
        name = signature.__name__

        @wraps(signature)
        def forward(*args: Any, **given: Any) -> Any:
            return getattr(import_module(f"flambeau.tensor.sparse.{module}"), name)(*args, **given)

        forward.__name__ = _PUBLIC.get(name, name)
        bind(forward)
        return signature

    return decorate


_constructor = _run_later("construction", function)
_function = _run_later("methods", function)
_both = _run_later("methods", both)
_method = _run_later("methods", method)


@_constructor
def sparse_coo_tensor(
    indices: Any,
    values: Any = None,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool | None = None,
    layout: Any = None,
) -> Any:
    """Return a tensor in COO layout of indices (sparse_dim, nnz) and values (nnz, *dense sizes).

    Args:
        indices: Indices of the values. As the only argument: the size of a tensor without values.
        values: The values. Values with equal indices are summed.
        size: The size; default: the smallest that contains all indices.
        dtype: The dtype; default: that of the values.
        device: The device; default: that of the values.
        pin_memory: Not supported.
        requires_grad: True if the result is a leaf that requires a gradient.
        check_invariants: Check the indices; default: the setting of `torch.sparse.check_sparse_tensor_invariants`.
        is_coalesced: The caller's guarantee that the indices are sorted and distinct.
        layout: None or `torch.sparse_coo`.

    Raises:
        RuntimeError: If the parts do not match, or an index is negative.
    """


@_constructor
def sparse_csr_tensor(
    crow_indices: Any,
    col_indices: Any,
    values: Any,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    layout: Any = None,
) -> Any:
    """Return a tensor in CSR layout: row i has the values from crow_indices[i] to crow_indices[i + 1].

    Raises RuntimeError if the parts do not fit together.
    """


@_constructor
def sparse_csc_tensor(
    ccol_indices: Any,
    row_indices: Any,
    values: Any,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    layout: Any = None,
) -> Any:
    """Return a tensor in CSC layout: column j has the values from ccol_indices[j] to ccol_indices[j + 1]."""


@_constructor
def sparse_compressed_tensor(
    compressed_indices: Any,
    plain_indices: Any,
    values: Any,
    size: Any = None,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> Any:
    """Return a tensor in the compressed layout that `layout` names: `torch.sparse_csr` or `torch.sparse_csc`."""


@_constructor
def sparse_bsr_tensor(
    crow_indices: Any, col_indices: Any, values: Any, size: Any = None, *, dtype: Any = None, device: Any = None,
    pin_memory: bool = False, requires_grad: bool = False, check_invariants: bool | None = None,
) -> Any:  # fmt: skip
    """Raise NotSupportedError: Flambeau lacks the sparse layouts BSR and BSC."""


@_constructor
def sparse_bsc_tensor(
    ccol_indices: Any, row_indices: Any, values: Any, size: Any = None, *, dtype: Any = None, device: Any = None,
    pin_memory: bool = False, requires_grad: bool = False, check_invariants: bool | None = None,
) -> Any:  # fmt: skip
    """Raise NotSupportedError: Flambeau lacks the sparse layouts BSR and BSC."""


@_function
def hspmm(mat1: Tensor, mat2: Tensor, *, out: Tensor | None = None) -> Any:
    """Return the product of a COO and a strided matrix as a COO tensor of one sparse dimension: its rows not empty."""


functions["hsmm"] = functions["hspmm"]  # an older name


@_both
def smm(input: Tensor, mat2: Tensor) -> Any:
    """Return the product of a COO and a strided matrix, in COO layout."""


@_both
def sspaddmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1, out: Tensor | None = None
) -> Any:
    """Return beta * input + alpha * (mat1 @ mat2) in COO layout, of sparse `input` and `mat1` and strided `mat2`."""


@_method
def coalesce(self: Tensor) -> Any:
    """Return a COO tensor with sorted and distinct indices: itself if it has them already. Values with equal indices
    are summed.
    """


@_method
def is_coalesced(self: Tensor) -> Any:
    """Return True if the indices of a COO tensor are known to be sorted and distinct."""


@_method
def _set_coalesced(self: Tensor, coalesced: bool) -> Any:
    """Declare whether the indices of a COO tensor are sorted and distinct, without a check."""


@_method
def indices(self: Tensor) -> Any:
    """Return the indices (sparse_dim, nnz) of a coalesced COO tensor."""


@_method
def values(self: Tensor) -> Any:
    """Return the values of a coalesced COO tensor or of a compressed one."""


@_method
def _indices(self: Tensor) -> Any:
    """Return the indices of a COO tensor as they are stored."""


@_method
def _values(self: Tensor) -> Any:
    """Return the values of a sparse tensor as they are stored."""


@_method
def _nnz(self: Tensor) -> Any:
    """Return the number of values that a sparse tensor stores."""


@_method
def sparse_dim(self: Tensor) -> Any:
    """Return the number of dimensions that the indices count; 0 of a strided tensor."""


@_method
def dense_dim(self: Tensor) -> Any:
    """Return the number of dimensions of each value; all dimensions of a strided tensor."""


@_method
def _dimI(self: Tensor) -> Any:  # noqa: N802
    """Return `sparse_dim()`."""


@_method
def _dimV(self: Tensor) -> Any:  # noqa: N802
    """Return `dense_dim()`."""


@_method
def crow_indices(self: Tensor) -> Any:
    """Return the start of each row of a CSR tensor among its values, and the end of the last."""


@_method
def col_indices(self: Tensor) -> Any:
    """Return the column of each value of a CSR tensor."""


@_method
def ccol_indices(self: Tensor) -> Any:
    """Return the start of each column of a CSC tensor among its values, and the end of the last."""


@_method
def row_indices(self: Tensor) -> Any:
    """Return the row of each value of a CSC tensor."""


@_method
def to_dense(self: Tensor, dtype: Any = None, *, masked_grad: bool | None = None) -> Any:
    """Return a strided tensor of the same elements: itself if it is strided.

    Args:
        self: The tensor.
        dtype: Another dtype for the result.
        masked_grad: False if the gradient may have values where the sparse tensor has none.
    """


@_method
def to_sparse(
    self: Tensor,
    sparse_dim: Any = None,
    *,
    layout: Any = None,
    blocksize: Any = None,
    dense_dim: int | None = None,
) -> Any:
    """Return a sparse tensor with the same elements: COO unless `layout` names another. Returns itself if it is sparse
    already.

    Args:
        sparse_dim: The number of sparse dimensions of a COO tensor; the rest are dense.
        layout: The layout.
        blocksize: Must be None: Flambeau lacks the sparse layouts BSR and BSC.
        dense_dim: The number of dense dimensions.
    """


@_method
def to_sparse_coo(self: Tensor) -> Any:
    """Return a COO tensor of the same elements."""


@_method
def to_sparse_csr(self: Tensor, dense_dim: int | None = None) -> Any:
    """Return a CSR tensor of the same elements."""


@_method
def to_sparse_csc(self: Tensor, dense_dim: int | None = None) -> Any:
    """Return a CSC tensor of the same elements."""


@_method
def to_sparse_bsr(self: Tensor, blocksize: Any, dense_dim: int | None = None) -> Any:
    """Raise NotSupportedError: Flambeau lacks the sparse layouts BSR and BSC."""


@_method
def to_sparse_bsc(self: Tensor, blocksize: Any, dense_dim: int | None = None) -> Any:
    """Raise NotSupportedError: Flambeau lacks the sparse layouts BSR and BSC."""


@_method
def sparse_mask(self: Tensor, mask: Tensor) -> Any:
    """Return the elements of this tensor at the places of a sparse tensor, in its layout."""


@_method
def sparse_resize_(self: Tensor, size: Any, sparse_dim: int, dense_dim: int) -> Any:
    """Change the size of a COO tensor; with values, its sizes may only grow."""


@_method
def sparse_resize_and_clear_(self: Tensor, size: Any, sparse_dim: int, dense_dim: int) -> Any:
    """Change the size of a COO tensor and remove its values."""
