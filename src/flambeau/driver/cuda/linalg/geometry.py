"""Cross products, and distances between the rows of two matrices."""

from __future__ import annotations

import math
from math import prod

from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.layout_parameters import THREADS, Walked, blocks, i64
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram, c_name, packed_constant
from flambeau.driver.protocol import Launch


def cross(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the kernel of cross. Params: the dim of size 3. A thread per product."""
    (dim,) = launch.params
    metas = launch.operands
    dim %= metas[0].ndim
    shape, *strides = [tuple(x[:dim] + x[dim + 1 :]) for x in (metas[0].shape, *[m.strides for m in metas])]
    walk = Walked(shape, strides)
    kind = c_name(metas[0].dtype)
    text = f"""
extern "C" __global__ void __launch_bounds__({THREADS}) run({kind}* out, const {kind}* a, const {kind}* b,
    {walk.parameter("at")}, i64 n, i64 out_step, i64 a_step, i64 b_step) {{
  const i64 i = blockIdx.x * (i64){THREADS} + threadIdx.x;
  if (i >= n) return;
  {walk.locate("i", "at")}
  typedef decltype(widen(*a)) W;
  W x[3], y[3];
#pragma unroll
  for (int c = 0; c < 3; ++c) {{ x[c] = widen(a[at[1] + c * a_step]); y[c] = widen(b[at[2] + c * b_step]); }}
#pragma unroll
  for (int c = 0; c < 3; ++c) {{
    const int j = (c + 1) % 3, k = (c + 2) % 3;
    out[at[0] + c * out_step] = to<{kind}>(sub(mul(x[j], y[k]), mul(x[k], y[j])));
  }}
}}
"""
    steps = [m.strides[dim] for m in metas]
    return KernelProgram(
        text, blocks(walk.count), THREADS, (walk.value, i64(walk.count), *[i64(s) for s in steps])
    )


# -- distances -----------------------------------------------------------------------------------------------

# rows of each matrix per block, columns loaded at a time, rows of each matrix per thread
_TILE, _DEEP, _EACH = 64, 16, 4


def _step(p: float) -> tuple[str, str]:
    """Return C++ that adds the difference d to the sum s, and C++ for the final distance."""
    if p == 0:
        return "s += d != 0;", "s"
    if p == 1:
        return "s += d;", "s"
    if p == 2:
        return "s += d * d;", "sqrt_(s)"
    if math.isinf(p):
        return "s = greater(s, d);", "s"
    return "s += pow(d, (T)p);", "pow(s, (T)(1 / p))"


def cdist(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the kernel of cdist. Params: p. A block computes a tile of distances, each thread 4 by 4 of them."""
    (p,) = launch.params
    out, a, b = launch.operands
    walk = Walked(out.shape[:-2], [x.strides[:-2] for x in (out, a, b)])
    join, lower = _step(p)
    rows, columns, width = out.shape[-2], out.shape[-1], a.shape[-1]
    tiles = -(-rows // _TILE), -(-columns // _TILE)
    text = f"""
typedef {c_name(out.dtype)} T;
extern "C" __global__ void __launch_bounds__({THREADS}) run(T* out, const T* a, const T* b, {walk.parameter("at")},
    i64 rows, i64 columns, i64 width, i64 down, i64 across, i64 a_row, i64 a_step, i64 b_row, i64 b_step,
    i64 out_row, i64 out_step, double p) {{
  __shared__ T left[{_DEEP}][{_TILE + 1}], right[{_DEEP}][{_TILE + 1}];
  const i64 tile = blockIdx.x % (down * across);
  {walk.locate("blockIdx.x / (down * across)", "at")}
  const i64 first = tile / across * {_TILE}, second = tile % across * {_TILE};
  const int x = threadIdx.x % {_TILE // _EACH}, y = threadIdx.x / {_TILE // _EACH};
  T sums[{_EACH}][{_EACH}] = {{}};
  for (i64 start = 0; start < width; start += {_DEEP}) {{
    for (int i = threadIdx.x; i < {_TILE * _DEEP}; i += {THREADS}) {{
      const int row = i / {_DEEP}, column = i % {_DEEP};
      const bool inside = start + column < width;
      const i64 i_row = first + row, j_row = second + row, step = start + column;
      left[column][row] = inside && i_row < rows ? a[at[1] + i_row * a_row + step * a_step] : T(0);
      right[column][row] = inside && j_row < columns ? b[at[2] + j_row * b_row + step * b_step] : T(0);
    }}
    __syncthreads();
    const int deep = width - start < {_DEEP} ? (int)(width - start) : {_DEEP};
    for (int k = 0; k < deep; ++k) {{
#pragma unroll
      for (int i = 0; i < {_EACH}; ++i)
#pragma unroll
        for (int j = 0; j < {_EACH}; ++j) {{
          const T d = absolute(left[k][y + i * {_TILE // _EACH}] - right[k][x + j * {_TILE // _EACH}]);
          T& s = sums[i][j];
          {join}
        }}
    }}
    __syncthreads();
  }}
#pragma unroll
  for (int i = 0; i < {_EACH}; ++i)
#pragma unroll
    for (int j = 0; j < {_EACH}; ++j) {{
      const i64 row = first + y + i * {_TILE // _EACH}, column = second + x + j * {_TILE // _EACH};
      const T s = sums[i][j];
      if (row < rows && column < columns) out[at[0] + row * out_row + column * out_step] = {lower};
    }}
}}
"""
    numbers = (rows, columns, width, *tiles, *_steps(a), *_steps(b), *_steps(out))
    grid = (prod(out.shape[:-2]) * tiles[0] * tiles[1], 1, 1)
    return KernelProgram(
        text, grid, THREADS, (walk.value, *[i64(x) for x in numbers], packed_constant(float(p)))
    )


def _steps(x: Meta) -> tuple[int, int]:
    return x.strides[-2], x.strides[-1]


_SIGN = "(x != x ? x : T((x > 0) - (x < 0)))"


def _slope(p: float) -> tuple[str, str]:
    """Return C++ for two factors of a gradient: one of its gradient g and the distance d, one of the difference x."""
    if p == 0:
        return "T(0)", "T(0)"
    if p == 1:
        return "g", _SIGN
    if math.isinf(p):
        return "g", f"(absolute(x) == lengths[y][k] ? {_SIGN} : T(0))"
    if p == 2:
        return "d == 0 ? T(0) : g / d", "x"
    return "d == 0 ? T(0) : g / pow(d, (T)(p - 1))", "(x == 0 ? T(0) : x * pow(absolute(x), (T)(p - 2)))"


def cdist_backward(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the kernel of cdist's gradient, with one thread for each element. Params: p.

    A block handles some rows and columns and iterates over the other matrix 16 rows at a time; factors of
    distances are computed once.
    """
    (p,) = launch.params
    out, grad, a, b, lengths = launch.operands
    walk = Walked(out.shape[:-2], [x.strides[:-2] for x in (out, grad, a, b, lengths)])
    weight, slope = _slope(p)
    rows, width = out.shape[-2:]
    wide = min(32, 1 << max(width - 1, 0).bit_length())
    high = THREADS // wide
    text = f"""
typedef {c_name(out.dtype)} T;
extern "C" __global__ void __launch_bounds__({THREADS}) run(T* out, const T* grad, const T* a, const T* b,
    const T* dist, {walk.parameter("at")}, i64 rows, i64 others, i64 width, i64 down, i64 across, i64 grad_row,
    i64 grad_step, i64 a_row, i64 a_step, i64 b_row, i64 b_step, i64 dist_row, i64 dist_step, i64 out_row,
    i64 out_step, double p) {{
  __shared__ T weights[{high}][{_DEEP}], lengths[{high}][{_DEEP}], right[{_DEEP}][{wide}];
  const i64 tile = blockIdx.x % (down * across);
  {walk.locate("blockIdx.x / (down * across)", "at")}
  const i64 first = tile / across * {high}, start = tile % across * {wide};
  const int column = threadIdx.x % {wide}, y = threadIdx.x / {wide};
  const bool inside = first + y < rows && start + column < width;
  const T here = inside ? a[at[2] + (first + y) * a_row + (start + column) * a_step] : T(0);
  T sum = T(0);
  for (i64 from = 0; from < others; from += {_DEEP}) {{
    for (int i = threadIdx.x; i < {high * _DEEP}; i += {THREADS}) {{
      const i64 row = first + i / {_DEEP}, other = from + i % {_DEEP};
      const bool within = row < rows && other < others;
      const T g = within ? grad[at[1] + row * grad_row + other * grad_step] : T(0);
      const T d = within ? dist[at[4] + row * dist_row + other * dist_step] : T(0);
      weights[i / {_DEEP}][i % {_DEEP}] = {weight};
      lengths[i / {_DEEP}][i % {_DEEP}] = d;
    }}
    for (int i = threadIdx.x; i < {wide * _DEEP}; i += {THREADS}) {{
      const i64 other = from + i / {wide}, c = start + i % {wide};
      right[i / {wide}][i % {wide}] = other < others && c < width ? b[at[3] + other * b_row + c * b_step] : T(0);
    }}
    __syncthreads();
    const int deep = others - from < {_DEEP} ? (int)(others - from) : {_DEEP};
    for (int k = 0; k < deep; ++k) {{
      const T x = here - right[k][column];
      sum += weights[y][k] * {slope};
    }}
    __syncthreads();
  }}
  if (inside) out[at[0] + (first + y) * out_row + (start + column) * out_step] = sum;
}}
"""
    tiles = -(-rows // high), -(-width // wide)
    steps = [step for x in (grad, a, b, lengths, out) for step in _steps(x)]
    numbers = (rows, b.shape[-2], width, *tiles, *steps)
    grid = (prod(out.shape[:-2]) * tiles[0] * tiles[1], 1, 1)
    return KernelProgram(
        text, grid, THREADS, (walk.value, *[i64(x) for x in numbers], packed_constant(float(p)))
    )
