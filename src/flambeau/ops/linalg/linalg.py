"""Linear algebra of batches of matrices: factorizations, solvers, eigenvalues.

Each operator is one LAPACK-like routine for every matrix of a batch. If a matrix may have no result (it is singular, or
an iteration does not converge), the last output is `info`, one int32 per matrix, as in LAPACK: 0 is success. The result
of such a matrix is NaN, or the valid part of a Cholesky factor; the results of the other matrices are valid.
`tensor/functions/linalg.py` turns infos into errors.

# Note [Batches of matrices]
NumPy's routines process a batch in double precision, and refuse all of it because of one matrix. A reference
implementation therefore passes the whole batch, and only after a refusal one matrix at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import (
    FLOATING,
    complex64,
    complex128,
    dtype,
    float32,
    float64,
    int32,
    int64,
)
from flambeau.core.layout import broadcast_shapes, expand_strides
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Kernel, Launch, Routine, Work, stream_work
from flambeau.ops.autocast_rules import FLOAT32_ON_CPU, UNCHANGED, AutocastRule
from flambeau.ops.derivative_helpers import Refusal
from flambeau.ops.linalg import linalg_gradients as back
from flambeau.ops.linalg.matmul import expand_batch
from flambeau.ops.op import (
    NOT_DIFFERENTIABLE,
    Derivative,
    Make,
    Op,
    Operand,
    Sample,
    Signature,
    common_device,
    define,
    note,
)
from flambeau.ops.work import element_work

Array = np.ndarray[Any, Any]
Run = Callable[..., Any]
MATRICES = (float32, float64, complex64, complex128)


# -- checks -----------------------------------------------------------------------------------------------


def check_ndim(name: str, x: Meta, what: str = "A") -> None:
    if x.ndim < 2:
        raise RuntimeError(f"{name}: The input tensor {what} must have at least 2 dimensions.")


def check_square(name: str, x: Meta) -> None:
    check_ndim(name, x)
    rows, columns = x.shape[-2:]
    if rows != columns:
        raise RuntimeError(
            f"{name}: A must be batches of square matrices, but they are {rows} by {columns} matrices"
        )


def check_floating(name: str, x: Meta) -> None:
    if x.dtype.category < FLOATING:
        raise RuntimeError(
            f"{name}: Expected a floating point or complex tensor as input. Got {x.dtype.torch_name}"
        )


def check_precise(name: str, x: Meta) -> None:
    check_floating(name, x)
    if x.dtype not in MATRICES:
        raise RuntimeError(f"{name}: Low precision dtypes not supported. Got {x.dtype.torch_name}")


_ON_CUDA = {
    "lu": "lu_factor_cusolver", "linalg_svd": "svd_cuda_gesvdjBatched", "cholesky": "cholesky_cusolver",
    "cholesky_inverse_out": "cholesky_cuda_potri", "ormqr": "orgmr_cuda",
}  # fmt: skip
"""Where PyTorch's name for a routine on CUDA devices is not that for CPUs with another end."""


_UNREACHED = {"cholesky", "linalg_eigh", "linalg_svd", "lu"}
"""Routines that PyTorch does not call for matrices without elements, which therefore may have any dtype."""


def check_implemented(routine: str, x: Meta) -> None:
    if x.dtype not in MATRICES and (x.numel or routine not in _UNREACHED):
        name = f"{routine}_cpu" if x.device.type != "cuda" else _ON_CUDA.get(routine, f"{routine}_cuda")
        raise NotImplementedError(f"\"{name}\" not implemented for '{x.dtype.torch_name}'")


# -- shapes -----------------------------------------------------------------------------------------------


def _one(operands: Sequence[Operand]) -> Meta:
    (x,) = operands
    assert isinstance(x, Meta)
    return x


def result_of(x: Meta, *shape: int, kind: dtype | None = None) -> Meta:
    """Return the layout of an output with one array of this shape for each matrix of the batch."""
    return Meta.contiguous_of((*x.shape[:-2], *shape), kind or x.dtype, x.device)


def columns_of(x: Meta, *shape: int, kind: dtype | None = None) -> Meta:
    """Return the layout of an output with a column-major matrix for each matrix of the batch, as LAPACK returns it."""
    turned = result_of(x, *reversed(shape), kind=kind)
    *batch, down, along = turned.strides
    return turned.with_((*x.shape[:-2], *shape), (*batch, along, down))


