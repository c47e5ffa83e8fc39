"""The reduction template: any dims, any strides, one pass over memory, bitwise reproducible.

A block computes BX outputs with BY threads each. Adjacent threads read adjacent elements: of one row if the reduced
dimensions are contiguous (`inner`), otherwise of adjacent outputs. Each thread reduces its elements into several
independent states, which a tree in shared memory combines. If there are too few outputs to fill the device, rows are
split over blocks, and the last block to finish combines their states in a fixed order, without atomics on values.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from flambeau.core.dtype import dtype
from flambeau.core.layout import Dims, merge_dims
from flambeau.core.meta import Meta
from flambeau.core.tracing.symbols import pack
from flambeau.driver.cuda.codegen.kernel_layout import is_wide, pack_walk
from flambeau.driver.cuda.codegen.scratch import COUNTERS, HEAD
from flambeau.driver.cuda.device.program import KernelProgram, c_name, constant_type, name_of, packed_constant
from flambeau.driver.protocol import Fold, Launch

THREADS = 256

_STATE_BYTES = 48  # the maximum size of a state in bytes


def program(launch: Launch, form: Fold, multiprocessors: int) -> KernelProgram:
    sources = [x for x in launch.inputs if isinstance(x, Meta)]
    source = sources[0]
    reduced, kept = _split(launch, sources, form.dims(launch))
    count, length = prod([n for n, _ in kept]), prod([n for n, _ in reduced])
    inner = not kept or not reduced or reduced[-1][1][0] <= kept[-1][1][0] or kept[-1][1][0] == 0
    vector = 1
    if inner and len(sources) == 1 and len(reduced) == 1 and reduced[0][1][0] == 1:
        vector = max(1, 16 // source.itemsize)
    depth = row_threads(count, length, inner, vector)
    width = THREADS // depth
    blocks = -(-count // width)
    splits = _splits(blocks, length, depth * vector * 8, multiprocessors)
    chunk = -(-length // splits)
    chunk = -(-chunk // (depth * vector)) * depth * vector
    splits = max(1, -(-length // chunk)) if chunk else 1
    wide = is_wide(kept, reduced)
    constants = form.constants(launch)
    text = _text(
        launch, form, constants, len(kept), len(reduced), wide, inner, vector, width, depth, splits > 1
    )
    tail = [packed_constant(value) for value in constants]
    tail += [
        pack_walk(part, wide)
        for part in (kept or [_one(len(launch.operands))], reduced or [_one(len(sources))])
    ]
    tail += [pack("<q", number) for number in (count, length, max(chunk, 1))]
    scratch = HEAD + count * splits * _STATE_BYTES if splits > 1 else 0
    return KernelProgram(text, (blocks, splits, 1), THREADS, tuple(tail), scratch, name=name_of(launch))


def _split(launch: Launch, sources: Sequence[Meta], dims: tuple[int, ...]) -> tuple[Dims, Dims]:
    """Return the reduced dimensions of the inputs, and the kept dimensions of inputs and outputs."""
    shape = sources[0].shape
    kept = [d for d in range(len(shape)) if d not in dims]
    outputs = []
    for out in launch.outputs:
        strides = out.strides if len(out.strides) == len(kept) else [out.strides[d] for d in kept]
        outputs.append(strides)
    within = [[x.strides[d] for d in dims] for x in sources]
    reduced = merge_dims([shape[d] for d in dims], within, ordered=False)
    around = merge_dims(
        [shape[d] for d in kept], [*[[x.strides[d] for d in kept] for x in sources], *outputs]
    )
    # adjacent elements of the input are handled by adjacent threads
    around.sort(key=lambda dim: dim[1][0], reverse=True)
    return reduced, around


def _one(operands: int) -> tuple[int, tuple[int, ...]]:
    """Return a dimension of size 1, for a kernel that lacks that kind of dimension."""
    return 1, (0,) * operands


def row_threads(count: int, length: int, inner: bool, vector: int) -> int:
    """Return the number of threads that reduce one row, a power of two."""
    if inner:
        return min(THREADS, _power_of_two(-(-length // (4 * vector))))
    return max(THREADS // _power_of_two(count), min(8, _power_of_two(-(-length // 8))), 1)


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _splits(blocks: int, length: int, least: int, multiprocessors: int) -> int:
    """Return the number of blocks that share a row: enough to fill the device, each with enough work."""
    if blocks >= multiprocessors * 4 or blocks > COUNTERS:
        return 1
    return max(1, min(multiprocessors * 8 // blocks, length // max(least, 1), 1024))


def _text(
    launch: Launch,
    form: Fold,
    constants: Sequence[float],
    kept: int,
    reduced: int,
    wide: bool,
    inner: bool,
    vector: int,
    width: int,
    depth: int,
    split: bool,
) -> str:
    passed = "".join([f", k{n}" for n in range(len(constants))]) + (", first" if form.first else "")
    head = _rows(launch, form, constants, kept, reduced, inner, (width, depth, vector), split)
    return (
        _functions(launch, form, constants, kept, reduced, wide)
        + head
        + _loop(launch, form, passed, vector, inner, split)
    )


def _functions(
    launch: Launch, form: Fold, constants: Sequence[float], kept: int, reduced: int, wide: bool
) -> str:
    """Return C++ types and functions that initialize a state, add an element to it, and join two states."""
    sources = [x for x in launch.inputs if isinstance(x, Meta)]
    inputs = range(len(sources))
    given = _parameters(constants) + (", T first" if form.first else "")
    walk, index = ("WideWalk", "i64") if wide else ("Walk", "u32")
    lifted = [f"const auto {'xyzwv'[k]} = {convert_text(form.steps(launch), f'e.v{k}')};" for k in inputs]
    return f"""
