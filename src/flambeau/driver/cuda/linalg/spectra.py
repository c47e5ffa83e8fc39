"""Singular values, eigenvalues and least squares on cuSOLVER."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.kernel_steps import Array, KernelSteps, Places, device_only
from flambeau.driver.cuda.libraries.cusolver import DATA, LOWER, UPPER, VALUES, VECTORS, solver_of
from flambeau.driver.cuda.linalg import matrices
from flambeau.driver.cuda.linalg.matrices import Matrices, routine
from flambeau.driver.cuda.linalg.products import MATMUL
from flambeau.driver.protocol import Fold, Kernel, Source

_JACOBI = 32  # rows and columns that the library's batch of Jacobi iterations takes


# -- singular values -----------------------------------------------------------------------------------------


def _jacobi(
    steps: KernelSteps, a: Matrices, info: Array, vectors: bool, full: bool
) -> tuple[Matrices, Array, Matrices]:
    """Compute U, S and V of A = U S V^H by Jacobi's iteration, which destroys A."""
    m, n, k = a.rows, a.columns, min(a.rows, a.columns)
    batched = a.count > 1 and max(m, n) <= _JACOBI
    square = full or batched
    like, kind = a.array.meta, a.kind
    values = matrices.numbers(steps, like, k, kind.to_real())
    u = matrices.columns(steps, like, m, m if square else k)
    v = matrices.columns(steps, like, n, n if square else k)
    solver, job = solver_of(steps.device), VECTORS if vectors else VALUES

    def operands(places: Places, at: int) -> tuple[int, ...]:
        numbers = places[values.place] + at * k * kind.to_real().itemsize
        left, right = (places[x.array.place] + at * x.step for x in (u, v))
        return m, n, places[a.array.place] + at * a.step, m, numbers, left, m, right, n

    if batched:
        steps.call(
            lambda places, native, stream: solver.call_typed(
                "gesvdjBatched", kind, (job, *operands(places, 0)), native, places[info.place],
                tail=(solver.jacobi, a.count),
            )
        )  # fmt: skip
    else:

        def one(places: Places, native: Any, at: int) -> None:
            head = (job, int(not full), *operands(places, at))
            solver.call_typed(
                "gesvdj", kind, head, native, places[info.place] + 4 * at, tail=(solver.jacobi,)
            )

        matrices.each(steps, a.count, one)
    return u, values, v


def _svd(steps: KernelSteps) -> None:
    (left, values, right, info), (x,) = steps.outputs, steps.inputs
    (full,) = steps.launch.params
    a = matrices.copy_to_columns(steps, x)
    raw, finish = matrices.finite(steps, a.array, info)
    u, found, v = _jacobi(steps, a, raw, True, full)
    finish()
    matrices.store(steps, left, u.part(*left.meta.shape[-2:]), info)
    matrices.store(steps, values, found, info)
    adjoint = _adjoint(steps, v)
    matrices.store(steps, right, adjoint.part(*right.meta.shape[-2:]), info)


def _adjoint(steps: KernelSteps, a: Matrices) -> Matrices:
    """Return the adjoint in the same memory, which is then row-major."""
    if a.kind.is_complex:
        steps.run(matrices.CONJUGATE, a.array, a.array)
    return Matrices(a.transpose_array(), a.columns, a.rows)


def _svdvals(steps: KernelSteps) -> None:
    """Compute singular values. For wide matrices those of the transpose: cuSOLVER 13 without vectors erred on an
    H100.
    """
    (values, info), (x,) = steps.outputs, steps.inputs
    rows, cols = x.meta.shape[-2:]
    a = matrices.copy_to_columns(
        steps, replace(x, meta=matrices.transpose_meta(x.meta)) if rows < cols else x
    )
    raw, finish = matrices.finite(steps, a.array, info)
    _, found, _ = _jacobi(steps, a, raw, False, False)
    finish()
    matrices.store(steps, values, found, info)


# -- Hermitian matrices --------------------------------------------------------------------------------------


def _hermitian(vectors: bool, steps: KernelSteps) -> None:
    (x,), info = steps.inputs, steps.outputs[-1]
    upper = steps.launch.params[0].upper() == "U"
    n = x.meta.shape[-1]
    a = matrices.columns(steps, x.meta, n, n)
    steps.run(matrices.UPPER_PART if upper else matrices.LOWER_PART, a.array, x, params=(n, n))
    raw, finish = matrices.finite(steps, a.array, info)
    values = matrices.numbers(steps, x.meta, n, a.kind.to_real())
    job, uplo = VECTORS if vectors else VALUES, UPPER if upper else LOWER
    solver, real = solver_of(steps.device), a.kind.to_real()

    def head(places: Places, at: int) -> tuple[int, ...]:
        numbers = places[values.place] + at * n * real.itemsize
        return job, uplo, n, DATA[a.kind], places[a.array.place] + at * a.step, n, DATA[real], numbers

    if a.count > 1:
        steps.call(
            lambda places, native, stream: solver.generic(
                "XsyevBatched", a.kind, head(places, 0), native, places[raw.place], tail=(a.count,)
            )
        )
    else:
        steps.call(
            lambda places, native, stream: solver.generic(
                "Xsyevd", a.kind, head(places, 0), native, places[raw.place]
            )
        )
    finish()
    matrices.store(steps, steps.outputs[0], values, info)
    if vectors:
        matrices.store(steps, steps.outputs[1], a.array, info)