def _info(x: Meta) -> Meta:
    return result_of(x, kind=int32)


def broadcast(a: Meta, b: Meta) -> tuple[Meta, Meta]:
    """Return both batches with one batch shape."""
    batch = broadcast_shapes([a.shape[:-2], b.shape[:-2]])
    return expand_batch(a, batch), expand_batch(b, batch)


def check_fits(name: str, a: Meta, b: Meta, left: bool = True) -> None:
    """Raise RuntimeError if sizes do not match in the equation AX = B (without `left`, XA = B)."""
    if a.shape[-1] != b.shape[-2 if left else -1]:
        sizes = f"{a.shape[-2]}x{a.shape[-1]} and {b.shape[-2]}x{b.shape[-1]}"
        equation = "AX = B" if left else "XA = B"
        raise RuntimeError(f"{name}: Incompatible shapes of A and B for the equation {equation} ({sizes})")


def pair_of(operands: Sequence[Operand]) -> tuple[Meta, Meta]:
    a, b = operands
    assert isinstance(a, Meta) and isinstance(b, Meta)
    common_device([a, b])
    return a, b


# -- bodies -----------------------------------------------------------------------------------------------


_MANY = 32  # batch dimensions: NumPy has 64 dimensions in all, and its routines need some


def _in_known_dtypes(inputs: Sequence[Array]) -> list[Array]:
    """Return matrices in dtypes that LAPACK supports. Empty matrices are converted, whatever their dtype is."""
    return [x if x.size or x.dtype.char in "fdFD" else x.astype(np.float64) for x in inputs]


def _plain(run: Run) -> Callable[[Launch], Body]:
    """Return a reference implementation of a routine that always succeeds: `run(*inputs, *params)`, an array per
    output.
    """

    def host(launch: Launch) -> Body:
        params = launch.params

        def body(outputs: list[Array], inputs: list[Array]) -> None:
            found = run(*_in_known_dtypes(inputs), *params)
            for target, value in zip(outputs, found if isinstance(found, tuple) else (found,), strict=True):
                np.copyto(target, value, casting="unsafe")

        return body

    return host


def _with_info(run: Run, code: Callable[[Array], int]) -> Callable[[Launch], Body]:
    """Return a reference implementation of a routine that may fail for a matrix, with `info` as its last output.

    Args:
        code: The value of `info` for a failure.
    """

    def host(launch: Launch) -> Body:
        params = launch.params

        def body(outputs: list[Array], inputs: list[Array]) -> None:
            batch = outputs[-1].ndim
            *results, info = _flat(outputs, batch)
            inputs = _flat(_in_known_dtypes(inputs), batch)

            def store(at: Any) -> None:
                found = run(*[x[at] for x in inputs], *params)
                for target, value in zip(
                    results, found if isinstance(found, tuple) else (found,), strict=True
                ):
                    target[at] = value
                info[at] = 0

            try:
                store(...)
            except np.linalg.LinAlgError:
                for at in np.ndindex(info.shape):
                    try:
                        store(at)
                    except np.linalg.LinAlgError:
                        for target in results:
                            target[at] = 0 if target.dtype.kind == "i" else np.nan
                        info[at] = code(inputs[0][at])

        return body

    return host


def _flat(arrays: list[Array], batch: int) -> list[Array]:
    """Return arrays with the batch dimensions merged, if there are more than NumPy's routines allow."""
    if batch < _MANY:
        return arrays
    return [x.reshape(math.prod(x.shape[:batch]), *x.shape[batch:]) for x in arrays]


def _each(outputs: Sequence[Array], inputs: Sequence[Array], run: Callable[..., tuple[Any, ...]]) -> None:
    """Call `run` for each matrix of a batch, because SciPy's functions take single matrices."""
    for at in np.ndindex(inputs[0].shape[:-2]):
        for target, value in zip(outputs, run(*[x[at] for x in inputs]), strict=True):
            target[at] = value


def lapack_function(name: str, *arrays: Array) -> Any:
    from scipy.linalg import lapack  # imported here because it is slow to import

    return lapack.get_lapack_funcs((name,), arrays)[0]


def count_flops(factor: float) -> Callable[[Launch], int]:
    """Return a function that counts operations: `factor` times m n min(m, n) for each m by n matrix."""

    def count(launch: Launch) -> int:
        x = launch.inputs[0]
        assert isinstance(x, Meta)
        return int(factor * x.numel * min(x.shape[-2:], default=1))

    return count


