"""Linear equations on cuSOLVER and cuBLAS: LU, Cholesky and QR factors, inverses, determinants, triangular systems."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from flambeau.core.dtype import int32, int64
from flambeau.core.layout import view_strides
from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.kernel_steps import Array, KernelSteps, Places, device_only
from flambeau.driver.cuda.libraries.cublas import blas_of
from flambeau.driver.cuda.libraries.cusolver import ADJOINT, DATA, LOWER, PLAIN, TRANSPOSED, UPPER, solver_of
from flambeau.driver.cuda.linalg import matrices
from flambeau.driver.cuda.linalg.matrices import SMALL, Matrices, routine
from flambeau.driver.protocol import Kernel, Launch, Source

_MOST_LEADING = 1 << 31  # the library's leading dimensions are below this: they are 32-bit numbers

_COUNTED = matrices.expression("counted", "i % k0 + 1", indexed=True)


# -- LU ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Factored:
    """LU factors with the exchanged rows: 32-bit numbers of cuBLAS's batched routines, or 64-bit ones of cuSOLVER."""

    factors: Matrices
    pivots: Array


def _pivots(steps: KernelSteps, a: Matrices) -> Array:
    batched = a.count > 1 and a.rows == a.columns <= SMALL
    return matrices.numbers(steps, a.array.meta, min(a.rows, a.columns), int32 if batched else int64)


def _factor(steps: KernelSteps, a: Matrices, info: Array, pivot: bool = True) -> _Factored:
    """Compute LU factors in place."""
    pivots = _pivots(steps, a)
    width = pivots.meta.shape[-1]
    if pivots.meta.dtype is int32:
        pointers, blas = matrices.addresses(steps, a.array, a.step, a.count), blas_of(steps.device)

        def step(places: Places, native: Any, stream: int) -> None:
            exchanged = places[pivots.place] if pivot else 0
            blas.getrf_batched(
                a.kind, a.rows, places[pointers], exchanged, places[info.place], a.count, native
            )

        steps.call(step)
    else:
        solver = solver_of(steps.device)

        def one(places: Places, native: Any, at: int) -> None:
            head = (a.rows, a.columns, DATA[a.kind], places[a.array.place] + at * a.step, a.rows)
            exchanged = places[pivots.place] + 8 * at * width if pivot else None
            solver.generic("Xgetrf", a.kind, head, native, places[info.place] + 4 * at, own=(exchanged,))

        matrices.each(steps, a.count, one)
    if not pivot:
        steps.run(_COUNTED, pivots, params=(width,))
    return _Factored(a, pivots)


def _solve(steps: KernelSteps, lu: _Factored, b: Matrices, operation: int = PLAIN) -> None:
    """Solve op(A) X = B in place of B."""
    a, pivots = lu.factors, lu.pivots
    if pivots.meta.dtype is int32:
        blas = blas_of(steps.device)
        left = matrices.addresses(steps, a.array, a.step, a.count)
        right = matrices.addresses(steps, b.array, b.step, b.count)

        def step(places: Places, native: Any, stream: int) -> None:
            blas.getrs_batched(
                a.kind, operation, a.rows, b.columns, places[left], places[pivots.place], places[right], a.count, native
            )  # fmt: skip

        steps.call(step)
        return
    solver, info = solver_of(steps.device), steps.memory(4)

    def one(places: Places, native: Any, at: int) -> None:
        solver.getrs(
            operation, a.rows, b.columns, a.kind, places[a.array.place] + at * a.step,
            places[pivots.place] + 8 * at * a.rows, places[b.array.place] + at * b.step, native, places[info],
        )  # fmt: skip

    matrices.each(steps, a.count, one)


def _lu_factor(steps: KernelSteps) -> None:
    out, pivots, info = steps.outputs
    (pivot,) = steps.launch.params
    found = _factor(steps, matrices.copy_to_columns(steps, steps.inputs[0]), info, pivot)
    steps.copy(out, found.factors.array)
    steps.copy(pivots, found.pivots)


def _lu_solve(steps: KernelSteps) -> None:
    factors, exchanged, b = steps.inputs
    (adjoint,) = steps.launch.params
    a, x = matrices.copy_to_columns(steps, factors), matrices.copy_to_columns(steps, b)
    pivots = _pivots(steps, a)
    steps.copy(pivots, exchanged)
    _solve(steps, _Factored(a, pivots), x, ADJOINT if adjoint else PLAIN)
    steps.copy(steps.outputs[0], x.array)


