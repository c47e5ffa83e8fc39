"""torch.sparse: functions of sparse tensors. See `tensor/sparse/`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from flambeau.core.dtype import bool_ as _bool
from flambeau.core.dtype import int64 as _int64
from flambeau.core.errors import NotSupportedError
from flambeau.core.layout import wrap_dim
from flambeau.core.public_names import explain_absent_names as _explain_absent_names
from flambeau.core.public_names import publish as _publish
from flambeau.tensor.arguments.options import kind_of as _kind_of
from flambeau.tensor.arguments.public import functions as _functions
from flambeau.tensor.arguments.torch_function import announce as _announce
from flambeau.tensor.sparse import construction as _construction
from flambeau.tensor.sparse import products as _products
from flambeau.tensor.sparse import reduction as _reductions
from flambeau.tensor.sparse.construction import check_sparse_tensor_invariants
from flambeau.tensor.sparse.old_types import old_types as _old_types
from flambeau.tensor.sparse.sparse_storage import is_compressed as _is_compressed
from flambeau.tensor.sparse.sparse_storage import is_coo as _is_coo
from flambeau.tensor.tensor import Tensor

__all__ = [
    "SparseSemiStructuredTensor",
    "addmm",
    "as_sparse_gradcheck",
    "check_sparse_tensor_invariants",
    "log_softmax",
    "mm",
    "sampled_addmm",
    "softmax",
    "solve",
    "spdiags",
    "sum",
    "to_sparse_semi_structured",
]  # fmt: skip


def mm(mat1: Tensor, mat2: Tensor, reduce: str | None = None) -> Tensor:
    """Return the product of two matrices, one of them sparse. The gradient of a sparse factor is sparse.

    Args:
        mat1: The first factor.
        mat2: The second factor.
        reduce: "sum", "mean", "amax" or "amin" of the products of a CSR and a strided matrix.

    Raises:
        RuntimeError: If the sizes, dtypes or devices do not fit.
    """
    if reduce is not None:
        if not _is_compressed(mat1):
            raise NotImplementedError(
                "Could not run 'aten::_sparse_mm_reduce_impl' with arguments from the 'SparseCPU' backend: a "
                "product with reduce= takes a CSR matrix"
            )
        if reduce not in ("sum", "mean", "amax", "amin"):
            raise RuntimeError(
                f"torch.sparse.mm: reduce argument must be either sum, mean, amax or amin, got {reduce}."
            )
        return _products.reduce_mm(mat1, mat2, reduce)
    if not (mat1.is_sparse or mat2.is_sparse or _is_compressed(mat1) or _is_compressed(mat2)):
        return _functions["mm"](mat1, mat2)  # type: ignore[no-any-return]
    return _products.sparse_mm(mat1, mat2)


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1.0, alpha: Any = 1.0) -> Tensor:
    """Return beta * input + alpha * (mat1 @ mat2) for a sparse `mat1`, whose gradient is sparse."""
    return _products.add_product(input, mat1, mat2, beta, alpha, _products.sparse_mm)


def sampled_addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1.0, alpha: Any = 1.0, out: Tensor | None = None
) -> Tensor:
    """Return alpha * (mat1 @ mat2) at the places of a CSR tensor, plus beta times that tensor."""
    if out is not None:
        raise NotSupportedError("torch.sparse.sampled_addmm: out= is not supported")
    if not input.is_sparse_csr:  # type: ignore[attr-defined]
        raise RuntimeError(f"sampled_addmm: Expected self to have sparse csr layout, but got {input.layout}")  # type: ignore[attr-defined]
    return _products.sampled_addmm(input, mat1, mat2, beta, alpha)


def sum(input: Tensor, dim: int | Sequence[int] | None = None, dtype: Any = None) -> Tensor:
    """Return the sum of a COO tensor: of all elements, or over dimensions; sparse where a sparse dimension is left."""
    kind = None if dtype is None else _kind_of(dtype, "sum")
    if not _is_coo(input):
        raise RuntimeError(f"coalesce expected sparse coordinate tensor layout but got {input.layout}")  # type: ignore[attr-defined]
    if dim is None:
        return input.coalesce().values().sum(dtype=kind)  # type: ignore[attr-defined, no-any-return]
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    within = {wrap_dim(d, input.ndim) for d in dims}
    if kind is None and input.dtype is _bool and within.issuperset(range(input.sparse_dim())):  # type: ignore[attr-defined]
        kind = _int64  # as of a strided result; a sparse one is the "or"
    return _reductions.sum_dims(input, dims or None, kind)


def softmax(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Return the softmax of a COO tensor along a dimension, over the elements that it holds."""
    return _softmax("softmax", input, dim, dtype)


def log_softmax(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Return the logarithm of the softmax of a COO tensor along a dimension, over the elements that it holds."""
    return _softmax("log_softmax", input, dim, dtype)


def _softmax(name: str, input: Tensor, dim: int, dtype: Any) -> Tensor:
    if not _is_coo(input):
        raise NotImplementedError(
            f"Could not run 'aten::_sparse_{name}': torch.sparse.{name} takes a COO tensor, not {input.layout}"  # type: ignore[attr-defined]
        )
    kind = None if dtype is None else _kind_of(dtype, name)
    return _reductions.softmax(input, wrap_dim(dim, input.ndim), kind, name == "log_softmax")


def spdiags(diagonals: Tensor, offsets: Tensor, shape: Sequence[int], layout: Any = None) -> Tensor:
    """Return a sparse matrix with the rows of `diagonals` as its diagonals at `offsets`."""
    return _construction.spdiags(diagonals, offsets, shape, layout)


def solve(*args: Any, **given: Any) -> NoReturn:
    """Raise NotSupportedError: PyTorch's CPU build has no such solver either."""
    raise NotSupportedError("torch.sparse.spsolve: Flambeau has no solver of sparse systems; use to_dense()")


spsolve = solve


def as_sparse_gradcheck(gradcheck: Any) -> NoReturn:
    """Raise NotSupportedError: Flambeau's `gradcheck` takes strided inputs; convert inside of the function."""
    raise NotSupportedError(
        "torch.sparse.as_sparse_gradcheck: Flambeau's gradcheck takes strided inputs; build the sparse tensor inside "
        "of the function that is checked"
    )


def to_sparse_semi_structured(*args: Any, **given: Any) -> NoReturn:
    """Raise NotSupportedError: Flambeau has no 2:4 sparse tensors."""
    raise NotSupportedError(
        "torch.sparse.to_sparse_semi_structured: Flambeau has no 2:4 (semi-structured) tensors"
    )


class SparseSemiStructuredTensor:
    """PyTorch's class of 2:4 sparse tensors, which Flambeau does not have: no object is an instance."""

    def __init__(self, *args: Any, **given: Any) -> None:
        raise NotSupportedError(
            "torch.sparse.SparseSemiStructuredTensor: Flambeau has no 2:4 (semi-structured) tensors"
        )


globals().update(_old_types("cpu", __name__))
_announce(globals())
_publish(globals())
_explain_absent_names(globals(), "torch.sparse")
