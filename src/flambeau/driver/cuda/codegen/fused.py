"""Fused pointwise operators of one shape: one kernel reads each input once and keeps intermediate results in registers.

Each operator is a function `compute` in its own namespace, as in a separate kernel, and rounds its result to its dtype.
NVRTC contracts no operations, so the results are bitwise equal to those of separate kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from flambeau.core.meta import Meta
from flambeau.core.tracing.symbols import pack
from flambeau.driver.api import Expression, Fused, FusedStep, Launch
from flambeau.driver.cuda.codegen.kernel_layout import is_wide, merge_dims, pack_walk
from flambeau.driver.cuda.codegen.pointwise import element_function, kind_of
from flambeau.driver.cuda.device.program import (
    Arguments,
    KernelProgram,
    constant_type,
    header_text,
    packed_constant,
    wire_type,
)

_THREADS = 256
_VECTOR = 16  # bytes
_LIGHT = 4  # operations per element, up to which a thread takes several vectors at once


def program(launch: Launch, form: Fused) -> KernelProgram:
    """Return the kernel of a fused launch. Sizes and strides are parameters."""
    tensors = [x for x in launch.inputs if isinstance(x, Meta)]
    out = launch.outputs[0]
    dims = merge_dims(out.shape, [meta.strides for meta in (*launch.outputs, *tensors)])
    constants = [_expression(step).constants(step.launch) for step in form.steps]
    tail = [packed_constant(value) for numbers in constants for value in numbers]
    element = _element(launch, form, constants)
    unroll = _unroll(launch)
    strides = [dims[0][1][k] if dims else 0 for k in range(len(launch.operands))]
    outputs = len(launch.outputs)
    if len(dims) <= 1 and all(s in (0, 1) for s in strides) and (not dims or all(strides[:outputs])):
        vector = max(1, _VECTOR // max(meta.itemsize for meta in launch.operands))
        text = _flat(launch, constants, [s == 0 for s in strides[outputs:]], vector, unroll)
        per_block = _THREADS * vector * unroll
    else:
        wide = is_wide(dims)
        text = _any_strides(launch, constants, len(dims), wide, unroll)
        per_block = _THREADS * unroll
        tail.append(pack_walk(dims, wide))
    tail.append(pack("<q", out.numel))
    return KernelProgram(element + text, (-(-out.numel // per_block), 1, 1), _THREADS, tuple(tail))


def _expression(step: FusedStep) -> Expression:
    form = step.launch.kernel.cuda
    assert isinstance(form, Expression)
    return form


def _unroll(launch: Launch) -> int:
    """Return how many vectors a thread loads before it computes: as many as hide latency and fit in registers."""
    operands = len(launch.operands)
    if operands <= 3 and launch.kernel.flops(launch) <= _LIGHT * launch.outputs[0].numel:
        return 4
    return 2 if operands <= 4 else 1


# -- the function of one element ----------------------------------------------------------------------------


def _element(launch: Launch, form: Fused, constants: Sequence[Sequence[float]]) -> str:
    """Return the C++ function `compute_all(i, x0, x1, ..., k0_0, ..., r0, ...)`, which sets r0, r1, ..."""
    headers = dict.fromkeys([header_text(_expression(step).header) for step in form.steps])
    each, lines = "", ""
    for number, (step, numbers) in enumerate(zip(form.steps, constants, strict=True)):
        expression, alone = _expression(step), step.launch.with_(capability=launch.capability)
        function = expression.functions + element_function(alone, expression, numbers)
        each += f"namespace n{number} {{  // {alone.kernel.name}\n{function}}}\n"
        taken = [f"x{k}" if k >= 0 else f"t{-1 - k}" for k in step.sources]
        taken += [f"k{number}_{k}" for k in range(len(numbers))]
        lines += f"  const n{number}::Out t{number} = n{number}::compute({', '.join(['i', *taken])});\n"
    lines += "".join([f"  r{k} = t{step};\n" for k, step in enumerate(form.stored)])
    declared = ["i64 i", *[f"{kind_of(x)} x{at}" for at, x in enumerate(launch.inputs)]]
    declared += [f"{kind} {name}" for kind, name in _constants(constants)]
    declared += [f"n{step}::Out& r{k}" for k, step in enumerate(form.stored)]
    types = "".join([f"typedef n{step}::Out Out{k};\n" for k, step in enumerate(form.stored)])
    return (
        "".join(headers) + each + types
        + f"__device__ __forceinline__ void compute_all({', '.join(declared)}) {{\n{lines}}}\n"
    )  # fmt: skip


def _constants(constants: Sequence[Sequence[float]]) -> list[tuple[str, str]]:
    """Return the C++ type and the name of each constant of all steps."""
    return [
        (constant_type(value), f"k{step}_{k}")
        for step, numbers in enumerate(constants)
        for k, value in enumerate(numbers)
    ]


# -- kernels ----------------------------------------------------------------------------------------------


def _arguments(launch: Launch, constants: Sequence[Sequence[float]]) -> Arguments:
    arguments = Arguments()
    for k in range(len(launch.outputs)):
        arguments.add(f"Out{k}*", f"out{k}")
    for at, x in enumerate(launch.inputs):
        if isinstance(x, Meta):
            arguments.add(f"const {kind_of(x)}*", f"p{at}")
    for at, x in enumerate(launch.inputs):
        if not isinstance(x, Meta):
            arguments.add(wire_type(x), f"s{at}")
    for kind, name in _constants(constants):
        arguments.add(kind, name)
    return arguments


def _compute(
    launch: Launch, constants: Sequence[Sequence[float]], index: str, at: dict[int, str], out: str
) -> str:
    """Return the C++ call of `compute_all`.

    Args:
        launch: The fused launch.
        constants: The constants of each step.
        index: The index of the element.
        at: The element of each input that is a tensor.
        out: The element of output `{k}`.
    """
    values = [at.get(k, f"s{k}") for k in range(len(launch.inputs))]
    values += [name for _, name in _constants(constants)]
    values += [out.format(k=k) for k in range(len(launch.outputs))]
    return f"compute_all({', '.join([index, *values])})"


def _flat(
    launch: Launch, constants: Sequence[Sequence[float]], singles: Sequence[bool], vector: int, unroll: int
) -> str:
    """Return the kernel of operands that are dense in one order, or single elements."""
    arguments = _arguments(launch, constants)
    arguments.add("i64", "n")
    tensors = [(at, kind_of(x)) for at, x in enumerate(launch.inputs) if isinstance(x, Meta)]
    dense = [x for x, single in zip(tensors, singles, strict=True) if not single]
    single = [x for x, single in zip(tensors, singles, strict=True) if single]
    outputs = range(len(launch.outputs))
    once = "".join([f"  const {kind} v{at} = p{at}[0];\n" for at, kind in single])
    of_once = {at: f"v{at}" for at, _ in single}
    aligned = " | ".join(
        [f"misaligned<Out{k}, {vector}>(out{k})" for k in outputs]
        + [f"misaligned<{kind}, {vector}>(p{at})" for at, kind in dense]
    )
    arrays = "".join([f"    Vector<{kind}, {vector}> w{at}[{unroll}];\n" for at, kind in dense])
    loads = "".join(
        [f"      w{at}[u] = vectors<{vector}>(p{at})[first + u * {_THREADS}];\n" for at, _ in dense]
    )
    results = "".join([f"      Vector<Out{k}, {vector}> y{k};\n" for k in outputs])
    stores = "".join([f"      vectors<{vector}>(out{k})[first + u * {_THREADS}] = y{k};\n" for k in outputs])
    of_vectors = of_once | {at: f"w{at}[u][j]" for at, _ in dense}
    of_elements = of_once | {at: f"p{at}[i]" for at, _ in dense}
    at_vector = f"(first + u * {_THREADS}) * {vector} + j"
    return f"""
