"""Reads and writes at indices of tensors: one description of an access, and four kernels.

# Note [Order of writes]
Operators that accumulate sort their target positions, and one thread adds all values of a position in the order of the
indices. Results are bitwise reproducible and equal to the CPU's. Only `scatter_add` of floats uses atomic additions,
which are several times faster and in no fixed order, unless `torch.use_deterministic_algorithms(True)`; PyTorch does
the same. Operators that assign write without an order: if several values have the same target, any one of them may
remain, as PyTorch documents. With deterministic algorithms the last one remains, by the same sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from flambeau.core.dtype import INTEGRAL, dtype
from flambeau.core.errors import NotSupportedError
from flambeau.core.layout import broadcast_shapes, expand_strides, view_strides
from flambeau.core.meta import Meta
from flambeau.core.tracing.symbols import pack
from flambeau.driver.cuda.codegen.layout_parameters import (
    Walked,
    blocks,
    carrier,
    file,
    i64,
    vector_like,
    without,
)
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass, WorkspaceLayout, copying
from flambeau.driver.cuda.device.assertions import OUT_OF_BOUNDS
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram, c_name, wire_type
from flambeau.driver.cuda.index.radix import Radix
from flambeau.driver.protocol import Launch

_UNROLL = 4
_FLAT = "out of range: tried to access index {index} on a tensor of {size} elements."
_SELF = "index out of range in self"


@dataclass(frozen=True, slots=True)
class IndexedAccess:
    """The mapping of an iteration's elements to the elements of the indexed tensor.

    Attributes:
        shape: Shape of the iteration.
        target: Strides of the indexed tensor in the iteration, 0 in indexed dimensions.
        indices: Positions of the index tensors among the operands.
        index_strides, kinds: Strides in the iteration, and dtypes, of the index tensors.
        sizes, steps, dims: Sizes, strides and numbers of the indexed dimensions.
        wraps: True if negative indices count from the end.
        flat: Layout of an indexed tensor whose elements are counted in row-major order, if its memory has another
            order.
    """

    shape: tuple[int, ...]
    target: tuple[int, ...]
    indices: tuple[int, ...]
    index_strides: tuple[tuple[int, ...], ...]
    kinds: tuple[dtype, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    dims: tuple[int, ...]
    wraps: bool
    said: str = OUT_OF_BOUNDS
    flat: Meta | None = None

    @property
    def indexed(self) -> bytes:
        count = len(self.sizes)
        return pack(f"<{3 * count}q", *self.sizes, *self.steps, *self.dims)

    @property
    def parameters(self) -> list[str]:
        return [f"const {c_name(kind)}* j{n}" for n, kind in enumerate(self.kinds)]

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        return tuple([(at, 0) for at in self.indices])

    def index_text(self, first: int, target: str) -> str:
        """Return C++ that adds to `at` the offset of the indices at `{target}[first + n]`; `inside` is false if one
        is invalid.
        """
        wraps = str(self.wraps).lower()
        lines = [
            f"inside &= point<{wraps}>(j{n}[{target}[{first + n}]], {n}, indexed, at, guard);"
            for n in range(len(self.kinds))
        ]
        return " ".join(lines)


def _guard(launch: Launch, device: CudaDevice, access: IndexedAccess) -> bytes:
    return device.assertions.guard(launch.kernel.name, access.said)


# -- accesses of the operators -----------------------------------------------------------------------------------


def _by_tensors(target: Meta, indices: Sequence[Meta], dims: tuple[int, ...], first: int) -> IndexedAccess:
    """Return the access `target[..., i, j, ...]`, whose index tensors are operands `first`, `first + 1`, ..."""
    shape = broadcast_shapes([i.shape for i in indices])
    at = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    kept = [d for d in range(target.ndim) if d not in dims]
    head, tail = kept[:at], kept[at:]
    strides = tuple(
        [(*[0] * len(head), *expand_strides(i.shape, i.strides, shape), *[0] * len(tail)) for i in indices]
    )
    return IndexedAccess(
        shape=(*[target.shape[d] for d in head], *shape, *[target.shape[d] for d in tail]),
        target=(*[target.strides[d] for d in head], *[0] * len(shape), *[target.strides[d] for d in tail]),
        indices=tuple(range(first, first + len(indices))),
        index_strides=strides,
        kinds=tuple([i.dtype for i in indices]),
        sizes=tuple([target.shape[d] for d in dims]),
        steps=tuple([target.strides[d] for d in dims]),
        dims=dims,
        wraps=True,
    )


def _along(target: Meta, index: Meta, dim: int, wraps: bool, said: str = OUT_OF_BOUNDS) -> IndexedAccess:
    """Return the access of `index_select` along `dim`. Operand 2 is the vector of indices."""
    target, index = vector_like(target), vector_like(index)
    along = tuple([index.strides[0] if d == dim else 0 for d in range(target.ndim)])
    return IndexedAccess(
        shape=(*target.shape[:dim], index.shape[0], *target.shape[dim + 1 :]),
        target=without(target.strides, dim),
        indices=(2,),
        index_strides=(along,),
        kinds=(index.dtype,),
        sizes=(target.shape[dim],),
        steps=(target.strides[dim],),
        dims=(dim,),
        wraps=wraps,
        said=said,
    )


def _by_element(target: Meta, index: Meta, dim: int) -> IndexedAccess:
    """Return the access of `gather` and `scatter` along `dim`. Operand 2 holds the indices."""
    target, index = vector_like(target), vector_like(index)
    return IndexedAccess(
        shape=index.shape,
        target=without(target.strides, dim),
        indices=(2,),
        index_strides=(index.strides,),
        kinds=(index.dtype,),
        sizes=(target.shape[dim],),
        steps=(target.strides[dim],),
        dims=(dim,),
        wraps=False,
    )


def _over_all(target: Meta, index: Meta) -> IndexedAccess:
    """Return the access `target.flatten()[indices]` of `take` and `put`. Operand 2 holds the indices."""
    return IndexedAccess(
        shape=index.shape,
        target=(0,) * index.ndim,
        indices=(2,),
        index_strides=(index.strides,),
        kinds=(index.dtype,),
        sizes=(target.numel,),
        steps=(1,),
        dims=(0,),
        wraps=True,
        said=_FLAT,
        flat=None if target.contiguous else target,
    )


def _flat_walk(access: IndexedAccess) -> Walked | None:
    return Walked(access.flat.shape, [access.flat.strides]) if access.flat is not None else None


def _unravel_text(flat: Walked | None) -> str:
    return f"{{ {flat.locate('at', 'f')} at = f[0]; }}" if flat else ""


# -- reading -----------------------------------------------------------------------------------------------------


def _read(
    launch: Launch, device: CudaDevice, access: IndexedAccess, strides: tuple[int, ...]
) -> KernelProgram:
    """Return the kernel of out[...] = x[indices]. Operands: out, x, indices."""
    out = launch.outputs[0]
    element = carrier(out.itemsize)
    walk = Walked(access.shape, [strides, access.target, *access.index_strides], ordered=True)
    flat = _flat_walk(access)
    declared = [f"{element}* out", f"const {element}* x", *access.parameters, walk.parameter("o")]
    declared += [f"Indexed<{len(access.kinds)}> indexed", "i64 n", "Guard guard"]
    declared += [flat.parameter("f")] if flat else []
    text = f"""{file("checked.cuh")}
