"""Factorizations, equations, eigenvalues: `torch.linalg` and its older names in `torch`.

All functions take batches: tensors whose last two dimensions are matrices, of float32, float64, complex64 or
complex128. The host reads the status of each matrix, and waits for the device, except in functions named `..._ex`.
`out=`: a tensor, or a tuple of them, of the results' dtypes. Errors: RuntimeError (shapes, dtypes), LinAlgError (a
matrix without a result, with its index in the batch).
"""

# ruff: noqa: N803 (arguments have the names that PyTorch gives them: A, B, UPLO)

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.core.device import CPU, META
from flambeau.core.dtype import float64, int64, promote_types
from flambeau.core.errors import LinAlgError, argument_type
from flambeau.core.typeinfo import finfo
from flambeau.ops.linalg import ldl
from flambeau.ops.linalg import linalg as ops
from flambeau.ops.op import Op
from flambeau.tensor.arguments import return_types as types
from flambeau.tensor.arguments.public import alias, both, function, functions
from flambeau.tensor.arguments.typing import contiguous_format
from flambeau.tensor.call import call, resize_to
from flambeau.tensor.functions.random import randn
from flambeau.tensor.out_argument import deliver, require_dtype, require_no_gradient, run
from flambeau.tensor.signatures import accepts, signatures
from flambeau.tensor.tensor import Tensor

Out = Any


def tensor_of(x: Any, name: str, argument: str = "A", position: int = 1) -> Tensor:
    """Return `x` if it is a tensor. Raises TypeError otherwise."""
    if not isinstance(x, Tensor):
        raise TypeError(argument_type(name, argument, position, "Tensor", x))
    return x


def _warn_of_age(name: str, newer: str, how: str) -> None:
    """Warn, in PyTorch's words, that a function has a newer name in `torch.linalg`. `how` is the newer call."""
    warn_program(
        f"{name} is deprecated in favor of {newer} and will be removed in a future PyTorch release.{how}",
        UserWarning,
    )


def store_results(results: Any, out: Out) -> Any:
    """Return results, stored in `out` if it is not None. Raises RuntimeError if a dtype differs."""
    if out is None:
        return results
    several = not isinstance(results, Tensor)
    pairs = list(zip(results, out, strict=True)) if several else [(results, out)]
    for one, target in pairs:
        require_dtype(one.dtype, target)
    require_no_gradient(results, out)
    for one, target in pairs:
        if target.meta.shape != one.meta.shape:
            resize_to(target, one.meta)
    return deliver(results, out)


def _codes(info: Tensor) -> list[int]:
    """Return the info codes of a batch of matrices as numbers; an empty list on the meta device."""
    return [] if info.meta.device is META else info.reshape(-1).tolist()


def check(info: Tensor, name: str, text: Callable[[int], str], error: type[Exception] = LinAlgError) -> None:
    """Raise for the first matrix of a batch whose info is not 0."""
    codes = _codes(info)
    for at, code in enumerate(codes):
        if code:
            where = f"(Batch element {at}): " if info.ndim else ""
            raise error(f"{name}: {where}{text(code)}")


def _return_named(kind: Any, results: Sequence[Any], out: Out) -> Any:
    return kind.of(store_results(tuple(results), out), out)


# -- inverse and determinants -----------------------------------------------------------------------------------


def inv_ex(A: Tensor, *, check_errors: bool = False, out: Out = None) -> Any:
    """Return the inverse of each matrix and its info: the place of a zero pivot, from 1, or 0."""
    return invert(A, "linalg.inv_ex", check_errors, out)


def invert(A: Tensor, name: str, check_errors: bool = True, out: Out = None) -> Any:
    """Return the inverse and its info. Errors name the public function `name`."""
    inverse, info = call(ops.inv_ex, (tensor_of(A, name.replace(".", "_")),))
    if check_errors:
        check(info, name, _singular)
    return _return_named(types.linalg_inv_ex, (inverse, info), out)


def _singular(code: int) -> str:
    return (
        f"The diagonal element {code} is zero, the inversion could not be completed because the input matrix is "
        "singular."
    )