def _solve_equations(steps: KernelSteps) -> None:
    out, info = steps.outputs
    a, b = steps.inputs
    lu, x = _factor(steps, matrices.copy_to_columns(steps, a), info), matrices.copy_to_columns(steps, b)
    _solve(steps, lu, x)
    matrices.store(steps, out, x.array, info)


def _inverse(steps: KernelSteps) -> None:
    out, info = steps.outputs
    (a,) = steps.inputs
    n = a.meta.shape[-1]
    lu, x = _factor(steps, matrices.copy_to_columns(steps, a), info), matrices.columns(steps, a.meta, n, n)
    matrices.identity(steps, x.array)
    _solve(steps, lu, x)
    matrices.store(steps, out, x.array, info)


# -- determinants --------------------------------------------------------------------------------------------

_THREADS = 128


def _diagonal_text(outputs: str, of_element: str, join: str, store: str) -> str:
    """Return a kernel that reduces the diagonal of LU factors in a fixed order, one block for each matrix.

    Args:
        of_element: C++ expression for the state of a diagonal element d.
        join: C++ expression that combines two states.
        store: C++ statements that store the result.
    """
    return f"""
{{state}}
extern "C" __global__ void __launch_bounds__({_THREADS}) run({outputs}, const I0* a, const I1* pivots, i64 n) {{
  const I0* m = a + blockIdx.x * n * n;
  const I1* p = pivots + blockIdx.x * n;
  __shared__ State all[{_THREADS}];
  State s = start();
  for (i64 i = threadIdx.x; i < n; i += {_THREADS}) {{
    const I0 d = p[i] == i + 1 ? m[i * (n + 1)] : neg(m[i * (n + 1)]);
    s = join(s, {of_element});
  }}
  all[threadIdx.x] = s;
  __syncthreads();
  for (int half = {_THREADS // 2}; half; half /= 2) {{
    if (threadIdx.x < half) all[threadIdx.x] = join(all[threadIdx.x], all[threadIdx.x + half]);
    __syncthreads();
  }}
  if (threadIdx.x == 0) {{ s = all[0]; {store} }}
}}
""".replace("{state}", join)


_PRODUCT = _diagonal_text(
    "O0* out", "d",
    """typedef I0 State;
__device__ State start() { return one<I0>(); }
__device__ State join(State a, State b) { return a * b; }""",
    "out[blockIdx.x] = s;",
)  # fmt: skip
_LOGARITHM = _diagonal_text(
    "O0* sign, O1* size", "of(d)",
    """struct State { I0 sign; part<I0> size; };
__device__ State start() { return {one<I0>(), 0}; }
__device__ State join(State a, State b) { return {a.sign * b.sign, a.size + b.size}; }
__device__ State of(I0 d) {
  const part<I0> size = absolute(d);
  if (size == 0) return {I0{}, log_(size)};
  return {weighed(d, 1 / size), log_(size)};
}""",
    "sign[blockIdx.x] = s.sign; size[blockIdx.x] = s.size;",
)  # fmt: skip


def _on_diagonal(name: str, text: str) -> Kernel:
    form = Source(
        lambda launch: text,
        lambda launch: launch.outputs[0].numel,
        _THREADS,
        lambda launch: launch.params,
    )
    return Kernel(name, device_only, cuda=form)


_DET, _SLOGDET = _on_diagonal("det_of_lu", _PRODUCT), _on_diagonal("slogdet_of_lu", _LOGARITHM)


# A pivot of zero makes the determinant zero, whatever the library's division gave.
_ZERO_IF_SINGULAR = matrices.expression("zero_if_singular", "b > 0 ? T{} : a")
_MINUS_INFINITY_IF_SINGULAR = matrices.expression(
    "minus_infinity_if_singular", "b > 0 ? to<T>(-(float)INF) : a"
)


def _determinant(kernel: Kernel, steps: KernelSteps) -> None:
    """Compute the determinant, or its sign and the logarithm of its absolute value."""
    (a,) = steps.inputs
    info = steps.dense(a.meta.shape[:-2], int32)
    lu = _factor(steps, matrices.copy_to_columns(steps, a), info)
    found = [matrices.landing(steps, out) for out in steps.outputs]
    steps.run_all(kernel, found, (lu.factors.array, lu.pivots), (a.meta.shape[-1],))
    for out, there, fix in zip(
        steps.outputs, found, (_ZERO_IF_SINGULAR, _MINUS_INFINITY_IF_SINGULAR), strict=False
    ):
        steps.run(fix, out, there, info)


# -- Cholesky ------------------------------------------------------------------------------------------------


