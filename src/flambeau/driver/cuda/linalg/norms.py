"""The norms of several tensors: blocks reduce parts of them, then one block for each tensor combines the parts.

The tensors' addresses are one parameter, a table, as for lists (codegen/multi_tensor.py).
"""

from __future__ import annotations

import math
from itertools import accumulate

from flambeau.core.errors import NotSupportedError
from flambeau.core.layout import is_dense
from flambeau.core.meta import Meta
from flambeau.core.tracing.symbols import pack
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass, WorkspaceLayout, copying
from flambeau.driver.cuda.codegen.rows import computing
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram, c_name, packed_constant
from flambeau.driver.protocol import Launch

_THREADS = 256
_PART = 1 << 15  # elements that a block reduces
_LENGTHS = (4, 16, 64, 256)  # numbers of tensors for which tables exist


def foreach_norm(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the kernel of foreach_norm. Params: (the norm's order,)."""
    (order,), (out,) = launch.params, launch.outputs
    metas = [x for x in launch.inputs if isinstance(x, Meta)]
    length = next((n for n in _LENGTHS if n >= len(metas)), None)
    if length is None:
        raise NotSupportedError(f"{launch.kernel.name}: at most {_LENGTHS[-1]} tensors, got {len(metas)}")
    work, places, before = WorkspaceLayout(), [], []
    for at, x in enumerate(metas, 1):
        place = (at, 0)
        if not is_dense(x.shape, x.strides):
            like = Meta.contiguous_of(x.shape, x.dtype, x.device)
            place = work.take(like.nbytes)
            copied = copying(like, x, 0, 0).program
            before.append(Pass(copied, (place, (at, 0))))
        places.append(place)
    blocks = [max(1, -(-x.numel // _PART)) for x in metas]
    first = [0, *accumulate(blocks)]
    kind = computing(out.dtype)
    parts = work.take(first[-1] * kind.itemsize)
    text = _SHARED.format(element=c_name(out.dtype), computed=c_name(kind), **_fold(order))
    spare = [0] * (length - len(metas))
    table = pack(f"<{length}q{length}I", *[x.numel for x in metas], *spare, *first[:-1], *spare)
    count = pack("<q", len(metas))
    power = packed_constant(float(order))
    folded = KernelProgram(
        text + _PARTS.format(slots=length + 1, length=length, threads=_THREADS, part=_PART),
        (first[-1], 1, 1), _THREADS, (table, count, power), slots=length + 1,
    )  # fmt: skip
    bounds = pack(f"<{length + 1}I", *first, *spare)
    joined = KernelProgram(
        text + _WHOLES.format(length=length, threads=_THREADS), (len(metas), 1, 1), _THREADS, (bounds, power)
    )
    return KernelPlan((*before, Pass(folded, (parts, *places)), Pass(joined, ((0, 0), parts))), work.nbytes)


def _fold(order: float) -> dict[str, str]:
    """Return C++ expressions of a norm: for an element x, two states a and b, no elements, and the final state s."""
    plus = {"join": "a + b", "start": "C(0)", "lower": "s"}
    if order == 2:
        return plus | {"lift": "x * x", "lower": "sqrt_(s)"}
    if order == 1:
        return plus | {"lift": "absolute(x)"}
    if order == 0:
        return plus | {"lift": "x != 0 ? C(1) : C(0)"}
    if math.isinf(order):
        join, start = ("greater(a, b)", "C(0)") if order > 0 else ("lesser(a, b)", "C(INF)")
        return {"join": join, "start": start, "lift": "absolute(x)", "lower": "s"}
    return plus | {"lift": "power_(absolute(x), C(power))", "lower": "power_(s, C(1 / power))"}


_SHARED = """
typedef {element} E; typedef {computed} C;
__device__ __forceinline__ C lift(C x, double power) {{ return {lift}; }}
__device__ __forceinline__ C join(C a, C b) {{ return {join}; }}
__device__ __forceinline__ C start() {{ return {start}; }}
__device__ __forceinline__ C lower(C s, double power) {{ return {lower}; }}
// Over the block's threads, in a fixed order; the result is with thread 0.
__device__ __forceinline__ C over_block(C s) {{
  __shared__ C parts[256];
  parts[threadIdx.x] = s;
#pragma unroll
  for (int half_ = 128; half_; half_ /= 2) {{
    __syncthreads();
    if (threadIdx.x < half_) parts[threadIdx.x] = s = join(s, parts[threadIdx.x + half_]);
  }}
  return s;
}}
"""
_PARTS = """
struct Addresses {{ u64 at[{slots}]; }};
struct Tensors {{ i64 size[{length}]; u32 first[{length}]; }};
extern "C" __global__ void __launch_bounds__({threads}) run(const __grid_constant__ Addresses table,
    const __grid_constant__ Tensors tensors, i64 count, double power) {{
  i64 m = 0, after = count;
  while (after - m > 1) {{
    const i64 middle = (m + after) / 2;
    if (tensors.first[middle] <= blockIdx.x) m = middle; else after = middle;
  }}
  const E* x = (const E*)table.at[1 + m];
  const i64 begin = (i64)(blockIdx.x - tensors.first[m]) * {part};
  const i64 end = begin + {part} < tensors.size[m] ? begin + {part} : tensors.size[m];
  C s[4] = {{start(), start(), start(), start()}};
  i64 i = begin + threadIdx.x;
  for (; i + 3 * {threads} < end; i += 4 * {threads}) {{
#pragma unroll
    for (int k = 0; k < 4; ++k) s[k] = join(s[k], lift(to<C>(x[i + k * {threads}]), power));
  }}
  for (; i < end; i += {threads}) s[0] = join(s[0], lift(to<C>(x[i]), power));
  const C all = over_block(join(join(s[0], s[1]), join(s[2], s[3])));
  if (threadIdx.x == 0) ((C*)table.at[0])[blockIdx.x] = all;
}}
"""
_WHOLES = """
struct Bounds {{ u32 first[{length} + 1]; }};
extern "C" __global__ void __launch_bounds__({threads}) run(E* out, const C* parts,
    const __grid_constant__ Bounds bounds, double power) {{
  C s = start();
  for (u32 i = bounds.first[blockIdx.x] + threadIdx.x; i < bounds.first[blockIdx.x + 1]; i += {threads})
    s = join(s, parts[i]);
  s = over_block(s);
  if (threadIdx.x == 0) out[blockIdx.x] = to<E>(lower(s, power));
}}
"""