# -- other square matrices -----------------------------------------------------------------------------------


def _general(vectors: bool, steps: KernelSteps) -> None:
    (x,), info = steps.inputs, steps.outputs[-1]
    n = x.meta.shape[-1]
    a = matrices.copy_to_columns(steps, x)
    raw, finish = matrices.finite(steps, a.array, info)
    values = matrices.numbers(steps, x.meta, n, a.kind.to_complex())
    right = matrices.columns(steps, x.meta, n, n)
    solver, job = solver_of(steps.device), VECTORS if vectors else VALUES
    data = DATA[a.kind]

    def one(places: Places, native: Any, at: int) -> None:
        numbers = places[values.place] + at * n * values.meta.itemsize
        head = (VALUES, job, n, data, places[a.array.place] + at * a.step, n, DATA[values.meta.dtype], numbers,
                data, None, n, data, places[right.array.place] + at * right.step, n)  # fmt: skip
        solver.generic("Xgeev", a.kind, head, native, places[raw.place] + 4 * at)

    matrices.each(steps, a.count, one)
    finish()
    matrices.store(steps, steps.outputs[0], values, info)
    if vectors:
        found = right.array
        if not a.kind.is_complex:
            found = matrices.columns(steps, x.meta, n, n, a.kind.to_complex()).array
            steps.run(_PAIRED, found, right.array, values, params=(n, found.meta.numel))
        matrices.store(steps, steps.outputs[1], found, info)


# For a real matrix, two columns hold the real and imaginary part of the first vector of each conjugate pair. The
# eigenvalue above the real axis is first.
_PAIRED_TEXT = """
extern "C" __global__ void __launch_bounds__(256) run(O0* out, const I0* columns, const I1* values, i64 n, i64 count) {
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= count) return;
  const part<I1> side = values[i / n].im;
  const I0 x = columns[i];
  out[i] = side == 0 ? O0{x, 0} : side > 0 ? O0{x, columns[i + n]} : O0{columns[i - n], -x};
}
"""
_PAIRED = Kernel(
    "eigenvectors_of_pairs",
    device_only,
    cuda=Source(
        lambda launch: _PAIRED_TEXT,
        lambda launch: -(-launch.outputs[0].numel // 256),
        256,
        lambda launch: launch.params,
    ),
)


# -- least squares -------------------------------------------------------------------------------------------

_INVERSES = matrices.expression("inverses", "a > b * (T)k0 ? 1 / a : 0")
_TIMES = matrices.expression("times", "weighed(a, b)")
_COUNT = Kernel(
    "count",
    device_only,
    cuda=Fold(
        lambda launch: (launch.inputs[0].ndim - 1,),  # type: ignore[union-attr]
        lambda launch: (),
        "i64", "0", "x != 0", "a + b", ("s",),
    ),
)  # fmt: skip


def _least_squares(steps: KernelSteps) -> None:
    """Compute V S^-1 U^H B with the singular values above a fraction of the largest one."""
    (out, rank, values, info), (x, b) = steps.outputs, steps.inputs
    (rcond,) = steps.launch.params
    a = matrices.copy_to_columns(steps, x)
    k, width = min(a.rows, a.columns), b.meta.shape[-1]
    raw, finish = matrices.finite(steps, a.array, info)
    u, found, v = _jacobi(steps, a, raw, True, False)
    finish()
    inverses = matrices.numbers(steps, x.meta, k, found.meta.dtype)
    steps.run(_INVERSES, inverses, found, _first(found), params=(float(rcond),))
    steps.run(_COUNT, rank, inverses)
    matrices.store(steps, values, found, info)
    if not out.meta.numel:
        return
    part = matrices.numbers(steps, x.meta, k * width, a.kind)
    part = replace(part, meta=Meta.contiguous_of((*x.meta.shape[:-2], k, width), a.kind, x.meta.device))
    steps.run(MATMUL, part, _adjoint(steps, u).part(k, a.rows), b, params=(False,))
    steps.run(_TIMES, part, part, matrices.along(inverses, part.meta))
    whole = steps.dense(out.meta.shape, a.kind)
    steps.run(MATMUL, whole, v.part(a.columns, k), part, params=(False,))
    matrices.store(steps, out, whole, info)


def _first(x: Array) -> Array:
    """Return the first number of each matrix, expanded over the matrix's numbers."""
    return replace(x, meta=x.meta.with_(strides=(*x.meta.strides[:-1], 0)))


svd = routine(_svd, square=True)
svdvals = routine(_svdvals)
eigh = routine(partial(_hermitian, True))
eigvalsh = routine(partial(_hermitian, False))
eig = routine(partial(_general, True))
eigvals = routine(partial(_general, False))
lstsq = routine(_least_squares)
