"""Builders of kernels that join, flip and repeat tensors, and that select elements by triangles or masks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod

from flambeau.core.dtype import INTEGRAL
from flambeau.core.meta import Meta
from flambeau.core.tracing.symbols import pack
from flambeau.driver.cuda.codegen.layout_parameters import Walked, blocks, carrier, file, i64, whole_word
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass, WorkspaceLayout, copying
from flambeau.driver.cuda.codegen.multi_tensor import LENGTHS
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram, c_name
from flambeau.driver.cuda.index.compaction import TILE, Compaction
from flambeau.driver.protocol import Launch

# -- cat ------------------------------------------------------------------------------------------------------


def cat(launch: Launch, device: CudaDevice) -> KernelProgram | KernelPlan:
    """Return the kernels that copy each input into its part of the output. Params: dim.

    One kernel suffices if all have one dtype and no gaps; otherwise each input is copied.
    """
    (dim,) = launch.params
    length = next((n for n in LENGTHS if n >= len(launch.inputs)), None)
    alike = all(
        isinstance(x, Meta) and x.contiguous and x.dtype is launch.outputs[0].dtype for x in launch.inputs
    )
    if length is not None and alike and launch.outputs[0].contiguous:
        return _cat_at_once(launch, dim, length)
    out = launch.outputs[0]
    passes, start = [], 0
    for position, x in enumerate(launch.inputs, 1):
        assert isinstance(x, Meta)
        if x.numel:
            copy = copying(out.with_(shape=x.shape), x, 0, position)
            offset = start * out.strides[dim] * out.itemsize
            passes.append(Pass(copy.program, ((0, offset), (position, 0))))
        start += x.shape[dim] if x.shape != (0,) else 0
    return KernelPlan(tuple(passes))


_CAT = """
struct Addresses { u64 at[1 + LENGTH]; };
struct Parts { i64 size[LENGTH], row[LENGTH], start[LENGTH]; u32 first[LENGTH]; };

// Numbers start to end of x, whose rows lie in the output one after the other with others between; counted in V.
template<class V> __device__ __forceinline__ void copied(
    V* out, const V* x, i64 start, i64 end, i64 row, i64 out_row) {
  for (i64 i = start + threadIdx.x; i < end; i += 256) {
    const i64 r = i < row ? 0 : i <= 0xffffffff ? (u32)i / (u32)row : i / row;
    out[r * out_row + (i - r * row)] = x[i];
  }
}

extern "C" __global__ void __launch_bounds__(256) run(
    const __grid_constant__ Addresses table, const __grid_constant__ Parts parts, i64 count, i64 out_row) {
  typedef ELEMENT E;
  typedef VECTOR V;
  constexpr i64 N = sizeof(V) / sizeof(E), BLOCK = 1024 * N;
  i64 m = 0, after = count;
  while (after - m > 1) {
    const i64 middle = (m + after) / 2;
    if (parts.first[middle] <= blockIdx.x) m = middle; else after = middle;
  }
  E* out = (E*)table.at[0] + parts.start[m];
  const E* x = (const E*)table.at[1 + m];
  const i64 start = (i64)(blockIdx.x - parts.first[m]) * BLOCK;
  const i64 end = start + BLOCK < parts.size[m] ? start + BLOCK : parts.size[m];
  if (((u64)out | (u64)x) % sizeof(V)) copied<E>(out, x, start, end, parts.row[m], out_row);
  else copied<V>((V*)out, (const V*)x, start / N, end / N, parts.row[m] / N, out_row / N);
}
"""


def _cat_at_once(launch: Launch, dim: int, length: int) -> KernelProgram:
    """Return the kernel whose blocks find their input by bisection and copy a part of it in the widest common words."""
    out = launch.outputs[0]
    inner = prod(out.shape[dim + 1 :])
    sizes = [x.numel for x in launch.inputs if isinstance(x, Meta)]
    rows = [x.shape[dim] * inner if x.numel else 0 for x in launch.inputs if isinstance(x, Meta)]
    starts = [0, *accumulate(rows)][:-1]
    word = whole_word([row * out.itemsize for row in rows])
    firsts = [0, *accumulate([-(-n // (1024 * (word // out.itemsize))) for n in sizes])]
    spare = [0] * (length - len(sizes))
    table = pack(
        f"<{3 * length}q{length}I", *sizes, *spare, *rows, *spare, *starts, *spare, *firsts[:-1], *spare
    )
    text = _CAT.replace("LENGTH", str(length))
    text = text.replace("ELEMENT", carrier(out.itemsize)).replace("VECTOR", carrier(word))
    tail = (table, i64(len(sizes)), i64(sum(rows)))
    return KernelProgram(text, (max(firsts[-1], 1), 1, 1), 256, tail, slots=1 + length)


# -- flip, roll -------------------------------------------------------------------------------------------------


def flip(launch: Launch, device: CudaDevice) -> KernelProgram:
    (dims,) = launch.params
    out = launch.outputs[0]
    return _build_move(launch, [int(d in dims) for d in range(out.ndim)], [0] * out.ndim)


def roll(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the kernel of roll. Params: shifts, dims. Without dims, the flattened tensor is rolled."""
    shifts, dims = launch.params
    out = launch.outputs[0]
    if not dims:
        return _rolled_flat(launch, shifts[0])
    total = [0] * out.ndim
    for shift, dim in zip(shifts, dims, strict=True):
        total[dim] += shift
    return _build_move(
        launch, [0] * out.ndim, [-shift % size for shift, size in zip(total, out.shape, strict=True)]
    )


