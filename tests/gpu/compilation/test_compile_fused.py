"""Fused kernels of all pointwise operators compile for an H100. Needs NVRTC, and no GPU."""

from __future__ import annotations

import random
from importlib.util import find_spec
from typing import Any

import pytest

if not find_spec("cuda") or not find_spec("nvidia"):
    pytest.skip("NVRTC is not installed", allow_module_level=True)

from compiling import EACH_ALONE, compile_each
from seeds import session_seed

import flambeau
from flambeau.core.dtype import from_numpy
from flambeau.core.flags import flags
from flambeau.core.meta import Meta
from flambeau.core.random import DrawGrid
from flambeau.driver.cuda import kernel_builder
from flambeau.driver.cuda.codegen import fused, fused_rows
from flambeau.driver.cuda.nn import fused_held_rows
from flambeau.driver.protocol import Fold, FusedStep, FusedView, Launch
from flambeau.ops.op import Op, table
from flambeau.ops.pointwise.fused_chains import can_fuse, can_fuse_rows, fuse
from flambeau.ops.pointwise.pointwise import Pointwise
from flambeau.ops.random.dropout import dropout_mask, dropout_scale
from flambeau.testing import operator_properties

GPU = flambeau.device("cuda", 0)
PER_KERNEL = 24


def launch_of(op: Op, kind: Any) -> Launch:
    inputs, params = next(iter(op.samples(operator_properties.maker(kind, 0), kind)))
    metas = [
        Meta.contiguous_of(x.shape, from_numpy(x.dtype), GPU) if hasattr(x, "dtype") else type(x)
        for x in inputs
    ]
    found = op.rule(metas, params + tuple([getattr(flags, name) for name in op.flags]))
    return Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))


def fused_source(ops: list[Op], choice: random.Random, strided: bool) -> str:
    inputs: list[Any] = []
    steps = []
    for op in ops:
        kinds = [d for d in op.dtypes if d.name in ("float32", "float16", "int64", "complex64", "bool")]
        launch = launch_of(op, choice.choice(kinds))
        assert can_fuse(launch)
        if launch.outputs[0].shape != (3, 4):
            continue
        first = len(inputs)
        inputs += [x.with_(strides=(1, 3)) if strided and isinstance(x, Meta) else x for x in launch.inputs]
        steps.append(FusedStep(launch, tuple(range(first, len(inputs)))))
    stored = sorted(choice.sample(range(len(steps)), 3))
    launch = fuse(steps, inputs, stored, [steps[k].launch.outputs[0] for k in stored])
    form: Any = launch.kernel.cuda
    built: Any = fused.program(launch.with_(capability=(9, 0)), form)
    return built.name_and_source(launch)[1]


@pytest.mark.parametrize("strided", [False, True])
def test_fused_operators_compile(strided: bool) -> None:
    choice = random.Random(f"{session_seed()} {strided}")
    ops = [op for op in table.values() if isinstance(op, Pointwise)]
    choice.shuffle(ops)
    ends = len(ops) if EACH_ALONE else PER_KERNEL
    for start in range(0, ends, PER_KERNEL):
        compile_each([fused_source(ops[start : start + PER_KERNEL], choice, strided)])


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_rotated_halves_compile(kind: str) -> None:
    """Compile `cat((-second, first))` of the halves of a result, which is one kernel."""
    x = Meta.contiguous_of((5, 16), getattr(flambeau, kind), GPU)
    half = x.with_(shape=(5, 8), strides=(16, 1))
    one = _launch("mul", [x, x])
    negative = _launch("neg", [half])
    joined = _launch("cat", [negative.outputs[0], half], 1)
    steps = [
        FusedStep(one, (0, 0)), FusedView(-1, half, 0), FusedView(-1, half, 8 * x.itemsize),
        FusedStep(negative, (-3,)), FusedStep(joined, (-4, -2)),
    ]  # fmt: skip
    launch = fuse(steps, [x], [4], joined.outputs).with_(capability=(9, 0))
    plan: Any = fused.program(launch, launch.kernel.cuda)  # type: ignore[arg-type]
    assert len(plan.passes) == 1
    compile_each([step.program.name_and_source(launch)[1] for step in plan.passes])


def _launch(name: str, metas: list[Meta], *params: Any) -> Launch:
    return _launch_op(table[name], metas, *params)


def _launch_op(op: Op, metas: list[Any], *params: Any) -> Launch:
    found = op.rule(metas, params + tuple([getattr(flags, name) for name in op.flags]))
    return Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int64", "complex64"])