def _op(
    name: str,
    rule: Any,
    host: Any,
    samples: Any,
    factor: float = 2,
    dtypes: tuple[dtype, ...] = MATRICES,
    *,
    cuda: str,
    derivative: Derivative,
    autocast: AutocastRule = UNCHANGED,
    work: Callable[[Launch], Work] = stream_work,
) -> Op:
    kernel = Kernel(name, host, count_flops(factor), cuda=Routine(library=f"linalg.{cuda}"), work=work)
    return define(Op(name, rule, kernel, dtypes, samples, derivative=derivative, autocast=autocast))


def _square_samples(*params: tuple[Any, ...]) -> Callable[[Make, dtype], Iterable[Sample]]:
    def samples(make: Make, kind: dtype) -> Iterable[Sample]:
        for own in params or ((),):
            yield (make(3, 3),), own
            yield (make(2, 1, 3, 3),), own
        yield (np.zeros((2, 3, 3), kind.numpy),), own  # singular matrices, with equal eigenvalues

    return samples


def _tall_and_wide(*params: tuple[Any, ...]) -> Callable[[Make, dtype], Iterable[Sample]]:
    def samples(make: Make, kind: dtype) -> Iterable[Sample]:
        for own in params or ((),):
            yield (make(2, 3),), own
            yield (make(2, 3, 2),), own
            yield (make(2, 1, 3, 3),), own

    return samples


# -- inverse, equations, determinants -----------------------------------------------------------------------


def _zero_pivot(a: Array) -> int:
    """Return the index, from 1, of the first zero on the diagonal of U."""
    return int(lapack_function("getrf", a)(a)[2]) or len(a)


def _inv_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x = _one(operands)
    check_square("linalg.inv", x)
    check_precise("linalg.inv", x)
    return Signature((columns_of(x, *x.shape[-2:]), _info(x)), (x,), params)


def _solve_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results. Operands: matrices A and B of AX = B."""
    a, b = pair_of(operands)
    check_square("linalg.solve", a)
    check_floating("linalg.solve", a)
    if a.dtype is not b.dtype:
        raise RuntimeError(
            "linalg.solve: Expected A and B to have the same dtype, but found A of type "
            f"{a.dtype.torch_name} and B of type {b.dtype.torch_name} instead"
        )
    check_fits("linalg.solve", a, b)
    check_implemented("lu", a)
    a, b = broadcast(a, b)
    return Signature((columns_of(b, *b.shape[-2:]), _info(b)), (a, b), params)


def _det_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x = _one(operands)
    check_square("linalg.det", x)
    check_floating("linalg.det", x)
    check_implemented("lu", x)
    return Signature((result_of(x),), (x,), params)


def _slogdet_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x = _one(operands)
    check_square("linalg.slogdet", x)
    check_precise("linalg.slogdet", x)
    return Signature((result_of(x), result_of(x, kind=x.dtype.to_real())), (x,), params)


def _equations(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(3, 3), make(3, 2)), ()
    yield (make(2, 1, 4, 4), make(3, 4, 1)), ()
    yield (np.zeros((2, 2), kind.numpy), make(2, 2)), ()


inv_ex = _op(
    "linalg_inv_ex",
    _inv_rule,
    _with_info(np.linalg.inv, _zero_pivot),
    _square_samples(),
    work=element_work.factorization(95, 1.5),
    cuda="linear_solve:inverse",
    derivative=Derivative(back.inverse),
    autocast=FLOAT32_ON_CPU,
)
solve_ex = _op(
    "linalg_solve_ex",
    _solve_rule,
    _with_info(np.linalg.solve, _zero_pivot),
    _equations,
    1,
    work=element_work.factorization(90, 1.5),
    cuda="linear_solve:solve",
    derivative=Derivative(whole=back.solve),
    autocast=FLOAT32_ON_CPU,
)
det = _op(
    "linalg_det",
    _det_rule,
    _plain(np.linalg.det),
    _square_samples(),
    2 / 3,
    work=element_work.factorization(60, 1.1),
    cuda="linear_solve:det",
    derivative=Derivative(back.det),
)
slogdet = _op(
    "linalg_slogdet",
    _slogdet_rule,
    _plain(lambda a: tuple(np.linalg.slogdet(a))),
    _square_samples(),
    2 / 3,
    work=element_work.factorization(60, 1.1),
    cuda="linear_solve:slogdet",
    derivative=Derivative(back.slogdet),
)


# -- triangular factors ---------------------------------------------------------------------------------------


def _cholesky_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results. Params: True if the factor is the upper one, of the upper triangle."""
    x = _one(operands)
    check_square("linalg.cholesky", x)
    check_floating("linalg.cholesky", x)
    check_implemented("cholesky", x)
    return Signature((columns_of(x, *x.shape[-2:]), _info(x)), (x,), params)