extern "C" __global__ void __launch_bounds__(256) run({", ".join(declared)}) {{
  const i64 start = blockIdx.x * (i64){256 * _UNROLL} + threadIdx.x;
  {element} found[{_UNROLL}];
  {walk.index} places[{_UNROLL}];
  bool known[{_UNROLL}];
#pragma unroll
  for (int u = 0; u < {_UNROLL}; ++u) {{
    const i64 i = start + u * 256;
    known[u] = false;
    if (i < n) {{
      {walk.locate("i", "o")}
      i64 at = o[1];
      bool inside = true;
      {access.index_text(2, "o")}
      if (inside) {{
        {_unravel_text(flat)}
        places[u] = o[0];
        found[u] = x[at];
        known[u] = true;
      }}
    }}
  }}
#pragma unroll
  for (int u = 0; u < {_UNROLL}; ++u)
    if (known[u]) out[places[u]] = found[u];
}}
"""
    tail = [walk.value, access.indexed, i64(walk.count), _guard(launch, device, access)]
    tail += [flat.value] if flat else []
    return KernelProgram(text, blocks(walk.count, 256 * _UNROLL), 256, tuple(tail))


def index(launch: Launch, device: CudaDevice) -> KernelProgram:
    x, *indices = [m for m in launch.inputs if isinstance(m, Meta)]
    access = _by_tensors(x, indices, launch.params[0], 2)
    return _read(launch, device, access, launch.outputs[0].strides)


def index_select(launch: Launch, device: CudaDevice) -> KernelProgram:
    x, indices = [m for m in launch.inputs if isinstance(m, Meta)]
    access = _along(x, indices, launch.params[0], wraps=False, said=_SELF)
    return _read(launch, device, access, vector_like(launch.outputs[0]).strides)


def gather(launch: Launch, device: CudaDevice) -> KernelProgram:
    x, indices = [m for m in launch.inputs if isinstance(m, Meta)]
    access = _by_element(x, indices, launch.params[0])
    return _read(launch, device, access, vector_like(launch.outputs[0]).strides)


def take(launch: Launch, device: CudaDevice) -> KernelProgram:
    x, indices = [m for m in launch.inputs if isinstance(m, Meta)]
    return _read(launch, device, _over_all(x, indices), launch.outputs[0].strides)


# -- writing ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Value:
    """The value to be written: operand `at` with strides in the iteration, or the launch's first scalar."""

    at: int | None
    strides: tuple[int, ...]


