"""Sorting, unique values, searching: a radix sort of our own; short rows in shared memory."""

from __future__ import annotations

from math import prod

from flambeau.core.dtype import dtype
from flambeau.core.meta import Meta
from flambeau.driver.api import Launch
from flambeau.driver.cuda.device import Device
from flambeau.driver.cuda.elements import Walked, blocks, carrier, file, i64, vector_like
from flambeau.driver.cuda.passes import Layout, Pass, Plan
from flambeau.driver.cuda.program import Program, c_name
from flambeau.driver.cuda.radix import Radix

_HELD = 8  # items that a thread of the sort of short rows holds: HELD of sorting.cuh
_SHORT = 32768  # bytes of shared memory for the rows that one block sorts


def is_wide(kind: dtype) -> bool:
    return kind.itemsize == 8


def raw_type(kind: dtype) -> str:
    """The C++ type of a dtype's raw keys."""
    return "u64" if is_wide(kind) else "u32"


def key_bits(kind: dtype) -> int:
    return 1 if kind.name == "bool" else 8 * kind.itemsize


def order_text(kind: dtype, descending: bool = False) -> str:
    return f"order_of<{c_name(kind)}, {raw_type(kind)}, {str(descending).lower()}>(raw)"


# -- sort, topk ------------------------------------------------------------------------------------------------


def sort(launch: Launch, device: Device) -> Program | Plan:
    """params: dim, descending (or largest), how many are kept or None."""
    dim, descending, kept = launch.params
    x = launch.inputs[0]
    assert isinstance(x, Meta)
    x, (values, indices) = vector_like(x), [vector_like(meta) for meta in launch.outputs]
    length = x.shape[dim]
    kept = length if kept is None else values.shape[dim]
    fits = length <= _SHORT // (16 if is_wide(x.dtype) else 8)
    build = _short if fits else _long
    return build(last(x, dim), last(values, dim), last(indices, dim), descending, kept)


def last(meta: Meta, dim: int) -> Meta:
    """The meta with dimension `dim` moved to the end."""
    order = [d for d in range(meta.ndim) if d != dim] + [dim]
    return meta.with_(
        shape=tuple([meta.shape[d] for d in order]), strides=tuple([meta.strides[d] for d in order])
    )


def _short(x: Meta, values: Meta, indices: Meta, descending: bool, kept: int) -> Program:
    """Rows that fit in shared memory: a block sorts one, or several if they are tiny."""
    length = x.shape[-1]
    padded = max(_HELD, 1 << (length - 1).bit_length())
    rows = prod(x.shape[:-1])
    together = max(1, 512 // padded)
    total = padded * together
    threads = total // _HELD
    rows_walk = Walked(x.shape[:-1], [m.strides[:-1] for m in (values, indices, x)])
    raw, element = raw_type(x.dtype), carrier(x.itemsize)
    text = f"""{file("sorting.cuh")}
extern "C" __global__ void __launch_bounds__({threads}) run({element}* values, i64* indices, const {element}* x,
    {rows_walk.parameter("at")}, i64 rows, i64 length, i64 kept, i64 step, i64 values_step, i64 indices_step) {{
  typedef Item<{raw}>::type T;
  __shared__ T items[{total + total // _HELD}];
  const i64 first = blockIdx.x * (i64){together};
  for (int i = threadIdx.x; i < {total}; i += blockDim.x) {{
    const int column = i & {padded - 1};
    const i64 row = first + i / {padded};
    {raw} key = ~{raw}(0);
    u32 place = column;
    if (row < rows && column < length) {{
      {rows_walk.locate("row", "at")}
      const {raw} raw = x[at[2] + column * step];
      key = {order_text(x.dtype, descending)};
    }}
    items[spread(i)] = item(key, place);
  }}
  __syncthreads();
  T mine[HELD];
#pragma unroll
  for (int j = 0; j < HELD; ++j) mine[j] = items[spread(threadIdx.x * HELD + j)];
  sort_rows(mine, items, {padded});
  __syncthreads();
#pragma unroll
  for (int j = 0; j < HELD; ++j) items[spread(threadIdx.x * HELD + j)] = mine[j];
  __syncthreads();
  for (int i = threadIdx.x; i < {total}; i += blockDim.x) {{
    const int column = i & {padded - 1};
    const i64 row = first + i / {padded};
    if (row >= rows || column >= kept) continue;
    {rows_walk.locate("row", "at")}
    const u32 place = place_of(items[spread(i)]);
    values[at[0] + column * values_step] = x[at[2] + place * step];
    indices[at[1] + column * indices_step] = place;
  }}
}}
"""
    numbers = (rows, length, kept, x.strides[-1], values.strides[-1], indices.strides[-1])
    return Program(
        text, blocks(rows, together), threads, (rows_walk.value, *[i64(number) for number in numbers])
    )


def _long(x: Meta, values: Meta, indices: Meta, descending: bool, kept: int) -> Plan:
    """Rows of any length: the radix sort of them all, by key and then by row."""
    length = x.shape[-1]
    work = Layout()
    radix = Radix(
        work, x.numel, is_wide(x.dtype), key_bits(x.dtype), order_text(x.dtype, descending), row=length
    )
    return Plan((load_keys(x, 2, radix), *radix.passes, _unload(values, indices, kept, length, radix)),
                work.nbytes, radix.zeroed)  # fmt: skip


def load_keys(x: Meta, position: int, radix: Radix) -> Pass:
    """Raw keys from operand `position`, in row-major order."""
    walk = Walked(x.shape, [x.strides])
    text = f"""
extern "C" __global__ void __launch_bounds__(256) run(const {carrier(x.itemsize)}* x, {radix.kind}* keys,
    {walk.parameter("at")}, i64 n) {{
  const i64 start = blockIdx.x * 1024ll + threadIdx.x;
#pragma unroll
  for (int j = 0; j < 4; ++j) {{
    const i64 i = start + j * 256;
    if (i < n) {{ {walk.locate("i", "at")} keys[i] = x[at[0]]; }}
  }}
}}
"""
    program = Program(text, blocks(x.numel, 1024), 256, (walk.value, i64(x.numel)))
    return Pass(program, ((position, 0), radix.source))


def _unload(values: Meta, indices: Meta, kept: int, length: int, radix: Radix) -> Pass:
    walk = Walked(values.shape, [values.strides, indices.strides])
    element = carrier(values.itemsize)
    whole = kept == length
    source = "i" if whole else "i / kept * length + i % kept"
    row = "0" if values.numel == kept else "i / kept * length"
    text = f"""
extern "C" __global__ void __launch_bounds__(256) run({element}* values, i64* indices, const {radix.kind}* keys,
    const u32* places, {walk.parameter("at")}, i64 n, i64 kept, i64 length) {{
  const i64 start = blockIdx.x * 1024ll + threadIdx.x;
#pragma unroll
  for (int j = 0; j < 4; ++j) {{
    const i64 i = start + j * 256;
    if (i < n) {{
      {walk.locate("i", "at")}
      const i64 from = {source};
      values[at[0]] = ({element})keys[from];
      indices[at[1]] = (i64)places[from] - {row};
    }}
  }}
}}
"""
    program = Program(
        text, blocks(values.numel, 1024), 256, (walk.value, i64(values.numel), i64(kept), i64(length))
    )
    return Pass(program, ((0, 0), (1, 0), radix.keys, radix.values))


ROUTINES = {"sort": sort}
