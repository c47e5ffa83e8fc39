"""Reductions that need the whole row in order: medians, k-th values, modes. One thread picks from a sorted row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from flambeau.core.dtype import INTEGRAL
from flambeau.core.meta import Meta
from flambeau.driver.api import Launch
from flambeau.driver.cuda.codegen.elements import Walked, blocks, carrier, file, i64
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass, WorkspaceLayout
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram, c_name
from flambeau.driver.cuda.index.radix import Radix
from flambeau.driver.cuda.index.sorting import is_wide, key_bits, load_keys, order_text

# The position of the result in a sorted row of `length`, whose first `valid` elements are numbers.
_PICKS = {
    "kthvalue": "const i64 pick = rank - 1;",
    "median": "const i64 pick = valid < length ? valid : (length - 1) / 2;",
    "nanmedian": "const i64 pick = valid ? (valid - 1) / 2 : 0;",
    "mode": """
  i64 pick = 0, longest = -1;
  for (i64 j = 0, first = 0; j < length; ++j) {
    if (j && differ(row[j], row[j - 1])) first = j;
    if (j - first > longest) { longest = j - first; pick = j; }
  }
""",
}

_NOTHING = {
    "float16": "half{0x7e00}",
    "int32": "(i32)(1u << 31)",
    "int64": "(i64)(1ull << 63)",
    "uint64": "1ull << 63",
}


def _rank_builder(name: str) -> Callable[[Launch, CudaDevice], KernelProgram | KernelPlan]:
    """Return the builder of a reduction with one output, or with the index as second output. Params: dims, extra."""

    def build(launch: Launch, device: CudaDevice) -> KernelProgram | KernelPlan:
        how: Any = launch.params[0]
        x = launch.inputs[0]
        assert isinstance(x, Meta)
        moved = _move_dims_last(x, how.dims)
        length = prod([x.shape[d] for d in how.dims])
        if not length:
            return _of_nothing(launch.outputs[0])
        work = WorkspaceLayout()
        radix = Radix(work, x.numel, is_wide(x.dtype), key_bits(x.dtype), order_text(x.dtype), row=length)
        loading = load_keys(moved, len(launch.outputs), radix)
        picking = _pick(launch, name, length, how.extra[0] if how.extra else 0, radix)
        return KernelPlan((loading, *radix.passes, picking), work.nbytes, radix.zeroed)

    return build


def _move_dims_last(x: Meta, dims: Sequence[int]) -> Meta:
    """Return the meta with these dimensions at the end."""
    order = [*[d for d in range(x.ndim) if d not in dims], *dims]
    return x.with_(shape=tuple([x.shape[d] for d in order]), strides=tuple([x.strides[d] for d in order]))


def _of_nothing(out: Meta) -> KernelProgram:
    """Return the median of no elements: NaN, or for integers the value of NaN on a CPU."""
    walk = Walked(out.shape, [out.strides])
    kind = c_name(out.dtype)
    nothing = "0" if out.dtype.category == INTEGRAL else f"to<{kind}>(NAN)"
    nothing = _NOTHING.get(out.dtype.name, nothing)
    text = f"""
extern "C" __global__ void __launch_bounds__(256) run({kind}* out, const {kind}* x, {walk.parameter("o")}, i64 n) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  {walk.locate("i", "o")}
  out[o[0]] = {nothing};
}}
"""
    return KernelProgram(text, blocks(out.numel), 256, (walk.value, i64(out.numel)))


def _pick(launch: Launch, name: str, length: int, rank: int, radix: Radix) -> Pass:
    outputs = launch.outputs
    kind, element, raw = c_name(outputs[0].dtype), carrier(outputs[0].itemsize), radix.kind
    walk = Walked(outputs[0].shape, [meta.strides for meta in outputs])
    indices = "i64* indices, " if len(outputs) == 2 else ""
    store = "indices[o[1]] = (i64)places[i * length + pick] - i * length;" if indices else ""
    text = f"""{file("sorting.cuh")}
