"""Small matrix products in one kernel: a block of threads for each tile of the result, for operands of any strides.

A library call takes the host two to three times as long as a launch, and library kernels are tuned for large products.
Four groups of threads sum a quarter of the terms each, in a fixed order and at least in float32. TF32 rounds the
factors as Note [TF32] in ops/linalg/matmul.py describes.
"""

from __future__ import annotations

from flambeau.core.dtype import FLOATING, float32
from flambeau.core.layout import view_strides
from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.layout_parameters import Walked, i64
from flambeau.driver.cuda.device.program import KernelProgram, c_name, wire_type
from flambeau.driver.protocol import Launch

DEEP, FEW = 256, 1 << 16  # the largest depth and result (in elements) of a small product
_DEEP_IN_16_BITS = 128  # the largest depth where a library's kernels use tensor cores, also with TF32
_SIDE, _THREADS = 16, 256

_BODY = """
  __shared__ T memory[S * (C + 1) + C * (S + 1)];
  T (*left)[C + 1] = (T (*)[C + 1])memory, (*right)[S + 1] = (T (*)[S + 1])(memory + S * (C + 1));
  const int t = threadIdx.x, group = t / 64, x = t % 8, y = t / 8 % 8;
  T total[2][2] = {}, a_next[LOADS], b_next[LOADS];
  const auto fetch = [&](i64 at) {  // neighbouring threads read along the dimension that memory runs along
#pragma unroll
    for (int j = 0; j < LOADS; ++j) {
      const int e = t + j * THREADS, r = A_RUNS_DOWN ? e % S : e / C, i = A_RUNS_DOWN ? e / S : e % C;
      const int h = B_RUNS_DOWN ? e % C : e / S, c = B_RUNS_DOWN ? e / C : e % S;
      const bool in_a = row + r < m && at + i < k, in_b = at + h < k && column + c < n;
      a_next[j] = in_a ? factor(a[begin[1] + (row + r) * a_row + (at + i) * a_column]) : T{};
      b_next[j] = in_b ? factor(b[begin[2] + (at + h) * b_row + (column + c) * b_column]) : T{};
    }
  };
  fetch(0);
  for (i64 at = 0; at < k; at += C) {
#pragma unroll
    for (int j = 0; j < LOADS; ++j) {
      const int e = t + j * THREADS;
      left[A_RUNS_DOWN ? e % S : e / C][A_RUNS_DOWN ? e / S : e % C] = a_next[j];
      right[B_RUNS_DOWN ? e % C : e / S][B_RUNS_DOWN ? e / C : e % S] = b_next[j];
    }
    __syncthreads();
    if (at + C < k) fetch(at + C);  // on its way while these are multiplied
#pragma unroll
    for (int i = group * (C / GROUPS); i < (group + 1) * (C / GROUPS); ++i)
#pragma unroll
      for (int q = 0; q < 4; ++q)
        total[q / 2][q % 2] = total[q / 2][q % 2] + left[y + q / 2 * 8][i] * right[i][x + q % 2 * 8];
    __syncthreads();
  }
  T (*parts)[S][S + 1] = (T (*)[S][S + 1])memory;
#pragma unroll
  for (int q = 0; q < 4; ++q) parts[group][y + q / 2 * 8][x + q % 2 * 8] = total[q / 2][q % 2];
  __syncthreads();
  const int r = t / S, c = t % S;
  if (row + r >= m || column + c >= n) return;
  T sum = parts[0][r][c];
#pragma unroll
  for (int g = 1; g < GROUPS; ++g) sum = sum + parts[g][r][c];
"""
_FACTOR = "return widen(x);"
_FACTOR_TF32 = """const u32 bits = __float_as_uint(x);
  return (bits >> 23 & 255) == 255 ? x : __uint_as_float((bits + 0x1000) & 0xffffe000);"""
_ADDED = """  T added{};
  if (nonzero(beta)) added = to<T>(beta) * to<T>(c_[begin[3] + (row + r) * c_row + (column + c) * c_column]);
  sum = to<T>(alpha) * sum + added;
"""


def product(launch: Launch, tf32: bool) -> KernelProgram | None:
    """Return the kernel of a small `matmul` (a, b) or `addmm` (added, a, b, beta, alpha); None for large or integer
    ones.
    """
    out, scalars = launch.outputs[0], [x for x in launch.inputs if not isinstance(x, Meta)]
    *added, a, b = [x for x in launch.inputs if isinstance(x, Meta)]
    shape = (*a.shape[:-1], b.shape[-1])
    deep = _DEEP_IN_16_BITS if tf32 or a.dtype.itemsize == 2 else DEEP
    if a.dtype.category < FLOATING or not 0 < a.shape[-1] <= deep or out.numel > FEW:
        return None
    seen = [view_strides(x.shape, x.strides, shape) for x in (out, *added)]
    if None in seen:  # the batch was merged into the rows
        return None
    strides = [x for x in (seen[0], a.strides, b.strides, *seen[1:]) if x is not None]
    batches = Walked(shape[:-2], [x[:-2] for x in strides])
    sizes = {"m": shape[-2], "n": shape[-1], "k": a.shape[-1]}
    for name, steps in zip(("out", "a", "b", "c"), strides, strict=False):
        sizes |= {f"{name}_row": steps[-2], f"{name}_column": steps[-1]}
    parameters = [
        "O* out", *[f"const {c_name(x.dtype)}* c_" for x in added], "const E* a", "const E* b",
        *[f"{wire_type(kind)} {name}" for kind, name in zip(scalars, ("beta", "alpha"), strict=False)],
        batches.parameter("begin"), *[f"i64 {name}" for name in sizes],
    ]  # fmt: skip
    text = f"""
typedef {c_name(a.dtype)} E; typedef {c_name(out.dtype)} O; typedef decltype(widen(E{{}})) T;
__device__ __forceinline__ T factor(E x) {{
  {_FACTOR_TF32 if tf32 and a.dtype is float32 else _FACTOR}
}}
extern "C" __global__ void __launch_bounds__({_THREADS}) run({", ".join(parameters)}) {{
  constexpr int S = {_SIDE}, C = 64, GROUPS = 4, THREADS = {_THREADS}, LOADS = S * C / THREADS;
  constexpr bool A_RUNS_DOWN = {_runs_down(a)}, B_RUNS_DOWN = {_runs_down(b)};
  const u32 across = (u32)((n + S - 1) / S), down = (u32)((m + S - 1) / S), rest = blockIdx.x / across;
  const i64 column = (i64)(blockIdx.x % across) * S, row = (i64)(rest % down) * S;
  {batches.locate("rest / down", "begin")}
{_BODY}{_ADDED if added else ""}
  out[begin[0] + (row + r) * out_row + (column + c) * out_column] = to<O>(sum);
}}
"""
    tiles = -(-shape[-2] // _SIDE) * -(-shape[-1] // _SIDE) * batches.count
    return KernelProgram(
        text, (tiles, 1, 1), _THREADS, (batches.value, *[i64(size) for size in sizes.values()])
    )


def _runs_down(x: Meta) -> str:
    """Return the C++ literal "true" if elements of a column are closer in memory than those of a row."""
    return "true" if abs(x.strides[-2]) < abs(x.strides[-1]) else "false"