def _value_parameters(launch: Launch, value: Value, kind: dtype) -> tuple[list[str], list[str]]:
    """Return the C++ parameters for the value's address and the launch's scalars."""
    scalars = [x for x in launch.inputs if not isinstance(x, Meta)]
    names = [f"{wire_type(x)} s{n}" for n, x in enumerate(scalars)]
    return ([f"const {c_name(kind)}* source"] if value.at is not None else []), names


def _value_text(value: Value, kind: dtype, place: str) -> str:
    return f"source[{place}]" if value.at is not None else f"to<{c_name(kind)}>(s0)"


def _assign(
    launch: Launch, device: CudaDevice, access: IndexedAccess, value: Value, fixed: bool
) -> KernelPlan:
    """Return the launches that copy x to out and write values at the indices. With `fixed`, the last write to an
    element wins.
    """
    if fixed:
        return _one_by_one(launch, device, access, value, "acc = v;", last=True)
    out, x = launch.outputs[0], launch.inputs[0]
    assert isinstance(x, Meta)
    copy = copying(out, x, 0, 1, unless_same=True)
    if not prod(access.shape):
        return KernelPlan((copy,))
    statement = "out[at] = v;"
    return KernelPlan((copy, _write(launch, device, access, value, statement)))


def _write(launch: Launch, device: CudaDevice, access: IndexedAccess, value: Value, statement: str) -> Pass:
    """Return the kernel that runs `statement` for each value v and its element `at`, in no fixed order."""
    out = launch.outputs[0]
    kind = out.dtype
    walk = Walked(access.shape, [access.target, value.strides, *access.index_strides])
    flat = _flat_walk(access)
    addresses, scalars = _value_parameters(launch, value, kind)
    declared = [f"{c_name(kind)}* out", *addresses, *access.parameters, *scalars, walk.parameter("o")]
    declared += [f"Indexed<{len(access.kinds)}> indexed", "i64 n", "Guard guard"]
    declared += [flat.parameter("f")] if flat else []
    text = f"""{file("checked.cuh")}{file("accumulate.cuh")}
extern "C" __global__ void __launch_bounds__(256) run({", ".join(declared)}) {{
  typedef {c_name(kind)} T;
  const i64 start = blockIdx.x * (i64){256 * _UNROLL} + threadIdx.x;
#pragma unroll
  for (int u = 0; u < {_UNROLL}; ++u) {{
    const i64 i = start + u * 256;
    if (i < n) {{
      {walk.locate("i", "o")}
      i64 at = o[0];
      bool inside = true;
      {access.index_text(2, "o")}
      if (inside) {{
        {_unravel_text(flat)}
        const T v = {_value_text(value, kind, "o[1]")};
        {statement}
      }}
    }}
  }}
}}
"""
    tail = [walk.value, access.indexed, i64(walk.count), _guard(launch, device, access)]
    tail += [flat.value] if flat else []
    program = KernelProgram(text, blocks(walk.count, 256 * _UNROLL), 256, tuple(tail))
    source = ((value.at, 0),) if value.at is not None else ()
    return Pass(program, ((0, 0), *source, *access.places), scalars=bool(scalars))