def _build_move(launch: Launch, flipped: Sequence[int], shifts: Sequence[int]) -> KernelProgram:
    """Return the kernel that reads each element from another position along some dimensions (flip, roll).

    A thread moves vectors of 16 bytes if rows of the output consist of them and are not shifted. Those of a flipped row
    are reversed.
    """
    out, x = launch.outputs[0], launch.inputs[0]
    assert isinstance(x, Meta)
    ndim = max(out.ndim, 1)
    vector, sizes = _moves(out, x, shifts, flipped)
    count = out.numel // vector
    element, number = carrier(out.itemsize), "u32" if count < 1 << 31 else "u64"
    text = f"""
struct Moves {{ i64 size[{ndim}], to_[{ndim}], from[{ndim}], shift[{ndim}], flipped[{ndim}]; }};
extern "C" __global__ void __launch_bounds__(256) run({element}* out, const {element}* x, Moves m, i64 n) {{
  typedef {element} E;
  constexpr int V = {vector};
  const i64 start = blockIdx.x * 1024ll + threadIdx.x;
  const bool whole = !misaligned<E, V>(out) && !misaligned<E, V>(x);
#pragma unroll
  for (int u = 0; u < 4; ++u) {{
    const i64 i = start + u * 256;
    if (i >= n) break;
    {number} left = ({number})i;
    i64 to_ = 0, from = 0;
#pragma unroll
    for (int d = {ndim} - 1; d >= 0; --d) {{
      const {number} size = ({number})m.size[d], rest = d ? left / size : 0;
      const i64 at = left - rest * size;
      left = rest;
      i64 source = at + m.shift[d];
      if (source >= m.size[d]) source -= m.size[d];
      if (m.flipped[d]) source = m.size[d] - 1 - source;
      to_ += at * m.to_[d];
      from += source * m.from[d];
    }}
    if (V == 1) {{
      out[to_] = x[from];
      continue;
    }}
    Vector<E, V> a, b;
    if (whole) a = vectors<V>(x)[from];
    else for (int k = 0; k < V; ++k) a.v[k] = x[from * V + k];
#pragma unroll
    for (int k = 0; k < V; ++k) b.v[k] = m.flipped[{ndim - 1}] ? a.v[V - 1 - k] : a.v[k];
    if (whole) vectors<V>(out)[to_] = b;
    else for (int k = 0; k < V; ++k) out[to_ * V + k] = b.v[k];
  }}
}}
"""
    moves = pack(f"<{5 * ndim}q", *[n for row in sizes for n in row])
    return KernelProgram(text, blocks(count, 1024), 256, (moves, i64(count)))


