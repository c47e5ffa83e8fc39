"""`cdist`: tiles of 64 by 64 distances, whose rows go through shared memory 16 numbers at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

from flambeau.driver.api import Launch
from flambeau.driver.cuda.device import Device
from flambeau.driver.cuda.elements import Walked, i64
from flambeau.driver.cuda.program import Program, c_name, packed_constant

_TILE = 64
_MOST = 65535  # blocks along a grid's further dimensions; more are gone through in turns

# How a difference d joins a sum s, and what becomes of the sum.
_JOIN = {
    0.0: ("s + C(d != 0)", "s"), 1.0: ("s + d", "s"), 2.0: ("fused(d, d, s)", "sqrt_(s)"),
    math.inf: ("greater(s, d)", "s"),
}  # fmt: skip


def cdist(launch: Launch, device: Device) -> Program:
    """Operands out (..., P, R), a (..., P, M), b (..., R, M). params: (p,)."""
    (p,) = launch.params
    out, a, b = launch.operands
    join, last = _JOIN.get(p, ("s + power_(d, (C)norm)", "power_(s, (C)(1 / norm))"))
    batch = Walked(out.shape[:-2], [x.strides[:-2] for x in (out, a, b)])
    text = f"""
typedef {c_name(out.dtype)} C;
__device__ __forceinline__ float fused(float a, float b, float c) {{ return __fmaf_rn(a, b, c); }}
__device__ __forceinline__ double fused(double a, double b, double c) {{ return __fma_rn(a, b, c); }}
__device__ {"__forceinline__" if p in _JOIN else "__noinline__"} C joined(C s, C d, double norm) {{ return {join}; }}
__device__ __forceinline__ C length_of(C s, double norm) {{ return {last}; }}
{_KERNEL.replace("BATCH", batch.parameter("o")).replace("LOCATE", batch.locate("z", "o"))}"""
    steps = [s for x in (out, a, b) for s in x.strides[-2:]]
    numbers = (batch.count, out.shape[-2], out.shape[-1], a.shape[-1], *steps)
    tiles = [-(-n // _TILE) for n in (out.shape[-1], out.shape[-2])]
    grid = (tiles[0], min(tiles[1], _MOST), min(batch.count, _MOST))
    tail = (batch.value, *[i64(n) for n in numbers], packed_constant(float(p)))
    return Program(text, grid, 256, tail)


# A thread makes 4 x 4 distances, 16 rows and columns apart, so that its reads of a tile hit different banks.
_KERNEL = """
extern "C" __global__ void __launch_bounds__(256) run(C* out, const C* a, const C* b, BATCH, i64 batch, i64 rows,
    i64 columns, i64 depth, i64 out_row, i64 out_step, i64 a_row, i64 a_step, i64 b_row, i64 b_step, double norm) {
  __shared__ C left[16][65], right[16][65];
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
  const i64 column = blockIdx.x * 64ll;
  for (i64 z = blockIdx.z; z < batch; z += gridDim.z)
    for (i64 row = blockIdx.y * 64ll; row < rows; row += gridDim.y * 64ll) {
      LOCATE
      C s[4][4] = {};
      for (i64 k = 0; k < depth; k += 16) {
        __syncthreads();
#pragma unroll
        for (int u = 0; u < 4; ++u) {  // 16 threads read 16 numbers of a row
          const i64 i = row + y + u * 16, j = column + y + u * 16;
          left[x][y + u * 16] = i < rows && k + x < depth ? a[o[1] + i * a_row + (k + x) * a_step] : C(0);
          right[x][y + u * 16] = j < columns && k + x < depth ? b[o[2] + j * b_row + (k + x) * b_step] : C(0);
        }
        __syncthreads();
#pragma unroll 4
        for (int d = 0; d < 16; ++d) {
          C p[4], q[4];
#pragma unroll
          for (int u = 0; u < 4; ++u) { p[u] = left[d][y + u * 16]; q[u] = right[d][x + u * 16]; }
          if (k + d < depth)
#pragma unroll
            for (int u = 0; u < 4; ++u)
#pragma unroll
              for (int v = 0; v < 4; ++v) s[u][v] = joined(s[u][v], absolute(p[u] - q[v]), norm);
        }
      }
#pragma unroll
      for (int u = 0; u < 4; ++u)
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          const i64 i = row + y + u * 16, j = column + x + v * 16;
          if (i < rows && j < columns) out[o[0] + i * out_row + j * out_step] = length_of(s[u][v], norm);
        }
    }
}
"""

ROUTINES: dict[str, Callable[[Launch, Device], Program]] = {"cdist": cdist}