typedef {walk}<{max(kept, 1)}, {len(launch.operands)}> Kept;
typedef {walk}<{max(reduced, 1)}, {len(sources)}> Reduced;
{" ".join([f"typedef {c_name(x.dtype)} In{k};" for k, x in enumerate(sources)])}
constexpr int Inputs = {len(sources)};
struct Elements {{ {" ".join([f"In{k} v{k};" for k in inputs])} }};
typedef In0 In;
typedef decltype({convert_text(form.steps(launch), "In{}")}) T;
typedef {form.state} State;
typedef {index} Index;
__device__ __forceinline__ State start(int{given}) {{ return {form.start}; }}
__device__ __forceinline__ State lift(Elements e, i64 i{given}) {{ {" ".join(lifted)} return {form.lift}; }}
__device__ __forceinline__ State join(State a, State b{given}) {{ return {form.join}; }}
__device__ __forceinline__ State follow(State a, State b{given}) {{ return {form.follow or form.join}; }}
"""


def _parameters(constants: Sequence[float]) -> str:
    return "".join([f", {constant_type(k)} k{n}" for n, k in enumerate(constants)])


def _rows(
    launch: Launch,
    form: Fold,
    constants: Sequence[float],
    kept: int,
    reduced: int,
    inner: bool,
    sizes: tuple[int, int, int],
    split: bool,
) -> str:
    """Return the beginning of the kernel: the output that a thread computes, and the input rows that it reads.

    Args:
        sizes: Outputs of a block, threads of an output, and elements of a vector.
    """
    width, depth, vector = sizes
    inputs = range(sum([isinstance(x, Meta) for x in launch.inputs]))
    last = ", char* scratch" if split else ""
    pointers = [f"{c_name(out.dtype)}* p{k}" for k, out in enumerate(launch.outputs)]
    pointers += [f"const In{k}* in{k}" for k in inputs]
    found = "Index r[Inputs]; reduced.locate((Index)i, r);" if reduced else "const Index r[Inputs] = {};"
    return f"""extern "C" __global__ void __launch_bounds__({THREADS}) run(
    {", ".join(pointers)}{_parameters(constants)}, Kept kept, Reduced reduced, i64 count, i64 n, i64 chunk{last}) {{
  constexpr int W = {width}, D = {depth}, V = {vector};
  __shared__ State shared[{THREADS}];
  const int x = {"threadIdx.x / D" if inner else "threadIdx.x % W"};
  const int y = {"threadIdx.x % D" if inner else "threadIdx.x / W"};
  const i64 output = (i64)blockIdx.x * W + x;
  const i64 begin = (i64)blockIdx.y * chunk, end = begin + chunk < n ? begin + chunk : n;
  Index o[{len(launch.operands)}] = {{}};
  if (output < count) {"kept.locate((Index)output, o);" if kept else ";"}
  {" ".join([f"const In{k}* const row{k} = in{k} + o[{k}];" for k in inputs])}
  const auto at_place = [&](i64 i) -> Elements {{
    {found}
    return {{{", ".join([f"row{k}[r[{k}]]" for k in inputs])}}};
  }};
{_FIRST.format(first=convert_text(form.steps(launch), "*row0")) if form.first else ""}
"""


def _loop(launch: Launch, form: Fold, passed: str, vector: int, inner: bool, split: bool) -> str:
    """Return the rest of the kernel: the loop over elements, and the code that joins states of threads and blocks."""
    inputs = sum([isinstance(x, Meta) for x in launch.inputs])
    lowered = "".join(
        [
            f"  p{k}[o[{inputs + k}]] = to<{c_name(out.dtype)}>({form.lower[k]});\n"
            for k, out in enumerate(launch.outputs)
        ]
    )
    return f"""  State s[4];
#pragma unroll
  for (int u = 0; u < 4; ++u) s[u] = start(0{passed});
  if (output < count) {{
    i64 at = begin;
{_vector_part(passed) if vector > 1 else ""}
    i64 i = at + y;
    for (; i + 3 * D < end; i += 4 * D) {{
      Elements e[4];
#pragma unroll
      for (int u = 0; u < 4; ++u) e[u] = at_place(i + u * D);
#pragma unroll
      for (int u = 0; u < 4; ++u) s[u] = follow(s[u], lift(e[u], i + u * D{passed}){passed});
    }}
    for (; i < end; i += D) s[0] = follow(s[0], lift(at_place(i), i{passed}){passed});
  }}
  State r = join(join(s[0], s[1]{passed}), join(s[2], s[3]{passed}){passed});
{_tree(passed, inner)}
{_last_block(passed, inner) if split else ""}
  if (y || output >= count) return;
  const State s_ = r;
  {{ const State s = s_;
{lowered}  }}
}}
"""


_FIRST = "  const T first = output < count && n ? {first} : T{{}};"


def convert_text(steps: Sequence[dtype], text: str) -> str:
    for step in steps:
        text = f"to<{c_name(step)}>({text})"
    return text


def _vector_part(passed: str) -> str:
    """Return the C++ loop that reads whole vectors as long as the row is aligned."""
    return f"""    if (!misaligned<In, V>(row0 + begin)) {{
      i64 v = begin / V + y;
      const i64 last = end / V;
      for (; v + D < last; v += 2 * D) {{
        const Vector<In, V> e = vectors<V>(row0)[v], f = vectors<V>(row0)[v + D];
#pragma unroll
        for (int j = 0; j < V; ++j) s[j & 1] = follow(s[j & 1], lift({{e.v[j]}}, v * V + j{passed}){passed});
#pragma unroll
        for (int j = 0; j < V; ++j)
          s[2 + (j & 1)] = follow(s[2 + (j & 1)], lift({{f.v[j]}}, (v + D) * V + j{passed}){passed});
      }}
      for (; v < last; v += D) {{
        const Vector<In, V> e = vectors<V>(row0)[v];
#pragma unroll
        for (int j = 0; j < V; ++j) s[j & 3] = follow(s[j & 3], lift({{e.v[j]}}, v * V + j{passed}){passed});
      }}
      at = last * V > begin ? last * V : begin;
    }}"""


def _tree(passed: str, inner: bool) -> str:
    """Return C++ that joins the states of all threads of an output. The thread with y = 0 gets the result.

    The last steps are within a warp, if the threads of an output are adjacent.
    """
    within = f"""