def _moves(out: Meta, x: Meta, shifts: Sequence[int], flipped: Sequence[int]) -> tuple[int, list[list[int]]]:
    """Return the elements of a vector; and sizes, strides, shifts and flips of the dimensions in units of vectors."""
    along = sorted(
        range(out.ndim), key=lambda d: -out.strides[d]
    )  # neighboring threads write neighboring elements
    rows = [[values[d] for d in along] for values in (out.shape, out.strides, x.strides, shifts, flipped)]
    vector = _move_vector(out.itemsize, *rows[:4])
    if vector > 1:
        rows[0][-1] //= vector
        for strides in rows[1:3]:
            strides[:-1] = [n // vector for n in strides[:-1]]
    return vector, [values or [default] for values, default in zip(rows, (1, 0, 0, 0, 0), strict=True)]


def _move_vector(
    itemsize: int, shape: Sequence[int], written: Sequence[int], read: Sequence[int], shifts: Sequence[int]
) -> int:
    """Return how many elements the vectors that rows consist of have; 1 if rows are not contiguous or are shifted."""
    vector = 16 // itemsize
    if vector <= 1 or not shape or written[-1] != 1 or read[-1] != 1 or shifts[-1]:
        return 1
    return 1 if any(n % vector for n in (shape[-1], *written[:-1], *read[:-1])) else vector


def _rolled_flat(launch: Launch, shift: int) -> KernelProgram:
    out, x = launch.outputs[0], launch.inputs[0]
    assert isinstance(x, Meta)
    here, there = Walked(out.shape, [out.strides]), Walked(x.shape, [x.strides])
    element = carrier(out.itemsize)
    text = f"""
extern "C" __global__ void __launch_bounds__(256) run({element}* out, const {element}* x, {here.parameter("a")},
    {there.parameter("b")}, i64 n, i64 shift) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  const i64 from = i + shift < n ? i + shift : i + shift - n;
  {here.locate("i", "a")}
  {there.locate("from", "b")}
  out[a[0]] = x[b[0]];
}}
"""
    tail = (here.value, there.value, i64(out.numel), i64(-shift % max(out.numel, 1)))
    return KernelProgram(text, blocks(out.numel), 256, tail)


# -- triangles ----------------------------------------------------------------------------------------------------


def triangle_indices(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the kernel of tril_indices and triu_indices: each column finds its row by bisection."""
    rows, columns, offset, _, _, lower = launch.params
    out = launch.outputs[0]
    before = "under(r + offset + 1, columns) - under(offset + 1, columns)"
    if not lower:
        before = "r * columns - (under(r + offset, columns) - under(offset, columns))"
    first = "0" if lower else "held(r + offset, columns)"
    kind = c_name(out.dtype)
    text = f"""
__device__ __forceinline__ i64 held(i64 x, i64 most) {{ return x < 0 ? 0 : x < most ? x : most; }}
__device__ __forceinline__ i64 under(i64 z, i64 most) {{  // the sum of held(t, most) over t < z
  return z <= 0 ? 0 : z <= most ? z * (z - 1) / 2 : most * (most + 1) / 2 + most * (z - most - 1);
}}
__device__ __forceinline__ i64 before(i64 r, i64 offset, i64 columns) {{ return {before}; }}
extern "C" __global__ void __launch_bounds__(256) run({kind}* out, i64 n, i64 rows, i64 columns, i64 offset,
    i64 step, i64 row_step) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  i64 low = 0, high = rows;
  while (high - low > 1) {{
    const i64 middle = (low + high) / 2;
    if (before(middle, offset, columns) <= i) low = middle; else high = middle;
  }}
  const i64 r = low;
  out[i * step] = to<{kind}>(r);
  out[row_step + i * step] = to<{kind}>(i - before(r, offset, columns) + {first});
}}
"""
    numbers = (out.shape[1], rows, columns, offset, out.strides[1], out.strides[0])
    return KernelProgram(text, blocks(out.shape[1]), 256, tuple([i64(n) for n in numbers]))


# -- repeats --------------------------------------------------------------------------------------------------------

_NEGATIVE = "repeats can not be negative"


def _repeats(launch: Launch, device: CudaDevice, x: Meta) -> tuple[str, str, tuple[bytes, ...], Walked]:
    walk = Walked(x.shape, [x.strides])
    kind = c_name(x.dtype)
    functions = f"""{file("checked.cuh")}