def inv(A: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the inverse of each matrix.

    Raises:
        LinAlgError: If it is singular.
    """
    return store_results(invert(A, "linalg.inv").inverse, out)


@both
def inverse(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the inverse of each matrix.

    Raises:
        LinAlgError: If it is singular.
    """
    return inv(input, out=out)


def linalg_det(A: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the determinant of each square matrix."""
    return run(ops.det, (tensor_of(A, "linalg_det"),), (), out)


@both
def det(input: Tensor) -> Tensor:
    """Return the determinant of each square matrix."""
    return linalg_det(input)


@both
def logdet(input: Tensor) -> Tensor:
    """Return the logarithm of the determinant: NaN where that is negative."""
    ops.check_precise("logdet", tensor_of(input, "logdet", "input").meta)
    sign, size = call(ops.slogdet, (input,))
    if sign.dtype.is_complex:
        return size + sign.log()
    found: Tensor = size.masked_fill(sign == -1, math.nan)
    return found


def linalg_slogdet(A: Tensor, *, out: Out = None) -> Any:
    """Return the sign (or phase) of each determinant, and the logarithm of its absolute value."""
    return types.linalg_slogdet.of(run(ops.slogdet, (tensor_of(A, "linalg_slogdet"),), (), out), out)


@both
def slogdet(input: Tensor, *, out: Out = None) -> Any:
    """Call `torch.linalg.slogdet`."""
    return types.slogdet.of(linalg_slogdet(input, out=out), out)


# -- equations --------------------------------------------------------------------------------------------------


def _to_double(x: Tensor) -> Tensor:
    """Return the tensor in double precision, whose products are never rounded to TF32."""
    wide: Tensor = x.to(promote_types(x.dtype, float64))
    return wide


def _is_vector(a: Tensor, b: Tensor) -> bool:
    """Return True if B has one vector for each matrix A, not a matrix."""
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and b.meta.shape == a.meta.shape[:-1])


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False, out: Out = None) -> Any:
    """Return X of AX = B (XA = B) and the info of each matrix: the place of a zero pivot, from 1, or 0."""
    return _solve(A, B, left, "torch.linalg.solve_ex", check_errors, out)


def _solve(A: Tensor, B: Tensor, left: bool, name: str, check_errors: bool, out: Out) -> Any:
    a, b = tensor_of(A, "linalg_solve"), tensor_of(B, "linalg_solve", "B", 2)
    ops.check_square("linalg.solve", a.meta)
    vector = _is_vector(a, b)
    b = b.unsqueeze(-1) if vector else b
    ops.check_ndim("linalg.solve", b.meta, "B")
    if not left:
        if vector:
            raise RuntimeError(
                "linalg.solve: Vector broadcasting of the left hand side is not supported for left=False"
            )
        ops.check_fits("linalg.solve", a.meta, b.meta, left)
        a, b = a.mT, b.mT
    result, info = call(ops.solve_ex, (a, b))
    if check_errors:
        check(info, name, lambda code: "The solver failed because the input matrix is singular.")
    result = result if left else result.mT
    return _return_named(types.linalg_solve_ex, (result.squeeze(-1) if vector else result, info), out)


def solve(A: Tensor, B: Tensor, *, left: bool = True, out: Tensor | None = None) -> Tensor:
    """Return X of AX = B, or of XA = B with left=False; B may be one vector for each A.

    Raises:
        LinAlgError: If A is singular.
    """
    return store_results(_solve(A, B, left, "torch.linalg.solve", True, None).result, out)


def solve_triangular(
    A: Tensor,
    B: Tensor,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Return X of AX = B (or XA = B) for triangular A. The other triangle, or a diagonal of ones, is not read."""
    a, b = tensor_of(A, "linalg_solve_triangular"), tensor_of(B, "linalg_solve_triangular", "B", 2)
    if left:
        return store_results(_triangular(a, b, upper, unitriangular), out)
    name = "linalg.solve_triangular"
    ops.check_square(name, a.meta)
    ops.check_ndim(name, b.meta, "B")
    ops.check_fits(name, a.meta, b.meta, left)
    return store_results(_triangular(a.mT, b.mT, not upper, unitriangular, True).mT, out)


def _triangular(a: Tensor, b: Tensor, upper: bool, ones: bool = False, *by_rows: bool) -> Tensor:
    result: Tensor = call(ops.solve_triangular, (a, b.to(a.dtype)), (bool(upper), bool(ones), *by_rows))
    return result


@both
def triangular_solve(
    b: Tensor,
    A: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
    *,
    out: Out = None,
) -> Any:
    """Return `torch.linalg.solve_triangular` by its older name and order: the solution, and A."""
    if b.dtype is not A.dtype:
        raise RuntimeError(
            f"Expected b and A to have the same dtype, but found b of type {b.dtype.torch_name} and A of type "
            f"{A.dtype.torch_name} instead."
        )
    a = A.mT if transpose else A
    found = _triangular(a, b, upper != transpose, unitriangular)
    return _return_named(types.triangular_solve, (found, A.mT.clone(memory_format=contiguous_format).mT), out)


# -- Cholesky -----------------------------------------------------------------------------------------------------


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False, out: Out = None) -> Any:
    """Return the Cholesky factor of each matrix and its info: the order of a leading minor that is not positive, or
    0.
    """
    return _cholesky(A, upper, "linalg.cholesky_ex", check_errors, out)


def _cholesky(A: Tensor, upper: bool, name: str, check_errors: bool, out: Out) -> Any:
    factor, info = call(ops.cholesky_ex, (tensor_of(A, "linalg_cholesky", "input"),), (bool(upper),))
    if check_errors:
        check(info, name, lambda code: (
            "The factorization could not be completed because the input is not positive-definite (the leading "
            f"minor of order {code} is not positive-definite)."
        ))  # fmt: skip
    return _return_named(types.linalg_cholesky_ex, (factor, info), out)


def linalg_cholesky(A: Tensor, *, upper: bool = False, out: Tensor | None = None) -> Tensor:
    """Return L of A = L L^H for each Hermitian positive-definite matrix, or U of A = U^H U.

    Raises:
        LinAlgError: If it is not.
    """
    return store_results(_cholesky(A, upper, "linalg.cholesky", True, None).L, out)


@both
def cholesky(input: Tensor, upper: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Call `torch.linalg.cholesky`."""
    _warn_of_age(
        "torch.cholesky", "torch.linalg.cholesky",
        "\nL = torch.cholesky(A)\nshould be replaced with\nL = torch.linalg.cholesky(A)\nand\n"
        "U = torch.cholesky(A, upper=True)\nshould be replaced with\nU = torch.linalg.cholesky(A).mH\n"
        "This transform will produce equivalent results for all valid (symmetric positive definite) inputs.",
    )  # fmt: skip
    if not input.numel():
        return store_results(input.contiguous().clone(), out)
    ops.check_square("cholesky", input.meta)
    ops.check_implemented("cholesky", input.meta)
    return store_results(_cholesky(input, upper, "cholesky", True, None).L, out)


@both
@signatures("cholesky_solve(input: Tensor, input2: Tensor, upper: bool=)")
@accepts("cholesky_solve", input2="L")
def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Return X of AX = B from the Cholesky factor of A."""
    for name, x in (("b", B), ("u", L)):
        if x.ndim < 2:
            raise RuntimeError(
                f"{name} should have at least 2 dimensions, but has {x.ndim} dimensions instead"
            )
    rows, columns = L.meta.shape[-2:]
    if rows != columns:
        raise RuntimeError(f"A must be batches of square matrices, but they are {rows} by {columns} matrices")
    if B.dtype is not L.dtype:
        raise RuntimeError(
            f"Expected b and A to have the same dtype, but found b of type {B.dtype.torch_name} and A of type "
            f"{L.dtype.torch_name} instead."
        )
    ops.check_implemented("cholesky_solve", L.meta)
    first = L.mH if upper else L
    return _cholesky_solved(first, B, "cholesky_solve", out)


def _cholesky_solved(lower: Tensor, b: Tensor, name: str, out: Tensor | None) -> Tensor:
    found: Tensor = deliver(_triangular(lower.mH, _triangular(lower, b, upper=False), upper=True), out, name)
    return found


@both
def cholesky_inverse(L: Tensor, upper: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Return the inverse of A from its Cholesky factor."""
    ops.check_square("cholesky_inverse", L.meta)
    ops.check_implemented("cholesky_inverse_out", L.meta)
    if L.device is CPU:
        check(_zero_pivots(L), "cholesky_inverse", _singular)
    return _cholesky_solved(L.mH if upper else L, _identity(L), "cholesky_inverse", out)


def _zero_pivots(x: Tensor) -> Tensor:
    """Return the position, from 1, of the first zero on each matrix's diagonal; 0 if there is no zero."""
    zero = (x.diagonal(dim1=-2, dim2=-1) == 0).long()
    count = zero.meta.shape[-1]
    found: Tensor = zero.any(-1).long() * (zero.argmax(-1) + 1) if count else zero.sum(-1)
    return found


def _identity(like: Tensor) -> Tensor:
    """Return one identity matrix with the size, dtype and device of a batch's matrices."""
    eye: Tensor = functions["eye"](like.meta.shape[-1], dtype=like.dtype, device=like.device)
    return eye


# -- LU -----------------------------------------------------------------------------------------------------------


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False, out: Out = None) -> Any:
    """Return L and U in one matrix, the row exchanges (from 1), and the position of a zero on U's diagonal (0:
    none).
    """
    return _factor(A, pivot, "torch.linalg.lu_factor_ex", check_errors, out)


def _factor(A: Tensor, pivot: bool, name: str, check_errors: bool, out: Out) -> Any:
    found = call(ops.lu_factor_ex, (tensor_of(A, "linalg_lu_factor"),), (bool(pivot),))
    if check_errors:
        check(found[2], name, lambda code: (
            f"U[{code},{code}] is zero and using it on lu_solve would result in a division by zero. If you still "
            "want to perform the factorization, consider calling linalg.lu(A, pivot) or "
            "linalg.lu_factor_ex(A, pivot)"
        ), RuntimeError)  # fmt: skip
    return _return_named(types.linalg_lu_factor_ex, found, out)


def lu_factor(A: Tensor, *, pivot: bool = True, out: Out = None) -> Any:
    """Return L and U in one matrix, and the row exchanges as indices from 1.

    Raises:
        RuntimeError: If U has a zero on its diagonal.
    """
    return _return_named(
        types.linalg_lu_factor, _factor(A, pivot, "torch.linalg.lu_factor", True, None)[:2], out
    )


def lu(A: Tensor, *, pivot: bool = True, out: Out = None) -> Any:
    """Return P, L and U of A = P L U; P is empty without pivoting."""
    tensor_of(A, "linalg_lu")
    if A.ndim < 2:
        raise RuntimeError(
            f"linalg.lu: Expected tensor with 2 or more dimensions. Got size: {list(A.meta.shape)} instead"
        )
    factors, pivots, _ = call(ops.lu_factor_ex, (A,), (bool(pivot),))
    return _return_named(types.linalg_lu, _unpack_factors(factors, pivots, True, pivot), out)


def _lu(A: Tensor, pivot: bool = True, get_infos: bool = False, out: Out = None) -> Any:
    """Call `torch.linalg.lu_factor`, or `lu_factor_ex` with `get_infos`."""
    _warn_of_age(
        "torch.lu", "torch.linalg.lu_factor / torch.linalg.lu_factor_ex",
        "\nLU, pivots = torch.lu(A, compute_pivots)\nshould be replaced with\n"
        "LU, pivots = torch.linalg.lu_factor(A, compute_pivots)\nand\n"
        "LU, pivots, info = torch.lu(A, compute_pivots, get_infos=True)\nshould be replaced with\n"
        "LU, pivots, info = torch.linalg.lu_factor_ex(A, compute_pivots)",
    )  # fmt: skip
    if get_infos:
        return tuple(lu_factor_ex(A, pivot=pivot, out=out))
    # a zero on the diagonal is not an error here
    found = _factor(A, pivot, "torch.lu_factor", False, None)[:2]
    return tuple(_return_named(types.linalg_lu_factor, found, out))


alias("lu", _lu)


@function
def lu_unpack(
    LU_data: Tensor,
    LU_pivots: Tensor,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
    *,
    out: Out = None,
) -> Any:
    """Return P, L and U from the result of `lu_factor`. Matrices that are not requested are empty."""
    if unpack_pivots and LU_pivots.dtype.name != "int32":
        raise RuntimeError(
            "torch.lu_unpack: LU_pivots is expected to be a contiguous tensor of torch.int32 dtype.\n"
            "Note: this function is intended to be used with the output produced by torch.linalg.lu_factor"
        )
    return _return_named(
        types.lu_unpack, _unpack_factors(LU_data, LU_pivots, unpack_data, unpack_pivots), out
    )


def _unpack_factors(factors: Tensor, pivots: Tensor, data: bool, rows: bool) -> tuple[Tensor, Tensor, Tensor]:
    if factors.ndim < 2:
        raise RuntimeError(
            f"torch.lu_unpack: Expected tensor with 2 or more dimensions. Got size: {list(factors.meta.shape)} instead"
        )
    m, n = factors.meta.shape[-2:]
    k = min(m, n)
    permutation, lower, upper = (factors.new_empty(0) for _ in range(3))
    if rows:
        order = call(ops.lu_rows, (pivots,), (m,))
        permutation = factors.new_zeros((*factors.meta.shape[:-2], m, m))
        permutation.scatter_(-2, order.unsqueeze(-2), 1)
    if data:
        lower = factors.narrow(-1, 0, k).tril(-1)
        lower.diagonal(0, -2, -1).fill_(1)
        upper = factors.narrow(-2, 0, k).triu()
    return permutation, lower, upper


def linalg_lu_solve(
    LU: Tensor,
    pivots: Tensor,
    B: Tensor,
    *,
    left: bool = True,
    adjoint: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Return X of AX = B, XA = B, A^H X = B or X A^H = B, from the LU factors of A."""
    if left:
        return store_results(call(ops.lu_solve, (LU, pivots, B), (bool(adjoint),)), out)
    ops.check_square("torch.linalg.lu_solve", LU.meta)
    ops.check_fits("torch.linalg.lu_solve", LU.meta, B.meta, left)
    return store_results(
        call(ops.lu_solve, (LU, pivots, B.mH), (not adjoint,)).mH, out
    )  # the equation's adjoint


@both
def lu_solve(b: Tensor, LU_data: Tensor, LU_pivots: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return `torch.linalg.lu_solve` with the older order of arguments."""
    _warn_of_age(
        "torch.lu_solve", "torch.linalg.lu_solve",
        "\nNote that torch.linalg.lu_solve has its arguments reversed.\nX = torch.lu_solve(B, LU, pivots)\n"
        "should be replaced with\nX = torch.linalg.lu_solve(LU, pivots, B)",
    )  # fmt: skip
    return linalg_lu_solve(LU_data, LU_pivots, b, out=out)


# -- LDL ----------------------------------------------------------------------------------------------------------


def ldl_factor_ex(A: Tensor, *, hermitian: bool = False, check_errors: bool = False, out: Out = None) -> Any:
    """Return L and D in one matrix, the pivots, and the info: the place of a zero on D's diagonal, or 0.

    Args:
        A: Symmetric or Hermitian matrices, of which the lower triangle is read.
        hermitian: True if complex matrices are Hermitian.
        check_errors: True if a zero on D's diagonal is an error.
        out: Tensors for the three results.

    Returns:
        A named tuple `(LD, pivots, info)`; a negative pivot marks two rows of D that are one block.

    Raises:
        RuntimeError: If the sizes or dtypes do not fit; with `check_errors`, if D has a zero on its diagonal.
        NotSupportedError: On real GPUs, for which there is no implementation.
    """
    found = _ldl_factor(A, hermitian, "torch.linalg.ldl_factor_ex", check_errors)
    return _return_named(types.linalg_ldl_factor_ex, found, out)


def _ldl_factor(A: Tensor, hermitian: bool, name: str, check_errors: bool) -> Any:
    matrix = tensor_of(A, "linalg_ldl_factor")
    found = call(ldl.ldl_factor_ex, (matrix,), (bool(hermitian) and matrix.dtype.is_complex,))
    if check_errors:
        check(found[2], name, lambda code: (
            f"D[{code},{code}] is zero, or the matrix has NaN. Using the factors in ldl_solve would divide by zero. To "
            "get the factors without this error, call linalg.ldl_factor_ex"
        ), RuntimeError)  # fmt: skip
    return found


def ldl_factor(A: Tensor, *, hermitian: bool = False, out: Out = None) -> Any:
    """Return L and D of A = L D L^T in one matrix, and the pivots, as `ldl_factor_ex`.

    Raises:
        RuntimeError: If D has a zero on its diagonal.
    """
    found = _ldl_factor(A, hermitian, "torch.linalg.ldl_factor", True)[:2]
    return _return_named(types.linalg_ldl_factor, found, out)


def ldl_solve(
    LD: Tensor, pivots: Tensor, B: Tensor, *, hermitian: bool = False, out: Tensor | None = None
) -> Tensor:
    """Return X of AX = B from the LDL factors of A.

    Args:
        LD: The factors.
        pivots: The pivots, which `ldl_factor` returns with them.
        B: The right-hand sides, one matrix for each A.
        hermitian: The argument of `ldl_factor` that returned the factors.
        out: A tensor for the result.

    Raises:
        RuntimeError: If the sizes or dtypes do not fit, or a pivot is not a row.
        NotSupportedError: On real GPUs, for which there is no implementation.
    """
    is_hermitian = bool(hermitian) and tensor_of(LD, "linalg_ldl_solve", "LD").dtype.is_complex
    found = call(ldl.ldl_solve, (LD, pivots, B), (is_hermitian,))
    _check_pivots(pivots, LD.shape[-1])
    return store_results(found, out)


def _check_pivots(pivots: Tensor, rows: int) -> None:
    """Raise RuntimeError if a pivot is not a row, counted from 1. Reads them, which waits for the device."""
    if pivots.is_meta:
        return
    sizes = pivots.to(int64).abs()
    for is_wrong, bound in ((sizes < 1, ">= 1"), (sizes > rows, "<= LD.size(-2)")):
        if is_wrong.any():
            raise RuntimeError(
                f"Pivots given to ldl_solve must all satisfy |pivot| {bound}. Did you properly pass the result of "
                "ldl_factor?"
            )


# -- QR -----------------------------------------------------------------------------------------------------------


def linalg_qr(A: Tensor, mode: str = "reduced", *, out: Out = None) -> Any:
    """Return Q and R of A = QR; mode "reduced", "complete" (Q square) or "r" (Q empty)."""
    return _return_named(types.linalg_qr, call(ops.qr, (tensor_of(A, "linalg_qr"),), (mode,)), out)


@both
def qr(input: Tensor, some: bool = True, *, out: Out = None) -> Any:
    """Call `torch.linalg.qr`, reduced or complete."""
    _warn_of_age(
        "torch.qr", "torch.linalg.qr",
        "\nThe boolean parameter 'some' has been replaced with a string parameter 'mode'.\n"
        "Q, R = torch.qr(A, some)\nshould be replaced with\n"
        "Q, R = torch.linalg.qr(A, 'reduced' if some else 'complete')",
    )  # fmt: skip
    return types.qr.of(linalg_qr(input, "reduced" if some else "complete", out=out), out)


@signatures(shown="orgqr(input: Tensor, tau: Tensor, *, out: Tensor | None=None)")
@accepts("orgqr", input2="tau")
def householder_product(A: Tensor, tau: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the first columns of the product of Householder reflectors, which `torch.geqrf` returns."""
    found = call(ops.householder_product, (tensor_of(A, "linalg_householder_product"), tau))
    result: Tensor = deliver(found, out, "torch.linalg.householder_product")
    return result


alias("orgqr", householder_product)


@both
@accepts("ormqr", input2="tau", input3="other")
def ormqr(
    input: Tensor,
    tau: Tensor,
    other: Tensor,
    left: bool = True,
    transpose: bool = False,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Return Q or its adjoint times `other`, from the left or the right, where Q is the product of geqrf's
    reflectors.
    """
    _check_reflectors(input, tau, other, left)
    if not left:  # computed as the adjoint of the product
        other, transpose = other.mH, not transpose
    kind, count, rows = other.dtype, tau.meta.shape[-1], input.meta.shape[-2]
    input, tau, other = _to_double(input), _to_double(tau), _to_double(other)
    v = input.narrow(-1, 0, count).tril(-1) + functions["eye"](
        rows, count, dtype=input.dtype, device=input.device
    )
    scale = tau.unsqueeze(-1)
    inner = _triangular(scale * (v.mH @ v).triu(1), tau.diag_embed(), upper=True, ones=True)
    found = other - v @ ((inner.mH if transpose else inner) @ (v.mH @ other))
    found = (found if left else found.mH).to(kind).mT.contiguous().mT  # by columns, as LAPACK's
    result: Tensor = deliver(found, out, "torch.ormqr")
    return result


def _check_reflectors(input: Tensor, tau: Tensor, other: Tensor, left: bool) -> None:
    name = "torch.ormqr"
    for what, x in (("input", input), ("other", other)):
        if x.ndim < 2:
            raise RuntimeError(f"{name}: {what} must have at least 2 dimensions.")
    if tau.ndim != input.ndim - 1:
        raise RuntimeError(
            f"{name}: Expected tau to have one dimension less than input, but got tau.ndim equal to {tau.ndim} and "
            f"input.ndim is equal to {input.ndim}"
        )
    if other.ndim != input.ndim:
        raise RuntimeError(
            f"{name}: Expected other to have the same number of dimensions as input, but got other.ndim equal to "
            f"{other.ndim} and input.ndim is equal to {input.ndim}"
        )
    side, rows = ("-2" if left else "-1"), other.meta.shape[-2 if left else -1]
    if rows != input.meta.shape[-2]:
        raise RuntimeError(f"{name}: other.shape[{side}] must be equal to input.shape[-2]")
    if tau.meta.shape[-1] != min(rows, input.meta.shape[-1]):
        raise RuntimeError(
            f"{name}: tau.shape[-1] must be equal to min(other.shape[{side}], input.shape[-1])"
        )
    for what, x in (("tau", tau), ("other", other)):
        if x.dtype is not input.dtype:
            raise RuntimeError(
                f"{name}: Expected input and {what} to have the same dtype, but input has dtype"
                f"{input.dtype.torch_name} and {what} has dtype {x.dtype.torch_name}"
            )
    ops.check_implemented("ormqr", input.meta)


def _geqrf(input: Tensor, *, out: Out = None) -> Any:
    """Return the Householder reflectors of a QR factorization, below the diagonal of R, and their factors."""
    return _return_named(types.geqrf, call(ops.geqrf, (tensor_of(input, "geqrf", "input"),)), out)


alias("geqrf", _geqrf)


# -- singular values and eigenvalues ------------------------------------------------------------------------------


def _did_not_converge(info: Tensor, name: str, what: str) -> None:
    check(info, name, lambda code: (
        "The algorithm failed to converge because the input matrix contained non-finite values."
        if code < 0
        else "The algorithm failed to converge because the input matrix is ill-conditioned or has too many "
        f"repeated {what} values (error code: {code})."
    ))  # fmt: skip


def _svd(A: Any, name: str, full_matrices: bool) -> tuple[Tensor, ...]:
    *found, info = call(ops.svd, (tensor_of(A, name),), (bool(full_matrices),))
    _did_not_converge(info, "linalg.svd", "singular")
    return tuple(found)


def _check_driver(A: Any, name: str, driver: str | None) -> None:
    if driver is None:
        return
    if tensor_of(A, name).device.type != "cuda":
        raise RuntimeError(
            "torch.linalg.svd: keyword argument `driver=` is only supported on CUDA inputs with cuSOLVER backend."
        )
    if driver not in ("gesvd", "gesvdj", "gesvda"):
        raise RuntimeError(
            f"torch.linalg.svd: unknown svd driver {driver}. Possible values: gesvd, gesvdj, gesvda."
        )


def linalg_svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None, out: Out = None) -> Any:
    """Return U, S, Vh of A = U diag(S) Vh, S descending; U and Vh square, or with as many vectors as there are
    values.
    """
    _check_driver(A, "linalg_svd", driver)
    return _return_named(types.linalg_svd, _svd(A, "linalg_svd", full_matrices), out)


def svdvals(A: Tensor, *, driver: str | None = None, out: Tensor | None = None) -> Tensor:
    """Return the singular values of each matrix, descending."""
    _check_driver(A, "linalg_svdvals", driver)
    values, info = call(ops.svdvals, (tensor_of(A, "linalg_svdvals"),))
    _did_not_converge(info, "linalg.svd", "singular")
    return store_results(values, out)


@both
def svd(input: Tensor, some: bool = True, compute_uv: bool = True, *, out: Out = None) -> Any:
    """Return U, S, V of A = U diag(S) V^H; without compute_uv, U and V are zeros."""
    if compute_uv:
        u, s, vh = _svd(input, "svd", not some)
        return _return_named(types.svd, (u, s, vh.mH), out)
    values = svdvals(tensor_of(input, "svd", "input"))
    *batch, m, n = input.meta.shape
    found = (input.new_zeros((*batch, m, m)), values, input.new_zeros((*batch, n, n)).mT)
    return _return_named(types.svd, found, out)


def eigh(A: Tensor, UPLO: str = "L", *, out: Out = None) -> Any:
    """Return eigenvalues, ascending, and eigenvectors of each Hermitian matrix, of which one triangle is read."""
    values, vectors, info = call(ops.eigh, (tensor_of(A, "linalg_eigh", "input"),), (UPLO,))
    _did_not_converge(info, "linalg.eigh", "eigen")
    return _return_named(types.linalg_eigh, (values, vectors), out)


def eigvalsh(A: Tensor, UPLO: str = "L", *, out: Tensor | None = None) -> Tensor:
    """Return eigenvalues, ascending, of each Hermitian matrix, of which one triangle is read."""
    values, info = call(ops.eigvalsh, (tensor_of(A, "linalg_eigvalsh", "input"),), (UPLO,))
    _did_not_converge(info, "linalg.eigh", "eigen")
    return store_results(values, out)


def eig(A: Tensor, *, out: Out = None) -> Any:
    """Return eigenvalues and eigenvectors (of length 1) of each square matrix, complex."""
    return _return_named(types.linalg_eig, _eigen(ops.eig, "eig", A), out)


def eigvals(A: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return eigenvalues of each square matrix, complex."""
    (values,) = _eigen(ops.eigvals, "eigvals", A)
    if out is not None and not out.dtype.is_complex:
        raise RuntimeError(
            f"torch.linalg.eigvals: Expected eigenvalues to be safely castable from {values.dtype.torch_name} dtype, "
            f"but got eigenvalues with dtype {out.dtype.torch_name}"
        )
    result: Tensor = deliver(values, out)
    return result


def _eigen(op: Op, name: str, A: Any) -> tuple[Tensor, ...]:
    *found, info = call(op, (tensor_of(A, f"linalg_{name}", "input"),))
    codes = _codes(info)
    if any(code < 0 for code in codes):
        raise RuntimeError(f"torch.linalg.{name}: input tensor should not contain infs or NaNs.")
    _did_not_converge(info, f"linalg.{name}", "eigen")
    return tuple(found)


# -- least squares ------------------------------------------------------------------------------------------------

_DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


@accepts("linalg_lstsq", b="B")
def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """Return the X that minimizes |AX - B|, of least norm if it is not unique; and residuals, rank, singular values.

    Args:
        driver: "gels" (A has full rank; the only one on GPUs), "gelsy" (the CPU's default), "gelsd", "gelss". It
            determines which of the other results are computed.

    Raises:
        LinAlgError: If the driver is "gels" and A does not have full rank.
    """
    a, b = tensor_of(A, "linalg_lstsq"), tensor_of(B, "linalg_lstsq", "B", 2)
    driver = _lstsq_driver(a, driver)
    if a.ndim < 2:
        raise RuntimeError("torch.linalg.lstsq: input must have at least 2 dimensions.")
    if b.ndim < 1:
        raise RuntimeError("torch.linalg.lstsq: other must have at least 1 dimension.")
    if a.dtype is not b.dtype:
        raise RuntimeError(
            "torch.linalg.lstsq: Expected input and other to have the same dtype, but got input's dtype "
            f"{a.dtype.torch_name} and other's dtype {b.dtype.torch_name}"
        )
    vector = _is_vector(a, b)
    b = b.unsqueeze(-1) if vector else b
    m, n = a.meta.shape[-2:]
    if b.meta.shape[-2] != m:
        raise RuntimeError(
            f"torch.linalg.lstsq: input.size(-2) should match other.size({-1 if vector else -2})"
        )
    limit = _epsilon(a) * max(m, n) if rcond is None else float(rcond)
    found, rank, values, info = call(ops.lstsq, (a, b), (limit,))
    _did_not_converge(info, "torch.linalg.lstsq", "singular")
    residuals = a.new_empty(0, dtype=a.dtype.to_real())
    full = driver == "gels" or (driver != "gelsy" and m > n and (rank.is_meta or bool((rank == n).all())))
    if driver == "gels":
        _check_full_rank(rank, min(m, n))
        rank = rank.new_empty(0)
    if m > n and full:
        away = functions["matmul"](_to_double(a), _to_double(found)) - b
        residuals = away.abs().square().sum(-2).to(a.dtype.to_real())
    values = values if driver in ("gelsd", "gelss") else values.new_empty(0)
    return types.linalg_lstsq((found.squeeze(-1) if vector else found, residuals, rank, values))


def _lstsq_driver(a: Tensor, driver: str | None) -> str:
    if a.device.type == "cuda":
        if driver not in (None, "gels"):
            raise RuntimeError("torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA")
        return "gels"
    if driver not in (None, *_DRIVERS):
        raise RuntimeError(f"torch.linalg.lstsq: parameter `driver` should be one of ({', '.join(_DRIVERS)})")
    return driver or "gelsy"


def _epsilon(x: Tensor) -> float:
    return float(finfo(x.dtype.to_real()).eps) if x.dtype in ops.MATRICES else 0.0


def _check_full_rank(rank: Any, wanted: int) -> None:
    """Raise LinAlgError for a matrix without full rank. LAPACK's gels accepts a zero matrix, whose solution is 0."""
    check(
        (rank + 1) * ((rank > 0) & (rank < wanted)), "torch.linalg.lstsq", lambda code: (
            "The least squares solution could not be computed because the input matrix does not have full rank "
            f"(error code: {code})."
        ),
    )  # fmt: skip


# -- of low rank: see Halko, Martinsson and Tropp, "Finding structure with randomness" ---------------------------


@function
def svd_lowrank(
    A: Tensor, q: int | bool | None = 6, niter: int | bool | None = 2, M: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (U, S, V) with A - M approximately U diag(S) V^H, of `q` singular values, by a randomized method."""
    _require_matrix(A)
    less = A if M is None else A - M.broadcast_to(A.shape)
    wide = less.shape[-2] < less.shape[-1]
    tall = less.mH if wide else less
    basis = _basis_of(tall, 6 if q is None else q, 2 if niter is None else niter)
    inner = linalg_svd(basis.mH @ tall, full_matrices=False)
    left, right = basis @ inner.U, inner.Vh.mH
    return (right, inner.S, left) if wide else (left, inner.S, right)


def _require_matrix(A: Tensor) -> None:
    if A.ndim < 2:
        raise ValueError(f"not enough values to unpack (expected 2, got {A.ndim}): the input is not a matrix")


def _basis_of(A: Any, count: int, times: int) -> Any:
    """Return orthonormal columns that approximately span A's largest singular vectors."""
    basis = linalg_qr(A @ randn(A.shape[-1], count, dtype=A.dtype, device=A.device)).Q
    for _ in range(times):
        basis = linalg_qr(A @ linalg_qr(A.mH @ basis).Q).Q
    return basis


@function
def pca_lowrank(
    A: Tensor, q: int | bool | None = None, center: Any = True, niter: int | bool = 2
) -> tuple[Tensor, Tensor, Tensor]:
    """Return `svd_lowrank` of A minus its column means. The columns of V are the principal directions."""
    _require_matrix(A)
    most = min(A.shape[-2:])
    count = min(6, most) if q is None else q
    if not 0 <= count <= most:
        raise ValueError(f"q(={count}) must be non-negative integer and not greater than min(m, n)={most}")
    if niter < 0:
        raise ValueError(f"niter(={niter}) must be non-negative integer")
    return svd_lowrank(A - A.mean(dim=-2, keepdim=True) if center else A, count, niter)