def _cholesky_host(launch: Launch) -> Body:
    """Compute Cholesky factors. The upper factor is the transposed lower factor of the transposed matrix."""
    (upper,) = launch.params

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        batch = outputs[-1].ndim
        factor, info = _flat(outputs, batch)
        (a,) = _flat(_in_known_dtypes(inputs), batch)
        if upper:
            factor, a = factor.swapaxes(-1, -2), a.swapaxes(-1, -2)
        try:
            factor[...], info[...] = _cholesky(a), 0
        except np.linalg.LinAlgError:
            _each((factor, info), (a,), _cholesky_or_part)

    return body


def _cholesky(a: Array) -> Array:
    factor = np.linalg.cholesky(a)
    if np.isnan(np.diagonal(factor, axis1=-2, axis2=-1)).any():
        raise np.linalg.LinAlgError("NaN on the diagonal")  # not every LAPACK refuses NaN
    return factor


def _cholesky_or_part(a: Array) -> tuple[Array, int]:
    """Return the lower factor of one matrix, and 0. If a leading minor is not positive-definite, return the part that
    LAPACK's unblocked routine computes before it finds this, and the order of the minor.

    The columns before this order are valid. The next diagonal element is the pivot that is not positive. The other
    elements are those of the matrix.
    """
    try:
        return _cholesky(a), 0
    except np.linalg.LinAlgError:
        wide = a.astype(np.result_type(a, np.float64))  # the precision in which NumPy refused the matrix
        found, code = lapack_function("potrf", wide)(wide, lower=1)
        order = int(code) or 1 + int(np.isnan(np.diagonal(found)).argmax())
        factor, valid = np.tril(wide), order - 1
        factor[:order, :order] = found[:order, :order]
        if valid and order < len(a):  # LAPACK's blocked routine leaves rows below the minor as they were
            below = wide[order:, :valid].conj().T
            solved, _ = lapack_function("trtrs", wide)(found[:valid, :valid], below, lower=1)
            factor[order:, :valid] = solved.conj().T
        return factor, order


def _lu_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results. Params: True if rows are exchanged for the largest pivot."""
    x = _one(operands)
    if x.ndim < 2:
        raise RuntimeError(
            f"torch.lu_factor: Expected tensor with 2 or more dimensions. Got size: {list(x.shape)} instead"
        )
    if not params[0] and x.device.type != "cuda":
        raise RuntimeError("linalg.lu_factor: LU without pivoting is not implemented on the CPU")
    check_implemented("lu", x)
    pivots = result_of(x, min(x.shape[-2:]), kind=int32)
    return Signature((columns_of(x, *x.shape[-2:]), pivots, _info(x)), (x,), params)


def _lu_host(launch: Launch) -> Body:
    (pivot,) = launch.params

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        (a,) = inputs
        if not a.size:
            outputs[2][...] = 0
        elif pivot:
            getrf = lapack_function("getrf", a)
            _each(outputs, inputs, lambda a: _from_one(getrf(a)))
        else:
            _without_pivots(a, *outputs)

    return body


def _from_one(found: tuple[Any, ...]) -> tuple[Any, ...]:
    factors, pivots, info = found
    return factors, pivots + 1, info


def _without_pivots(a: Array, factors: Array, pivots: Array, info: Array) -> None:
    """Compute LU factors without pivoting, one column of all matrices at a time."""
    factors[...] = a
    steps = min(a.shape[-2:])
    pivots[...] = np.arange(1, steps + 1)
    for k in range(steps):
        factors[..., k + 1 :, k] /= factors[..., k, k, None]
        factors[..., k + 1 :, k + 1 :] -= factors[..., k + 1 :, k, None] * factors[..., None, k, k + 1 :]
    zero = np.diagonal(factors, axis1=-2, axis2=-1) == 0
    info[...] = np.where(zero.any(-1), zero.argmax(-1) + 1, 0) if steps else 0


def _lu_solve_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results. Operands: LU, pivots and B, batches of one shape. Params: True if the adjoint system is
    solved.
    """
    factors, pivots, b = operands
    assert isinstance(factors, Meta) and isinstance(pivots, Meta) and isinstance(b, Meta)
    common_device([factors, pivots, b])
    check_square("torch.linalg.lu_solve", factors)
    check_floating("torch.linalg.lu_solve", factors)
    if pivots.dtype is not int32:
        raise RuntimeError("linalg.lu_solve: pivots should be a Tensor of scalar type torch.int32")
    if factors.dtype is not b.dtype:
        raise RuntimeError(
            "linalg.lu_solve: Expected LU and B to have the same dtype, but found LU of type "
            f"{factors.dtype.torch_name} and B of type {b.dtype.torch_name} instead"
        )
    if pivots.shape != factors.shape[:-1]:
        raise RuntimeError(
            "linalg.lu_solve: Number of pivots per batch should be same as the dimension of the matrix"
        )
    check_fits("torch.linalg.lu_solve", factors, b)
    check_implemented("lu_solve", factors)
    factors, b = broadcast(factors, b)
    strides = expand_strides(pivots.shape, pivots.strides, factors.shape[:-1])
    return Signature(
        (columns_of(b, *b.shape[-2:]),), (factors, pivots.with_(factors.shape[:-1], strides), b), params
    )


