"""Reductions that need the order of a row: medians, k-th values, modes, quantiles.

Short rows are sorted in shared memory. In longer rows one block finds the element of a rank by radix selection. The
remaining cases (modes and quantiles of long rows, a few very long rows) use a radix sort of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from flambeau.core.dtype import INTEGRAL
from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.layout_parameters import Walked, blocks, carrier, file, i64
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass, WorkspaceLayout
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram, c_name
from flambeau.driver.cuda.index.radix import Radix
from flambeau.driver.cuda.index.sorting import (
    ShortRows,
    is_wide,
    key_bits,
    load_keys,
    order_text,
    raw_type,
)
from flambeau.driver.protocol import Launch

_SELECTED = 256  # row length from which selection is faster than sorting
_CACHED = 32768  # bytes of shared memory for the orders of a row's elements
_LONE = 32768  # elements of a row up to which one block selects, even if other multiprocessors are idle

# The position of the result in a sorted row of `length`, whose first `valid` elements are numbers.
_PICKS = {
    "kthvalue": "const i64 pick = rank - 1;",
    "median": "const i64 pick = valid < length ? valid : (length - 1) / 2;",
    "nanmedian": "const i64 pick = valid ? (valid - 1) / 2 : 0;",
}
# the last position of the longest run of equal elements; of equally long runs the first
_MODE_OF_SORTED = """
  i64 pick = 0, longest = -1;
  for (i64 j = 0, first = 0; j < length; ++j) {
    if (j && differ(row[j], row[j - 1])) first = j;
    if (j - first > longest) { longest = j - first; pick = j; }
  }
"""

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
        rank = how.extra[0] if how.extra else 0
        rows, out = _Rows(moved, len(how.dims)), _Picked(launch.outputs)
        if ShortRows.fit(x.dtype, length) and (name == "mode" or length < _SELECTED):
            return _pick_from_short(rows, out, name, rank)
        if name != "mode" and (length <= _LONE or rows.count >= device.properties.multi_processor_count):
            return _select(rows, out, name, rank)
        work = WorkspaceLayout()
        radix = Radix(work, x.numel, is_wide(x.dtype), key_bits(x.dtype), order_text(x.dtype), row=length)
        loading = load_keys(moved, len(launch.outputs), radix)
        picking = _pick(launch, name, length, rank, radix)
        return KernelPlan((loading, *radix.passes, picking), work.nbytes, radix.zeroed)

    return build


def _move_dims_last(x: Meta, dims: Sequence[int]) -> Meta:
    """Return the meta with these dimensions at the end."""
    order = [*[d for d in range(x.ndim) if d not in dims], *dims]
    return x.with_(shape=tuple([x.shape[d] for d in order]), strides=tuple([x.strides[d] for d in order]))


def _of_nothing(out: Meta) -> KernelProgram:
    """Return the kernel of the median of empty rows: NaN, or the integer to which a CPU converts NaN."""
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


class _Rows:
    """The rows of an operand `x` of which the last `inner` dimensions make up a row."""

    def __init__(self, x: Meta, inner: int) -> None:
        outer = x.ndim - inner
        self.kind, self.raw = x.dtype, raw_type(x.dtype)
        self.length, self.count = prod(x.shape[outer:]), prod(x.shape[:outer])
        self._rows, self._row = (
            Walked(x.shape[part], [x.strides[part]]) for part in (slice(outer), slice(outer, None))
        )
        self.walks = (self._rows.value, self._row.value)
        self.parameters = f"{self._rows.parameter('base')}, {self._row.parameter('step')}"
        self.types = f"{file('sorting.cuh')}\ntypedef {c_name(self.kind)} C; typedef {self.raw} K;"

    def read(self, row: str, column: str) -> str:
        """Return C++ that declares `raw`, an element."""
        return f"""{self._rows.locate(row, "base")} {self._row.locate(column, "step")}
      const K raw = x[base[0] + step[0]];"""


class _Picked:
    """The outputs for the selected element of each row: its value and, if there are two outputs, its index."""

    def __init__(self, outputs: Sequence[Meta]) -> None:
        self.element = carrier(outputs[0].itemsize)
        self.walk = Walked(outputs[0].shape, [meta.strides for meta in outputs])
        self._indices = len(outputs) == 2
        indices, element = "i64* indices, " if self._indices else "", self.element
        self.parameters = f"{element}* values, {indices}const {element}* x, {self.walk.parameter('out')}"

    def store(self, rows: _Rows, row: str) -> str:
        """Return C++ that stores the element at `place` of a row."""
        return f"""{rows.read(row, "place")}
  {self.walk.locate(row, "out")}
  values[out[0]] = ({self.element})raw;
  {"indices[out[1]] = place;" if self._indices else ""}"""


_RANK_OF_SHORT = """
  const i64 row = first + threadIdx.x;
  if (threadIdx.x >= TOGETHER || row >= count) return;
  auto item_at = [&](i64 i) { return items[spread(threadIdx.x * PADDED + (int)i)]; };
  const i64 valid = count_numbers<C>(length, [&](i64 i) { return key_of(item_at(i)); });
  @pick
  const i64 place = place_of(item_at(pick));"""
_MODE_OF_SHORT = """
  __shared__ u64 longest[TOGETHER];  // of a row's runs of equal elements: how many, and the complement of its start
  if (threadIdx.x < TOGETHER) longest[threadIdx.x] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < PADDED * TOGETHER; i += blockDim.x) {
    const int column = i % PADDED;
    auto key_at = [&](int c) { return key_of(items[spread(i - column + c)]); };
    const K key = key_at(column);
    const bool nan = is_nan_order<C>(key);
    if (column >= length || (column && key_at(column - 1) == key && !nan)) continue;
    int end = column + 1, beyond = nan ? end : (int)length;
    while (end < beyond) {
      const int middle = (end + beyond) / 2;
      if (key_at(middle) == key) end = middle + 1; else beyond = middle;
    }
    atomicMax(longest + i / PADDED, (u64)(end - column) << 32 | (u32)~column);
  }
  __syncthreads();
  const i64 row = first + threadIdx.x;
  if (threadIdx.x >= TOGETHER || row >= count) return;
  const u64 run = longest[threadIdx.x];
  const int pick = (int)~(u32)run + (int)(run >> 32) - 1;
  const i64 place = place_of(items[spread(threadIdx.x * PADDED + pick)]);"""


def _pick_from_short(rows: _Rows, out: _Picked, name: str, rank: int) -> KernelProgram:
    short = ShortRows(rows.kind, rows.length)
    text = f"""{rows.types}
