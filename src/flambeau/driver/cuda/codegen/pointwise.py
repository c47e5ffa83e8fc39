"""The pointwise template: any number of inputs, any strides, 16-byte accesses where memory allows.

There are three classes of layout. Flat: every operand is dense in the same order or a single element; each thread moves
several vectors of 16 bytes if the kernel finds the addresses aligned. Strided: merged dimensions, ordered by the
output's memory, with 32-bit indices if they suffice. Transposed (`transpose`): one input is contiguous along another
dimension than the output and goes through tiles in shared memory. Shapes and strides are parameters, so a kernel is
compiled once for its dtypes, class and number of dimensions.

# Note [Flat kernels of new shapes]
If all operands are contiguous and of one shape, only the number of elements and the grid depend on the shape.
`_flat_kernel` builds the source from dtypes and params and caches it, so a call with a new shape neither writes nor
hashes source text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from string import ascii_lowercase
from typing import Any

from flambeau.core.device import CPU
from flambeau.core.dtype import dtype
from flambeau.core.layout import Dims, merge_dims
from flambeau.core.meta import Meta
from flambeau.core.tracing.symbols import pack
from flambeau.driver.cuda.codegen import transpose
from flambeau.driver.cuda.codegen.element_loops import THREADS, flat_loop, index_in_vectors
from flambeau.driver.cuda.codegen.kernel_layout import is_wide, pack_walk
from flambeau.driver.cuda.device.program import (
    Arguments,
    KernelProgram,
    c_name,
    constant_type,
    header_text,
    name_of,
    packed_constant,
    wire_type,
)
from flambeau.driver.protocol import Expression, Kernel, Launch, Steps

_NAMES = ascii_lowercase.replace("i", "")  # i is the element's index
_VECTOR = 16  # bytes
_LIGHT = 4  # operations per element up to which a thread computes several vectors


def program(launch: Launch, form: Expression) -> KernelProgram:
    (out,) = launch.outputs
    tensors = [x for x in launch.inputs if isinstance(x, Meta)]
    if out.plain and out.shape and not form.indexed and _have_layout(out, tensors):
        return _flat_of_one_layout(launch, form)
    dims = merge_dims(out.shape, [out.strides, *[x.strides for x in tensors]], ordered=not form.indexed)
    constants = form.constants(launch)
    tail = [packed_constant(value) for value in constants]
    light = is_light(launch)
    function = header_text(form.header) + form.functions + element_function(launch, form, constants)
    flat = len(dims) <= 1 and all(s in (0, 1) for _, steps in dims for s in steps) and _dense(dims)
    if flat:
        singles = [not dims or dims[0][1][1 + i] == 0 for i in range(len(tensors))]
        vector = vector_length(launch)
        unroll = 4 if light else 1
        text = function + _flat(launch, form, constants, singles, vector, unroll)
        return _build_program(
            launch, text, out.numel, THREADS * vector * unroll, [*tail, pack("<q", out.numel)]
        )
    turned = transpose.find_transpose(dims) if len(tensors) == 1 and not form.indexed else None
    if turned is not None:
        arguments, values = _arguments(launch, constants)
        at = launch.inputs.index(tensors[0])
        text, grid, more = transpose.kernel(turned, tensors[0], arguments, values, at)
        return KernelProgram(function + text, (grid, 1, 1), THREADS, (*tail, *more), name=name_of(launch))
    wide = is_wide(dims)
    unroll = 4 if light else 1
    text = function + _build_strided(launch, form, constants, len(dims), wide, unroll)
    return _build_program(
        launch,
        text,
        out.numel,
        THREADS * unroll,
        [*tail, pack_walk(dims, wide), pack("<q", out.numel)],
    )


def is_light(launch: Launch) -> bool:
    """Return True if an element takes so few operations that a thread should load several vectors before it
    computes.
    """
    return launch.kernel.flops(launch) <= _LIGHT * launch.outputs[0].numel


def vector_length(launch: Launch) -> int:
    """Return how many elements of the widest operand one memory access moves."""
    return max(1, _VECTOR // max(meta.itemsize for meta in launch.operands))


def _have_layout(out: Meta, tensors: Sequence[Meta]) -> bool:
    return all(x.plain and x.shape == out.shape for x in tensors)


def _flat_of_one_layout(launch: Launch, form: Expression) -> KernelProgram:
    """Return the kernel of operands that share one dense layout. See Note [Flat kernels of new shapes]."""
    out = launch.outputs[0]
    kinds = tuple([(x.dtype, True) if isinstance(x, Meta) else (x, False) for x in launch.inputs])
    constants = form.constants(launch)
    text, name, per_block = _flat_kernel(launch.kernel, form, out.dtype, kinds, launch.params, len(constants))
    tail = [*[packed_constant(value) for value in constants], pack("<q", out.numel)]
    return KernelProgram(text, (-(-out.numel // per_block), 1, 1), THREADS, tuple(tail), name=name)


@lru_cache(maxsize=1024)
def _flat_kernel(
    kernel: Kernel,
    form: Expression,
    stored: dtype,
    kinds: tuple[tuple[dtype | type[object], bool], ...],
    params: tuple[Any, ...],
    constants: int,
) -> tuple[str, str, int]:
    """Return the source, the name and the number of elements per block of a flat kernel."""
    inputs = tuple(
        [
            Meta.contiguous_of((1,), kind, CPU) if tensor and isinstance(kind, dtype) else kind
            for kind, tensor in kinds
        ]
    )
    launch = Launch(kernel, (Meta.contiguous_of((1,), stored, CPU),), inputs, params)
    numbers = form.constants(launch)
    vector, unroll = vector_length(launch), 4 if is_light(launch) else 1
    singles = [False for _, tensor in kinds if tensor]
    text = header_text(form.header) + form.functions + element_function(launch, form, numbers)
    text += _flat(launch, form, numbers, singles, vector, unroll)
    return text, name_of(launch), THREADS * vector * unroll


def _build_program(launch: Launch, text: str, count: int, per_block: int, tail: list[bytes]) -> KernelProgram:
    return KernelProgram(text, (-(-count // per_block), 1, 1), THREADS, tuple(tail), name=name_of(launch))


def _dense(dims: Dims) -> bool:
    return not dims or dims[0][1][0] == 1


# -- the function of one element ----------------------------------------------------------------------------


def element_function(launch: Launch, form: Expression, constants: Sequence[float]) -> str:
    """Return the C++ function `compute(i, x0, x1, ..., k0, ...)`: input steps, the expression, then output steps.

    If the text is `drawn`, its first parameter is the random word in place of the index.
    """
    inputs, output = form.kinds(launch)
    declared = ["u32 w" if form.drawn else "i64 i"]
    lines = []
    for at, (x, steps) in enumerate(zip(launch.inputs, inputs, strict=True)):
        declared.append(f"{kind_of(x)} x{at}")
        lines.append(f"auto {_NAMES[at]} = {_through(steps, f'x{at}')};")
    if launch.inputs:
        lines.append("typedef decltype(a) T;")
    declared += [f"{constant_type(k)} k{n}" for n, k in enumerate(constants)]
    text = form.text if isinstance(form.text, str) else form.text(launch)
    stored = launch.outputs[0].dtype
    return (
        f"typedef {c_name(stored)} Out;\n"
        f"__device__ __forceinline__ Out compute({', '.join(declared)}) {{\n"
        + "".join(f"  {line}\n" for line in lines)
        + f"  return {_through((*output, stored), text)};\n}}\n"
    )


def kind_of(x: Meta | dtype | type[object]) -> str:
    return c_name(x.dtype) if isinstance(x, Meta) else wire_type(x)


def _through(steps: Steps, text: str) -> str:
    for step in steps:
        text = f"to<{c_name(step)}>({text})"
    return text


# -- kernels ----------------------------------------------------------------------------------------------


def _arguments(launch: Launch, constants: Sequence[float]) -> tuple[Arguments, list[str]]:
    """Return the common parameters, and C++ for the arguments of `compute` at the index `{at}`."""
    arguments = Arguments()
    arguments.add("Out*", "out")
    values: list[str] = []
    for at, x in enumerate(launch.inputs):
        if isinstance(x, Meta):
            arguments.add(f"const {c_name(x.dtype)}*", f"p{at}")
    for at, x in enumerate(launch.inputs):
        if not isinstance(x, Meta):
            arguments.add(wire_type(x), f"s{at}")
        values.append(f"v{at}" if isinstance(x, Meta) else f"s{at}")
    for n, k in enumerate(constants):
        arguments.add(constant_type(k), f"k{n}")
        values.append(f"k{n}")
    return arguments, values


def _flat(
    launch: Launch,
    form: Expression,
    constants: Sequence[float],
    singles: list[bool],
    vector: int,
    unroll: int,
) -> str:
    arguments, values = _arguments(launch, constants)
    arguments.add("i64", "n")
    tensors = [(kind_of(x), at) for at, x in enumerate(launch.inputs) if isinstance(x, Meta)]
    dense = [x for x, single in zip(tensors, singles, strict=True) if not single]
    places = {at for _, at in dense}
    of_vectors, of_element = [
        "".join([f", {element.format(at) if at in places else value}" for at, value in enumerate(values)])
        for element in ("w{}[u][j]", "p{}[i]")
    ]
    compute = (
        f"r[j] = compute({index_in_vectors(vector)}{of_vectors});",
        f"out[i] = compute(i{of_element});",
    )
    single = [x for x in tensors if x not in dense]
    return flat_loop(arguments.declared, [("Out", "out", "r")], dense, single, vector, unroll, compute)


def _build_strided(
    launch: Launch,
    form: Expression,
    constants: Sequence[float],
    ndim: int,
    wide: bool,
    unroll: int,
) -> str:
    arguments, values = _arguments(launch, constants)
    tensors = [at for at, x in enumerate(launch.inputs) if isinstance(x, Meta)]
    walk, index = ("WideWalk", "i64") if wide else ("Walk", "u32")
    arguments.add(f"{walk}<{ndim}, {1 + len(tensors)}>", "walk")
    arguments.add("i64", "n")
    place = {at: k for k, at in enumerate(tensors, 1)}
    loads = "".join(f"        v{at}[u] = p{at}[o[{place[at]}]];\n" for at in tensors)
    arrays = "".join(f"  {kind_of(launch.inputs[at])} v{at}[{unroll}];\n" for at in tensors)
    taken = [f"v{at}[u]" if at in place else values[at] for at in range(len(launch.inputs))]
    taken += values[len(launch.inputs) :]
    return f"""
extern "C" __global__ void __launch_bounds__({THREADS}) run({", ".join(arguments.declared)}) {{
  const i64 start = blockIdx.x * (i64){THREADS * unroll} + threadIdx.x;
  {index} to_[{unroll}];
{arrays}#pragma unroll
  for (int u = 0; u < {unroll}; ++u) {{
    const i64 i = start + u * {THREADS};
    if (i < n) {{
      {index} o[{1 + len(tensors)}];
      walk.locate(({index})i, o);
      to_[u] = o[0];
{loads}    }}
  }}
#pragma unroll
  for (int u = 0; u < {unroll}; ++u) {{
    const i64 i = start + u * {THREADS};
    if (i < n) out[to_[u]] = compute(i{"".join(", " + v for v in taken)});
  }}
}}
"""
