"""Unique values: sort, find values that differ from their predecessor, number the groups."""

from __future__ import annotations

from math import prod

from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.layout_parameters import Walked, blocks, carrier, file, i64
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass, WorkspaceLayout
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram, c_name
from flambeau.driver.cuda.index.compaction import Compaction
from flambeau.driver.cuda.index.radix import Radix
from flambeau.driver.cuda.index.sorting import is_wide, key_bits, load_keys, order_text, raw_type
from flambeau.driver.protocol import Launch

Place = tuple[int, int]
_VALUES, _INVERSE, _COUNTS, _FOUND, _X = range(5)  # positions of the operands


def unique(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the launches of unique. Params: dim or None, consecutive, inverse?, counts?.

    Outputs: values, inverse, counts, their number.
    """
    dim, consecutive, *_ = launch.params
    return _of_elements(launch, consecutive) if dim is None else _of_slices(launch, dim, consecutive)


def _of_elements(launch: Launch, consecutive: bool) -> KernelPlan:
    values, inverse, counts, _ = launch.outputs
    x, (with_inverse, with_counts) = launch.inputs[0], launch.params[2:]
    assert isinstance(x, Meta)
    work = WorkspaceLayout()
    radix = Radix(
        work, x.numel, is_wide(x.dtype), key_bits(x.dtype), order_text(x.dtype), places=with_inverse
    )
    sorting = (load_keys(x, _X, radix), *(() if consecutive else radix.passes)) if x.numel else ()
    keys, places = (radix.source, radix.source) if consecutive else (radix.keys, radix.values)
    starts = work.take(8 * x.numel * with_counts)
    value_at, inverse_at = Walked((x.numel,), [values.strides]), Walked(inverse.shape, [inverse.strides])
    element, raw = carrier(x.itemsize), raw_type(x.dtype)
    place = inverse_at.locate("i" if consecutive else "places[i]", "w")
    groups = Compaction(
        x.numel,
        (f"{element}* values", "i64* inverse", "i64* found", f"const {raw}* keys", "const u32* places", "i64* starts",
         value_at.parameter("v"), inverse_at.parameter("w")),
        ((_VALUES, 0), (_INVERSE, 0), (_FOUND, 0), keys, places, starts),
        (value_at.value, inverse_at.value),
        amount=f"(i64)(i == 0 || unequal<{c_name(x.dtype)}, {raw}>(keys[i], keys[i - 1]))",
        emit=f"""
      const i64 group = before + amount - 1;
      if (amount) {{
        {value_at.locate("group", "v")}
        values[v[0]] = ({element})keys[i];
        {"starts[group] = i;" if with_counts else ""}
      }}
      {f"{place} inverse[w[0]] = group;" if with_inverse else ""}
""",
        total="*found = total;",
        chosen=True,
        rest=with_inverse,
        functions=file("sorting.cuh"),
    )  # fmt: skip
    counting = (_count_groups(counts, starts),) if with_counts else ()
    return KernelPlan(
        (*sorting, *groups.passes(work), *counting, _clear_unused(values, 0)), work.nbytes, radix.zeroed
    )


def _count_groups(counts: Meta, starts: Place) -> Pass:
    """Return the launch that computes the sizes of the groups from the position at which each begins; 0 after the
    last.
    """
    walk = Walked(counts.shape, [counts.strides])
    text = f"""
extern "C" __global__ void __launch_bounds__(256) run(i64* counts, const i64* found, const i64* starts,
    {walk.parameter("at")}, i64 n) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  const i64 groups = *found;
  {walk.locate("i", "at")}
  counts[at[0]] = i >= groups ? 0 : (i + 1 < groups ? starts[i + 1] : n) - starts[i];
}}
"""
    program = KernelProgram(text, blocks(walk.count), 256, (walk.value, i64(walk.count)))
    return Pass(program, ((_COUNTS, 0), (_FOUND, 0), starts))


def _clear_unused(values: Meta, dim: int) -> Pass:
    """Return the launch that zeroes the slices of `values` along `dim` after the last unique one."""
    order = [dim, *[d for d in range(values.ndim) if d != dim]]
    walk = Walked([values.shape[d] for d in order], [[values.strides[d] for d in order]])
    width = prod([values.shape[d] for d in order[1:]])
    element = carrier(values.itemsize)
    text = f"""
