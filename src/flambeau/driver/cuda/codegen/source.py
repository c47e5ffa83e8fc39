"""`Source` forms: a kernel in full, with the names of its types and constants before it."""

from __future__ import annotations

from flambeau.core.dtype import dtype
from flambeau.core.meta import Meta
from flambeau.driver.cuda.device.program import KernelProgram, c_name, header_text, packed_constant
from flambeau.driver.protocol import Launch, Source


def program(launch: Launch, form: Source) -> KernelProgram:
    names = [f"typedef {c_name(meta.dtype)} O{i};" for i, meta in enumerate(launch.outputs)]
    names += [
        f"typedef {c_name(x.dtype if isinstance(x, Meta) else x)} I{i};"
        for i, x in enumerate(launch.inputs)
        if isinstance(x, Meta | dtype)
    ]
    text = "\n".join([header_text(form.header), *names, form.text(launch)])
    tail = tuple([packed_constant(value) for value in form.constants(launch)])
    return KernelProgram(text, (form.grid(launch), 1, 1), form.block, tail)