__device__ __forceinline__ bool differ({raw} a, {raw} b) {{ return unequal<{kind}, {raw}>(a, b); }}
extern "C" __global__ void __launch_bounds__(256) run({element}* values, {indices}const {raw}* keys, const u32* places,
    {walk.parameter("o")}, i64 n, i64 length, i64 rank) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  const {raw}* row = keys + i * length;
  i64 valid = 0, beyond = length;
  while (valid < beyond) {{
    const i64 middle = (valid + beyond) / 2;
    if (differ(row[middle], row[middle])) beyond = middle; else valid = middle + 1;
  }}
  {_PICKS[name]}
  {walk.locate("i", "o")}
  values[o[0]] = ({element})row[pick];
  {store}
}}
"""
    tail = (walk.value, i64(walk.count), i64(length), i64(rank))
    places = [(at, 0) for at in range(len(outputs))]
    return Pass(KernelProgram(text, blocks(walk.count), 256, tail), (*places, radix.keys, radix.values))


# -- quantiles -----------------------------------------------------------------------------------------------------

# From a row's last position and the level q: the positions around the quantile, and its distance from the first.
_BETWEEN = {
    "linear": "low = floor(rank), high = ceil(rank), weight = rank - low;",
    "midpoint": "low = floor(rank), high = ceil(rank), weight = 0.5;",
    "lower": "low = floor(rank), high = low, weight = 0;",
    "higher": "low = ceil(rank), high = low, weight = 0;",
    "nearest": "low = rint(rank), high = low, weight = 0;",
}


def quantile(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the kernel of quantile. Operands: out (*q, rows ...), x, q. Params: (dims, interpolation, skip NaN)."""
    dims, interpolation, skip = launch.params
    (out,), (x, q) = launch.outputs, launch.inputs
    assert isinstance(x, Meta) and isinstance(q, Meta)
    moved = _move_dims_last(x, dims)
    length = prod([x.shape[d] for d in dims])
    work = WorkspaceLayout()
    radix = Radix(work, x.numel, is_wide(x.dtype), key_bits(x.dtype), order_text(x.dtype), row=length)
    here, levels = Walked(out.shape, [out.strides]), Walked(q.shape, [q.strides])
    kind, raw = c_name(x.dtype), radix.kind
    number = "__uint_as_float" if raw == "u32" else "__longlong_as_double"
    text = f"""
typedef {kind} C;
extern "C" __global__ void __launch_bounds__(256) run(C* out, const C* q, const {raw}* keys, {here.parameter("o")},
    {levels.parameter("l")}, i64 n, i64 rows, i64 length) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  const i64 row = i % rows, level = i / rows;
  auto at = [&](i64 place) -> C {{ return {number}(keys[row * length + place]); }};
  i64 valid = 0, beyond = length;
  while (valid < beyond) {{
    const i64 middle = (valid + beyond) / 2;
    if (is_nan(at(middle))) beyond = middle; else valid = middle + 1;
  }}
  {levels.locate("level", "l")}
  const i64 count = {"valid" if skip else "length"};
  const C rank = q[l[0]] * (C)(count > 1 ? count - 1 : 0);
  const C {_BETWEEN[interpolation]}
  const C a = at((i64)low), b = at((i64)high);
  const bool spoiled = {"valid == 0" if skip else "valid < length"};
  {here.locate("i", "o")}
  out[o[0]] = spoiled ? (C)NAN : low == high ? a : lerp_(a, b, weight);
}}
"""
    tail = (here.value, levels.value, i64(out.numel), i64(out.numel // q.numel), i64(length))
    picking = Pass(KernelProgram(text, blocks(out.numel), 256, tail), ((0, 0), (2, 0), radix.keys))
    return KernelPlan((load_keys(moved, 1, radix), *radix.passes, picking), work.nbytes, radix.zeroed)


kthvalue = _rank_builder("kthvalue")
median = _rank_builder("median")
nanmedian = _rank_builder("nanmedian")
mode = _rank_builder("mode")