def _one_by_one(
    launch: Launch,
    device: CudaDevice,
    access: IndexedAccess,
    value: Value,
    step: str,
    begin: str = "",
    end: str = "",
    last: bool = False,
) -> KernelPlan:
    """Return the launches that copy x to out and then apply the values of each index in order. See Note [Order of
    writes].

    The C++ texts use `acc`, the target element; `v`, the value; and `count`, the number of values so far. Dimensions
    that no index depends on are not sorted; all of their elements are processed together.

    Args:
        last: Process only the last value of each target.
    """
    out, x = launch.outputs[0], launch.inputs[0]
    assert isinstance(x, Meta)
    copy = copying(out, x, 0, 1, unless_same=True)
    if not prod(access.shape):
        return KernelPlan((copy,))
    sorted_, along = _split(access)
    work = WorkspaceLayout()
    count = prod([access.shape[d] for d in sorted_])
    apart, span = _key_unit(out, access, sorted_)
    radix = Radix(work, count, span >= 1 << 32, (span - 1).bit_length() or 1)
    keys = _keys(launch, device, access, sorted_, radix, apart)
    fold = _fold(launch, access, value, sorted_, along, radix, apart, step, begin, end, last)
    return KernelPlan((copy, keys, *radix.passes, fold), work.nbytes, radix.zeroed)


def _split(access: IndexedAccess) -> tuple[list[int], list[int]]:
    """Return (the dimensions of the iteration on which the indices depend, the other dimensions)."""
    sorted_ = [
        d
        for d in range(len(access.shape))
        if access.target[d] == 0 or any(strides[d] for strides in access.index_strides)
    ]
    return sorted_, [d for d in range(len(access.shape)) if d not in sorted_]


