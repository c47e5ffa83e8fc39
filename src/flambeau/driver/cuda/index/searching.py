"""Searching sorted boundaries, and membership in a set of values."""

from __future__ import annotations

from flambeau.core.dtype import dtype
from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.layout_parameters import Walked, blocks, file, i64
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass, WorkspaceLayout
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram, c_name
from flambeau.driver.cuda.index.radix import Radix
from flambeau.driver.cuda.index.sorting import is_wide, key_bits, order_text, raw_type
from flambeau.driver.protocol import Launch

_FEW = 64  # values that each thread searches linearly


def searchsorted(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the kernel of searchsorted, in which each thread bisects for one value. Params: right, the comparing
    dtype.
    """
    right, common = launch.params
    boundaries, values, *sorters = [x for x in launch.inputs if isinstance(x, Meta)]
    out = launch.outputs[0]
    walk = Walked(out.shape, [out.strides, values.strides])
    by_row = boundaries.ndim > 1
    sources = [boundaries, *sorters]
    rows = Walked(boundaries.shape[:-1], [m.strides[:-1] for m in sources])
    place = "b[0] + middle * step"
    if sorters:
        place = "b[0] + sorted(sorter[b[1] + middle * sorter_step], count, guard) * step"
    at = f"widen(to<{c_name(common)}>(boundaries[{place}]))"
    if by_row:
        beyond = "at > value" if right else "at >= value"
    else:
        beyond = "sorts_before(value, at)" if right else "!sorts_before(at, value)"
    sorter = f"const {c_name(sorters[0].dtype)}* sorter, " if sorters else ""
    text = f"""{file("checked.cuh")}{file("sorting.cuh")}
__device__ __forceinline__ i64 sorted(i64 index, i64 count, const Guard& guard) {{
  if ((u64)index < (u64)count) return index;
  guard.fail(index, count, 0);
  return 0;
}}
extern "C" __global__ void __launch_bounds__(256) run({c_name(out.dtype)}* out,
    const {c_name(boundaries.dtype)}* boundaries, const {c_name(values.dtype)}* values,
    {sorter}{walk.parameter("at")}, {rows.parameter("b")},
    i64 n, i64 count, i64 per_row, i64 step, i64 sorter_step, Guard guard) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  {walk.locate("i", "at")}
  {rows.locate("i / per_row" if by_row else "0", "b")}
  const auto value = widen(to<{c_name(common)}>(values[at[1]]));
  i64 low = 0, high = count;
  while (low < high) {{
    const i64 middle = (low + high) / 2;
    const auto at = {at};
    if ({beyond}) high = middle; else low = middle + 1;
  }}
  out[at[0]] = low;
}}
"""
    numbers = (
        out.numel, boundaries.shape[-1] if boundaries.ndim else 1, values.shape[-1] if values.ndim else 1,
        boundaries.strides[-1] if boundaries.ndim else 0, sorters[0].strides[-1] if sorters and sorters[0].ndim else 0,
    )  # fmt: skip
    tail = (walk.value, rows.value, *[i64(x) for x in numbers], device.assertions.guard(launch.kernel.name))
    return KernelProgram(text, blocks(out.numel), 256, tail)


def isin(launch: Launch, device: CudaDevice) -> KernelProgram | KernelPlan:
    """Return the kernel of isin. Params: invert, the dtype compared in."""
    invert, common = launch.params
    elements, tests = [x for x in launch.inputs if isinstance(x, Meta)]
    out = launch.outputs[0]
    if tests.numel <= _FEW:
        return _looked_through(out, elements, tests, common, invert)
    work = WorkspaceLayout()
    radix = Radix(work, tests.numel, is_wide(common), key_bits(common), order_text(common))
    walk = Walked(tests.shape, [tests.strides])
    load = f"""{file("sorting.cuh")}
extern "C" __global__ void __launch_bounds__(256) run(const {c_name(tests.dtype)}* tests, {radix.kind}* keys,
    {walk.parameter("at")}, i64 n) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  {walk.locate("i", "at")}
  keys[i] = raw_of<{radix.kind}>(to<{c_name(common)}>(tests[at[0]]));
}}
"""
    loading = Pass(
        KernelProgram(load, blocks(tests.numel), 256, (walk.value, i64(tests.numel))), ((2, 0), radix.source)
    )
    probing = Pass(_probe(out, elements, common, invert, tests.numel), ((0, 0), (1, 0), radix.keys))
    return KernelPlan((loading, *radix.passes, probing), work.nbytes, radix.zeroed)


def _looked_through(out: Meta, elements: Meta, tests: Meta, common: dtype, invert: bool) -> KernelProgram:
    walk = Walked(out.shape, [out.strides, elements.strides])
    among = Walked(tests.shape, [tests.strides])
    kind = c_name(common)
    text = f"""
extern "C" __global__ void __launch_bounds__(256) run(bool* out, const {c_name(elements.dtype)}* elements,
    const {c_name(tests.dtype)}* tests, {walk.parameter("at")}, {among.parameter("t")}, i64 n, i64 count) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  {walk.locate("i", "at")}
  const auto value = widen(to<{kind}>(elements[at[1]]));
  bool found = false;
  for (i64 j = 0; j < count; ++j) {{
    {among.locate("j", "t")}
    found |= widen(to<{kind}>(tests[t[0]])) == value;
  }}
  out[at[0]] = {"!" if invert else ""}found;
}}
"""
    tail = (walk.value, among.value, i64(out.numel), i64(tests.numel))
    return KernelProgram(text, blocks(out.numel), 256, tail)


def _probe(out: Meta, elements: Meta, common: dtype, invert: bool, count: int) -> KernelProgram:
    """Return the kernel that searches each element among the sorted keys by bisection."""
    walk = Walked(out.shape, [out.strides, elements.strides])
    raw, kind = raw_type(common), c_name(common)
    text = f"""{file("sorting.cuh")}
extern "C" __global__ void __launch_bounds__(256) run(bool* out, const {c_name(elements.dtype)}* elements,
    const {raw}* keys, {walk.parameter("at")}, i64 n, i64 count) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  {walk.locate("i", "at")}
  const {raw} mine = raw_of<{raw}>(to<{kind}>(elements[at[1]])), rank = rank_of<{kind}, {raw}>(mine);
  i64 low = 0, high = count;
  while (low < high) {{
    const i64 middle = (low + high) / 2;
    if (rank_of<{kind}, {raw}>(keys[middle]) < rank) low = middle + 1; else high = middle;
  }}
  const bool found = low < count && !unequal<{kind}, {raw}>(mine, keys[low]);
  out[at[0]] = {"!" if invert else ""}found;
}}
"""
    return KernelProgram(text, blocks(out.numel), 256, (walk.value, i64(out.numel), i64(count)))