def _lu_solve_host(launch: Launch) -> Body:
    (adjoint,) = launch.params

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        factors, pivots, b = inputs
        getrs = lapack_function("getrs", factors, b)
        for at in np.ndindex(b.shape[:-2]):
            outputs[0][at] = getrs(factors[at], pivots[at] - 1, b[at], trans=2 * adjoint)[0]

    return body


def _lu_rows_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results. Operands: pivots. Params: how many rows the matrix has."""
    x = _one(operands)
    return Signature((Meta.contiguous_of((*x.shape[:-1], *params), int64, x.device),), (x,), params)


def _lu_rows(pivots: Array, rows: int) -> Array:
    """Return, for each row of L U, the number of the matrix's row, by applying the row exchanges in order."""
    order = np.tile(np.arange(rows), (*pivots.shape[:-1], 1))
    for k in range(pivots.shape[-1]):
        other = pivots[..., k, None].astype(np.int64) - 1
        here, there = order[..., k].copy(), np.take_along_axis(order, other, -1)
        order[..., k] = there[..., 0]
        np.put_along_axis(order, other, here[..., None], -1)
    return order


def _lu_solve_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    pivots = np.array([[2, 2, 3], [3, 3, 3]], np.int32)
    for adjoint in (False, True):
        yield (make(2, 3, 3, low=1), pivots, make(2, 3, 2)), (adjoint,)


def _pivot_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (np.array([[2, 2, 3], [3, 3, 3]], np.int32),), (4,)


cholesky_ex = _op(
    "linalg_cholesky_ex",
    _cholesky_rule,
    _cholesky_host,
    _square_samples((False,), (True,)),
    1 / 3,
    work=element_work.factorization(20, 1),
    cuda="linear_solve:cholesky",
    derivative=Derivative(back.cholesky),
    autocast=FLOAT32_ON_CPU,
)
lu_factor_ex = _op(
    "linalg_lu_factor_ex",
    _lu_rule,
    _lu_host,
    _tall_and_wide((True,)),
    2 / 3,
    work=element_work.factorization(45, 1.5),
    cuda="linear_solve:lu_factor",
    derivative=Derivative(back.lu_factor),
)
lu_solve = _op(
    "linalg_lu_solve",
    _lu_solve_rule,
    _lu_solve_host,
    _lu_solve_samples,
    cuda="linear_solve:lu_solve",
    derivative=Derivative(whole=back.lu_solve),
)
lu_rows = _op(
    "_lu_rows",
    _lu_rows_rule,
    _plain(_lu_rows),
    _pivot_samples,
    0,
    (int32,),
    cuda="linear_solve:lu_rows",
    derivative=NOT_DIFFERENTIABLE,
)
note(lu_rows, "linalg.lu")