def _key_unit(out: Meta, access: IndexedAccess, dims: list[int]) -> tuple[int, int]:
    """Return what elements' offsets are divided by to make keys, and the number of keys.

    For a single index that is the step of its dimension, by which keys are short.
    """
    if len(access.steps) == 1 and not any(access.target[d] for d in dims):
        return max(access.steps[0], 1), max(1, access.sizes[0])
    return 1, max(1, out.span // out.itemsize if access.flat is None else out.numel)


def _of(strides: tuple[int, ...], dims: list[int]) -> tuple[int, ...]:
    return tuple([strides[d] for d in dims])


def _keys(
    launch: Launch,
    device: CudaDevice,
    access: IndexedAccess,
    dims: list[int],
    radix: Radix,
    apart: int,
) -> Pass:
    """Return the launch that computes the element of each combination of indices, divided by `apart`."""
    shape = _of(access.shape, dims)
    walk = Walked(shape, [_of(s, dims) for s in (access.target, *access.index_strides)])
    declared = [*access.parameters, f"{radix.kind}* keys", walk.parameter("o")]
    declared += [f"Indexed<{len(access.kinds)}> indexed", "i64 n", "Guard guard", "i64 apart"]
    text = f"""{file("checked.cuh")}
extern "C" __global__ void __launch_bounds__(256) run({", ".join(declared)}) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  {walk.locate("i", "o")}
  i64 at = o[0];
  bool inside = true;
  {access.index_text(1, "o")}
  keys[i] = inside ? at / apart : 0;
}}
"""
    tail = (walk.value, access.indexed, i64(walk.count), _guard(launch, device, access), i64(apart))
    return Pass(KernelProgram(text, blocks(walk.count), 256, tail), (*access.places, radix.source))


_LAST = "q = p; while (q + 1 < n && keys[q + 1] == key) ++q; { const T v = value_of(q); @step }"
# The values are processed in order, with the loads of eight under way together.
_EACH = """
  for (q = p; q + 8 <= n && keys[q + 7] == key; q += 8) {
    T batch[8];
#pragma unroll
    for (int u = 0; u < 8; ++u) batch[u] = value_of(q + u);
#pragma unroll
    for (int u = 0; u < 8; ++u) { const T v = batch[u]; @step }
  }
  for (; q < n && keys[q] == key; ++q) { const T v = value_of(q); @step }
"""


def _fold(
    launch: Launch, access: IndexedAccess, value: Value, sorted_: list[int], along: list[int], radix: Radix,
    apart: int, step: str, begin: str, end: str, last: bool,
) -> Pass:  # fmt: skip
    kind = launch.outputs[0].dtype
    inner = Walked(_of(access.shape, along), [_of(s, along) for s in (access.target, value.strides)])
    outer = Walked(_of(access.shape, sorted_), [_of(value.strides, sorted_)])
    flat = _flat_walk(access)
    addresses, scalars = _value_parameters(launch, value, kind)
    declared = [
        f"{c_name(kind)}* out",
        *addresses,
        f"const {radix.kind}* keys",
        "const u32* places",
        *scalars,
    ]
    declared += [inner.parameter("e"), outer.parameter("m"), "i64 n", "i64 width", "i64 apart"]
    declared += [flat.parameter("f")] if flat else []
    loop = (_LAST if last else _EACH).replace("@step", step)
    text = f"""{file("accumulate.cuh")}
extern "C" __global__ void __launch_bounds__(256) run({", ".join(declared)}) {{
  typedef {c_name(kind)} T;
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n * width) return;
  {inner.locate("i % width", "e")}
  const auto value_of = [&](i64 q) -> T {{
    {outer.locate("places[q]", "m")}
    return {_value_text(value, kind, "(i64)m[0] + e[1]")};
  }};
  const i64 p = i / width;
  const auto key = keys[p];
  if (p && keys[p - 1] == key) return;
  i64 at = (i64)key * apart;
  {_unravel_text(flat)}
  at += e[0];
  T acc = out[at];
  {begin}
  i64 q;
  {loop}
  const i64 count = q - p;
  {end}
  out[at] = acc;
}}
"""
    tail = [inner.value, outer.value, i64(radix.count), i64(inner.count), i64(apart)]
    tail += [flat.value] if flat else []
    program = KernelProgram(text, blocks(radix.count * inner.count), 256, tuple(tail))
    source = ((value.at, 0),) if value.at is not None else ()
    return Pass(program, ((0, 0), *source, radix.keys, radix.values), scalars=bool(scalars))


# -- the writing operators ---------------------------------------------------------------------------------------

_STEPS = {
    "sum": "acc = joined_sum(acc, v);", "add": "acc = joined_sum(acc, v);", "mean": "acc = joined_sum(acc, v);",
    "prod": "acc = joined_product(acc, v);", "multiply": "acc = joined_product(acc, v);",
    "amax": "acc = joined_greater(acc, v);", "amin": "acc = joined_lesser(acc, v);",
}  # fmt: skip
_IDENTITIES = {
    "sum": "zero_of<T>()", "add": "zero_of<T>()", "mean": "zero_of<T>()", "prod": "to<T>(1)", "multiply": "to<T>(1)",
    "amax": "least<T>()", "amin": "greatest<T>()",
}  # fmt: skip


def _build_reduction(
    launch: Launch, device: CudaDevice, access: IndexedAccess, value: Value, how: str, include_self: bool
) -> KernelPlan:
    begin = "" if include_self else f"acc = {_IDENTITIES[how]};"
    end = f"acc = divided(acc, count + {int(include_self)});" if how == "mean" else ""
    return _one_by_one(launch, device, access, value, _STEPS[how], begin, end)


def index_put(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the kernel of index_put. Params: dims, accumulate, deterministic."""
    dims, accumulate, fixed = launch.params
    out = launch.outputs[0]
    indices = [m for m in launch.inputs[2:] if isinstance(m, Meta)]
    values = launch.inputs[1]
    from_tensor = isinstance(values, Meta)
    access = _by_tensors(out, indices, dims, 3 if from_tensor else 2)
    value = Value(2, values.strides) if isinstance(values, Meta) else Value(None, (0,) * len(access.shape))
    if accumulate:
        return _one_by_one(launch, device, access, value, _STEPS["sum"])
    return _assign(launch, device, access, value, fixed and from_tensor)


def index_add(launch: Launch, device: CudaDevice) -> KernelPlan:
    access, value = _from_slices(launch)
    step = f"acc = joined_sum(acc, scaled_value(v, to<T>(s0), {_is_one(launch)}));"
    return _one_by_one(launch, device, access, value, step)


def _is_one(launch: Launch) -> str:
    return "s0.re == 1 && s0.im == 0" if launch.outputs[0].dtype.is_complex else "s0 == 1"


def index_copy(launch: Launch, device: CudaDevice) -> KernelPlan:
    access, value = _from_slices(launch)
    return _assign(launch, device, access, value, launch.params[1])


def index_reduce(launch: Launch, device: CudaDevice) -> KernelPlan:
    _, how, include_self = launch.params
    return _build_reduction(launch, device, *_from_slices(launch), how, include_self)


def _from_slices(launch: Launch) -> tuple[IndexedAccess, Value]:
    """Return access and value of a write of slices. Operands: out, x, index, source; params: dim, ..."""
    dim = launch.params[0]
    index, source = launch.inputs[1], launch.inputs[2]
    assert isinstance(index, Meta) and isinstance(source, Meta)
    access = _along(launch.outputs[0], index, dim, wraps=False)
    strides = source.strides if source.ndim == len(access.shape) else (0,) * len(access.shape)
    return access, Value(3, strides)


def index_fill(launch: Launch, device: CudaDevice) -> KernelPlan:
    index, filled = launch.inputs[1], launch.inputs[2]
    assert isinstance(index, Meta)
    access = _along(launch.outputs[0], index, launch.params[0], wraps=True)
    at = 3 if isinstance(filled, Meta) else None
    return _assign(launch, device, access, Value(at, (0,) * len(access.shape)), fixed=False)


def scatter(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the kernel of scatter. Params: dim, operation ("" assigns), include_self, deterministic."""
    dim, how, include_self, fixed = launch.params
    index, source = launch.inputs[1], launch.inputs[2]
    assert isinstance(index, Meta)
    access = _by_element(launch.outputs[0], index, dim)
    if isinstance(source, Meta):
        value = Value(3, vector_like(source).strides)
    else:
        value = Value(None, (0,) * len(access.shape))
    if not how:
        return _assign(launch, device, access, value, fixed and isinstance(source, Meta))
    kind = launch.outputs[0].dtype
    if how in ("sum", "add") and include_self and _adds_atomically(kind, fixed) and prod(access.shape):
        out, x = launch.outputs[0], launch.inputs[0]
        assert isinstance(x, Meta)
        copy = copying(out, x, 0, 1, unless_same=True)
        return KernelPlan((copy, _write(launch, device, access, value, "atomic_sum(out + at, v);")))
    return _build_reduction(launch, device, access, value, how, include_self)


def _adds_atomically(kind: dtype, fixed: bool) -> bool:
    """Return True if the result of atomic additions does not depend on their order."""
    if kind.category == INTEGRAL:
        return kind.itemsize >= 4
    return not fixed and kind.name in ("float32", "float64")


def put(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the kernel of put. Params: accumulate, deterministic."""
    accumulate, fixed = launch.params
    out, index, source = launch.outputs[0], launch.inputs[1], launch.inputs[2]
    assert isinstance(index, Meta) and isinstance(source, Meta)
    index, source = _one_shape(index, source)
    access = _over_all(out, index)
    value = Value(3, source.strides)
    if accumulate:
        return _one_by_one(launch, device, access, value, _STEPS["sum"])
    return _assign(launch, device, access, value, fixed)


def _one_shape(a: Meta, b: Meta) -> tuple[Meta, Meta]:
    """Return two layouts with equally many elements as layouts of one shape. Raises NotSupportedError if that needs a
    copy.
    """
    if a.shape == b.shape:
        return a, b
    strides = view_strides(b.shape, b.strides, a.shape)
    if strides is not None:
        return a, b.with_(shape=a.shape, strides=strides)
    strides = view_strides(a.shape, a.strides, b.shape)
    if strides is None:
        raise NotSupportedError(
            "put_() on a GPU of a source and an index of different shapes, neither contiguous"
        )
    return a.with_(shape=b.shape, strides=strides), b
