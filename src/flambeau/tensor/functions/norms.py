"""Norms of vectors and matrices; condition, rank and pseudo-inverse by singular values; distances.

Common arguments. dim: the dimensions; with `keepdim` they remain with size 1. dtype: the input is converted to it
first. Orders of vector norms are numbers; of matrix norms "fro", "nuc", 1, -1, 2, -2, inf, -inf.
"""

# ruff: noqa: N803 (arguments have the names that PyTorch gives them: A, B, UPLO)

from __future__ import annotations

import math
from typing import Any

from flambeau.core.dtype import COMPLEX, FLOATING, dtype, int64, promote_types
from flambeau.core.layout import wrap_dim
from flambeau.core.typeinfo import finfo
from flambeau.ops.autocast_rules import FLOAT32, FLOAT32_ON_CUDA
from flambeau.ops.copy import require_64_bits, wide_scalar
from flambeau.ops.linalg import geometry
from flambeau.ops.linalg import linalg as ops
from flambeau.ops.linalg.linalg_gradients import pseudo_inverse
from flambeau.ops.op import Derivative
from flambeau.ops.reduce.reduction import norm as folded
from flambeau.tape.mode import mode as gradient_mode
from flambeau.tensor import autocast
from flambeau.tensor.arguments.arg_errors import IntOrTuple, Number
from flambeau.tensor.arguments.public import both, function, functions
from flambeau.tensor.autograd.autograd_meta import requires_grad
from flambeau.tensor.autograd.composites import Composite, record_composite
from flambeau.tensor.call import call
from flambeau.tensor.functions.linalg import eigh, eigvalsh, linalg_svd, svdvals, tensor_of
from flambeau.tensor.out_argument import deliver, run
from flambeau.tensor.signatures import signatures
from flambeau.tensor.tensor import Tensor

Dims = tuple[int, ...]


def vector_norm(
    x: Tensor,
    ord: Number = 2,
    dim: IntOrTuple | None = None,
    keepdim: bool = False,
    *,
    dtype: dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return the norm of all elements, or of each vector along `dim`."""
    if isinstance(ord, str) or ord is None:
        raise TypeError(
            f"linalg_vector_norm(): argument 'ord' (position 2) must be Number, not {type(ord).__name__}"
        )
    _check_dtype("linalg.vector_norm", tensor_of(x, "linalg_vector_norm", "x"), dtype)
    return run(folded, (x,), (_dims(dim), keepdim, dtype, float(wide_scalar(ord))), out)


def _check_dtype(name: str, x: Tensor, kind: dtype | None) -> None:
    if kind is None:
        return
    if kind.category < FLOATING:
        raise RuntimeError(f"{name}: dtype should be floating point or complex, but got {kind.torch_name}")
    if (kind.category == COMPLEX) != x.dtype.is_complex:
        form = "complex" if x.dtype.is_complex else "real"
        raise RuntimeError(f"{name}: dtype should be {form} for {form} inputs, but got {kind.torch_name}")
    if promote_types(x.dtype, kind) is not kind:
        raise RuntimeError(
            f"{name}: the dtype of the input ({x.dtype.torch_name}) should be convertible without narrowing to the "
            f"specified dtype ({kind.torch_name})"
        )


def _dims(dim: Any) -> Any:
    return dim if dim is None or isinstance(dim, int) else tuple(dim)


@signatures("""
linalg_matrix_norm(input: Tensor, ord: Number, dim: IntTuple=, keepdim: bool=, *, dtype: dtype | None=)
linalg_matrix_norm(input: Tensor, ord: str=, dim: IntTuple=, keepdim: bool=, *, dtype: dtype | None=)
""")
def matrix_norm(
    A: Tensor,
    ord: Any = "fro",
    dim: Any = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return the norm of each matrix of the two dimensions `dim`."""
    name = "linalg.matrix_norm"
    ops.check_ndim(name, tensor_of(A, "linalg_matrix_norm").meta)
    ops.check_floating(name, A.meta)
    _check_order(ord)
    if isinstance(dim, int):
        raise TypeError("linalg_matrix_norm(): argument 'dim' must be tuple of ints, not int")
    if len(dim) != 2:
        raise RuntimeError(f"{name}: dim must be a 2-tuple. Got {', '.join(map(str, dim))}")
    rows, columns = (wrap_dim(d, A.ndim) for d in dim)
    if rows == columns:
        raise RuntimeError(f"{name}: dims must be different. Got ({dim[0]}, {dim[1]})")
    _check_dtype(name, A, dtype)
    x = A if dtype is None else A.to(dtype)
    found = _matrix_norm(x, ord, rows, columns, keepdim)
    _check_out(name, found, out)
    result: Tensor = deliver(found, out)
    return result


def _check_out(name: str, found: Tensor, out: Tensor | None) -> None:
    if out is not None and out.dtype is not found.dtype:
        raise RuntimeError(
            f"{name} expected out tensor dtype {found.dtype.torch_name} but got: {out.dtype.torch_name}"
        )


def _matrix_norm(x: Tensor, order: Any, rows: int, columns: int, keepdim: bool) -> Tensor:
    if order == "fro":
        return vector_norm(x, 2, (rows, columns), keepdim)
    if order in ("nuc", 2, -2):
        if x.dtype not in ops.MATRICES:
            raise RuntimeError(
                f"linalg.matrix_norm: Low precision dtypes not supported. Got {x.dtype.torch_name}"
            )
        values = svdvals(x.movedim((rows, columns), (-2, -1)))
        found: Tensor = values.sum(-1) if order == "nuc" else _extreme(values, -1, order)
        for dim in sorted((rows, columns)) if keepdim else ():
            found = found.unsqueeze(dim)
        return found
    summed, kept = (rows, columns) if abs(order) == 1 else (columns, rows)
    sums = vector_norm(x, 1, summed, keepdim=True)
    found = _extreme(sums, kept, order)
    return found.unsqueeze(kept) if keepdim else found.squeeze(summed - (kept < summed))


def _check_order(order: Any) -> None:
    require_64_bits(order)
    if order not in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf):
        raise RuntimeError(f"linalg.matrix_norm: Order {order} not supported.")


