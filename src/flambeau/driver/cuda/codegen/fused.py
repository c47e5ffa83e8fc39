"""Fused pointwise operators of one shape: one kernel reads each input once and keeps intermediate results in registers.

Each operator is a function `compute` in its own namespace, as in a separate kernel, and rounds its result to its dtype.
NVRTC contracts no operations, so the results are bitwise equal to those of separate kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flambeau.core.errors import NotSupportedError
from flambeau.core.layout import Dims, contiguous_strides, merge_dims
from flambeau.core.meta import Meta
from flambeau.core.tracing.symbols import pack
from flambeau.driver.cuda.codegen.element_loops import (
    THREADS,
    flat_loop,
    index_in_vectors,
    index_of_vectors,
    strided_loop,
    strided_vector_loop,
)
from flambeau.driver.cuda.codegen.kernel_layout import is_wide, pack_walk
from flambeau.driver.cuda.codegen.layout_parameters import file
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass
from flambeau.driver.cuda.codegen.pointwise import element_function, is_light, kind_of, vector_length
from flambeau.driver.cuda.device.program import (
    Arguments,
    KernelProgram,
    constant_type,
    header_text,
    packed_constant,
    wire_type,
)
from flambeau.driver.fused_boxes import NotInlined, boxes, has_views
from flambeau.driver.protocol import Expression, Fused, FusedStep, Launch, is_drawn, uses_index


def program(launch: Launch, form: Fused) -> KernelProgram | KernelPlan:
    """Return the kernel of a fused launch of pointwise steps, or one for each size of its boxes.

    Raises:
        NotSupportedError: If a view needs a result that must be stored.
    """
    if not has_views(form):
        return _kernel(launch, form)
    try:
        parts = boxes(launch, form)
    except NotInlined as error:
        raise NotSupportedError(str(error)) from error
    passes = []
    for part, places in parts:
        inner = part.kernel.cuda
        assert isinstance(inner, Fused)
        passes.append(Pass(_kernel(part, inner), places, scalars=True))
    return KernelPlan(tuple(passes))


def _kernel(launch: Launch, form: Fused) -> KernelProgram:
    """Return the kernel of a fused launch without views. Sizes and strides are parameters."""
    tensors = [x for x in launch.inputs if isinstance(x, Meta)]
    out = launch.outputs[0]
    steps = steps_of(form)
    places = [contiguous_strides(out.shape)] if _uses_index(steps) else []
    dims = merge_dims(out.shape, [*[meta.strides for meta in (*launch.outputs, *tensors)], *places])
    constants = constants_of(steps)
    tail = [packed_constant(value) for numbers in constants for value in numbers]
    element = _element(launch, steps, form.stored, constants)
    unroll = _unroll(launch)
    operands, outputs = len(launch.operands), len(launch.outputs)
    strides = [dims[0][1][k] if dims else 0 for k in range(operands + len(places))]
    is_dense = not dims or all([*strides[:outputs], *strides[operands:]])
    is_flat = len(dims) <= 1 and all(s in (0, 1) for s in strides) and is_dense
    if is_flat:
        vector = vector_length(launch)
        text = _flat(launch, steps, constants, [s == 0 for s in strides[outputs:operands]], vector, unroll)
        per_block = THREADS * vector * unroll
    else:
        vector = _strided_vector(launch, dims)
        if vector > 1:
            (size, inner), *outer = dims[::-1]
            dims = [*outer[::-1], (size // vector, tuple([s * vector for s in inner]))]
        wide = is_wide(dims)
        text = _any_strides(launch, steps, constants, dims, wide, unroll, vector)
        per_block = THREADS * unroll * vector
        tail.append(pack_walk(dims, wide))
    tail.append(pack("<q", out.numel // (1 if is_flat else vector)))
    return KernelProgram(element + text, (-(-out.numel // per_block), 1, 1), THREADS, tuple(tail))


def drawn_alone(launch: Launch) -> KernelProgram | KernelPlan:
    """Return the kernel of a pointwise operator that draws random words, launched alone."""
    form = Fused((FusedStep(launch, tuple(range(len(launch.inputs)))),), (0,))
    return program(launch.with_(kernel=launch.kernel.with_(cuda=form)), form)


def steps_of(form: Fused) -> list[FusedStep]:
    """Return the steps of a fused launch that are not views."""
    return [step for step in form.steps if isinstance(step, FusedStep)]


def constants_of(steps: Sequence[FusedStep]) -> list[Sequence[float]]:
    """Return the constants of each step, which only expressions have."""
    return [
        x.constants(step.launch) if isinstance(x := step.launch.kernel.cuda, Expression) else ()
        for step in steps
    ]


def headers_of(steps: Sequence[FusedStep]) -> str:
    """Return the text of the header files that steps name, each once."""
    forms = [step.launch.kernel.cuda for step in steps]
    return "".join(dict.fromkeys([header_text(x.header) for x in forms if isinstance(x, Expression)]))


def find_needed(
    steps: Sequence[FusedStep], results: Sequence[int], is_computed: Callable[[int], bool]
) -> tuple[list[int], list[int]]:
    """Return the steps that results depend on, and the inputs of the launch that these need.

    Args:
        steps: The steps.
        results: Sources as in `FusedStep.sources`.
        is_computed: Called with the number of a step. False if its result exists already.
    """
    needed: set[int] = set()
    inputs: set[int] = set()
    open_ = list(results)
    while open_:
        source = open_.pop()
        if source >= 0:
            inputs.add(source)
        elif -1 - source not in needed and is_computed(-1 - source):
            needed.add(-1 - source)
            open_ += steps[-1 - source].sources
    return sorted(needed), sorted(inputs)


def _expression(step: FusedStep) -> Expression:
    form = step.launch.kernel.cuda
    assert isinstance(form, Expression)
    return form


def _unroll(launch: Launch) -> int:
    """Return how many vectors a thread loads before it computes: as many as hide latency and fit in registers."""
    operands = len(launch.operands)
    if operands <= 3 and is_light(launch):
        return 4
    return 2 if operands <= 4 else 1


# -- the function of one element ----------------------------------------------------------------------------


def _element(
    launch: Launch, steps: Sequence[FusedStep], stored: Sequence[int], constants: Sequence[Sequence[float]]
) -> str:
    """Return the C++ function `compute_all(i, x0, x1, ..., k0_0, ..., r0, ...)`, which sets r0, r1, ..."""
    drawn = _drawn_steps(steps)
    each, lines = "", ""
    for number, (step, numbers) in enumerate(zip(steps, constants, strict=True)):
        each += step_function(number, step, _expression(step), numbers, launch)
        taken = [f"x{k}" if k >= 0 else f"t{-1 - k}" for k in step.sources]
        taken += [f"k{number}_{k}" for k in range(len(numbers))]
        first = f"w{number}" if number in drawn else "i"
        lines += f"  const n{number}::Out t{number} = n{number}::compute({', '.join([first, *taken])});\n"
    lines += "".join([f"  r{k} = t{step};\n" for k, step in enumerate(stored)])
    declared = ["i64 i", *[f"u32 w{k}" for k in drawn]]
    declared += [f"{kind_of(x)} x{at}" for at, x in enumerate(launch.inputs)]
    declared += [f"{kind} {name}" for kind, name in named_constants(constants)]
    declared += [f"n{step}::Out& r{k}" for k, step in enumerate(stored)]
    types = "".join([f"typedef n{step}::Out Out{k};\n" for k, step in enumerate(stored)])
    return (
        headers_of(steps) + each + types
        + f"__device__ __forceinline__ void compute_all({', '.join(declared)}) {{\n{lines}}}\n"
    )  # fmt: skip


def step_function(
    number: int, step: FusedStep, form: Expression, constants: Sequence[float], launch: Launch
) -> str:
    """Return the namespace `n{number}` with the function `compute` of a pointwise step."""
    alone = step.launch.with_(capability=launch.capability)
    function = form.functions + element_function(alone, form, constants)
    return f"namespace n{number} {{  // {alone.kernel.name}\n{function}}}\n"


def _uses_index(steps: Sequence[FusedStep]) -> bool:
    """Return True if a step computes elements from their row-major index, or draws words by it."""
    return any(uses_index(step.launch) for step in steps)


def _drawn_steps(steps: Sequence[FusedStep]) -> list[int]:
    """Return the numbers of the steps that draw random words."""
    return [k for k, step in enumerate(steps) if is_drawn(step.launch)]


def words_of(number: int, step: FusedStep, count: int | str, index: str) -> str:
    """Return C++ that draws the random words of a step, for `count` elements from the row-major index `index` on."""
    seed, offset, *_ = step.sources
    return f"drawn_words<{count}>(s{seed}, s{offset}, k{number}_0, {index})"


def _draw(steps: Sequence[FusedStep], count: int, index: str) -> str:
    """Return the statements that draw the random words of all steps, `d{k}` for step k."""
    return "".join(
        [f"      const auto d{k} = {words_of(k, steps[k], count, index)};\n" for k in _drawn_steps(steps)]
    )


def named_constants(constants: Sequence[Sequence[float]]) -> list[tuple[str, str]]:
    """Return the C++ type and the name of each constant of all steps."""
    return [
        (constant_type(value), f"k{step}_{k}")
        for step, numbers in enumerate(constants)
        for k, value in enumerate(numbers)
    ]


# -- kernels ----------------------------------------------------------------------------------------------


def arguments_of(launch: Launch, constants: Sequence[Sequence[float]]) -> Arguments:
    """Return the parameters for outputs `out{k}`, tensors `p{k}`, scalars `s{k}`, and constants of the steps."""
    arguments = Arguments()
    for k in range(len(launch.outputs)):
        arguments.add(f"Out{k}*", f"out{k}")
    for at, x in enumerate(launch.inputs):
        if isinstance(x, Meta):
            arguments.add(f"const {kind_of(x)}*", f"p{at}")
    for at, x in enumerate(launch.inputs):
        if not isinstance(x, Meta):
            arguments.add(wire_type(x), f"s{at}")
    for kind, name in named_constants(constants):
        arguments.add(kind, name)
    return arguments


def _compute(
    launch: Launch,
    steps: Sequence[FusedStep],
    constants: Sequence[Sequence[float]],
    index: str,
    at: dict[int, str],
    out: str,
    word: str = "j",
) -> str:
    """Return the C++ statement that calls `compute_all`.

    Args:
        launch: The fused launch.
        steps: Its steps.
        constants: The constants of each step.
        index: The index of the element.
        at: The element of each input that is a tensor.
        out: The element of output `{k}`.
        word: The number of the element among those whose random words were drawn together.
    """
    values = [f"d{k}.v[{word}]" for k in _drawn_steps(steps)]
    values += [at.get(k, f"s{k}") for k in range(len(launch.inputs))]
    values += [name for _, name in named_constants(constants)]
    values += [out.format(k=k) for k in range(len(launch.outputs))]
    return f"compute_all({', '.join([index, *values])});"


def _flat(
    launch: Launch,
    steps: Sequence[FusedStep],
    constants: Sequence[Sequence[float]],
    singles: Sequence[bool],
    vector: int,
    unroll: int,
) -> str:
    """Return the kernel of operands that are dense in one order, or single elements."""
    arguments = arguments_of(launch, constants)
    arguments.add("i64", "n")
    tensors = _tensors(launch)
    dense = [x for x, single in zip(tensors, singles, strict=True) if not single]
    single = [x for x in tensors if x not in dense]
    of_once = {at: f"v{at}" for _, at in single}
    of_vectors = of_once | {at: f"w{at}[u][j]" for _, at in dense}
    of_elements = of_once | {at: f"p{at}[i]" for _, at in dense}
    alone = _compute(launch, steps, constants, "i", of_elements, "out{k}[i]", "0")
    compute = (
        _compute(launch, steps, constants, index_in_vectors(vector), of_vectors, "y{k}[j]"),
        f"{{ {_draw(steps, 1, 'i')}{alone} }}",
    )
    outputs = [(f"Out{k}", f"out{k}", f"y{k}") for k in range(len(launch.outputs))]
    before = _draw(steps, vector, index_of_vectors(vector))
    return flat_loop(arguments.declared, outputs, dense, single, vector, unroll, compute, before)


def _strided_vector(launch: Launch, dims: Dims) -> int:
    """Return how many elements along the innermost dim one access moves."""
    vector, (size, inner), outputs = vector_length(launch), dims[-1], len(launch.outputs)
    if any(s != 1 for s in inner[:outputs]) or any(s > 1 for s in inner):
        return 1
    far = [s for _, strides in dims[:-1] for s, near in zip(strides, inner, strict=True) if near]
    while vector > 1 and any(n % vector for n in (size, *far)):
        vector //= 2
    return vector


def _any_strides(
    launch: Launch,
    steps: Sequence[FusedStep],
    constants: Sequence[Sequence[float]],
    dims: Dims,
    wide: bool,
    unroll: int,
    vector: int,
) -> str:
    """Return the kernel of operands with any strides."""
    arguments = arguments_of(launch, constants)
    tensors, outputs = _tensors(launch), len(launch.outputs)
    walk, index = ("WideWalk", "i64") if wide else ("Walk", "u32")
    operands = outputs + len(tensors)
    layouts, place = int(_uses_index(steps)), f"o[u][{operands}]"
    start = place if layouts else "0"
    arguments.add(f"{walk}<{len(dims)}, {operands + layouts}>", "walk")
    arguments.add("i64", "n")
    if vector == 1:
        of_loaded = {at: f"v{at}[u]" for _, at in tensors}
        compute = _compute(launch, steps, constants, start, of_loaded, "out{k}[o[u][{k}]]", "0")
        compute = f"{{ {_draw(steps, 1, place)}{compute} }}"
        return strided_loop(arguments.declared, outputs, tensors, index, unroll, compute, layouts)
    inputs = [(x, dims[-1][1][k] == 0) for k, x in enumerate(tensors, outputs)]
    of_loaded = {at: f"v{at}[u]" if single else f"w{at}[u][j]" for (_, at), single in inputs}
    compute = _compute(launch, steps, constants, f"{start} + j", of_loaded, "y{k}[j]")
    stored = [(f"Out{k}", f"out{k}", f"y{k}") for k in range(outputs)]
    before = _draw(steps, vector, place)
    loop = strided_vector_loop(
        arguments.declared, stored, inputs, index, vector, unroll, compute, before, layouts
    )
    return file("vector_access.cuh") + loop


def _tensors(launch: Launch) -> list[tuple[str, int]]:
    """Return the C++ type and the number of each input that is a tensor."""
    return [(kind_of(x), at) for at, x in enumerate(launch.inputs) if isinstance(x, Meta)]