def _cholesky(steps: KernelSteps) -> None:
    """Compute the library's lower Cholesky factor, which is the faster one. In row-major memory it is the upper
    factor. Where a leading minor is not positive-definite, the result is what the library leaves, as in PyTorch.
    """
    (out, info), (x,) = steps.outputs, steps.inputs
    (upper,) = steps.launch.params
    n = x.meta.shape[-1]
    factor = steps.dense(x.meta.shape, x.meta.dtype) if upper else matrices.columns(steps, x.meta, n, n).array
    part = matrices.UPPER_PART if upper else matrices.LOWER_PART
    steps.run(part, factor, x, params=(n, n))
    a = Matrices(factor, n, n)
    solver = solver_of(steps.device)
    if a.count > 1 and n <= SMALL:
        pointers = matrices.addresses(steps, factor, a.step, a.count)
        steps.call(
            lambda places, native, stream: solver.potrf_batched(
                LOWER, n, a.kind, places[pointers], places[info.place], a.count, native
            )
        )
        steps.run(part, factor, factor, params=(n, n))  # the batched routine fills the other triangle, too
    else:

        def one(places: Places, native: Any, at: int) -> None:
            head = (LOWER, n, DATA[a.kind], places[factor.place] + at * a.step, n)
            solver.generic("Xpotrf", a.kind, head, native, places[info.place] + 4 * at)

        matrices.each(steps, a.count, one)
    steps.copy(out, factor)


# -- QR ------------------------------------------------------------------------------------------------------


def _reflect(steps: KernelSteps, a: Matrices) -> Array:
    """Compute the Householder reflectors of QR factors in place. Returns their factors."""
    solver, width = solver_of(steps.device), min(a.rows, a.columns)
    tau, info = matrices.numbers(steps, a.array.meta, width, a.kind), steps.memory(4)
    data = DATA[a.kind]

    def one(places: Places, native: Any, at: int) -> None:
        factors = places[tau.place] + at * width * a.kind.itemsize
        head = (a.rows, a.columns, data, places[a.array.place] + at * a.step, a.rows, data, factors)
        solver.generic("Xgeqrf", a.kind, head, native, places[info])

    matrices.each(steps, a.count, one)
    return tau


def _multiply(steps: KernelSteps, a: Matrices, tau: Array, width: int) -> None:
    """Compute the first `width` columns of the reflectors' product in place."""
    solver, info = solver_of(steps.device), steps.memory(4)
    name, count = "ungqr" if a.kind.is_complex else "orgqr", tau.meta.shape[-1]

    def one(places: Places, native: Any, at: int) -> None:
        factors = places[tau.place] + at * count * a.kind.itemsize
        head = (a.rows, width, count, places[a.array.place] + at * a.step, a.rows, factors)
        solver.call_typed(name, a.kind, head, native, places[info])

    matrices.each(steps, a.count, one)


def _qr(steps: KernelSteps) -> None:
    (q, r), (x,) = steps.outputs, steps.inputs
    m, n = x.meta.shape[-2:]
    a = matrices.copy_to_columns(steps, x)
    tau = _reflect(steps, a)
    rows = r.meta.shape[-2]
    steps.run(matrices.UPPER_PART, r, a.part(rows, n), params=(n, rows))
    if not q.meta.numel:
        return
    width = q.meta.shape[-1]
    if width > n:  # more columns than rows: the reflectors need a separate matrix
        wide = matrices.columns(steps, x.meta, m, width)
        steps.copy(wide.part(m, n), a.array)
        a = wide
    _multiply(steps, a, tau, width)
    steps.copy(q, a.part(m, width))


def _geqrf(steps: KernelSteps) -> None:
    (packed, factors), (x,) = steps.outputs, steps.inputs
    a = matrices.copy_to_columns(steps, x)
    tau = _reflect(steps, a)
    steps.copy(packed, a.array)
    steps.copy(factors, tau)


def _householder(steps: KernelSteps) -> None:
    (out,), (x, factors) = steps.outputs, steps.inputs
    a = matrices.copy_to_columns(steps, x)
    tau = matrices.numbers(steps, x.meta, factors.meta.shape[-1], a.kind)
    steps.copy(tau, factors)
    _multiply(steps, a, tau, a.columns)
    steps.copy(out, a.array)


# -- triangular systems --------------------------------------------------------------------------------------


