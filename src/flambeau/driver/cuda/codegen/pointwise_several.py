"""Several pointwise kernels over the same inputs as one: each element of the inputs is read once."""

from __future__ import annotations

from flambeau.core.meta import Meta
from flambeau.core.tracing.symbols import pack
from flambeau.driver.api import Expressions, Launch
from flambeau.driver.cuda.codegen.kernel_layout import is_wide, merge_dims, pack_walk
from flambeau.driver.cuda.codegen.pointwise import element_function, kind_of
from flambeau.driver.cuda.device.program import KernelProgram, header_text, wire_type

_THREADS = 256
_UNROLL = 2


def program(launch: Launch, form: Expressions) -> KernelProgram:
    outs, tensors = launch.outputs, [x for x in launch.inputs if isinstance(x, Meta)]
    dims = merge_dims(
        outs[0].shape, [*[out.strides for out in outs], *[x.strides for x in tensors]], ordered=True
    )
    wide = is_wide(dims)
    per_block = _THREADS * _UNROLL
    text = _functions(launch, form) + _kernel(launch, len(dims), wide)
    grid = -(-outs[0].numel // per_block)
    return KernelProgram(text, (grid, 1, 1), _THREADS, (pack_walk(dims, wide), pack("<q", outs[0].numel)))


def _functions(launch: Launch, form: Expressions) -> str:
    """Return the C++ functions `r0::compute`, `r1::compute`, ..., which compute one element of each output."""
    shared = dict.fromkeys([header_text(one.header) + one.functions for one in form.each])
    each = [
        f"namespace r{k} {{\n{element_function(launch.with_(outputs=(out,)), one, ())}}}\n"
        for k, (out, one) in enumerate(zip(launch.outputs, form.each, strict=True))
    ]
    return "".join([*shared, *each])


def _kernel(launch: Launch, ndim: int, wide: bool) -> str:
    tensors = [at for at, x in enumerate(launch.inputs) if isinstance(x, Meta)]
    scalars = [at for at, x in enumerate(launch.inputs) if not isinstance(x, Meta)]
    outputs = range(len(launch.outputs))
    walk, index = ("WideWalk", "i64") if wide else ("Walk", "u32")
    count = len(outputs) + len(tensors)
    declared = [
        *[f"r{k}::Out* out{k}" for k in outputs],
        *[f"const {kind_of(launch.inputs[at])}* p{at}" for at in tensors],
        *[f"{wire_type(x)} s{at}" for at, x in enumerate(launch.inputs) if not isinstance(x, Meta)],
        f"{walk}<{ndim}, {count}> walk",
        "i64 n",
    ]
    taken = ", ".join([f"s{at}" if at in scalars else f"v{at}[u]" for at in range(len(launch.inputs))])
    arrays = "".join([f"  {kind_of(launch.inputs[at])} v{at}[{_UNROLL}];\n" for at in tensors])
    loads = "".join([f"      v{at}[u] = p{at}[o[u][{len(outputs) + k}]];\n" for k, at in enumerate(tensors)])
    stores = "".join([f"      out{k}[o[u][{k}]] = r{k}::compute(i, {taken});\n" for k in outputs])
    return f"""
extern "C" __global__ void __launch_bounds__({_THREADS}) run({", ".join(declared)}) {{
  const i64 start = blockIdx.x * (i64){_THREADS * _UNROLL} + threadIdx.x;
  {index} o[{_UNROLL}][{count}];
{arrays}#pragma unroll
  for (int u = 0; u < {_UNROLL}; ++u) {{
    const i64 i = start + u * {_THREADS};
    if (i < n) {{
      walk.locate(({index})i, o[u]);
{loads}    }}
  }}
#pragma unroll
  for (int u = 0; u < {_UNROLL}; ++u) {{
    const i64 i = start + u * {_THREADS};
    if (i < n) {{
{stores}    }}
  }}
}}
"""