__device__ __forceinline__ i64 repeated({kind} count, i64 i, const Guard& guard) {{
  if (count >= 0) return count;
  guard.fail(count, 0, 0);
  return 0;
}}
"""
    amount = f"[&] {{ {walk.locate('i', 'o')} return repeated(x[o[0]], i, guard); }}()"
    return functions, amount, (walk.value, device.assertions.guard(launch.kernel.name, _NEGATIVE)), walk


def repeats_total(launch: Launch, device: CudaDevice) -> KernelPlan:
    out, x = launch.outputs[0], launch.inputs[0]
    assert isinstance(x, Meta)
    functions, amount, tail, walk = _repeats(launch, device, x)
    work = WorkspaceLayout()
    sums = Compaction(
        x.numel,
        (f"{c_name(out.dtype)}* out", f"const {c_name(x.dtype)}* x", walk.parameter("o"), "Guard guard"),
        ((0, 0), (1, 0)),
        tail,
        amount,
        total="*out = total;",
        functions=functions,
    )
    return KernelPlan(sums.passes(work), work.nbytes)


def repeat_places(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the kernels of repeat_interleave: mark the first copy of each element, then fill the positions after
    it.
    """
    out, x = launch.outputs[0], launch.inputs[0]
    assert isinstance(x, Meta)
    functions, amount, tail, walk = _repeats(launch, device, x)
    work = WorkspaceLayout()
    starts = work.take(8 * x.numel)
    sums = Compaction(
        x.numel,
        (f"const {c_name(x.dtype)}* x", "i64* starts", walk.parameter("o"), "Guard guard"),
        ((1, 0), starts),
        tail,
        amount,
        emit="starts[i] = before;",
        functions=functions,
    )
    kind = c_name(out.dtype)
    text = f"""
extern "C" __global__ void __launch_bounds__(256) run({kind}* out, const i64* starts, i64 n, i64 count, i64 step) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  i64 low = 0, high = count;
  while (high - low > 1) {{
    const i64 middle = (low + high) / 2;
    if (starts[middle] <= i) low = middle; else high = middle;
  }}
  out[i * step] = low;
}}
"""
    program = KernelProgram(text, blocks(out.numel), 256, (i64(out.numel), i64(x.numel), i64(out.strides[0])))
    return KernelPlan((*sums.passes(work), Pass(program, ((0, 0), starts))), work.nbytes)


# -- what is not zero, what a mask chooses ----------------------------------------------------------------------------