extern "C" __global__ void __launch_bounds__({_THREADS}) run({", ".join(arguments.declared)}) {{
  const i64 tile = {_THREADS * vector * unroll};
  const i64 start = blockIdx.x * tile;
{once}  if (start + tile <= n && !({aligned})) {{
    const i64 first = start / {vector} + threadIdx.x;
{arrays}#pragma unroll
    for (int u = 0; u < {unroll}; ++u) {{
{loads}    }}
#pragma unroll
    for (int u = 0; u < {unroll}; ++u) {{
{results}#pragma unroll
      for (int j = 0; j < {vector}; ++j)
        {_compute(launch, constants, at_vector, of_vectors, "y{k}[j]")};
{stores}    }}
  }} else {{
    const i64 end = start + tile < n ? start + tile : n;
#pragma unroll 1
    for (i64 i = start + threadIdx.x; i < end; i += {_THREADS})
      {_compute(launch, constants, "i", of_elements, "out{k}[i]")};
  }}
}}
"""


def _any_strides(
    launch: Launch, constants: Sequence[Sequence[float]], ndim: int, wide: bool, unroll: int
) -> str:
    """Return the kernel of operands with any strides, which follows the memory of the first output."""
    arguments = _arguments(launch, constants)
    tensors = [(at, kind_of(x)) for at, x in enumerate(launch.inputs) if isinstance(x, Meta)]
    outputs = len(launch.outputs)
    count = outputs + len(tensors)
    walk, index = ("WideWalk", "i64") if wide else ("Walk", "u32")
    arguments.add(f"{walk}<{ndim}, {count}>", "walk")
    arguments.add("i64", "n")
    arrays = "".join([f"  {kind} v{at}[{unroll}];\n" for at, kind in tensors])
    loads = "".join([f"      v{at}[u] = p{at}[o[u][{outputs + k}]];\n" for k, (at, _) in enumerate(tensors)])
    of_loaded = {at: f"v{at}[u]" for at, _ in tensors}
    return f"""
extern "C" __global__ void __launch_bounds__({_THREADS}) run({", ".join(arguments.declared)}) {{
  const i64 start = blockIdx.x * (i64){_THREADS * unroll} + threadIdx.x;
  {index} o[{unroll}][{count}];
{arrays}#pragma unroll
  for (int u = 0; u < {unroll}; ++u) {{
    const i64 i = start + u * {_THREADS};
    if (i < n) {{
      walk.locate(({index})i, o[u]);
{loads}    }}
  }}
#pragma unroll
  for (int u = 0; u < {unroll}; ++u) {{
    const i64 i = start + u * {_THREADS};
    if (i < n) {_compute(launch, constants, "i", of_loaded, "out{k}[o[u][{k}]]")};
  }}
}}
"""
