"""Sorting, unique values, searching: a radix sort of our own; short rows in shared memory."""

from __future__ import annotations

from math import prod

from flambeau.core.dtype import dtype
from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.layout_parameters import Walked, blocks, carrier, file, i64, vector_like
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass, WorkspaceLayout
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram, c_name
from flambeau.driver.cuda.index.radix import Radix
from flambeau.driver.protocol import Launch

_HELD = 8  # elements that a thread holds when it sorts short rows: HELD of sorting.cuh
_FEW = 120  # elements of a row that can be selected without sorting it
_MANY = 512  # row length from which selection is faster
_CHOOSERS = 256  # threads; with 16 elements each they collect at most 17 * _FEW elements: POOL of sorting.cuh
_SHORT = 32768  # bytes of shared memory for rows that one block sorts


def is_wide(kind: dtype) -> bool:
    return kind.itemsize == 8


def raw_type(kind: dtype) -> str:
    """Return the C++ type of a dtype's raw keys."""
    return "u64" if is_wide(kind) else "u32"


def key_bits(kind: dtype) -> int:
    return 1 if kind.name == "bool" else 8 * kind.itemsize


def order_text(kind: dtype, descending: bool = False) -> str:
    return f"order_of<{c_name(kind)}, {raw_type(kind)}, {str(descending).lower()}>(raw)"


# -- sort, topk ------------------------------------------------------------------------------------------------


def sort(launch: Launch, device: CudaDevice) -> KernelProgram | KernelPlan:
    """Return the kernel of sort. Params: dim, descending (or largest), number of results to keep or None for all."""
    dim, descending, kept = launch.params
    x = launch.inputs[0]
    assert isinstance(x, Meta)
    x, (values, indices) = vector_like(x), [vector_like(meta) for meta in launch.outputs]
    length = x.shape[dim]
    kept = length if kept is None else values.shape[dim]
    if kept <= _FEW and _MANY <= length < 1 << 32:
        return _build_selection(last(x, dim), last(values, dim), last(indices, dim), descending, kept, device)
    build = _short if ShortRows.fit(x.dtype, length) else _long
    return build(last(x, dim), last(values, dim), last(indices, dim), descending, kept)


def last(meta: Meta, dim: int) -> Meta:
    """Return the meta with dimension `dim` moved to the end."""
    order = [d for d in range(meta.ndim) if d != dim] + [dim]
    return meta.with_(
        shape=tuple([meta.shape[d] for d in order]), strides=tuple([meta.strides[d] for d in order])
    )


