"""LDL factors of symmetric and Hermitian matrices, by LAPACK's sytrf, hetrf and their solvers.

A = L D L^T, or L D L^H, where D has blocks of one or two rows. A negative pivot marks a block of two rows. Of the
input and of the factors, the lower triangle is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import INTEGRAL, dtype, int32
from flambeau.core.layout import expand_strides, wrap_dim
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Kernel, Launch
from flambeau.ops.derivative_helpers import refuse_derivative
from flambeau.ops.linalg import linalg
from flambeau.ops.op import Make, Op, Operand, Sample, Signature, common_device, define

Array = np.ndarray[Any, Any]


def _factor_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results: factors, pivots, info. Params: True if the matrices are Hermitian."""
    (x,) = operands
    assert isinstance(x, Meta)
    linalg.check_square("torch.linalg.ldl_factor_ex", x)
    linalg.check_floating("torch.linalg.ldl_factor_ex", x)
    linalg.check_implemented("ldl_factor_kernel", x)
    rows = x.shape[-1]
    results = (
        linalg.columns_of(x, rows, rows),
        linalg.result_of(x, rows, kind=int32),
        linalg.result_of(x, kind=int32),
    )
    return Signature(results, (x,), params)


def _factor(launch: Launch) -> Body:
    routine = _routine("trf", *launch.params)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        factors, pivots, info = outputs
        (a,) = inputs
        info[...] = 0
        if not a.size:
            return
        run, size = linalg.lapack_function(routine, a), linalg.lapack_function(f"{routine}_lwork", a)
        work = int(size(a.shape[-1], lower=1)[0].real)  # with less, LAPACK takes another algorithm
        for at in np.ndindex(a.shape[:-2]):
            found, pivots[at], info[at] = run(a[at], lower=1, lwork=work)
            factors[at] = np.tril(found)

    return body


def _solve_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the solution. Operands: LD, pivots and B. Params: True if the matrices are Hermitian."""
    factors, pivots, b = operands
    assert isinstance(factors, Meta) and isinstance(pivots, Meta) and isinstance(b, Meta)
    name = "torch.linalg.ldl_solve"
    common_device([factors, pivots, b])
    linalg.check_square(name, factors)
    linalg.check_floating(name, factors)
    wrap_dim(-2, b.ndim)  # B is a matrix
    if pivots.shape != factors.shape[:-1]:
        raise RuntimeError(
            f"{name}: Expected LD.shape[:-1] and pivots.shape to be the same, but got pivots with shape "
            f"{list(pivots.shape)} instead"
        )
    if pivots.dtype.category != INTEGRAL:
        raise RuntimeError(f"{name}: Expected pivots to be integers. Got {pivots.dtype.torch_name}")
    if factors.dtype is not b.dtype:
        raise RuntimeError(
            f"Expected b and A to have the same dtype, but found b of type {b.dtype.torch_name} and A of type "
            f"{factors.dtype.torch_name} instead."
        )
    if factors.shape[-1] != b.shape[-2]:
        raise RuntimeError(
            f"Incompatible matrix sizes for {name}: each A matrix is {factors.shape[-1]} by {factors.shape[-1]} but "
            f"each b matrix is {b.shape[-2]} by {b.shape[-1]}"
        )
    linalg.check_implemented("ldl_solve_kernel", factors)
    factors, b = linalg.broadcast(factors, b)
    strides = expand_strides(pivots.shape, pivots.strides, factors.shape[:-1])
    inputs = (factors, pivots.with_(factors.shape[:-1], strides), b)
    return Signature((linalg.columns_of(b, *b.shape[-2:]),), inputs, params)


def _solve(launch: Launch) -> Body:
    routine = _routine("trs", *launch.params)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        factors, pivots, b = inputs
        rows = np.abs(pivots.astype(np.int64))
        if ((rows < 1) | (rows > factors.shape[-1])).any():
            outputs[0].fill(np.nan)  # `torch.linalg.ldl_solve` raises when it reads the pivots
            return
        if not b.size:
            return
        solve = linalg.lapack_function(routine, factors, b)
        for at in np.ndindex(b.shape[:-2]):
            outputs[0][at] = solve(factors[at], pivots[at].astype(np.int32), b[at], lower=1)[0]

    return body


def _routine(end: str, is_hermitian: bool) -> str:
    return f"{'he' if is_hermitian else 'sy'}{end}"


def _factor_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for is_hermitian in (False, True):
        yield (make(3, 3),), (is_hermitian and kind.is_complex,)
        yield (make(2, 1, 4, 4),), (is_hermitian and kind.is_complex,)


def _solve_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    pivots = np.array([[1, 2, 3], [-3, -3, 3]], np.int32)
    for is_hermitian in (False, True):
        yield (make(2, 3, 3, low=1), pivots, make(2, 3, 2)), (is_hermitian and kind.is_complex,)


ldl_factor_ex = define(
    Op(
        "linalg_ldl_factor_ex",
        _factor_rule,
        Kernel("linalg_ldl_factor_ex", _factor, linalg.count_flops(1 / 3)),
        linalg.MATRICES,
        _factor_samples,
        derivative=refuse_derivative("linalg_ldl_factor_ex"),
    )
)
ldl_solve = define(
    Op(
        "linalg_ldl_solve",
        _solve_rule,
        Kernel("linalg_ldl_solve", _solve, linalg.count_flops(2)),
        linalg.MATRICES,
        _solve_samples,
        derivative=refuse_derivative("linalg_ldl_solve"),
    )
)
