"""Fused kernels with a softmax: threads hold what it is computed of in registers, and compute elements of the result.

The rows are divided among threads as in the separate kernel (`softmax.py`), whose sums have the same order. So the
results are bitwise equal to those of separate kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from flambeau.core.layout import Dims
from flambeau.core.meta import Meta
from flambeau.driver.api import Expression, Fused, Launch, is_drawn, is_softmax
from flambeau.driver.cuda.codegen.elements import file, i64
from flambeau.driver.cuda.codegen.fused import (
    arguments_of,
    constants_of,
    find_needed,
    headers_of,
    step_function,
    steps_of,
    words_of,
)
from flambeau.driver.cuda.codegen.kernel_layout import is_wide, pack_walk, walk_dims
from flambeau.driver.cuda.codegen.pointwise import kind_of
from flambeau.driver.cuda.codegen.rows import computing
from flambeau.driver.cuda.device.program import KernelProgram, c_name, packed_constant
from flambeau.driver.cuda.nn import softmax


def program(launch: Launch, form: Fused) -> KernelProgram:
    """Return the kernel of a fused launch of one softmax and pointwise steps of its shape."""
    return _SoftmaxKernel(launch, form).program()


class _SoftmaxKernel:
    """The source of a kernel, written step by step.

    Attributes:
        steps: The steps, all of one shape.
        at: The number of the softmax among them.
        rows: How the separate kernel divides the rows among threads.
        around, along: The merged dims of the rows, and the row, with the strides of the operands.
        constants: The constants of each step.
    """

    def __init__(self, launch: Launch, form: Fused) -> None:
        self.launch, self.form = launch, form
        self.steps = steps_of(form)
        (self.at,) = [k for k, step in enumerate(self.steps) if is_softmax(step.launch)]
        self.rows = softmax.rows_of(self.steps[self.at].launch)
        shape, strides = launch.outputs[0].shape, [x.strides for x in launch.operands]
        self.around = walk_dims(shape[:-1], [s[:-1] for s in strides], ordered=False)
        self.along: Dims = [(shape[-1], tuple([s[-1] for s in strides]))]
        self.count, self.length = prod(shape[:-1]), shape[-1]
        self.constants = constants_of(self.steps)
        tensors = [k for k, x in enumerate(launch.inputs) if isinstance(x, Meta)]
        self.at_operand = {k: n for n, k in enumerate(tensors, len(launch.outputs))}

    def program(self) -> KernelProgram:
        launch, rows = self.launch, self.rows
        wide = is_wide(self.around, self.along)
        walk, index = ("WideWalk", "i64") if wide else ("Walk", "u32")
        arguments = arguments_of(launch, self.constants)
        for declared in ("Around around", "Along along", "i64 rows", "i64 n"):
            arguments.add(*declared.split())
        (held,) = self.steps[self.at].sources
        name = self.steps[self.at].launch.kernel.name
        text = f"""
{self._types()}typedef {index} Index;
constexpr int OPS = {len(launch.operands)}, G = {rows.threads}, K = {rows.vectors}, V = {rows.vector};
constexpr bool INNER = true;
typedef {walk}<{len(self.around)}, OPS> Around; typedef {walk}<1, OPS> Along;
{softmax.FUNCTIONS}
{file("rows.cuh")}
extern "C" __global__ void __launch_bounds__(THREADS) run({", ".join(arguments.declared)}) {{
  const Row row = my_row(around, rows, n);
  const i64 vectors = ((i64)blockIdx.x * ROWS + threadIdx.x / G) * (n / V);  // before the row
  C held[K][V];
#pragma unroll
  for (int k = 0; k < K; ++k) {{
    Index j, p[OPS];
    if (!reach(row, along, k, j, p)) continue;
{self._loads([held])}#pragma unroll
    for (int v = 0; v < V; ++v) {{
      const i64 i = vectors * V + j + v;
      {self._compute([held])} held[k][v] = number({self._value(held)});
    }}
  }}
{softmax.statements(name)}
#pragma unroll
  for (int k = 0; k < K; ++k) {{
    Index j, p[OPS];
    if (!reach(row, along, k, j, p)) break;
{self._stores()}  }}
}}
"""
        together = max(1, 128 // rows.threads)
        grid = (-(-self.count // together), 1, 1)
        tail = [packed_constant(value) for numbers in self.constants for value in numbers]
        tail += [pack_walk(self.around, wide), pack_walk(self.along, wide), i64(self.count), i64(self.length)]
        return KernelProgram(text, grid, together * rows.threads, tuple(tail))

    def _types(self) -> str:
        """Return the types of the softmax and of the operands, and the namespaces of the steps."""
        alone = self.steps[self.at].launch
        (x,), kind = alone.inputs, alone.params[1]
        assert isinstance(x, Meta)
        out = c_name(alone.outputs[0].dtype)
        text = f"typedef {c_name(computing(kind))} C; typedef {c_name(x.dtype)} X; typedef {out} O;\n"
        text += f"__device__ __forceinline__ C number(X x) {{ return to<C>(to<{c_name(kind)}>(x)); }}\n"
        text += headers_of(self.steps)
        for number, (step, constants) in enumerate(zip(self.steps, self.constants, strict=True)):
            form = step.launch.kernel.cuda
            if isinstance(form, Expression):
                text += step_function(number, step, form, constants, self.launch)
            else:
                text += f"namespace n{number} {{ typedef O Out; }}\n"
        text += "".join([f"typedef n{step}::Out Out{k};\n" for k, step in enumerate(self.form.stored)])
        return text + "".join([f"typedef {kind_of(self.launch.inputs[k])} I{k};\n" for k in self.at_operand])

    def _stores(self) -> str:
        """Return C++ that computes vectors of the stored results and writes them."""
        results = [-1 - step for step in self.form.stored]
        alone = self.steps[self.at].launch
        kind = alone.outputs[0].dtype
        last = softmax.element(alone.kernel.name, small=computing(kind) is not kind)
        text = self._loads(results)
        text += "".join([f"    Vector<Out{k}, V> r{k};\n" for k in range(len(results))])
        kept = " ".join([f"r{k}[v] = t{step};" for k, step in enumerate(self.form.stored)])
        text += f"""#pragma unroll
    for (int v = 0; v < V; ++v) {{
      const i64 i = vectors * V + j + v;
      const C a = held[k][v];
      const O t{self.at} = to<O>({last});
      {self._compute(results)} {kept}
    }}