class ShortRows:
    """The C++ text that sorts rows in shared memory. A block sorts one row, or several if they are short.

    Attributes:
        padded: Items of a row, a power of two.
        together: Rows of a block.
        threads: Threads of a block.
    """

    def __init__(self, kind: dtype, length: int, descending: bool = False) -> None:
        self.padded = max(_HELD, 1 << (length - 1).bit_length())
        self.together = max(1, 512 // self.padded)
        self.threads = self.padded * self.together // _HELD
        self._raw, self._order = raw_type(kind), order_text(kind, descending)

    @staticmethod
    def fit(kind: dtype, length: int) -> bool:
        return length <= _SHORT // (16 if is_wide(kind) else 8)

    def text(self, read: str) -> str:
        """Return C++ that leaves the sorted rows in `items`: item c of the block's row r at spread(r * padded + c).

        The kernel has `count` rows of `length`.

        Args:
            read: C++ that declares `raw`, the element in `column` of `row`.
        """
        total = self.padded * self.together
        return f"""
  typedef Item<{self._raw}>::type T;
  __shared__ T items[{total + total // _HELD}];
  const i64 first = blockIdx.x * (i64){self.together};
  for (int i = threadIdx.x; i < {total}; i += blockDim.x) {{
    const int column = i & {self.padded - 1};
    const i64 row = first + i / {self.padded};
    {self._raw} key = ~{self._raw}(0);
    u32 place = column;
    if (row < count && column < length) {{
      {read}
      key = {self._order};
    }}
    items[spread(i)] = item(key, place);
  }}
  __syncthreads();
  T mine[HELD];
#pragma unroll
  for (int j = 0; j < HELD; ++j) mine[j] = items[spread(threadIdx.x * HELD + j)];
  sort_rows(mine, items, {self.padded});
  __syncthreads();
#pragma unroll
  for (int j = 0; j < HELD; ++j) items[spread(threadIdx.x * HELD + j)] = mine[j];
  __syncthreads();"""


def _short(x: Meta, values: Meta, indices: Meta, descending: bool, kept: int) -> KernelProgram:
    """Return the sort of rows that fit in shared memory."""
    length, rows = x.shape[-1], prod(x.shape[:-1])
    short = ShortRows(x.dtype, length, descending)
    rows_walk = Walked(x.shape[:-1], [m.strides[:-1] for m in (values, indices, x)])
    raw, element = raw_type(x.dtype), carrier(x.itemsize)
    read = f"{rows_walk.locate('row', 'at')} const {raw} raw = x[at[2] + column * step];"
    text = f"""{file("sorting.cuh")}
extern "C" __global__ void __launch_bounds__({short.threads}) run({element}* values, i64* indices, const {element}* x,
    {rows_walk.parameter("at")}, i64 count, i64 length, i64 kept, i64 step, i64 values_step, i64 indices_step) {{
{short.text(read)}
  for (int i = threadIdx.x; i < {short.padded * short.together}; i += blockDim.x) {{
    const int column = i & {short.padded - 1};
    const i64 row = first + i / {short.padded};
    if (row >= count || column >= kept) continue;
    {rows_walk.locate("row", "at")}
    const u32 place = place_of(items[spread(i)]);
    values[at[0] + column * values_step] = x[at[2] + place * step];
    indices[at[1] + column * indices_step] = place;
  }}
}}
"""
    numbers = (rows, length, kept, x.strides[-1], values.strides[-1], indices.strides[-1])
    tail = (rows_walk.value, *[i64(number) for number in numbers])
    return KernelProgram(text, blocks(rows, short.together), short.threads, tail)


def _long(x: Meta, values: Meta, indices: Meta, descending: bool, kept: int) -> KernelPlan:
    """Return the launches for rows of any length: a radix sort of all rows by key and then by row."""
    length = x.shape[-1]
    work = WorkspaceLayout()
    radix = Radix(
        work, x.numel, is_wide(x.dtype), key_bits(x.dtype), order_text(x.dtype, descending), row=length
    )
    return KernelPlan((load_keys(x, 2, radix), *radix.passes, _unload(values, indices, kept, length, radix)),
                work.nbytes, radix.zeroed)  # fmt: skip


def load_keys(x: Meta, position: int, radix: Radix) -> Pass:
    """Return the kernel that loads raw keys from operand `position` in row-major order."""
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
    program = KernelProgram(text, blocks(x.numel, 1024), 256, (walk.value, i64(x.numel)))
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
    program = KernelProgram(
        text, blocks(values.numel, 1024), 256, (walk.value, i64(values.numel), i64(kept), i64(length))
    )
    return Pass(program, ((0, 0), (1, 0), radix.keys, radix.values))


# -- a few of a row ----------------------------------------------------------------------------------------------


def _build_selection(
    x: Meta, values: Meta, indices: Meta, descending: bool, kept: int, device: CudaDevice
) -> KernelProgram | KernelPlan:
    """Return the kernel that selects the first `kept` elements of long rows in one pass, with one or more blocks per
    row.
    """
    length, rows = x.shape[-1], prod(x.shape[:-1])
    each = next((n for n in (4, 8) if n * _CHOOSERS >= length), 16)
    parts = -(-length // (each * _CHOOSERS))
    shares = max(1, min(parts, 4 * device.properties.multi_processor_count // max(rows, 1)))
    share = -(-parts // shares) * each * _CHOOSERS
    shares = -(-length // share)
    text = _Choosing(x, values, indices, descending, each)
    numbers = (kept, values.strides[-1], indices.strides[-1], x.strides[-1])

    def program(source: str, stored: str, count: int, share: int, shares: int) -> KernelProgram:
        tail = [i64(n) for n in (*numbers, count, share, shares)]
        return KernelProgram(
            text.kernel(source, stored), (rows * shares, 1, 1), _CHOOSERS, (text.walk.value, *tail)
        )

    if shares == 1:
        return program(text.of_row, _STORED, length, length, 1)
    work, operands = WorkspaceLayout(), ((0, 0), (1, 0), (2, 0))
    items = work.take(rows * shares * kept * (16 if is_wide(x.dtype) else 8))
    first = program(text.of_row, _PASSED_ON, length, share, shares)
    second = program(_OF_ITEMS, _STORED, shares * kept, shares * kept, 1)
    return KernelPlan((Pass(first, (*operands, items)), Pass(second, (*operands, items))), work.nbytes)


class _Choosing:
    """The C++ text of kernels that select from rows of x. Each thread processes `each` elements at a time."""

    def __init__(self, x: Meta, values: Meta, indices: Meta, descending: bool, each: int) -> None:
        self.walk = Walked(x.shape[:-1], [m.strides[:-1] for m in (values, indices, x)])
        self._element, self._raw, self._each = carrier(x.itemsize), raw_type(x.dtype), each
        self.of_row = _OF_ROW.replace("@vector", str(min(each, 16 // x.itemsize)))
        self.of_row = self.of_row.replace("@order", order_text(x.dtype, descending))

    def kernel(self, read: str, store: str) -> str:
        items = "" if read is self.of_row and store is _STORED else "T* items, "
        together = 1 if self._raw == "u64" else 3  # blocks per multiprocessor that the registers allow
        return f"""{file("sorting.cuh")}
typedef {self._element} E; typedef {self._raw} K; typedef Item<K>::type T;
constexpr int ITEMS = {self._each};
extern "C" __global__ void __launch_bounds__({_CHOOSERS}, {together}) run(
    E* values, i64* indices, const E* x, {items}
    {self.walk.parameter("at")}, i64 kept, i64 values_step, i64 indices_step, i64 step, i64 length, i64 share,
    i64 shares) {{
  __shared__ Choice<T> choice;
  const i64 row = blockIdx.x / shares, start = blockIdx.x % shares * share;
  const i64 end = start + share < length ? start + share : length;
  {self.walk.locate("row", "at")}
  x += at[2];
{read}
  const int have = choose<ITEMS>(choice, (int)kept, start, end, visit);
  if (threadIdx.x >= kept) return;
  const T mine = choice.pool[spread(threadIdx.x)];
{store}
}}
"""


_OF_ROW = """
  constexpr int V = @vector;
  auto visit = [&](i64 from, auto take) {
    const E* const part = x + from * step;
    const int left = (int)min(end - from, (i64)(CHOOSERS * ITEMS)), mine = threadIdx.x * V;
    Vector<E, V> e[ITEMS / V];
#pragma unroll
    for (int g = 0; g < ITEMS / V; ++g) {
      const int first = g * CHOOSERS * V + mine;
      if (step == 1 && first + V <= left && !misaligned<E, V>(part + mine)) e[g] = *vectors<V>(part + first);
      else
#pragma unroll
        for (int v = 0; v < V; ++v) e[g][v] = part[(first + v < left ? first + v : left - 1) * step];
    }
#pragma unroll
    for (int g = 0; g < ITEMS / V; ++g)
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const int at = g * CHOOSERS * V + mine + v;
        const K raw = e[g][v];
        if (at < left) take(item(@order, (u32)from + at));
      }
  };"""
_OF_ITEMS = """
  const T* const those = items + row * length;
  auto visit = [&](i64 from, auto take) {
#pragma unroll
    for (int j = 0; j < ITEMS; ++j) {
      const i64 at = from + j * CHOOSERS + threadIdx.x;
      if (at < end) take(those[at]);
    }
  };"""
_STORED = """
  const u32 place = place_of(mine);
  values[at[0] + threadIdx.x * values_step] = x[place * step];
  indices[at[1] + threadIdx.x * indices_step] = place;"""
_PASSED_ON = """
  T* const mine_ = items + blockIdx.x * kept + threadIdx.x;
  if ((int)threadIdx.x < have) *mine_ = mine;
  else unwanted(*mine_);"""