def _triangular(steps: KernelSteps) -> None:
    """Solve AX = B as X' A' = B', because row-major matrices are transposed for the library."""
    (out,), (a, b) = steps.outputs, steps.inputs
    upper, ones = steps.launch.params
    n, width = b.meta.shape[-2:]
    x = matrices.landing(steps, out)
    steps.copy(x, b)
    a, step, transposed = _readable(steps, a)
    uplo = UPPER if upper == transposed else LOWER
    operation = TRANSPOSED if transposed else PLAIN
    leading = a.meta.strides[-1 if transposed else -2] if n > 1 else 1
    count, size = b.meta.numel // (n * width), n * width * b.meta.itemsize
    blas, kind = blas_of(steps.device), b.meta.dtype
    if count == 1:
        steps.call(
            lambda places, native, stream: blas.trsm(
                kind, uplo, operation, ones, width, n, places[a.place], leading, places[x.place], native
            )
        )
    else:
        left = matrices.addresses(steps, a, step * a.meta.itemsize, count)
        right = matrices.addresses(steps, x, size, count)
        steps.call(
            lambda places, native, stream: blas.trsm_batched(
                kind, uplo, operation, ones, width, n, places[left], leading, places[right], count, native
            )
        )
    matrices.copy_to_output(steps, out, x)


def _readable(steps: KernelSteps, a: Array) -> tuple[Array, int, bool]:
    """Return the matrices in place if a leading dimension and a batch stride describe them, otherwise a copy.

    Also returns the batch stride, and whether the matrices are column-major.
    """
    meta = a.meta
    shape = meta.shape[:-2]
    count = meta.numel // (meta.shape[-1] ** 2)
    step = view_strides(shape, meta.strides[:-2], (count,)) if shape else (0,)
    if step is not None:
        for transposed, seen in ((False, meta), (True, matrices.transpose_meta(meta))):
            n = seen.shape[-1]
            if n == 1 or (seen.strides[-1] == 1 and n <= seen.strides[-2] < _MOST_LEADING):
                return a, step[0], transposed
    copy = steps.dense(meta.shape, meta.dtype)
    steps.copy(copy, a)
    return copy, meta.shape[-1] ** 2, False


# -- the rows of L U -----------------------------------------------------------------------------------------

_IN_SHARED = 12_000  # rows whose permutation fits in a block's shared memory


def _rows_text(launch: Launch) -> str:
    (rows,) = launch.params
    order = "held" if rows <= _IN_SHARED else "mine"
    held = f"__shared__ int held[{max(rows, 1)}];" if rows <= _IN_SHARED else ""
    return f"""
extern "C" __global__ void __launch_bounds__({_THREADS}) run(i64* out, const i32* pivots, i64 rows, i64 width) {{
  i64* mine = out + blockIdx.x * rows;
  const i32* p = pivots + blockIdx.x * width;
  {held}
  for (i64 i = threadIdx.x; i < rows; i += {_THREADS}) {order}[i] = i;
  __syncthreads();
  if (threadIdx.x == 0) {{
    for (i64 k = 0; k < width; ++k) {{
      const i64 other = p[k] - 1;
      const auto here = {order}[k];
      {order}[k] = {order}[other];
      {order}[other] = here;
    }}
  }}
  __syncthreads();
  for (i64 i = threadIdx.x; i < rows; i += {_THREADS}) mine[i] = {order}[i];
}}
"""


def _rows_constants(launch: Launch) -> tuple[int, int]:
    (pivots,) = launch.inputs
    assert isinstance(pivots, Meta)
    return launch.outputs[0].shape[-1], pivots.shape[-1]


_ROWS = Kernel(
    "lu_rows",
    device_only,
    cuda=Source(
        _rows_text,
        lambda launch: launch.outputs[0].numel // launch.outputs[0].shape[-1],
        _THREADS,
        _rows_constants,
    ),
)


def _lu_rows(steps: KernelSteps) -> None:
    (out,), (pivots,) = steps.outputs, steps.inputs
    dense, found = steps.dense(pivots.meta.shape, int32), matrices.landing(steps, out)
    steps.copy(dense, pivots)
    steps.run(_ROWS, found, dense, params=steps.launch.params)
    matrices.copy_to_output(steps, out, found)


inverse = routine(_inverse)
solve = routine(_solve_equations)
det = routine(partial(_determinant, _DET), (1,))
slogdet = routine(partial(_determinant, _SLOGDET), (1, 0))
cholesky = routine(_cholesky)
lu_factor = routine(_lu_factor)
lu_solve = routine(_lu_solve)
lu_rows = routine(_lu_rows)
solve_triangular = routine(_triangular)
qr = routine(_qr, square=True)
geqrf = routine(_geqrf)
householder_product = routine(_householder)
