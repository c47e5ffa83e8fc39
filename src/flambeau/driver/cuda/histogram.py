"""Counts into bins: `bincount` and `histc`. Bins of a block in shared memory where they fit, else in global memory.

Counts are integers, so their order does not matter; weights are summed in float64 by atomics, in no fixed order, as
PyTorch's are. A last pass converts to the output's dtype and layout.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from flambeau.core.meta import Meta
from flambeau.driver.api import Launch
from flambeau.driver.cuda.device import Device
from flambeau.driver.cuda.layout import merged, packed
from flambeau.driver.cuda.passes import Layout, Pass, Plan
from flambeau.driver.cuda.program import Program, c_name

_THREADS = 256
_SHARED = 4096  # bins that a block counts in shared memory
_BLOCKS = 8  # per multiprocessor, each with a stride over the elements


def bincount(launch: Launch, device: Device) -> Plan:
    """Inputs: places, and weights or none."""
    x = _tensor(launch, 0)
    weighted = len(launch.inputs) == 2
    functions = "__device__ i64 bin_of(X x, i64 bins, const u64* ends, double, double) { return (i64)x; }"
    return _plan(
        launch, device, functions, weighted, [x, _tensor(launch, 1)] if weighted else [x], (0.0, 0.0)
    )


def histc(launch: Launch, device: Device) -> Plan:
    """Params: bins, least, most; equal ends stand for those of the data, which a pass finds first."""
    _, low, high = launch.params
    x = _tensor(launch, 0)
    return _plan(launch, device, _RANGED, False, [x], (float(low), float(high)), found=low == high)


ROUTINES: dict[str, Callable[[Launch, Device], Plan]] = {"bincount": bincount, "histc": histc}


def _tensor(launch: Launch, at: int) -> Meta:
    x = launch.inputs[at]
    assert isinstance(x, Meta)
    return x


def _plan(
    launch: Launch,
    device: Device,
    functions: str,
    weighted: bool,
    inputs: list[Meta],
    bounds: tuple[float, float],
    found: bool = False,
) -> Plan:
    (out,) = launch.outputs
    bins, count = out.numel, inputs[0].numel
    work = Layout()
    sums, ends = work.take(8 * bins), work.take(16)
    zeroed = work.nbytes
    shared = bins <= _SHARED
    dims = merged(inputs[0].shape, [x.strides for x in inputs]) or [(1, (0,) * len(inputs))]
    common = f"""typedef {c_name(inputs[0].dtype)} X;
typedef {c_name(inputs[-1].dtype)} Weight;
typedef {c_name(out.dtype)} Out;
typedef {"double" if weighted else "u64"} Sum;
typedef WideWalk<{len(dims)}, {len(inputs)}> Places;
constexpr bool shared = {"true" if shared else "false"}, weighted = {"true" if weighted else "false"};
constexpr bool found = {"true" if found else "false"};
{functions}
"""
    elements = (packed(dims, wide=True), struct.pack("<q", count))
    blocks = max(1, min(-(-count // _THREADS), _BLOCKS * device.properties.multi_processor_count))
    tail = (*elements, struct.pack("<q", bins), *[struct.pack("<d", x) for x in bounds])
    operands = tuple([(1 + at, 0) for at in range(len(inputs))])
    size = f"[{bins if shared else 1}]"
    counting = Program(common + _COUNT.replace("[BINS]", size), (blocks, 1, 1), _THREADS, tail)
    counted = Pass(counting, (sums, ends, operands[0], operands[-1]))
    storing = Program(
        common + _STORE,
        (-(-bins // _THREADS), 1, 1),
        _THREADS,
        (struct.pack("<q", bins), struct.pack("<q", _step(out))),
    )
    passes = [counted, Pass(storing, ((0, 0), sums))]
    if found and count:
        passes.insert(
            0, Pass(Program(common + _ENDS, (blocks, 1, 1), _THREADS, elements), (ends, operands[0]))
        )
    return Plan(tuple(passes), work.nbytes, zeroed)


def _step(out: Meta) -> int:
    return out.strides[0] if out.ndim else 1


# ends[0] is the key of the greatest element and ends[1] that of the least one, turned, so that both only grow.
_RANGED = """
__device__ __forceinline__ u64 key_of(double x) {
  const i64 b = __double_as_longlong(x);
  return x != x ? ~0ull : b < 0 ? ~(u64)b : (u64)b | 1ull << 63;
}
__device__ __forceinline__ double of_key(u64 k) {
  return k == ~0ull ? (double)NAN : __longlong_as_double((i64)(k >> 63 ? k & ~(1ull << 63) : ~k));
}
__device__ __forceinline__ i64 bin_of(X x, i64 bins, const u64* ends, double least, double most) {
  if (found) { most = of_key(ends[0]); least = -of_key(ends[1]); }
  if (least == most) { least -= 1; most += 1; }
  if (!(x >= (X)least && x <= (X)most)) return -1;
  const i64 at = (i64)((x - (X)least) / (X)(most - least) * (X)bins);
  return at < bins - 1 ? at : bins - 1;
}
"""

_COUNT = """
extern "C" __global__ void __launch_bounds__(256) run(
    Sum* sums, const u64* ends, const X* in, const Weight* weights, Places places, i64 n, i64 bins, double least,
    double most) {
  __shared__ Sum mine[BINS];
  if (shared) {
    for (int b = threadIdx.x; b < bins; b += blockDim.x) mine[b] = 0;
    __syncthreads();
  }
  Sum* into = shared ? mine : sums;
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    i64 o[weighted ? 2 : 1];
    places.locate(i, o);
    const i64 b = bin_of(in[o[0]], bins, ends, least, most);
    if ((u64)b >= (u64)bins) continue;
    if constexpr (weighted) atomicAdd(into + b, (double)to<double>(weights[o[1]]));
    else atomicAdd(into + b, 1ull);
  }
  if (shared) {
    __syncthreads();
    for (int b = threadIdx.x; b < bins; b += blockDim.x)
      if (mine[b] != 0) atomicAdd(sums + b, mine[b]);
  }
}
"""

_STORE = """
extern "C" __global__ void __launch_bounds__(256) run(Out* out, const Sum* sums, i64 bins, i64 step) {
  const i64 b = blockIdx.x * 256ll + threadIdx.x;
  if (b < bins) out[b * step] = to<Out>(sums[b]);
}
"""

_ENDS = """
extern "C" __global__ void __launch_bounds__(256) run(u64* ends, const X* in, Places places, i64 n) {
  u64 greatest = 0, least = 0;
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    i64 o[1];
    places.locate(i, o);
    const double x = in[o[0]];
    greatest = max(greatest, key_of(x));
    least = max(least, key_of(-x));
  }
#pragma unroll
  for (int d = 16; d; d /= 2) {
    greatest = max(greatest, __shfl_xor_sync(0xffffffff, greatest, d));
    least = max(least, __shfl_xor_sync(0xffffffff, least, d));
  }
  if (threadIdx.x % 32 == 0) { atomicMax(ends, greatest); atomicMax(ends + 1, least); }
}
"""
