"""Several pointwise kernels over the same inputs as one kernel, which reads each input element once."""

from __future__ import annotations

from flambeau.core.meta import Meta
from flambeau.core.tracing.symbols import pack
from flambeau.driver.cuda.codegen.element_loops import THREADS, strided_loop
from flambeau.driver.cuda.codegen.kernel_layout import is_wide, pack_walk, walk_dims
from flambeau.driver.cuda.codegen.pointwise import element_function, kind_of
from flambeau.driver.cuda.device.program import KernelProgram, header_text, wire_type
from flambeau.driver.protocol import Expressions, Launch

_UNROLL = 2


def program(launch: Launch, form: Expressions) -> KernelProgram:
    outs, tensors = launch.outputs, [x for x in launch.inputs if isinstance(x, Meta)]
    strides = [*[out.strides for out in outs], *[x.strides for x in tensors]]
    dims = walk_dims(outs[0].shape, strides)
    wide = is_wide(dims)
    per_block = THREADS * _UNROLL
    text = _functions(launch, form) + _kernel(launch, len(dims), wide)
    grid = -(-outs[0].numel // per_block)
    return KernelProgram(text, (grid, 1, 1), THREADS, (pack_walk(dims, wide), pack("<q", outs[0].numel)))


def _functions(launch: Launch, form: Expressions) -> str:
    """Return the C++ functions `r0::compute`, `r1::compute`, ..., which compute one element of each output."""
    shared = dict.fromkeys([header_text(one.header) + one.functions for one in form.each])
    each = [
        f"namespace r{k} {{\n{element_function(launch.with_(outputs=(out,)), one, ())}}}\n"
        for k, (out, one) in enumerate(zip(launch.outputs, form.each, strict=True))
    ]
    return "".join([*shared, *each])


def _kernel(launch: Launch, ndim: int, wide: bool) -> str:
    tensors = [(kind_of(x), at) for at, x in enumerate(launch.inputs) if isinstance(x, Meta)]
    outputs = range(len(launch.outputs))
    walk, index = ("WideWalk", "i64") if wide else ("Walk", "u32")
    declared = [
        *[f"r{k}::Out* out{k}" for k in outputs],
        *[f"const {kind}* p{at}" for kind, at in tensors],
        *[f"{wire_type(x)} s{at}" for at, x in enumerate(launch.inputs) if not isinstance(x, Meta)],
        f"{walk}<{ndim}, {len(outputs) + len(tensors)}> walk",
        "i64 n",
    ]
    values = ", ".join(
        [f"v{at}[u]" if isinstance(x, Meta) else f"s{at}" for at, x in enumerate(launch.inputs)]
    )
    stores = "".join([f"      out{k}[o[u][{k}]] = r{k}::compute(i, {values});\n" for k in outputs])
    return strided_loop(declared, len(outputs), tensors, index, _UNROLL, f"{{\n{stores}    }}")
