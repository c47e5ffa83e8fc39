"""`Lists` forms: one launch over all tensors of several lists.

The tensors' addresses are one parameter, a table. A second table holds the tensors' sizes and first blocks. Each block
finds its tensor by bisection and processes its part, by 16-byte accesses where memory allows. Tables are padded to one
of a few lengths, so few kernels are compiled for any number of tensors.
"""

from __future__ import annotations

from itertools import accumulate

from flambeau.core.errors import NotSupportedError
from flambeau.core.layout import dense_strides
from flambeau.core.meta import Meta, alike
from flambeau.core.tracing.symbols import pack
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass, WorkspaceLayout, copying
from flambeau.driver.cuda.device.program import C_NAMES, KernelProgram, c_name
from flambeau.driver.protocol import Launch, Lists

_THREADS = 256
_VECTOR = 16  # bytes
_UNROLL = 2
# tensors per list for which kernels are compiled: at most 32,764 bytes of parameters
LENGTHS = (4, 16, 64, 256)


def program(launch: Launch, form: Lists) -> KernelProgram | KernelPlan:
    """Return the kernel, with copies of the flag and of operands laid out differently from the tensor's first one."""
    count = form.count(launch)
    length = next((n for n in LENGTHS if n >= count), None)
    if length is None:
        raise NotSupportedError(f"{launch.kernel.name}: at most {LENGTHS[-1]} tensors a list, got {count}")
    outputs, inputs = _lists(launch.outputs, count), _lists(launch.inputs, count)
    text = _KernelText(launch, form, outputs, inputs, length)
    numels = [m.numel for m in launch.outputs[:count]]
    blocks = [-(-n // text.chunk) for n in numels]
    starts = [0, *accumulate(blocks)]
    spare = [0] * (length - count)
    table = pack(f"<{length}q{length}I", *numels, *spare, *starts[:-1], *spare)
    tail = (table, pack("<q", count))
    slots = (len(outputs) + len(inputs)) * length + 2 * form.flag
    built = KernelProgram(text.source(), (max(starts[-1], 1), 1, 1), _THREADS, tail, slots=slots)
    plan = _around(built, launch, count, form.flag)
    return plan if len(plan.passes) > 1 or form.flag else built


def _around(built: KernelProgram, launch: Launch, count: int, flag: bool) -> KernelPlan:
    """Return the kernel between copies to and from the workspace, for operands that it cannot use in place."""
    metas, written = launch.operands, len(launch.outputs)
    work, places = WorkspaceLayout(), [(at, 0) for at in range(len(metas))]
    before, after = [], []
    for at, x in enumerate(metas):
        in_list = at - flag if at >= written else at
        taken = _dense_meta(metas[written + in_list % count])
        if (flag and at in (written - 1, len(metas) - 1)) or x.numel <= 1 or alike(x, taken):
            continue
        like = taken.with_(dtype=x.dtype)
        here, staged = places[at], work.take(like.nbytes)
        places[at] = staged
        if at < written:
            after.append(Pass(copying(x, like, 0, 0).program, (here, staged)))
        else:
            before.append(Pass(copying(like, x, 0, 0).program, (staged, here)))
    if flag:
        before.append(copying(metas[written - 1], metas[-1], written - 1, len(metas) - 1, unless_same=True))
    scalars = any(not isinstance(x, Meta) for x in launch.inputs)
    return KernelPlan((*before, Pass(built, tuple(places), scalars), *after), work.nbytes)


def _dense_meta(x: Meta) -> Meta:
    """Return the dense layout in which the kernel uses all operands of a tensor. The first operand determines it."""
    return x.with_(strides=dense_strides(x.shape, x.strides))


def _lists(operands: tuple[object, ...], count: int) -> list[list[Meta]]:
    """Return the metas of each list of operands, without a flag or scalars that fill no whole list."""
    metas = [x for x in operands if isinstance(x, Meta)]
    return [metas[k : k + count] for k in range(0, len(metas) - count + 1, count)]


class _KernelText:
    """The builder of the kernel's source."""

    def __init__(
        self, launch: Launch, form: Lists, outputs: list[list[Meta]], inputs: list[list[Meta]], length: int
    ) -> None:
        self.form, self.length = form, length
        self.statements, self.results = form.text(launch)
        self.kind = C_NAMES[form.kind(launch)]
        self.outputs = [c_name(metas[0].dtype) for metas in outputs]
        self.inputs = [c_name(metas[0].dtype) for metas in inputs]
        self.scalars = [f"s{k}" for k, x in enumerate(x for x in launch.inputs if not isinstance(x, Meta))]
        wide = [any(m.numel != 1 for m in metas) for metas in inputs]
        self.dense = [k for k, is_wide in enumerate(wide) if is_wide or not any(wide)]
        itemsize = max(metas[0].itemsize for metas in [*outputs, *inputs])
        self.vector = max(1, _VECTOR // itemsize)
        self.chunk = _THREADS * self.vector * _UNROLL

    def source(self) -> str:
        flag = "float* found, " if self.form.flag else ""
        declared = [f"{kind} a{k}" for k, kind in enumerate(self.inputs)]
        declared += [f"double {s}" for s in self.scalars] + [
            f"{kind}& r{k}" for k, kind in enumerate(self.outputs)
        ]
        steps = [f"const T x{k} = to<T>(a{k});" for k in range(len(self.inputs))]
        stores = [
            f"r{k} = to<{kind}>({result});"
            for k, (kind, result) in enumerate(zip(self.outputs, self.results, strict=False))
        ]
        if self.form.flag:
            stores.append(f"if ({self.results[-1]}) *found = 1;")
        slots = (len(self.outputs) + len(self.inputs)) * self.length + 2 * self.form.flag
        body = "\n  ".join([*steps, *self.statements.splitlines(), *stores])
        return f"""
typedef {self.kind} T;
struct Addresses {{ u64 at[{slots}]; }};
struct Tensors {{ i64 size[{self.length}]; u32 first[{self.length}]; }};
__device__ __forceinline__ void element({flag}{", ".join(declared)}) {{
  {body}
}}
{self._kernel()}"""

    def _kernel(self) -> str:
        vector, places = self.vector, len(self.outputs)
        parameters = ["const __grid_constant__ Addresses table", *[f"double {s}" for s in self.scalars]]
        parameters += ["const __grid_constant__ Tensors tensors", "i64 count"]
        extra = int(self.form.flag)
        pointers = [
            f"{kind}* y{k} = ({kind}*)table.at[{k} * count + m];" for k, kind in enumerate(self.outputs)
        ] + [
            f"const {kind}* p{k} = (const {kind}*)table.at[{places + k} * count + {extra} + m];"
            for k, kind in enumerate(self.inputs)
        ]
        if self.form.flag:
            pointers.append(f"float* found = (float*)table.at[{places} * count];")
        once = [f"const {kind} v{k} = p{k}[0];" for k, kind in enumerate(self.inputs) if k not in self.dense]
        aligned = [f"misaligned<{kind}, {vector}>(y{k})" for k, kind in enumerate(self.outputs)]
        aligned += [f"misaligned<{self.inputs[k]}, {vector}>(p{k})" for k in self.dense]
        loads = [f"Vector<{self.inputs[k]}, {vector}> w{k} = vectors<{vector}>(p{k})[i];" for k in self.dense]
        results = [f"Vector<{kind}, {vector}> z{k};" for k, kind in enumerate(self.outputs)]
        stores = [f"vectors<{vector}>(y{k})[i] = z{k};" for k in range(places)]
        return f"""
extern "C" __global__ void __launch_bounds__({_THREADS}) run({", ".join(parameters)}) {{
  i64 m = 0, after = count;
  while (after - m > 1) {{
    const i64 middle = (m + after) / 2;
    if (tensors.first[middle] <= blockIdx.x) m = middle; else after = middle;
  }}
  const i64 start = (i64)(blockIdx.x - tensors.first[m]) * {self.chunk};
  const i64 n = tensors.size[m], end = start + {self.chunk} < n ? start + {self.chunk} : n;
  {self._lines(pointers + once, 2)}
  if (end - start == {self.chunk} && !({" | ".join(aligned)})) {{
#pragma unroll
    for (int u = 0; u < {_UNROLL}; ++u) {{
      const i64 i = start / {vector} + u * {_THREADS} + threadIdx.x;
      {self._lines(loads + results, 6)}
#pragma unroll
      for (int j = 0; j < {vector}; ++j)
        {self._call("w{k}[j]", "z{k}[j]")}
      {self._lines(stores, 6)}
    }}
  }} else {{
    for (i64 i = start + threadIdx.x; i < end; i += {_THREADS})
      {self._call("p{k}[i]", "y{k}[i]")}
  }}
}}
"""

    def _call(self, taken: str, stored: str) -> str:
        """Return the C++ statement that computes one element of each output from one element of each input.

        `taken` and `stored` are the expressions of these elements, in which {k} is the number of the operand.
        """
        values = [taken.format(k=k) if k in self.dense else f"v{k}" for k in range(len(self.inputs))]
        values += [*self.scalars, *[stored.format(k=k) for k in range(len(self.outputs))]]
        return f"element({'found, ' if self.form.flag else ''}{', '.join(values)});"

    @staticmethod
    def _lines(lines: list[str], indent: int) -> str:
        return ("\n" + " " * indent).join(lines)