def nonzero_count(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the kernel of nonzero_count. Outputs: the number of nonzero elements, and the number before each tile."""
    x = launch.inputs[0]
    assert isinstance(x, Meta) and launch.params == (TILE,)
    walk = Walked(x.shape, [x.strides])
    sums = Compaction(
        x.numel,
        ("i64* out", f"const {c_name(x.dtype)}* x", walk.parameter("o")),
        ((0, 0), (2, 0)),
        (walk.value,),
        _is_nonzero(walk),
        total="*out = total;",
        bytes=_bytes(x),
    )
    return KernelPlan((sums.counting((1, 0)),))


def _is_nonzero(walk: Walked) -> str:
    return f"[&] {{ {walk.locate('i', 'o')} return (i64)nonzero(widen(x[o[0]])); }}()"


def _bytes(x: Meta) -> str:
    """Return C++ for the bytes of parameter `x`, which a Compaction can count directly; empty if it cannot."""
    return "(const u8*)x" if x.itemsize == 1 and x.contiguous and x.dtype.category <= INTEGRAL else ""


def nonzero(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the kernel of nonzero. Inputs x, how many precede each tile. Outputs: a row of coordinates for each
    element that is not zero.
    """
    out, (x, before) = launch.outputs[0], [m for m in launch.inputs if isinstance(m, Meta)]
    walk = Walked(x.shape, [x.strides])
    index = "u32" if x.numel < 1 << 32 else "u64"
    coordinates = f"""
        {index} left = ({index})i;
        for (int d = {x.ndim} - 1; d > 0; --d) {{
          const {index} rest = left / sizes.size[d];
          out[before * row_step + d * step] = left - rest * sizes.size[d];
          left = rest;
        }}
        out[before * row_step] = left;"""
    found = Compaction(
        x.numel,
        ("i64* out", f"const {c_name(x.dtype)}* x", walk.parameter("o"), f"Sizes<{x.ndim}> sizes", "i64 rows",
         "i64 row_step", "i64 step"),
        ((0, 0), (1, 0)),
        (walk.value, pack(f"<{x.ndim}{'I' if index == 'u32' else 'Q'}", *x.shape), i64(launch.params[0]),
         *[i64(step) for step in out.strides]),
        _is_nonzero(walk),
        emit=f"""
      if (amount && before < rows) {{{coordinates if x.ndim else ""}
      }}
""",
        functions=f"template<int D> struct Sizes {{ {index} size[D]; }};",
        chosen=True,
        bytes=_bytes(x),
    )  # fmt: skip
    return KernelPlan((found.emitting((2, 0), before.strides[0]),))


def masked_select(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the kernel of masked_select. Inputs x, mask, how many precede each tile. Output: the elements that the
    mask chooses.
    """
    out, (x, mask, before) = launch.outputs[0], [m for m in launch.inputs if isinstance(m, Meta)]
    walk, value = Walked(mask.shape, [mask.strides]), Walked(x.shape, [x.strides])
    element = carrier(x.itemsize)
    chosen = Compaction(
        mask.numel,
        (f"{element}* out", f"const {element}* values", "const bool* x", walk.parameter("o"), value.parameter("v"),
         "i64 rows", "i64 step"),
        ((0, 0), (1, 0), (2, 0)),
        (walk.value, value.value, i64(launch.params[0]), i64(out.strides[0])),
        _is_nonzero(walk),
        emit="if (amount && before < rows) out[before * step] = loaded;",
        chosen=True,
        bytes=_bytes(mask),
        load=f"[&] {{ {value.locate('at', 'v')} return values[v[0]]; }}()",
    )  # fmt: skip
    return KernelPlan((chosen.emitting((3, 0), before.strides[0]),))


def masked_scatter(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the kernel of masked_scatter. Operands: out, x, mask, source; elements of source fill the masked ones in
    order.
    """
    out = launch.outputs[0]
    x, mask, source = [m for m in launch.inputs if isinstance(m, Meta)]
    walk = Walked(mask.shape, [mask.strides, out.strides])
    taken = Walked(source.shape, [source.strides])
    element = carrier(out.itemsize)
    work = WorkspaceLayout()
    guard = device.assertions.guard(
        launch.kernel.name, "Number of elements of source < number of ones in mask"
    )
    chosen = Compaction(
        mask.numel,
        (f"{element}* out", "const bool* mask", f"const {element}* source", walk.parameter("o"),
         taken.parameter("s"), "i64 count", "Guard guard"),
        ((0, 0), (2, 0), (3, 0)),
        (walk.value, taken.value, i64(source.numel), guard),
        f"[&] {{ {walk.locate('i', 'o')} return (i64)mask[o[0]]; }}()",
        emit=f"""
      if (amount) {{
        if (before >= count) {{ guard.fail(before, count, 0); }}
        else {{
          {walk.locate("i", "o")}
          {taken.locate("before", "s")}
          out[o[1]] = source[s[0]];
        }}
      }}
""",
        functions=file("checked.cuh"),
        chosen=True,
    )  # fmt: skip
    return KernelPlan((copying(out, x, 0, 1, unless_same=True), *chosen.passes(work)), work.nbytes)