"""
        for k in range(len(results)):
            if self.along[0][1][k] == 1:
                text += f"    put(out{k} + p[{k}], r{k});\n"
            else:
                text += (
                    f"    for (int v = 0; v < V; ++v) out{k}[p[{k}] + v * along.stride[{k}][0]] = r{k}[v];\n"
                )
        return text

    # -- values ---------------------------------------------------------------------------------------------
    def _find_needed(self, results: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the pointwise steps that these sources depend on after the softmax, and the inputs that they read."""
        steps, inputs = find_needed(self.steps, results, lambda k: k != self.at)
        return steps, [k for k in inputs if k in self.at_operand]

    def _loads(self, results: Sequence[int]) -> str:
        steps, inputs = self._find_needed(results)
        text = ""
        for k in steps:
            if is_drawn(self.steps[k].launch):
                words = words_of(k, self.steps[k], "V", "(vectors + j / V) * V")
                text += f"    const auto d{k} = {words};\n"
        for k in inputs:
            at = self.at_operand[k]
            text += f"    const Vector<I{k}, V> w{k} = taken(p{k} + p[{at}], along.stride[{at}][0]);\n"
        return text

    def _compute(self, results: Sequence[int]) -> str:
        """Return the statements that compute pointwise steps for the element `v` of the vectors."""
        lines = []
        for k in self._find_needed(results)[0]:
            first = f"d{k}.v[v]" if is_drawn(self.steps[k].launch) else "i"
            taken = [first, *map(self._value, self.steps[k].sources)]
            taken += [f"k{k}_{n}" for n in range(len(self.constants[k]))]
            lines.append(f"const n{k}::Out t{k} = n{k}::compute({', '.join(taken)});")
        return " ".join(lines)

    def _value(self, source: int) -> str:
        if source < 0:
            return f"t{-1 - source}"
        return f"w{source}.v[v]" if source in self.at_operand else f"s{source}"