const int PADDED = {short.padded}, TOGETHER = {short.together};
extern "C" __global__ void __launch_bounds__({short.threads}) run({out.parameters}, {rows.parameters}, i64 count,
    i64 length, i64 rank) {{
{short.text(rows.read("row", "column"))}
{_MODE_OF_SHORT if name == "mode" else _RANK_OF_SHORT.replace("@pick", _PICKS[name])}
  {out.store(rows, "row")}
}}
"""
    tail = (out.walk.value, *rows.walks, i64(rows.count), i64(rows.length), i64(rank))
    return KernelProgram(text, blocks(rows.count, short.together), short.threads, tail)


def _select(rows: _Rows, out: _Picked, name: str, rank: int) -> KernelProgram:
    """Return the program in which each block selects an element of a row. Orders are cached in shared memory if they
    fit.
    """
    threads = 256 if rows.length <= _CACHED // 4 else 1024
    cached = 1 << (rows.length - 1).bit_length()
    is_cached = cached * (8 if is_wide(rows.kind) else 4) <= _CACHED
    text = f"""{rows.types}
extern "C" __global__ void __launch_bounds__({threads}) run({out.parameters}, {rows.parameters}, i64 length,
    i64 rank) {{
  __shared__ Ranking ranking;
  {f"__shared__ K orders[{cached}];" if is_cached else ""}
  auto order_at = [&](i64 i) -> K {{
    {rows.read("blockIdx.x", "i")}
    return {order_text(rows.kind)};
  }};
  if (threadIdx.x == 0) ranking.nans = 0;
  __syncthreads();
  u32 nans = 0;
#pragma unroll 4
  for (i64 i = threadIdx.x; i < length; i += {threads}) {{
    const K order = order_at(i);
    {"orders[i] = order;" if is_cached else ""}
    nans += is_nan_order<C>(order);
  }}
  if (nans) atomicAdd(&ranking.nans, nans);
  __syncthreads();
  const i64 valid = length - ranking.nans;
  {_PICKS[name]}
  const i64 place = place_of_rank<K, {key_bits(rows.kind)}>(ranking, length, pick, [&](i64 i) {{
    return {"orders[i]" if is_cached else "order_at(i)"};
  }});
  if (threadIdx.x) return;
  {out.store(rows, "blockIdx.x")}
}}
"""
    tail = (out.walk.value, *rows.walks, i64(rows.length), i64(rank))
    return KernelProgram(text, (rows.count, 1, 1), threads, tail)


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
  const i64 valid = count_numbers<{kind}>(length, [&](i64 j) {{ return rank_of<{kind}, {raw}>(row[j]); }});
  {_PICKS.get(name, _MODE_OF_SORTED)}
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


_NUMBERS = {"u32": "__uint_as_float", "u64": "__longlong_as_double"}  # raw keys as numbers


def quantile(launch: Launch, device: CudaDevice) -> KernelProgram | KernelPlan:
    """Return the kernel of quantile. Operands: out (*q, rows ...), x, q. Params: (dims, interpolation, skip NaN)."""
    dims, interpolation, skip = launch.params
    (out,), (x, q) = launch.outputs, launch.inputs
    assert isinstance(x, Meta) and isinstance(q, Meta)
    moved = _move_dims_last(x, dims)
    length = prod([x.shape[d] for d in dims])
    here, levels = Walked(out.shape, [out.strides]), Walked(q.shape, [q.strides])
    if ShortRows.fit(x.dtype, length):
        return _quantiles_of_short(_Rows(moved, len(dims)), here, levels, interpolation, skip)
    work = WorkspaceLayout()
    radix = Radix(work, x.numel, is_wide(x.dtype), key_bits(x.dtype), order_text(x.dtype), row=length)
    kind, raw = c_name(x.dtype), radix.kind
    text = f"""{file("sorting.cuh")}
