"""Fused kernels with reductions: the threads of a row reduce it, and compute elements from the results.

A block computes W rows with D threads each, as the reduction template does for one of the reductions, and each thread
reduces the same elements in the same order. So the results are bitwise equal to those of separate kernels.

A *phase* is a loop over the elements of a row: one for each reduction, and a last one that stores elements. Each
computes what it needs from the inputs, which the caches hold after the first phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from flambeau.core.errors import NotSupportedError
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
from flambeau.driver.cuda.codegen.reduction import THREADS, convert_text, row_threads
from flambeau.driver.cuda.device.program import KernelProgram, c_name, packed_constant
from flambeau.driver.protocol import Expression, Fold, Fused, FusedStep, Launch, is_drawn

_VECTOR = 16  # bytes


def program(launch: Launch, form: Fused) -> KernelProgram:
    """Return the kernel of a fused launch over rows. Sizes and strides are parameters.

    Raises:
        NotSupportedError: If reductions differ in how many threads they use for a row.
    """
    return _RowKernel(launch, form).program()


class _RowKernel:
    """The source of a kernel over rows, written step by step.

    Attributes:
        shape: The shape of the elements.
        around: The merged dims of the rows, with the strides of the operands.
        along: The strides of the operands within a row.
        count, length: Number of rows, and of elements in a row.
        depth: Number of threads of a row.
        constants: The constants of each step.
    """

    def __init__(self, launch: Launch, form: Fused) -> None:
        self.launch, self.form = launch, form
        self.steps = steps_of(form)
        metas = [x for step in self.steps for x in step.launch.operands]
        self.shape = max([x.shape for x in metas], key=lambda shape: (len(shape), prod(shape)))
        strides = [self._strides(x) for x in launch.operands]
        self.around = walk_dims(self.shape[:-1], [s[:-1] for s in strides], ordered=False)
        self.along = tuple([s[-1] for s in strides])
        self.count, self.length = prod(self.shape[:-1]), self.shape[-1]
        self.constants = constants_of(self.steps)
        self.depth = self._depth()
        self.at_operand = {k: n for n, k in enumerate(self._tensors(), len(launch.outputs))}

    def _strides(self, x: Meta) -> tuple[int, ...]:
        """Return an operand's strides in the shape of the elements."""
        if x.shape == self.shape:
            return x.strides
        return (*x.strides[: len(self.shape) - 1], 0)

    def _tensors(self) -> list[int]:
        return [k for k, x in enumerate(self.launch.inputs) if isinstance(x, Meta)]

    def _depth(self) -> int:
        """Return the number of threads of a row, which the reductions must agree on."""
        vectors = {
            self._fold_vector(step) for step in self.steps if isinstance(step.launch.kernel.cuda, Fold)
        }
        depths = {row_threads(self.count, self.length, True, v) for v in vectors or {self._vector()}}
        if len(depths) > 1:
            raise NotSupportedError(
                "reductions that use different numbers of threads for a row are not fused"
            )
        return depths.pop()

    def _fold_vector(self, step: FusedStep) -> int:
        """Return how many elements of a reduction's input the reduction template reads in one access."""
        (source,) = step.launch.inputs
        assert isinstance(source, Meta)
        return max(1, _VECTOR // source.itemsize)

    def _vector(self) -> int:
        """Return how many elements the last phase computes in one access."""
        return max(
            1,
            _VECTOR // max([x.itemsize for x in self.launch.operands if x.shape == self.shape] or [_VECTOR]),
        )

    # -- source -------------------------------------------------------------------------------------------
    def program(self) -> KernelProgram:
        launch = self.launch
        along: Dims = [(self.length, self.along)]
        wide = is_wide(self.around, along)
        walk, index = ("WideWalk", "i64") if wide else ("Walk", "u32")
        operands = len(launch.operands)
        arguments = arguments_of(launch, self.constants)
        arguments.add(f"{walk}<{len(self.around)}, {operands}>", "around")
        arguments.add(f"{walk}<1, {operands}>", "along")
        arguments.add("i64", "count")
        arguments.add("i64", "n")
        width = THREADS // self.depth
        phases = [self._step(number, step) for number, step in enumerate(self.steps)]
        text = f"""{self._functions()}
extern "C" __global__ void __launch_bounds__({THREADS}) run({", ".join(arguments.declared)}) {{
  constexpr int W = {width}, D = {self.depth};
  const int x = threadIdx.x / D, y = threadIdx.x % D;
  const i64 row = (i64)blockIdx.x * W + x;
  {index} o[{operands}] = {{}};
  if (row < count) around.locate(({index})row, o);
{self._pointers()}{"".join(phases)}{self._last_phase()}}}
"""
        tail = [packed_constant(value) for numbers in self.constants for value in numbers]
        tail += [pack_walk(self.around, wide), pack_walk(along, wide), i64(self.count), i64(self.length)]
        return KernelProgram(text, (-(-self.count // width), 1, 1), THREADS, tuple(tail))

    def _functions(self) -> str:
        """Return the types of the operands, and the namespaces of the steps."""
        text = file("vector_access.cuh") + file("fused_rows.cuh") + headers_of(self.steps)
        for number, (step, constants) in enumerate(zip(self.steps, self.constants, strict=True)):
            form = step.launch.kernel.cuda
            if isinstance(form, Expression):
                text += step_function(number, step, form, constants, self.launch)
            else:
                assert isinstance(form, Fold)
                text += _fold_functions(number, step.launch, form)
        text += "".join([f"typedef n{step}::Out Out{k};\n" for k, step in enumerate(self.form.stored)])
        return text + "".join([f"typedef {kind_of(self.launch.inputs[k])} I{k};\n" for k in self._tensors()])

    def _pointers(self) -> str:
        """Return C++ that locates the row in the operands, and reads the inputs that are equal for the row."""
        text = "".join(
            [f"  Out{k}* const r{k} = out{k} + o[{k}];\n" for k in range(len(self.launch.outputs))]
        )
        for k, operand in self.at_operand.items():
            text += f"  const I{k}* const q{k} = p{k} + o[{operand}];\n"
            if self.along[operand] == 0:
                text += f"  const I{k} v{k} = *q{k};\n"
        return text

    def _step(self, number: int, step: FusedStep) -> str:
        """Return the C++ of a step that has one result for each row; "" for a step on elements."""
        form = step.launch.kernel.cuda
        if isinstance(form, Fold):
            return self._fold_phase(number, step)
        if step.launch.outputs[0].shape == self.shape:
            return ""
        return f"  {self._call(number, step, 'row')}\n"

    def _call(self, number: int, step: FusedStep, index: str, element: int | str | None = None) -> str:
        """Return the statement that computes a pointwise step, of the element `element` of the vectors `e`."""
        first = index
        if is_drawn(step.launch):
            first = (
                f"{words_of(number, step, 1, index)}.v[0]" if element is None else f"e.d{number}.v[{element}]"
            )
        taken = [first, *[self._value(k, element) for k in step.sources]]
        taken += [f"k{number}_{k}" for k in range(len(self.constants[number]))]
        return f"const n{number}::Out t{number} = n{number}::compute({', '.join(taken)});"

    def _value(self, source: int, element: int | str | None) -> str:
        if source < 0:
            return f"t{-1 - source}"
        if source not in self.at_operand:
            return f"s{source}"
        return f"v{source}" if self.along[self.at_operand[source]] == 0 else f"e.w{source}.v[{element}]"

    def _find_needed(self, results: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the steps on elements that these sources depend on, and the inputs of which elements are read."""
        steps, inputs = find_needed(self.steps, results, self._is_of_elements)
        return steps, [k for k in inputs if k in self.at_operand and self.along[self.at_operand[k]]]

    def _is_of_elements(self, number: int) -> bool:
        launch = self.steps[number].launch
        return launch.outputs[0].shape == self.shape and not isinstance(launch.kernel.cuda, Fold)

    def _lambdas(self, results: Sequence[int]) -> tuple[str, str]:
        """Return C++ that loads N elements of the inputs of a phase, and the statements that compute element `j`."""
        steps, inputs = self._find_needed(results)
        drawn = [k for k in steps if is_drawn(self.steps[k].launch)]
        members = " ".join(
            [f"Vector<I{k}, N> w{k};" for k in inputs] + [f"Vector<u32, N> d{k};" for k in drawn]
        )
        loads = "".join([f" e.d{k} = {words_of(k, self.steps[k], 'N', 'row * n + i')};" for k in drawn])
        for k in inputs:
            at = self.at_operand[k]
            if self.along[at] == 1:
                loads += f" e.w{k} = taken<N>(q{k} + i);"
            else:
                loads += (
                    f" e.w{k} = apart<N>(q{k} + i * (i64)along.stride[{at}][0], (i64)along.stride[{at}][0]);"
                )
        load = f"""    const auto load = [&](auto size, const i64 i) {{
      constexpr int N = decltype(size)::value;
      struct Elements {{ {members} }};
      Elements e;{loads}
      return e;
    }};
"""
        compute = " ".join([self._call(k, self.steps[k], "row * n + i", "j") for k in steps])
        return load, compute

    def _fold_phase(self, number: int, step: FusedStep) -> str:
        (source,) = step.sources
        load, compute = self._lambdas([source])
        vector = self._fold_vector(step)
        aligned = f"row * n % {vector} == 0" if source < 0 else f"!misaligned<I{source}, {vector}>(q{source})"
        return f"""  n{number}::Out t{number};
  {{
{load}    const auto value = [&](const auto& e, const int j, const i64 i) {{
      {compute} return {self._value(source, "j")};
    }};
    t{number} = reduce_row<n{number}::Reduction, W, D, {vector}>(row < count, {aligned}, n, x, y, load, value);
  }}
"""

    def _last_phase(self) -> str:
        """Return C++ that stores results of rows, then those of elements."""
        stored = list(enumerate(self.form.stored))
        of_rows = [f"out{k}[o[{k}]] = t{step};" for k, step in stored if not self._is_of_elements(step)]
        text = f"  __syncthreads();\n  if (!y && row < count) {{ {' '.join(of_rows)} }}\n" if of_rows else ""
        elements = [(k, step) for k, step in stored if self._is_of_elements(step)]
        if not elements:
            return text
        load, compute = self._lambdas([-1 - step for _, step in elements])
        vector = self._vector()
        loop = self._store_loop(elements, compute)
        return f"""{text}  if (row < count) {{
{load}    const i64 whole = n / {vector};
    for (i64 at = y; at < whole; at += D) {{
      constexpr int N = {vector};
      const i64 first = at * N;
{loop}    }}
    for (i64 first = whole * {vector} + y; first < n; first += D) {{
      constexpr int N = 1;
{loop}    }}
  }}
"""

    def _store_loop(self, elements: Sequence[tuple[int, int]], compute: str) -> str:
        results = "".join([f"      Vector<Out{k}, N> w{k};\n" for k, _ in elements])
        kept = " ".join([f"w{k}.v[j] = t{step};" for k, step in elements])
        stores = ""
        for k, _ in elements:
            if self.along[k] == 1:
                stores += f"      put<N>(r{k} + first, w{k});\n"
            else:
                step = f"(i64)along.stride[{k}][0]"
                stores += f"      spread<N>(r{k} + first * {step}, {step}, w{k});\n"
        return f"""      const auto e = load(Size<N>{{}}, first);
{results}#pragma unroll
      for (int j = 0; j < N; ++j) {{ const i64 i = first + j; {compute} {kept} }}
{stores}"""


def _fold_functions(number: int, launch: Launch, form: Fold) -> str:
    """Return the namespace `n{number}` with the arithmetic of a reduction."""
    (source,) = launch.inputs
    assert isinstance(source, Meta)
    steps = form.steps(launch)
    return f"""namespace n{number} {{  // {launch.kernel.name}
typedef {c_name(source.dtype)} In;
typedef {c_name(launch.outputs[0].dtype)} Out;
typedef decltype({convert_text(steps, "In{}")}) T;
struct Reduction {{
  typedef n{number}::Out Out;
  typedef {form.state} State;
  static __device__ __forceinline__ State start() {{ return {form.start}; }}
  static __device__ __forceinline__ State lift(In e, i64 i) {{
    const auto x = {convert_text(steps, "e")};
    return {form.lift};
  }}
  static __device__ __forceinline__ State join(State a, State b) {{ return {form.join}; }}
  static __device__ __forceinline__ Out lower(State s, i64 n) {{ return to<Out>({form.lower[0]}); }}
}};
}}
"""
