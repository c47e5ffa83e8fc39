"""Counts into bins: `bincount` and `histc`. Bins of a block in shared memory where they fit, else in global memory.

Counts are integers, so their order does not matter; weights are summed in float64 by atomics, in no fixed order, as
PyTorch's are. A last pass converts to the output's dtype and layout.
"""

from __future__ import annotations

from flambeau.core.dtype import int64
from flambeau.core.meta import Meta
from flambeau.core.tracing.symbols import pack
from flambeau.driver.cuda.codegen.kernel_layout import pack_walk, walk_dims
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass, WorkspaceLayout
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram, c_name
from flambeau.driver.protocol import Launch

_THREADS = 256
_SHARED = 4096  # bins that a block counts in shared memory
_BLOCKS = 8  # blocks per multiprocessor, each of which strides over the elements


def bincount(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the kernels of bincount. Inputs: bin numbers, and optional weights."""
    x = _tensor(launch, 0)
    weighted = len(launch.inputs) == 2
    functions = "__device__ i64 bin_of(X x, i64 bins) { return (i64)x; }"
    return _plan(launch, device, functions, [x, _tensor(launch, 1)] if weighted else [x])


def histc(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the kernels of histc. Scalars: the lower and upper end. Params: the number of bins."""
    x = _tensor(launch, 0)
    whole = launch.inputs[1] is int64
    functions = f"typedef {'i64' if whole else c_name(x.dtype)} Y;" + _RANGED
    return _plan(launch, device, functions, [x], "i64" if whole else "double")


def _tensor(launch: Launch, at: int) -> Meta:
    x = launch.inputs[at]
    assert isinstance(x, Meta)
    return x


def _plan(
    launch: Launch, device: CudaDevice, functions: str, inputs: list[Meta], ends: str = ""
) -> KernelPlan:
    """Return the launches of a histogram. `ends` is the C++ type of the launch's two scalars, if it has them."""
    (out,) = launch.outputs
    bins, count, weighted = out.numel, inputs[0].numel, len(inputs) == 2
    work = WorkspaceLayout()
    sums = work.take(8 * bins)
    shared = bins <= _SHARED
    dims = walk_dims(inputs[0].shape, [x.strides for x in inputs])
    common = f"""typedef {c_name(inputs[0].dtype)} X;
typedef {c_name(inputs[-1].dtype)} Weight;
typedef {c_name(out.dtype)} Out;
typedef {"double" if weighted else "u64"} Sum;
typedef WideWalk<{len(dims)}, {len(inputs)}> Places;
constexpr bool shared = {"true" if shared else "false"}, weighted = {"true" if weighted else "false"};
{functions}
"""
    counting = _COUNT.replace("BINS", str(bins if shared else 1))
    counting = counting.replace("ENDS", f"{ends} least, {ends} most, " if ends else "")
    counting = counting.replace("BETWEEN", ", least, most" if ends else "")
    blocks = max(1, min(-(-count // _THREADS), _BLOCKS * device.properties.multi_processor_count))
    tail = (pack_walk(dims, wide=True), pack("<q", count), pack("<q", bins))
    operands = tuple([(1 + at, 0) for at in range(len(inputs))])
    counted = Pass(
        KernelProgram(common + counting, (blocks, 1, 1), _THREADS, tail),
        (sums, operands[0], operands[-1]),
        scalars=bool(ends),
    )
    storing = KernelProgram(
        common + _STORE,
        (-(-bins // _THREADS), 1, 1),
        _THREADS,
        (pack("<q", bins), pack("<q", _step(out))),
    )
    return KernelPlan((counted, Pass(storing, ((0, 0), sums))), work.nbytes, work.nbytes)


def _step(out: Meta) -> int:
    return out.strides[0] if out.ndim else 1


_RANGED = """
template<class End> __device__ __forceinline__ i64 bin_of(X x, i64 bins, End least, End most) {
  const Y low = (Y)least, high = (Y)most, y = (Y)x;
  if (!(y >= low && y <= high)) return -1;
  const i64 at = (i64)((y - low) * (Y)bins / (high - low));
  return at < bins - 1 ? at : bins - 1;
}
"""

_COUNT = """
extern "C" __global__ void __launch_bounds__(256) run(
    Sum* sums, const X* in, const Weight* weights, ENDSPlaces places, i64 n, i64 bins) {
  __shared__ Sum mine[BINS];
  if (shared) {
    for (int b = threadIdx.x; b < bins; b += blockDim.x) mine[b] = 0;
    __syncthreads();
  }
  Sum* into = shared ? mine : sums;
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    i64 o[weighted ? 2 : 1];
    places.locate(i, o);
    const i64 b = bin_of(in[o[0]], binsBETWEEN);
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