typedef {kind} C;
extern "C" __global__ void __launch_bounds__(256) run(C* out, const C* q, const {raw}* keys, {here.parameter("o")},
    {levels.parameter("l")}, i64 n, i64 rows, i64 length) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  const i64 row = i % rows, level = i / rows;
  auto at = [&](i64 place) -> C {{ return {_NUMBERS[raw]}(keys[row * length + place]); }};
  const i64 valid = count_numbers<C>(length, [&](i64 j) {{ return rank_of<C, {raw}>(keys[row * length + j]); }});
  {_interpolate(here, levels, interpolation, skip)}
}}
"""
    tail = (here.value, levels.value, i64(out.numel), i64(out.numel // q.numel), i64(length))
    picking = Pass(KernelProgram(text, blocks(out.numel), 256, tail), ((0, 0), (2, 0), radix.keys))
    return KernelPlan((load_keys(moved, 1, radix), *radix.passes, picking), work.nbytes, radix.zeroed)


def _quantiles_of_short(
    rows: _Rows, here: Walked, levels: Walked, interpolation: str, skip: bool
) -> KernelProgram:
    short = ShortRows(rows.kind, rows.length)
    text = f"""{rows.types}
const int PADDED = {short.padded}, TOGETHER = {short.together};
extern "C" __global__ void __launch_bounds__({short.threads}) run(C* out, const K* x, const C* q, {here.parameter("o")},
    {levels.parameter("l")}, {rows.parameters}, i64 count, i64 length, i64 levels) {{
{short.text(rows.read("row", "column"))}
  for (i64 j = threadIdx.x; j < levels * TOGETHER; j += blockDim.x) {{
    const i64 level = j / TOGETHER, row = first + j % TOGETHER, i = level * count + row;
    if (row >= count) continue;
    auto item_at = [&](i64 place) {{ return items[spread(j % TOGETHER * PADDED + (int)place)]; }};
    auto at = [&](i64 place) -> C {{
      const u32 column = place_of(item_at(place));
      {rows.read("row", "column")}
      return {_NUMBERS[rows.raw]}(raw);
    }};
    const i64 valid = count_numbers<C>(length, [&](i64 j) {{ return key_of(item_at(j)); }});
    {_interpolate(here, levels, interpolation, skip)}
  }}
}}
"""
    tail = (here.value, levels.value, *rows.walks, i64(rows.count), i64(rows.length), i64(levels.count))
    return KernelProgram(text, blocks(rows.count, short.together), short.threads, tail)


def _interpolate(here: Walked, levels: Walked, interpolation: str, skip: bool) -> str:
    """Return C++ that stores quantile i at `level` of a row. `at` is a C++ expression for the row's sorted elements."""
    return f"""{levels.locate("level", "l")}
  const i64 counted = {"valid" if skip else "length"};
  const C rank = q[l[0]] * (C)(counted > 1 ? counted - 1 : 0);
  const C {_BETWEEN[interpolation]}
  const C a = at((i64)low), b = at((i64)high);
  const bool spoiled = {"valid == 0" if skip else "valid < length"};
  {here.locate("i", "o")}
  out[o[0]] = spoiled ? (C)NAN : low == high ? a : lerp_(a, b, weight);"""


kthvalue = _rank_builder("kthvalue")
median = _rank_builder("median")
nanmedian = _rank_builder("nanmedian")
mode = _rank_builder("mode")
