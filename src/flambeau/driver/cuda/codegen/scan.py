"""The scan template (running reductions): any dim, any strides, one pass over memory, bitwise reproducible.

Rows: the scanned dimension is contiguous, or the only one. W threads process a tile of a row, each with U vectors of V
elements; shuffles and shared memory compute the state before each vector. A block processes the tiles of its rows one
after the other. If there are too few rows to fill the device, each tile has its own block, which looks back at the
states of earlier ones (`look_back` in scan.cuh).
Columns: another dimension is contiguous. A block processes 32 columns with eight threads for each column.
"""

from __future__ import annotations

from math import prod

from flambeau.core.layout import Dims
from flambeau.core.meta import Meta
from flambeau.core.tracing.symbols import pack
from flambeau.driver.cuda.codegen.kernel_layout import is_wide, pack_walk, walk_dims
from flambeau.driver.cuda.codegen.layout_parameters import file
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass, WorkspaceLayout
from flambeau.driver.cuda.device.program import KernelProgram, c_name
from flambeau.driver.protocol import Launch, Scan

_THREADS = 256
_VECTOR = 16  # bytes
_ITEMS = 16  # elements that a thread scans
_WIDTHS = (4, 16, 32, 128, 256)  # threads per row, if one vector for each thread covers the row
_COLUMNS, _DEEP, _EACH = 32, 8, 8


def program(launch: Launch, form: Scan, multiprocessors: int) -> KernelProgram | KernelPlan:
    source = launch.inputs[0]
    assert isinstance(source, Meta)
    operands = (*launch.outputs, source)
    dim = form.dim(launch)
    length = source.shape[dim] if source.ndim else 1
    steps = [x.strides[dim] if x.ndim else 1 for x in operands]
    others = [d for d in range(source.ndim) if d != dim]
    dims = walk_dims([source.shape[d] for d in others], [[x.strides[d] for d in others] for x in operands])
    size, (step, *_) = dims[-1]
    if step == 1 and size >= _COLUMNS // 2 and steps[0] != 1:
        return _columns(launch, form, dims, length, steps)
    return _rows(launch, form, dims, length, steps, multiprocessors)


