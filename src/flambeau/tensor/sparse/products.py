"""Matrix products with a sparse factor.

# Note [Gradients of sparse products]
As in PyTorch: `torch.mm` and `@` give a strided gradient, `torch.sparse.mm` and `torch.sparse.addmm` a gradient with
values only at the indices of the sparse factor. The latter is computed only there, never as a full matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.core.errors import devices_differ
from flambeau.ops.linalg import matmul as products
from flambeau.ops.linalg.matmul import c_name, mismatch
from flambeau.ops.linalg.sparse_product import csr_product
from flambeau.tape.mode import recording
from flambeau.tensor import layout_functions
from flambeau.tensor.arguments.public import functions as torch
from flambeau.tensor.autograd.recording import record_result
from flambeau.tensor.call import call
from flambeau.tensor.sparse.elementwise import with_values
from flambeau.tensor.sparse.primitives import (
    add_rows,
    build,
    coalesce,
    count_lines,
    indices_of,
    record,
    sparse_mask,
    to_compressed,
    to_coo,
    values_of,
)
from flambeau.tensor.sparse.sparse_storage import is_compressed, is_coo, meta_of, storage_of
from flambeau.tensor.tensor import Tensor


def _adjoint(t: Tensor) -> Tensor:
    """Return a matrix transposed and conjugated."""
    turned = t.t()
    return torch["conj_physical"](turned) if t.meta.dtype.is_complex else turned


# -- forward, without recording ---------------------------------------------------------------------------------


def _require_factors(a: Tensor, b: Tensor) -> None:
    """Raise RuntimeError where two matrices differ in device or dtype, or do not fit."""
    x, y = a.meta, b.meta
    if x.device is not y.device:
        raise RuntimeError(devices_differ(x.device, y.device))
    if x.ndim != 2 or y.ndim != 2:
        raise RuntimeError(f"Expected all inputs to be matrices, but got {x.ndim}D and {y.ndim}D tensors")
    if x.shape[1] != y.shape[0]:
        raise RuntimeError(mismatch(x, y))
    if x.dtype is not y.dtype:
        raise RuntimeError(
            f"expected m1 and m2 to have the same dtype, but got: {c_name(x.dtype)} != {c_name(y.dtype)}"
        )
    for t in (a, b):
        if t.meta.sparse and (meta_of(t).dense_dim or meta_of(t).batch_dim):
            raise RuntimeError("sparse matrix products take 2D sparse tensors without dense dimensions")


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices, one of them sparse, without recording it for autograd.

    The result is sparse if both are, else strided.
    """
    _require_factors(a, b)
    with recording(False):
        if not a.meta.sparse:
            return multiply(b.t(), a.t()).t()
        if b.meta.sparse:
            return _multiply_sparse(a, b)
        rows = storage_of(to_compressed(to_coo(a), "sparse_csr") if meta_of(a).layout != "sparse_csr" else a)
        return call(csr_product, (rows.compressed, rows.plain, rows.values, b))