def _triangular_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer X of AX = B from the operands A, triangular, and B.

    Params: True if A is upper triangular, whether its diagonal is ones (and not read), whether the result is row-major
    because the caller transposes it.
    """
    a, b = pair_of(operands)
    name = "linalg.solve_triangular"
    check_square(name, a)
    check_ndim(name, b, "B")
    check_fits(name, a, b)
    check_implemented("triangular_solve", a)
    a, b = broadcast(a, b)
    out = result_of(b, *b.shape[-2:]) if params[2:] else columns_of(b, *b.shape[-2:])
    return Signature((out,), (a, b), params[:2])


def _triangular_host(launch: Launch) -> Body:
    upper, ones = launch.params
    _, b = launch.inputs
    assert isinstance(b, Meta)
    if math.prod(b.shape[:-2]) > b.shape[-2]:
        return lambda outputs, inputs: _substitute(outputs[0], inputs[0], inputs[1], upper, ones)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        from scipy.linalg import blas  # imported here because it is slow to import

        trsm = blas.get_blas_funcs("trsm", inputs)
        _each(outputs, inputs, lambda a, b: (trsm(1, a, b, lower=not upper, diag=ones),))

    return body


def _substitute(out: Array, a: Array, b: Array, upper: bool, ones: bool) -> None:
    """Solve triangular systems row by row over all matrices, which is fast for many small ones."""
    n = a.shape[-1]
    x = np.array(b)
    for i in reversed(range(n)) if upper else range(n):
        known = slice(i + 1, n) if upper else slice(0, i)
        x[..., i, :] -= np.einsum("...k,...kj->...j", a[..., i, known], x[..., known, :])
        if not ones:
            x[..., i, :] /= a[..., i, i, None]
    out[...] = x


def _triangular_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for params in ((True, False), (False, True)):
        yield (make(3, 3, low=1), make(3, 2)), params
        yield (make(2, 1, 3, 3, low=1), make(3, 3, 1)), params
        yield (make(2, 1, 3, 3, low=1), make(1, 3, 1)), params


solve_triangular = _op(
    "linalg_solve_triangular",
    _triangular_rule,
    _triangular_host,
    _triangular_samples,
    1,
    work=element_work.factorization(30, 0.7),
    cuda="linear_solve:solve_triangular",
    derivative=Derivative(whole=back.solve_triangular),
)


# -- orthogonal factors -----------------------------------------------------------------------------------------


def _qr_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results. Params: the mode, "reduced", "complete" or "r" (no Q)."""
    x = _one(operands)
    (mode,) = params
    check_ndim("linalg.qr", x)
    check_floating("linalg.qr", x)
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', or 'complete'"
        )
    check_implemented("geqrf", x)
    m, n = x.shape[-2:]
    k = m if mode == "complete" else min(m, n)
    q = Meta.contiguous_of((0,), x.dtype, x.device) if mode == "r" else columns_of(x, m, k)
    return Signature((q, columns_of(x, k, n)), (x,), params)


def _qr(a: Array, mode: Any) -> Any:
    found: Any = np.linalg.qr(a, mode)
    return (np.empty(0, a.dtype), found) if mode == "r" else tuple(found)


def _geqrf_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x = _one(operands)
    check_ndim("torch.geqrf", x, "input")
    check_implemented("geqrf", x)
    return Signature((columns_of(x, *x.shape[-2:]), result_of(x, min(x.shape[-2:]))), (x,), params)


def _geqrf(a: Array) -> tuple[Array, Array]:
    packed, tau = np.linalg.qr(a, "raw")
    return packed.swapaxes(-1, -2), tau


def _householder_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    a, tau = pair_of(operands)
    name = "torch.linalg.householder_product"
    if a.ndim < 2:
        raise RuntimeError(f"{name}: input must have at least 2 dimensions.")
    m, n = a.shape[-2:]
    if m < n:
        raise RuntimeError(f"{name}: input.shape[-2] must be greater than or equal to input.shape[-1]")
    if tau.ndim != a.ndim - 1:
        raise RuntimeError(
            f"{name}: Expected tau to have one dimension less than input, but got tau.ndim equal to {tau.ndim} "
            f"and input.ndim is equal to {a.ndim}"
        )
    if n < tau.shape[-1]:
        raise RuntimeError(f"{name}: input.shape[-1] must be greater than or equal to tau.shape[-1]")
    if tau.shape[:-1] != a.shape[:-2]:
        raise RuntimeError(
            f"{name}: Expected batch dimensions of tau to be equal to input.shape[:-2], but got {list(tau.shape[:-1])}"
        )
    if tau.dtype is not a.dtype:
        raise RuntimeError(
            f"torch.linalg.householder_product: tau dtype {tau.dtype.torch_name} does not match input dtype "
            f"{a.dtype.torch_name}"
        )
    check_implemented("orgqr", a)
    return Signature((columns_of(a, m, n),), (a, tau), params)