#pragma unroll
    for (int half = D < 32 ? D / 2 : 16; half; half /= 2) {{
      const State other = of_lane_below(r, half);
      if (y < half) r = join(r, other{passed});
    }}"""
    return f"""  if (D > 1) {{
    {"if (D > 32)" if inner else ""} shared[y * W + x] = r;
#pragma unroll
    for (int half = D / 2; half{" >= 32" if inner else ""}; half /= 2) {{
      __syncthreads();
      if (y < half) shared[y * W + x] = r = join(r, shared[(y + half) * W + x]{passed});
    }}{within if inner else ""}
  }}"""


def _last_block(passed: str, inner: bool) -> str:
    """Return C++ that stores a block's state in scratch memory; the last block of an output joins all states."""
    return f"""  u32* const done = (u32*)scratch;
  State* const states = (State*)(scratch + {HEAD});
  __shared__ bool last;
  if (!y && output < count) states[(i64)blockIdx.y * count + output] = r;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(done + blockIdx.x, 1u) == gridDim.y - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  if (threadIdx.x == 0) done[blockIdx.x] = 0;
  r = start(0{passed});
  if (output < count)
    for (i64 k = y; k < gridDim.y; k += D) r = join(r, states[k * count + output]{passed});
  __syncthreads();
{_tree(passed, inner)}"""