def test_fused_rows_compile(kind: str) -> None:
    """Compile all reductions that can be fused, and elements of a dense and a strided input."""
    element = getattr(flambeau, kind)
    x = Meta.contiguous_of((300, 64), element, GPU)
    steps = []
    for op in table.values():
        if element in op.dtypes and isinstance(op.kernel.cuda, Fold) and _reduces_by_dims(op):
            found = op.rule([x], ((1,), True, None))
            launch = Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
            if can_fuse_rows(launch):
                steps.append(FusedStep(launch, (0,)))
    found = table["mul"].rule([x, x], (flags.default_dtype,))
    launch = Launch(table["mul"].kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
    steps.append(FusedStep(launch, (0, 1)))
    stored = list(range(len(steps)))
    inputs = (x, x.with_(strides=(128, 2)))
    fold = fuse(steps, inputs, stored, [steps[k].launch.outputs[0] for k in stored], True)
    form: Any = fold.kernel.cuda
    assert len(steps) > 2
    compile_each([fused_rows.program(fold.with_(capability=(9, 0)), form).name_and_source(fold)[1]])


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float64"])
def test_fused_dropout_compiles(kind: str) -> None:
    """Compile dropout of a sum with a dense and with a strided input, alone, and of rows."""
    x = Meta.contiguous_of((300, 64), getattr(flambeau, kind), GPU)
    found = dropout_mask.rule((int, int, float), (x, DrawGrid(132, 2048)))
    mask = Launch(dropout_mask.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
    scale, total, mean = (
        _launch_op(dropout_scale, [x, mask.outputs[0], float]),
        _launch("add", [x, x]),
        _mean(x),
    )
    steps = [FusedStep(total, (0, 1)), FusedStep(mask, (2, 3, 4)), FusedStep(scale, (-1, -2, 4))]
    launches = [mask]
    for other in (x, x.with_(strides=(128, 2))):
        inputs = (x, other, *mask.inputs)
        launches.append(fuse(steps, inputs, [2], [x]))
        with_rows = [*steps, FusedStep(mean, (-3,))]
        launches.append(fuse(with_rows, inputs, [2, 3], [x, mean.outputs[0]], True))
    compile_each([_source(launch.with_(capability=(9, 0))) for launch in launches])


def _mean(x: Meta) -> Launch:
    found = table["mean"].rule([x], ((1,), True, None))
    return Launch(table["mean"].kernel, found.outputs, found.inputs, found.params, capability=(9, 0))


def _source(launch: Launch) -> str:
    built: Any = kernel_builder.build_kernels(launch, None)  # type: ignore[arg-type]
    source: str = built.name_and_source(launch)[1]
    return source


def _reduces_by_dims(op: Op) -> bool:
    return op.name in ("sum", "nansum", "mean", "nanmean", "prod", "amax", "amin")


def test_fused_normalization_compiles() -> None:
    """Compile a layer normalization of a sum with dropout, of which the product with a strided input is stored."""
    x = Meta.contiguous_of((300, 1024), flambeau.float32, GPU)
    weight = x.with_(shape=(1024,), strides=(1,))
    strided = x.with_(strides=(2048, 2))
    found = dropout_mask.rule((int, int, float), (x, DrawGrid(132, 2048)))
    mask = Launch(dropout_mask.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
    norm = table["layer_norm"]
    found = norm.rule([x, weight, weight], (1, 1e-5, (True, True)))
    steps = [
        FusedStep(mask, (3, 4, 5)),
        FusedStep(_launch_op(dropout_scale, [x, mask.outputs[0], float]), (0, -1, 5)),
        FusedStep(Launch(norm.kernel, found.outputs, found.inputs, found.params), (-2, 1, 1)),
        FusedStep(_launch("mul", [x, strided]), (-3, 2)),
    ]
    inputs = (x, weight, strided, *mask.inputs)
    launch = fuse(steps, inputs, [1, 3], [x, x]).with_(capability=(9, 0))
    compile_each([_source(launch)])


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_fused_softmax_compiles(name: str) -> None:
    """Compile a softmax of a product, of which the sum with a strided input is stored."""
    x = Meta.contiguous_of((300, 32000), flambeau.bfloat16, GPU)
    strided = x.with_(strides=(64000, 2))
    product, total = _launch("mul", [x, strided]), _launch("add", [x, strided])
    steps = [
        FusedStep(product, (0, 1)),
        FusedStep(_launch(name, [x], -1, None), (-1,)),
        FusedStep(total, (-2, 1)),
    ]
    launch = fuse(steps, [x, strided], [0, 2], [x, x]).with_(capability=(9, 0))
    form: Any = launch.kernel.cuda
    compile_each([fused_held_rows.program(launch, form).name_and_source(launch)[1]])