def _householder(a: Array, tau: Array) -> Array:
    """Return the first columns of H_1 ... H_k. H_i = I - tau v v^H, with v below the diagonal of a."""
    m, n = a.shape[-2:]
    q = np.array(np.broadcast_to(np.eye(m, n, dtype=a.dtype), a.shape))
    for i in reversed(range(tau.shape[-1])):
        v = np.concatenate([np.ones_like(a[..., :1, i]), a[..., i + 1 :, i]], -1)[..., None]
        part = q[..., i:, :]
        part -= tau[..., i, None, None] * v * np.matmul(v.conj().swapaxes(-1, -2), part)
    return q


def _householder_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(4, 3), make(3)), ()
    yield (make(2, 4, 3), make(2, 2)), ()


qr = _op(
    "linalg_qr",
    _qr_rule,
    _plain(_qr),
    _tall_and_wide(("reduced",), ("complete",), ("r",)),
    work=element_work.one_by_one(88, 0.3, 64, 4.0),
    cuda="linear_solve:qr",
    derivative=Derivative(back.qr),
    autocast=FLOAT32_ON_CPU,
)
geqrf = _op(
    "geqrf",
    _geqrf_rule,
    _plain(_geqrf),
    _tall_and_wide(),
    cuda="linear_solve:geqrf",
    derivative=Refusal(back.no_geqrf),
    autocast=FLOAT32_ON_CPU,
)
householder_product = _op(
    "linalg_householder_product",
    _householder_rule,
    _plain(_householder),
    _householder_samples,
    cuda="linear_solve:householder_product",
    derivative=Derivative(whole=back.householder_product),
    autocast=FLOAT32_ON_CPU,
)


# -- singular values and eigenvalues ----------------------------------------------------------------------------


def _not_finite(a: Array) -> int:
    """Return the error code of LAPACK for a bad argument or for an iteration that does not converge."""
    return 1 if np.isfinite(a).all() else -1


def _of_finite(run: Run) -> Callable[[Launch], Body]:
    """Return a reference implementation that never passes non-finite matrices to `run`, which might not return."""

    def run_finite(a: Array, *rest: Any) -> Any:
        read = a
        if rest and isinstance(rest[0], str):  # "L" or "U": the triangle that is read
            read = np.tril(a) if rest[0].upper() == "L" else np.triu(a)
        if not np.isfinite(read).all():
            raise np.linalg.LinAlgError("the matrix is not finite")
        return run(a, *rest)

    return _with_info(run_finite, _not_finite)