extern "C" __global__ void __launch_bounds__(256) run({element}* values, const i64* found, {walk.parameter("at")},
    i64 n, i64 width) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n || i < *found * width) return;
  {walk.locate("i", "at")}
  values[at[0]] = {element}();
}}
"""
    program = KernelProgram(text, blocks(walk.count), 256, (walk.value, i64(walk.count), i64(width)))
    return Pass(program, ((_VALUES, 0), (_FOUND, 0)))


# -- slices: a merge sort that compares slices from their first element on ----------------------------------------


def _of_slices(launch: Launch, dim: int, consecutive: bool) -> KernelPlan:
    values, inverse, counts, _ = launch.outputs
    x, (with_inverse, with_counts) = launch.inputs[0], launch.params[2:]
    assert isinstance(x, Meta)
    order = [dim, *[d for d in range(x.ndim) if d != dim]]
    shape = [x.shape[d] for d in order]
    many, width = shape[0], prod(shape[1:])
    work = WorkspaceLayout()
    orders = [work.take(4 * many), work.take(4 * many)]
    starts = work.take(8 * many)
    rest = Walked(shape[1:], [[x.strides[d] for d in order[1:]]])
    functions = _slice_functions(x, rest)
    merges: list[Pass] = []
    run = 0 if consecutive else 1
    sorted_at = 0
    merges.append(_merge(x, rest, functions, many, width, x.strides[dim], 0, orders[0], orders[0]))
    while 0 < run < many:
        merges.append(
            _merge(
                x, rest, functions, many, width, x.strides[dim], run, orders[sorted_at], orders[1 - sorted_at]
            )
        )
        run, sorted_at = 2 * run, 1 - sorted_at
    places = orders[sorted_at]
    element = carrier(x.itemsize)
    walk = Walked(inverse.shape, [inverse.strides])
    groups = Compaction(
        many,
        ("i64* inverse", "i64* found", f"const {element}* x", "const u32* places", "i64* starts",
         walk.parameter("w"), rest.parameter("r"), "i64 step", "i64 width"),
        ((_INVERSE, 0), (_FOUND, 0), (_X, 0), places, starts),
        (walk.value, rest.value, i64(x.strides[dim]), i64(width)),
        amount="(i64)(i == 0 || differ(x + places[i] * step, x + places[i - 1] * step, width, walk_r))",
        emit=f"""
      if (amount) starts[before] = i;
      {f"{walk.locate('places[i]', 'w')} inverse[w[0]] = before + amount - 1;" if with_inverse else ""}
""",
        total="*found = total;",
        chosen=True,
        rest=True,
        functions=functions,
    )  # fmt: skip
    taken = _slices_taken(values, x, order, places, starts)
    counting = (_count_groups(counts, starts),) if with_counts else ()
    return KernelPlan(
        (*merges, *groups.passes(work), *counting, taken, _clear_unused(values, dim)), work.nbytes
    )


def _slice_functions(x: Meta, rest: Walked) -> str:
    element, raw = carrier(x.itemsize), raw_type(x.dtype)
    kind = c_name(x.dtype)
    return f"""{file("sorting.cuh")}
__device__ int compared(const {element}* a, const {element}* b, i64 width, const {rest.kind}& walk_r) {{
  for (i64 j = 0; j < width; ++j) {{
    {rest.locate("j", "r")}
    const {raw} left = rank_of<{kind}, {raw}>(a[r[0]]), right = rank_of<{kind}, {raw}>(b[r[0]]);
    if (left != right) return left < right ? -1 : 1;
  }}
  return 0;
}}
__device__ bool differ(const {element}* a, const {element}* b, i64 width, const {rest.kind}& walk_r) {{
  for (i64 j = 0; j < width; ++j) {{
    {rest.locate("j", "r")}
    if (unequal<{kind}, {raw}>(a[r[0]], b[r[0]])) return true;
  }}
  return false;
}}
"""


def _merge(
    x: Meta,
    rest: Walked,
    functions: str,
    many: int,
    width: int,
    step: int,
    run: int,
    source: Place,
    target: Place,
) -> Pass:
    """Return the kernel that merges pairs of sorted runs of `run` slices. Run 0 initializes the order."""
    text = f"""{functions}
extern "C" __global__ void __launch_bounds__(256) run(const {carrier(x.itemsize)}* x, const u32* from, u32* to_,
    {rest.parameter("r")}, i64 n, i64 width, i64 step, i64 run) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  if (run == 0) {{ to_[i] = (u32)i; return; }}
  const u32 mine = from[i];
  const i64 pair = i / (2 * run) * (2 * run);
  const bool left = i < pair + run;
  i64 low = left ? pair + run : pair, high = left ? pair + 2 * run : pair + run;
  low = low < n ? low : n;
  high = high < n ? high : n;
  const i64 begin = low;
  while (low < high) {{
    const i64 middle = (low + high) / 2;
    const int order = compared(x + from[middle] * step, x + mine * step, width, walk_r);
    if (order < 0 || (order == 0 && !left)) low = middle + 1; else high = middle;
  }}
  to_[pair + (i - (left ? pair : pair + run)) + (low - begin)] = mine;
}}
"""
    program = KernelProgram(text, blocks(many), 256, (rest.value, i64(many), i64(width), i64(step), i64(run)))
    return Pass(program, ((_X, 0), source, target))


def _slices_taken(values: Meta, x: Meta, order: list[int], places: Place, starts: Place) -> Pass:
    """Return the launch that copies the first slice of each group."""
    shape = [values.shape[d] for d in order]
    walk = Walked(shape, [[values.strides[d] for d in order]])
    rest = Walked(shape[1:], [[x.strides[d] for d in order[1:]]])
    width, step = prod(shape[1:]), x.strides[order[0]]
    element = carrier(x.itemsize)
    text = f"""
extern "C" __global__ void __launch_bounds__(256) run({element}* values, const i64* found, const {element}* x,
    const u32* places, const i64* starts, {walk.parameter("at")}, {rest.parameter("r")}, i64 n, i64 width, i64 step) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n || i >= *found * width) return;
  {walk.locate("i", "at")}
  {rest.locate("i % width", "r")}
  values[at[0]] = x[places[starts[i / width]] * step + r[0]];
}}
"""
    tail = (walk.value, rest.value, i64(walk.count), i64(width), i64(step))
    return Pass(
        KernelProgram(text, blocks(walk.count), 256, tail),
        ((_VALUES, 0), (_FOUND, 0), (_X, 0), places, starts),
    )