def _columns(launch: Launch, form: Scan, dims: Dims, length: int, steps: list[int]) -> KernelProgram:
    count = prod([n for n, _ in dims])
    wide, walk = _walk(dims)
    text = _common(launch, form, dims, wide) + _COLUMN_TEXT.format(
        **_pieces(launch, form), columns=_COLUMNS, deep=_DEEP, each=_EACH
    )
    tail = (walk, *[pack("<q", n) for n in (count, length, *steps)])
    return KernelProgram(text, (-(-count // _COLUMNS), 1, 1), _COLUMNS * _DEEP, tail)


def _rows(
    launch: Launch, form: Scan, dims: Dims, length: int, steps: list[int], multiprocessors: int
) -> KernelProgram | KernelPlan:
    source = launch.inputs[0]
    assert isinstance(source, Meta)
    rows = prod([n for n, _ in dims])
    vector = max(1, min(_VECTOR // source.itemsize, _ITEMS))
    width = next((w for w in _WIDTHS if w * vector >= length), _THREADS)
    unroll = 1 if width * vector >= length else max(1, _ITEMS // vector)
    tiles = -(-length // (width * vector * unroll))
    chained = tiles > 1 and rows < 4 * multiprocessors
    wide, walk = _walk(dims)
    text = _common(launch, form, dims, wide) + _ROW_TEXT.format(
        **_pieces(launch, form),
        board="u32* flags, char* states, " if chained else "",
        vector=vector, unroll=unroll, width=width,
        chained="true" if chained else "false",
        body=_CHAINED if chained else _LOOPED,
    )  # fmt: skip
    tail = (walk, *[pack("<q", n) for n in (rows, length, tiles, *steps)])
    if not chained:
        return KernelProgram(text, (-(-rows // (_THREADS // width)), 1, 1), _THREADS, tail)
    work = WorkspaceLayout()
    places = rows * (tiles + tiles // 32 + tiles // 1024)
    flags = work.take(4 * (places + 1))  # one flag for each tile, and the counter that numbers the blocks
    states = work.take(32 * places)
    operands = tuple([(at, 0) for at in range(len(launch.outputs) + 1)])
    step = Pass(KernelProgram(text, (rows * tiles, 1, 1), _THREADS, tail), (*operands, flags, states))
    return KernelPlan((step,), work.nbytes, zeroed=work.nbytes)


def _walk(dims: Dims) -> tuple[bool, bytes]:
    wide = is_wide(dims)
    return wide, pack_walk(dims, wide)


def _common(launch: Launch, form: Scan, dims: Dims, wide: bool) -> str:
    """Return the C++ types and functions of the scan."""
    source = launch.inputs[0]
    assert isinstance(source, Meta)
    element = "x_"
    for step in form.steps(launch):
        element = f"to<{c_name(step)}>({element})"
    outputs = "".join(f"typedef {c_name(x.dtype)} O{k};\n" for k, x in enumerate(launch.outputs))
    walk, index = ("WideWalk", "i64") if wide else ("Walk", "u32")
    return f"""{file("scan.cuh")}
{outputs}typedef {c_name(source.dtype)} X;
typedef {walk}<{len(dims)}, {len(launch.outputs) + 1}> Places;
typedef {index} Index;
typedef decltype({element.replace("x_", "X{}")}) T;
typedef {form.state} S;
__device__ __forceinline__ S lift(X x_, i64 i) {{ const T x = {element}; return {form.lift}; }}
struct Join {{
  __device__ {"__noinline__" if form.long else "__forceinline__"} S operator()(S a, S b) const {{ return {form.join}; }}
}};
"""


def _pieces(launch: Launch, form: Scan) -> dict[str, str]:
    """Return the declarations and statements that a scan repeats for each output."""
    outputs = range(len(launch.outputs))
    last = len(launch.outputs)
    return {
        "declared": "".join(f"O{k}* out{k}, " for k in outputs),
        "steps": "".join(f", i64 step{k}" for k in (*outputs, last)),
        "last": str(last),
        "buffers": "".join(f" O{k} y{k}[V];" for k in outputs),
        "lowered": "".join(f" y{k}[v] = to<O{k}>({form.lower[k]});" for k in outputs),
        "stored": "".join(f" store<V>(out{k} + o[{k}], j, n, step{k}, y{k});" for k in outputs),
        "stored_one": "".join(
            f" out{k}[o[{k}] + (i64)(j + r) * step{k}] = to<O{k}>({form.lower[k]});" for k in outputs
        ),
    }


_ROW_TEXT = """
extern "C" __global__ void __launch_bounds__(256) run(
    {declared}const X* in, {board}Places places, i64 rows, i64 n, i64 tiles{steps}) {{
  constexpr int V = {vector}, U = {unroll}, W = {width}, L = W < 32 ? W : 32;
  constexpr bool chained = {chained};
  __shared__ Slot<S> totals[8];
  const Join join;
  const int t = threadIdx.x % W, lane = t % L, warp = t / L;
  S carry;
  bool carried = false;
  // One tile of a row; `whole` gives the state of the tiles before it, from its own.
  auto tile = [&](i64 row, bool live, i64 number, auto whole) {{
    Index o[{last} + 1];
    places.locate((Index)row, o);
    const i64 first = number * (W * U * V) + warp * (L * U * V) + lane * V;
    S s[U][V], before[U], run_;
#pragma unroll
    for (int u = 0; u < U; ++u) {{
      Vector<X, V> x;
      const i64 j = first + u * (L * V);
      fetch<V>(in + o[{last}], j, n, step{last}, x);
#pragma unroll
      for (int v = 0; v < V; ++v) {{
        s[u][v] = lift(x[v], j + v);
        if (v) s[u][v] = join(s[u][v - 1], s[u][v]);
      }}
    }}
#pragma unroll
    for (int u = 0; u < U; ++u) {{
      const S upto = over_lanes<L>(s[u][V - 1], lane, join), below = from_below<L>(upto, 1);
      before[u] = u == 0 ? below : lane ? join(run_, below) : run_;
      const S all = from_lane<L>(upto, L - 1);
      run_ = u == 0 ? all : join(run_, all);
    }}
    S lead, own = run_;
    if (W > 32) {{
      if (lane == 0) totals[threadIdx.x / 32] = Slot<S>(run_);
      __syncthreads();
      const int base = threadIdx.x / 32 - warp;
      own = totals[base].state();
      if (warp) lead = own;
#pragma unroll
      for (int w = 1; w < W / 32; ++w) {{
        const S other = totals[base + w].state();
        if (w < warp) lead = join(lead, other);
        own = join(own, other);
      }}
    }}
    whole(own);
    const S front = carried ? warp ? join(carry, lead) : carry : lead;
    const bool fronted = carried || warp;
#pragma unroll
    for (int u = 0; u < U; ++u) {{
      const bool any = u || lane;
      const S p = any ? fronted ? join(front, before[u]) : before[u] : front;
      const bool has = any || fronted;
      const i64 j = first + u * (L * V);
     {buffers}
#pragma unroll
      for (int v = 0; v < V; ++v) {{
        const S s_ = has ? join(p, s[u][v]) : s[u][v];
        const auto& s = s_;
       {lowered}
      }}
      if (live) {{{stored} }}
    }}
    return own;
  }};
{body}
}}
"""

_LOOPED = """
  const i64 mine = blockIdx.x * (i64)(256 / W) + threadIdx.x / W;
  const bool live = mine < rows;
  for (i64 k = 0; k < tiles; ++k) {
    const S own = tile(live ? mine : rows - 1, live, k, [](const S&) {});
    carry = carried ? join(carry, own) : own;
    carried = true;
    if (W > 32 && k + 1 < tiles) __syncthreads();
  }
"""

_CHAINED = """
  __shared__ u32 ticket;
  if (threadIdx.x == 0) ticket = atomicAdd(flags, 1u);
  __syncthreads();
  const i64 row = ticket / tiles, k = ticket % tiles;
  const Board<S> board = {flags + 1, states};
  tile(row, true, k, [&](const S& own) {
    carried = look_back(board, row * (tiles + tiles / 32 + tiles / 1024), k, tiles, own, carry, join);
  });
"""

_COLUMN_TEXT = """
extern "C" __global__ void __launch_bounds__(256) run(
    {declared}const X* in, Places places, i64 columns, i64 n{steps}) {{
  constexpr int C = {columns}, D = {deep}, R = {each};
  __shared__ Slot<S> totals[D][C];
  const Join join;
  const int x = threadIdx.x % C, y = threadIdx.x / C;
  const i64 mine = blockIdx.x * (i64)C + x;
  const bool live = mine < columns;
  Index o[{last} + 1];
  places.locate((Index)(live ? mine : columns - 1), o);
  const X* column = in + o[{last}];
  S carry;
  for (i64 start = 0; start < n; start += D * R) {{
    const i64 j = start + y * R;
    S s[R];
    X e[R];
#pragma unroll
    for (int r = 0; r < R; ++r) e[r] = column[(j + r < n ? j + r : n - 1) * step{last}];
#pragma unroll
    for (int r = 0; r < R; ++r) {{
      s[r] = lift(e[r], j + r);
      if (r) s[r] = join(s[r - 1], s[r]);
    }}
    totals[y][x] = Slot<S>(s[R - 1]);
    __syncthreads();
    S lead = carry;
    bool led = start != 0;
#pragma unroll
    for (int d = 0; d < D; ++d) {{
      const S other = totals[d][x].state();
      if (d < y) {{ lead = led ? join(lead, other) : other; led = true; }}
      carry = d || start ? join(carry, other) : other;
    }}
#pragma unroll
    for (int r = 0; r < R; ++r)
      if (live && j + r < n) {{
        const S s_ = led ? join(lead, s[r]) : s[r];
        const auto& s = s_;
       {stored_one}
      }}
    __syncthreads();
  }}
}}
"""