def _svd_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results. Params: True if U and Vh are square. Outputs U, S, Vh and info."""
    x = _one(operands)
    _check_svd(x)
    m, n = x.shape[-2:]
    k = min(m, n)
    left, right = (m, n) if params[0] else (k, k)
    values = result_of(x, k, kind=x.dtype.to_real())
    return Signature((columns_of(x, m, left), values, columns_of(x, right, n), _info(x)), (x,), params)


def _svdvals_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x = _one(operands)
    _check_svd(x)
    return Signature((result_of(x, min(x.shape[-2:]), kind=x.dtype.to_real()), _info(x)), (x,), params)


def _check_svd(x: Meta) -> None:
    check_ndim("linalg.svd", x)
    check_floating("linalg.svd", x)
    check_implemented("linalg_svd", x)


def _eigh_rule(vectors: bool) -> Callable[..., Signature]:
    """Infer the results. Params: "L" or "U", the triangle that is read."""

    def rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
        x = _one(operands)
        check_square("linalg.eigh", x)
        if params[0].upper() not in ("L", "U"):
            raise RuntimeError(f"Expected UPLO argument to be 'L' or 'U', but got {params[0]}")
        check_implemented("linalg_eigh", x)
        n = x.shape[-1]
        values = result_of(x, n, kind=x.dtype.to_real())
        return Signature((values, *([columns_of(x, n, n)] if vectors else []), _info(x)), (x,), params)

    return rule


def _eig_rule(name: str, vectors: bool) -> Callable[..., Signature]:
    def rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
        x = _one(operands)
        check_square(name, x)
        kind = x.dtype.to_complex()
        check_implemented("linalg_eig_out", x)
        n = x.shape[-1]
        found = [result_of(x, n, kind=kind), *([columns_of(x, n, n, kind=kind)] if vectors else []), _info(x)]
        return Signature(tuple(found), (x,), params)

    return rule


svd = _op(
    "linalg_svd", _svd_rule, _of_finite(lambda a, full: tuple(np.linalg.svd(a, full))),
    _tall_and_wide((True,), (False,)), 12, cuda="spectra:svd",
    work=element_work.factorization(150, 0, 0.19), derivative=Derivative(back.svd), autocast=FLOAT32_ON_CPU,
)  # fmt: skip
svdvals = _op(
    "linalg_svdvals",
    _svdvals_rule,
    _of_finite(np.linalg.svdvals),
    _tall_and_wide(),
    4,
    cuda="spectra:svdvals",
    derivative=Derivative(back.svdvals, name="LinalgSvdBackward0"),
    autocast=FLOAT32_ON_CPU,
)
eigh = _op(
    "linalg_eigh", _eigh_rule(True), _of_finite(lambda a, uplo: tuple(np.linalg.eigh(a, uplo))),
    _square_samples(("L",), ("U",)), 9, cuda="spectra:eigh",
    work=element_work.eigenvectors, derivative=Derivative(back.eigh), autocast=FLOAT32_ON_CPU,
)  # fmt: skip
eigvalsh = _op(
    "linalg_eigvalsh",
    _eigh_rule(False),
    _of_finite(np.linalg.eigvalsh),
    _square_samples(("L",)),
    4 / 3,
    cuda="spectra:eigvalsh",
    derivative=Derivative(back.eigvalsh, name="LinalgEighBackward0"),
    autocast=FLOAT32_ON_CPU,
)
eig = _op(
    "linalg_eig", _eig_rule("linalg.eig", True), _of_finite(lambda a: tuple(np.linalg.eig(a))),
    _square_samples(), 25, cuda="spectra:eig", derivative=Derivative(back.eig), autocast=FLOAT32_ON_CPU,
)  # fmt: skip
eigvals = _op(
    "linalg_eigvals",
    _eig_rule("linalg.eigvals", False),
    _of_finite(np.linalg.eigvals),
    _square_samples(),
    10,
    cuda="spectra:eigvals",
    derivative=Derivative(back.eigvals, name="LinalgEigBackward0"),
    autocast=FLOAT32_ON_CPU,
)


# -- least squares ------------------------------------------------------------------------------------------------


def _lstsq_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results. Operands: A and B. Params: the relative limit of singular values.

    Outputs: the solution of least norm, the rank, the singular values and info.
    """
    a, b = broadcast(*pair_of(operands))
    if a.dtype not in MATRICES:
        raise RuntimeError("This function doesn't handle types other than float and double")
    m, n = a.shape[-2:]
    values = result_of(a, min(m, n), kind=a.dtype.to_real())
    return Signature(
        (columns_of(a, n, b.shape[-1]), result_of(a, kind=int64), values, _info(a)), (a, b), params
    )


def _lstsq(a: Array, b: Array, rcond: float) -> tuple[Array, Array, Array]:
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    keep = s > rcond * s[..., :1]
    inverse = np.where(keep, 1 / np.where(keep, s, 1), 0)
    part = inverse[..., None] * np.matmul(u.swapaxes(-1, -2).conj(), b)
    return np.matmul(vh.swapaxes(-1, -2).conj(), part), keep.sum(-1), s


def _lstsq_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(4, 3), make(4, 2)), (1e-6,)
    yield (make(2, 1, 3, 5), make(3, 3, 1)), (1e-6,)


lstsq = _op(
    "linalg_lstsq",
    _lstsq_rule,
    _of_finite(_lstsq),
    _lstsq_samples,
    12,
    cuda="spectra:lstsq",
    derivative=Derivative(whole=back.lstsq, outputs=1),
    autocast=FLOAT32_ON_CPU,
)