def _extreme(x: Tensor, dim: int, order: float) -> Tensor:
    if order > 0 and not x.meta.shape[dim]:
        nothing: Tensor = x.sum(dim)  # the greatest of no sizes is 0
        return nothing
    found: Tensor = x.amax(dim) if order > 0 else x.amin(dim)
    return found


@signatures("""
linalg_norm(input: Tensor, ord: Number | str | None=, dim: IntOrTuple | None=, keepdim: bool=, *,
    dtype: dtype | None=)
""")
def linalg_norm(
    A: Tensor,
    ord: Any = None,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return a matrix norm if `ord` is not None and there are two dimensions, else a vector norm (default 2)."""
    tensor_of(A, "linalg_norm")
    dims = None if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    if dims is not None and len(dims) not in (1, 2):
        raise RuntimeError(f"linalg.norm: If dim is specified, it must be of length 1 or 2. Got {list(dims)}")
    if dims is None and ord is not None and A.ndim not in (1, 2):
        raise RuntimeError(
            f"linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got {A.ndim}D."
        )
    of_matrices = A.ndim == 2 if dims is None else len(dims) == 2
    if isinstance(ord, str) or (ord is not None and of_matrices):
        found = matrix_norm(A, ord, dims or (-2, -1), keepdim, dtype=dtype)
    else:
        found = vector_norm(A, 2 if ord is None else ord, dims, keepdim, dtype=dtype)
    _check_out("linalg.norm", found, out)
    result: Tensor = deliver(found, out)
    return result


@both
def dist(input: Tensor, other: Tensor, p: Number = 2) -> Tensor:
    """Return the p-norm of the difference of two broadcast tensors."""
    if autocast.threads:
        input, other = autocast.cast(FLOAT32_ON_CUDA, input, other)
    away = functions["sub"](input, other)
    if away.dtype.category < FLOATING:
        raise RuntimeError(
            f"norm(): input dtype should be either floating point or complex. Got {away.dtype.torch_name} instead."
        )
    return vector_norm(away, p)


# -- condition, rank, pseudo-inverse --------------------------------------------------------------------------------


def cond(A: Tensor, p: Any = None, *, out: Tensor | None = None) -> Tensor:
    """Return the condition number of each matrix: norm(A) norm(A^-1); by singular values for p None, 2 and -2."""
    if tensor_of(A, "linalg_cond", "input").ndim < 2:
        raise RuntimeError("linalg.cond: The input tensor must have at least 2 dimensions.")
    require_64_bits(p)
    if p not in (None, "fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf):
        raise RuntimeError(f"linalg.cond got an invalid norm type: {p}")
    result: Tensor = deliver(_condition(A, 2 if p is None else p), out, "linalg.cond")
    return result


def _condition(A: Tensor, p: Any) -> Tensor:
    if p in (2, -2):
        values = svdvals(A)
        if not A.numel():
            return values.new_zeros(A.meta.shape[:-2])
        top, bottom = values.select(-1, 0), values.select(-1, -1)
        return top / bottom if p == 2 else bottom / top
    ops.check_square(f"linalg.cond(ord={p})", A.meta)
    if not A.numel():
        return A.new_zeros(A.meta.shape[:-2], dtype=A.dtype.to_real())
    if p == "nuc":  # by definition: an inverse of infinities has no singular values
        values = svdvals(A)
        return values.sum(-1) * values.reciprocal().sum(-1)
    inverse, info = call(ops.inv_ex, (A,))
    inverse = inverse.masked_fill((info > 0).unsqueeze(-1).unsqueeze(-1), math.inf)
    found: Tensor = functions["mul"](matrix_norm(A, p), matrix_norm(inverse, p))
    return found


def _limit(values: Tensor, A: Tensor, atol: Any, rtol: Any) -> Tensor:
    """Return the limit above which singular values count: the larger one of `atol` and `rtol` times the largest
    value.
    """
    if rtol is None:
        given = atol is not None and not isinstance(atol, Tensor) and atol > 0
        rtol = 0.0 if given else float(finfo(values.dtype).eps) * max(A.meta.shape[-2:])
        if isinstance(atol, Tensor):
            eps = float(finfo(values.dtype).eps) * max(A.meta.shape[-2:])
            rtol = functions["where"](functions["gt"](atol, 0), 0.0, eps)
    top = values.amax(-1, keepdim=True)
    relative = top * (rtol.unsqueeze(-1) if isinstance(rtol, Tensor) else float(rtol))
    found: Tensor
    if isinstance(atol, Tensor):
        found = functions["maximum"](relative, atol.to(values.dtype).unsqueeze(-1))
    else:
        found = relative.clamp(min=0.0 if atol is None else float(atol))
    return found


@signatures("""
linalg_matrix_rank(input: Tensor, *, atol: Tensor | float | None=, rtol: Tensor | float | None=, hermitian: bool=)
linalg_matrix_rank(input: Tensor, tol: Tensor | float, hermitian: bool=)
""")
def matrix_rank(
    A: Tensor,
    tol: Any = None,
    hermitian: bool = False,
    *,
    atol: Any = None,
    rtol: Any = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return the number of singular values that exceed max(atol, rtol * largest). By default rtol is max(m, n)
    epsilons.
    """
    if tensor_of(A, "linalg_matrix_rank").dtype not in ops.MATRICES:
        raise RuntimeError("This function doesn't handle types other than float and double")
    ops.check_ndim("torch.linalg.matrix_rank", A.meta, "input")
    if tol is not None:
        atol, rtol = tol, 0.0
    values = eigvalsh(A).abs() if hermitian else svdvals(A)
    if not A.numel():
        found: Tensor = values.new_zeros(A.meta.shape[:-2], dtype=int64)
    else:
        found = (values > _limit(values, A, atol, rtol)).sum(-1)
    result: Tensor = deliver(found, out)
    return result


_PINV = Composite("linalg_pinv", Derivative(pseudo_inverse))


@signatures("""
linalg_pinv(input: Tensor, *, atol: Tensor | float | None=, rtol: Tensor | float | None=, hermitian: bool=)
linalg_pinv(input: Tensor, rcond: Tensor | float, hermitian: bool=)
""")
def pinv(
    A: Tensor,
    rcond: Any = None,
    hermitian: bool = False,
    *,
    atol: Any = None,
    rtol: Any = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return the pseudo-inverse of each matrix; singular values up to max(atol, rtol * the largest) count as 0."""
    x = tensor_of(A, "linalg_pinv")
    if x.ndim < 2 or x.dtype not in ops.MATRICES:
        raise RuntimeError(
            f"linalg.pinv({x.dtype.torch_name}{{{list(x.meta.shape)}}}): expected a tensor with 2 or more dimensions "
            "of float, double, cfloat or cdouble types"
        )
    if rcond is not None:
        atol, rtol = 0.0, rcond
    _refuse_gradient("atol", atol)
    _refuse_gradient("rtol", rtol)
    found = record_composite(_PINV, (x,), lambda: _pseudo_inverse(x, atol, rtol, hermitian))
    result: Tensor = deliver(found, out, "linalg.pinv")
    return result


def _refuse_gradient(name: str, limit: Any) -> None:
    if isinstance(limit, Tensor) and gradient_mode.recording and requires_grad(limit):
        raise RuntimeError(
            f"The function 'linalg_pinv' is not differentiable with respect to argument '{name}'. This input cannot "
            "have requires_grad True."
        )


def _pseudo_inverse(A: Tensor, atol: Any, rtol: Any, hermitian: bool) -> Tensor:
    if not A.numel():
        return A.new_zeros((*A.meta.shape[:-2], A.meta.shape[-1], A.meta.shape[-2]))
    if hermitian:
        values, left = eigh(A)
        right, size = left.mH, values.abs()
    else:
        left, values, right = linalg_svd(A, full_matrices=False)
        size = values
    inverse = functions["where"](size > _limit(size, A, atol, rtol), values.reciprocal(), 0.0)
    found: Tensor = functions["matmul"](right.mH * inverse.to(A.dtype).unsqueeze(-2), left.mH)
    return found


@both
def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """Return `torch.linalg.pinv` with its relative limit."""
    return pinv(input, rcond)


# -- distances -------------------------------------------------------------------------------------------------------

_MODES = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")
_CDIST = Composite("_cdist_forward", geometry.cdist.derivative)
_MANY = 25  # rows from which a product is faster than differences, as in PyTorch


@function
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = _MODES[0]) -> Tensor:
    """Return the p-norm distance of each row of `x1` to each row of `x2`, for each batch.

    Euclidean distances of more than 25 rows are computed by a matrix product (which TF32 rounds), unless `compute_mode`
    is "donot_use_mm_for_euclid_dist".
    """
    if compute_mode is not None and compute_mode not in _MODES:
        raise ValueError(f"{compute_mode} is not a valid value for compute_mode")
    if autocast.threads:
        return autocast.call_cast(FLOAT32, _cdist, (x1, x2), p, compute_mode)
    return _cdist(x1, x2, p, compute_mode)


def _cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: str | None) -> Tensor:
    _check_rows(x1, x2)
    if not p >= 0:
        raise RuntimeError("cdist only supports non-negative p values")
    mode = _MODES.index(compute_mode or _MODES[0])
    many = max(x1.meta.shape[-2], x2.meta.shape[-2]) > _MANY
    if p == 2 and (mode == 1 or (mode == 0 and many)) and x1.meta.shape[-1] and x1.numel() and x2.numel():
        return record_composite(_CDIST, (x1, x2), lambda: _by_product(x1, x2), (2.0,))
    if x1.dtype is not x2.dtype:
        raise RuntimeError(f"expected scalar type {x1.dtype.torch_name} but found {x2.dtype.torch_name}")
    result: Tensor = call(geometry.cdist, (x1, x2), (float(p),))
    return result


def _check_rows(a: Tensor, b: Tensor) -> None:
    for at, x in enumerate((a, b), 1):
        if x.ndim < 2:
            raise RuntimeError(f"cdist only supports at least 2D tensors, X{at} got: {x.ndim}D")
    if a.meta.shape[-1] != b.meta.shape[-1]:
        raise RuntimeError(
            f"X1 and X2 must have the same number of columns. X1: {a.meta.shape[-1]} X2: {b.meta.shape[-1]}"
        )
    for at, x in enumerate((a, b), 1):
        if not x.dtype.is_floating_point:
            raise RuntimeError(f"cdist only supports floating-point dtypes, X{at} got: {x.dtype.torch_name}")


def _by_product(a: Any, b: Any) -> Tensor:
    """Return the squared distances |a|^2 - 2 a.b + |b|^2, computed as one matrix product."""
    cat, ones_like = functions["cat"], functions["ones_like"]
    long_a, long_b = (x.square().sum(-1, keepdim=True) for x in (a, b))
    left = cat([a * -2, long_a, ones_like(long_a)], -1)
    right = cat([b, ones_like(long_b), long_b], -1)
    squares: Tensor = functions["matmul"](left, right.mT)
    return squares.clamp_(min=0).sqrt_()
