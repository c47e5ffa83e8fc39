"""Fused kernels with an operator whose threads hold rows in registers: softmax, its gradients, normalization.

The rows are divided among threads as in the operator's separate kernel, whose sums have the same order. So the results
are bitwise equal to those of separate kernels. A kernel first computes the elements that are held, then the numbers of
the row, and then elements of what it stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from flambeau.core.layout import Dims
from flambeau.core.meta import Meta
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
from flambeau.driver.cuda.codegen.layout_parameters import file, i64
from flambeau.driver.cuda.codegen.pointwise import kind_of
from flambeau.driver.cuda.codegen.rows import HeldRows
from flambeau.driver.cuda.device.program import KernelProgram, c_name, packed_constant
from flambeau.driver.cuda.nn import normalizing, softmax
from flambeau.driver.protocol import Expression, Fused, FusedStep, Launch, Routine, holds_rows, is_drawn

_COMPUTATIONS = {
    "nn.softmax:softmax": softmax.held_rows,
    "nn.softmax:log_softmax": softmax.held_rows,
    "nn.softmax:softmax_backward": softmax.held_rows_back,
    "nn.softmax:log_softmax_backward": softmax.held_rows_back,
    "nn.normalizing:layer_norm": normalizing.held_rows,
    "nn.normalizing:rms_norm": normalizing.held_rows,
}


def program(launch: Launch, form: Fused) -> KernelProgram:
    """Return the kernel of a fused launch of one operator that holds rows, and pointwise steps of its shape."""
    return _HeldRowsKernel(launch, form).program()


def _computation(launch: Launch) -> HeldRows:
    form = launch.kernel.cuda
    assert isinstance(form, Routine)
    return _COMPUTATIONS[form.builder](launch)


class _HeldRowsKernel:
    """The source of a kernel, written step by step.

    Attributes:
        steps: The steps, all of one shape.
        at: The number of the step that holds rows.
        computation: The computation of this step.
        held, others: The sources of its inputs that are held, and of its other inputs.
        around, along: The merged dims of the rows, and the row, with the strides of the operands.
        constants: The constants of each step.
    """

    def __init__(self, launch: Launch, form: Fused) -> None:
        self.launch, self.form = launch, form
        self.steps = steps_of(form)
        (self.at,) = [k for k, step in enumerate(self.steps) if holds_rows(step.launch)]
        self.alone, sources = self.steps[self.at].launch, self.steps[self.at].sources
        self.computation = _computation(self.alone)
        self.held = [sources[k] for k in self.computation.held]
        self.others = [s for k, s in enumerate(sources) if k not in self.computation.held]
        shape = self.alone.outputs[0].shape
        strides = [(*(0,) * (len(shape) - x.ndim), *x.strides) for x in launch.operands]
        self.around = walk_dims(shape[:-1], [s[:-1] for s in strides], ordered=False)
        self.along: Dims = [(shape[-1], tuple([s[-1] for s in strides]))]
        self.count, self.length = prod(shape[:-1]), shape[-1]
        self.constants = constants_of(self.steps)
        self.constants[self.at] = self.computation.numbers
        tensors = [k for k, x in enumerate(launch.inputs) if isinstance(x, Meta)]
        self.at_operand = {k: n for n, k in enumerate(tensors, len(launch.outputs))}

    def program(self) -> KernelProgram:
        launch, rows = self.launch, self.computation.rows
        wide = is_wide(self.around, self.along)
        walk, index = ("WideWalk", "i64") if wide else ("Walk", "u32")
        arguments = arguments_of(launch, self.constants)
        for declared in ("Around around", "Along along", "i64 rows", "i64 n"):
            arguments.add(*declared.split())
        text = f"""
{self._types()}typedef {index} Index;
constexpr int OPS = {len(launch.operands)}, G = {rows.threads}, K = {rows.vectors}, V = {rows.vector};
constexpr bool INNER = true;
typedef {walk}<{len(self.around)}, OPS> Around; typedef {walk}<1, OPS> Along;
{self.computation.functions}
{file("rows.cuh")}
extern "C" __global__ void __launch_bounds__(THREADS) run({", ".join(arguments.declared)}) {{
  const Row row = my_row(around, rows, n);
  const i64 vectors = ((i64)blockIdx.x * ROWS + threadIdx.x / G) * (n / V);  // before the row
{self._numbers()}{self._holds()}
{self.computation.statements}
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
        """Return the type of numbers, the types of the operands, and the namespaces of the steps."""
        kind = c_name(self.computation.rows.kind)
        text = f"typedef {kind} C; typedef {kind} X;\n"
        text += f"__device__ __forceinline__ C number(X x) {{ return x; }}\n{headers_of(self.steps)}"
        for number, (step, constants) in enumerate(zip(self.steps, self.constants, strict=True)):
            form = step.launch.kernel.cuda
            if isinstance(form, Expression):
                text += step_function(number, step, form, constants, self.launch)
            else:
                out = c_name(step.launch.outputs[0].dtype)
                text += f"namespace n{number} {{ typedef {out} Out; }}  // {step.launch.kernel.name}\n"
        text += "".join([f"typedef n{step}::Out Out{k};\n" for k, step in enumerate(self.form.stored)])
        return text + "".join([f"typedef {kind_of(self.launch.inputs[k])} I{k};\n" for k in self.at_operand])

    def _numbers(self) -> str:
        """Return C++ that gives the constants of the operator that holds rows the names of its statements."""
        return "".join(
            [f"  const double k{n} = k{self.at}_{n};\n" for n in range(len(self.computation.numbers))]
        )

    def _holds(self) -> str:
        """Return C++ that computes the elements that threads hold in registers."""
        kind = c_name(self.alone.outputs[0].dtype)  # which softmax may convert its input to
        values = [f"to<C>(to<{kind}>({self._value(s)}))" for s in self.held]
        name, value = ("held", values[0]) if len(values) == 1 else ("two", f"{{{', '.join(values)}}}")
        return f"""  {"C" if len(values) == 1 else "Two"} {name}[K][V];
#pragma unroll
  for (int k = 0; k < K; ++k) {{
    Index j, p[OPS];
    if (!reach(row, along, k, j, p)) continue;
{self._loads(self.held)}#pragma unroll
    for (int v = 0; v < V; ++v) {{
      const i64 i = vectors * V + j + v;
      {self._compute(self.held)} {name}[k][v] = {value};
    }}
  }}"""

    def _stores(self) -> str:
        """Return C++ that computes vectors of the stored results and writes them."""
        results = [-1 - step for step in self.form.stored]
        text = self._loads(results)
        text += "".join([f"    Vector<Out{k}, V> r{k};\n" for k in range(len(results))])
        kept = " ".join([f"r{k}[v] = t{step};" for k, step in enumerate(self.form.stored)])
        text += f"""#pragma unroll
    for (int v = 0; v < V; ++v) {{
      const i64 i = vectors * V + j + v;
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
        """Return the steps that these sources depend on once elements are held, and the tensors that they read."""
        steps = [
            FusedStep(step.launch, tuple(self.others)) if k == self.at else step
            for k, step in enumerate(self.steps)
        ]
        needed, inputs = find_needed(steps, results, lambda k: True)
        return needed, [k for k in inputs if k in self.at_operand]

    def _loads(self, results: Sequence[int]) -> str:
        """Return C++ that draws the random words, and loads the vectors, that results depend on."""
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
        """Return the statements that compute steps for the element `v` of the vectors."""
        return " ".join([self._statement(k) for k in self._find_needed(results)[0]])

    def _statement(self, k: int) -> str:
        if k == self.at:
            return self._element()
        first = f"d{k}.v[v]" if is_drawn(self.steps[k].launch) else "i"
        taken = [first, *map(self._value, self.steps[k].sources)]
        taken += [f"k{k}_{n}" for n in range(len(self.constants[k]))]
        return f"const n{k}::Out t{k} = n{k}::compute({', '.join(taken)});"

    def _element(self) -> str:
        """Return the statements that compute an element of the operator that holds rows."""
        names = "a = two[k][v].x, b = two[k][v].y" if len(self.held) == 2 else "a = held[k][v]"
        names += "".join([f", b{n} = to<C>({self._value(s)})" for n, s in enumerate(self.others)])
        out = f"n{self.at}::Out"
        return f"const {out} t{self.at} = [&] {{ const C {names}; return to<{out}>({self.computation.element}); }}();"

    def _value(self, source: int) -> str:
        if source < 0:
            return f"t{-1 - source}"
        return f"w{source}.v[v]" if source in self.at_operand else f"s{source}"