def _multiply_sparse(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two sparse matrices: each element of `a` is multiplied with the row of `b` of its column
    index.
    """
    first, second = coalesce(to_coo(a)), coalesce(to_coo(b))
    rows, inner = storage_of(first).indices
    values = storage_of(first).values
    lines, columns = storage_of(second).indices
    begins: Any = count_lines(lines.contiguous(), b.meta.shape[0])
    counts = (begins[1:] - begins[:-1]).index_select(0, inner)
    pair = torch["repeat_interleave"](torch["arange"](counts.numel(), device=a.meta.device), counts)
    offset = torch["arange"](pair.numel(), device=a.meta.device) - (counts.cumsum(0) - counts).index_select(
        0, pair
    )
    partner = begins.index_select(0, inner.index_select(0, pair)) + offset
    indices = torch["stack"]([rows.index_select(0, pair), columns.index_select(0, partner)])
    terms = values.index_select(0, pair) * storage_of(second).values.index_select(0, partner)
    product = coalesce(build(indices, terms, (a.meta.shape[0], b.meta.shape[1])))
    return to_compressed(product, "sparse_csr") if is_compressed(a) else product


def _sample(a: Tensor, b: Tensor, mask: Tensor) -> Tensor:
    """Return the elements of a @ b at the indices of `mask`, in its layout, recorded. No other element is computed."""
    if is_coo(mask):
        mask = coalesce(mask)
    if a.meta.sparse or b.meta.sparse:
        return sparse_mask(torch["mm"](a, b), mask)
    rows, columns = indices_of(mask)
    values = (a.index_select(0, rows) * b.t().index_select(0, columns)).sum(-1)
    return with_values(mask, values)


# -- recorded ---------------------------------------------------------------------------------------------------

_MM = record(
    "mm",
    lambda grad, b: torch["mm"](grad, _adjoint(b)),
    lambda grad, a: torch["mm"](_adjoint(a), grad),
)
_SPARSE_MM = record(
    "_sparse_addmm",
    lambda grad, a, b: _sample(grad, _adjoint(b), a) if a.meta.sparse else torch["mm"](grad, _adjoint(b)),
    lambda grad, a, b: _sample(_adjoint(a), grad, b) if b.meta.sparse else torch["mm"](_adjoint(a), grad),
    node="SparseAddmmBackward0",
)
_BOTH_SPARSE = record(
    "_sparse_sparse_matmul",
    _SPARSE_MM.derivative.formulas[0],
    _SPARSE_MM.derivative.formulas[1],
    node="SparseSparseMatmulBackward0",
)
_MV = record(
    "mv",
    lambda grad, b: grad.unsqueeze(1) * torch["conj_physical"](b),
    lambda grad, a: torch["mv"](_adjoint(a), grad),
)


def mm(a: Tensor, b: Tensor) -> Tensor:
    """Return the result of `torch.mm`: the gradient of a sparse factor is strided if the other factor is."""
    made = multiply(a, b)
    record_result(_MM, (), (a, b), (made,))
    return made


def sparse_mm(a: Tensor, b: Tensor) -> Tensor:
    """Return the result of `torch.sparse.mm`: the gradient of a sparse factor has values at its own indices only."""
    made = multiply(a, b)
    both = a.meta.sparse and b.meta.sparse
    if both and is_compressed(a) and meta_of(made).layout != meta_of(a).layout:
        with recording(False):
            made = to_compressed(to_coo(made), meta_of(a).layout)
    record_result(_BOTH_SPARSE if both else _SPARSE_MM, (), (a, b), (made,))
    return made


def _mv(a: Tensor, b: Tensor) -> Tensor:
    if b.meta.sparse:
        raise layout_functions.not_implemented("mv", (b,))
    with recording(False):
        made = multiply(a, b.unsqueeze(1)).squeeze(1)
    record_result(_MV, (), (a, b), (made,))
    return made


def _matmul(args: Sequence[Any], params: tuple[Any, ...]) -> Tensor:
    a, b = args
    dims = a.meta.ndim, b.meta.ndim
    if dims == (2, 2):
        return mm(a, b)
    if dims == (2, 1) and a.meta.sparse:
        return _mv(a, b)
    if dims == (1, 2) and b.meta.sparse:
        return _mv(b.t(), a)
    if dims == (3, 3):
        return _bmm(a, b)
    if b.meta.sparse and dims[1] == 2 and dims[0] > 2:  # as nn.Linear of a sparse weight
        return mm(a.reshape(-1, a.meta.shape[-1]), b).reshape(*a.meta.shape[:-1], b.meta.shape[1])
    raise layout_functions.not_implemented("dot" if dims == (1, 1) else "matmul", args)


layout_functions.calls[products.matmul] = _matmul


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    """Return the products of batches of sparse and strided matrices, computed with one block-diagonal matrix."""
    if b.meta.sparse or not is_coo(a):
        raise layout_functions.not_implemented("bmm", (a, b))
    (count, n, k), (batches, inner, p) = a.meta.shape, b.meta.shape
    if (count, k) != (batches, inner):
        raise RuntimeError(
            f"Expected size for first two dimensions of batch2 tensor to be: [{count}, {k}] but got: [{batches}, "
            f"{inner}]."
        )
    with recording(False):
        batch, rows, columns = storage_of(a).indices
        indices = torch["stack"]([batch * n + rows, batch * k + columns])
        blocks = build(indices, storage_of(a).values, (count * n, count * k), storage_of(a).coalesced)
        made = multiply(blocks, b.reshape(count * k, p)).view(count, n, p)
    record_result(_BMM, (), (a, b), (made,))
    return made


_BMM = record(
    "bmm",
    lambda grad, b: torch["bmm"](grad, torch["conj_physical"](b.transpose(1, 2))),
    lambda grad, a: torch["bmm"](torch["conj_physical"](a.transpose(1, 2)), grad),
)


def _addmm(args: Sequence[Any], params: tuple[Any, ...]) -> Tensor:
    """Return beta * input + alpha * (a @ b), each factor strided or sparse."""
    added, a, b, beta, alpha = args
    return add_product(added, a, b, beta, alpha, mm)


layout_functions.calls[products.addmm] = _addmm


def add_product(added: Tensor, a: Tensor, b: Tensor, beta: Any, alpha: Any, product: Any) -> Tensor:
    """Return beta * added + alpha * product(a, b)."""
    made = product(a, b)
    if alpha != 1:
        made = made * alpha
    if not beta:
        return made
    if beta != 1:
        added = added * beta
    if made.meta.sparse:
        return added + made
    if added.meta.sparse:
        return made + added
    return added.expand(made.meta.shape) + made


def sampled_addmm(added: Tensor, a: Tensor, b: Tensor, beta: Any = 1.0, alpha: Any = 1.0) -> Tensor:
    """Return alpha * (a @ b) at the places of a CSR tensor, plus beta times that, recorded."""
    rows, columns = indices_of(added)
    products_there = (a.index_select(-2, rows) * b.transpose(-1, -2).index_select(-2, columns)).sum(-1)
    return with_values(added, alpha * products_there + beta * values_of(added))


def reduce_mm(a: Tensor, b: Tensor, reduce: str) -> Tensor:
    """Return a product of a CSR and a strided matrix whose sums are means, maxima or minima, recorded."""
    rows, columns = indices_of(a)
    count = a.meta.shape[0]
    if reduce == "sum":
        return sparse_mm(a, b)
    terms = values_of(a).unsqueeze(1) * b.index_select(0, columns)
    if reduce == "mean":
        lines = storage_of(a).compressed
        share = (lines[1:] - lines[:-1]).clamp_min(1).to(a.meta.dtype)
        return add_rows(count, rows, terms) / share.unsqueeze(1)
    return _extremes(terms, rows, count, reduce)


def _extremes(terms: Tensor, rows: Tensor, count: int, reduce: str) -> Tensor:
    """Return the largest (or smallest) term of each row. Of equal terms the first one counts and gets the gradient."""
    total = terms.meta.shape[0]
    if not total:
        return add_rows(count, rows, terms)
    with recording(False):
        places = rows.unsqueeze(1).expand(terms.meta.shape)
        zeros = terms.new_zeros((count, terms.meta.shape[1]))
        top = torch["scatter_reduce"](zeros, 0, places, terms, reduce, include_self=False)
        order = torch["arange"](total, device=terms.meta.device).unsqueeze(1)
        order = torch["where"](terms == top.index_select(0, rows), order, total)
        none = order.new_full((count, terms.meta.shape[1]), total)
        first = torch["scatter_reduce"](none, 0, places, order, "amin")
    return terms.gather(0, first.clamp_max(total - 1)).masked_fill(first == total, 0)
