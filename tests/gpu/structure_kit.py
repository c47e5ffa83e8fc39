"""Plans of structures beside plans made for each shape: operators, shapes and layouts drawn at random.

A drawn call is planned twice: by the structure's tree, and from the start. Both must give the same metas, the same
kernels, and the same parameters, bit by bit. Needs cuda-bindings, and no GPU.
"""

from __future__ import annotations

import random
import types
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from flambeau.core.device import device
from flambeau.core.dtype import from_numpy
from flambeau.core.meta import Meta
from flambeau.driver.cuda import kernel_builder
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan
from flambeau.driver.cuda.device.assertions import Guard
from flambeau.driver.cuda.device.program import GenericKernel, KernelProgram, wire_format
from flambeau.driver.protocol import Launch
from flambeau.ops.op import Op
from flambeau.tensor import call
from flambeau.tensor.structures import Structures

CUDA = device("cuda", 0)
_GUARD = Guard((1).to_bytes(8, "little") + (1).to_bytes(8, "little"))


class Device:
    """What builders of kernels ask of a device."""

    index = 0
    capability = (9, 0)
    properties = types.SimpleNamespace(multi_processor_count=4, max_threads_per_multi_processor=2048)
    assertions = types.SimpleNamespace(guard=lambda name, text="": _GUARD)


class ProgramDriver:
    """A driver whose launchers are what would be launched: sources, grids and packed parameters."""

    def generic(self, launch: Launch, index: int) -> Any:
        launch = launch.with_(capability=Device.capability)
        built = kernel_builder.build_kernels(launch, Device())  # type: ignore[arg-type]
        described = _library_call(launch) if built is None else _described(built, launch)
        if described is None:
            return None
        fixed, numbers = described
        return (numbers,), lambda given: (fixed, given)

    def load(self, launch: Launch, index: int) -> Any:
        loaded = launch.with_(capability=Device.capability)
        built = kernel_builder.build_kernels(loaded, Device())  # type: ignore[arg-type]
        described = _library_call(loaded) or launch if built is None else _described(built, launch)
        return types.SimpleNamespace(workspace=(), launch=loaded, described=described)

    def launcher(self, exe: Any) -> Any:
        return exe.described

    def device_properties(self, index: int) -> Any:
        return types.SimpleNamespace(total_memory=1 << 62)


def _library_call(launch: Launch) -> tuple[Any, Any] | None:
    """Return the function that makes a library's call, and its numbers; None if each launch is built."""
    planned = kernel_builder.build_structure(launch, Device(), None)  # type: ignore[arg-type]
    if planned is None:
        return None
    numbers, run_of_shape = planned
    assert isinstance(run_of_shape, partial)
    flags = [x for x in run_of_shape.args if isinstance(x, bool)]
    return (run_of_shape.func, *flags), numbers


def _described(built: KernelProgram | KernelPlan, launch: Launch) -> tuple[Any, Any]:
    """Return what all shapes have in common, and what each has of its own."""
    wire = [wire_format(x) for x in launch.inputs if not isinstance(x, Meta)]
    if isinstance(built, KernelProgram):
        kernel = GenericKernel(built, None, len(launch.operands), wire)
        return (*built.name_and_source(launch), built.block, tuple(kernel.guards)), kernel.numbers
    steps = [step for step in built.passes if all(step.program.grid)]
    fixed, numbers = [], []
    for step in steps:
        kernel = GenericKernel(step.program, None, len(step.places), wire if step.scalars else [])
        positions = tuple([at for at, _ in step.places])
        fixed.append((*step.program.name_and_source(launch), step.program.block, positions, step.unless_same))
        numbers.append((kernel.numbers, tuple([offset for _, offset in step.places])))
    return tuple(fixed), (built.workspace, built.zeroed, tuple(numbers))


def context() -> Any:
    """Return a context over a `ProgramDriver`."""
    allocator = types.SimpleNamespace(allocate=None, allocate_output=None)
    return types.SimpleNamespace(
        driver=ProgramDriver(), allocator=allocator, index=0, driver_index=0, device=CUDA
    )


def drawn_calls(
    op: Op, kind: Any, draw: random.Random, count: int
) -> Iterator[tuple[list[Any], tuple[Any, ...]]]:
    """Yield operands and params of calls: those of the operator's samples, with other sizes and layouts."""

    def make(*shape: int, **bounds: Any) -> Any:
        return np.ones(shape, kind.numpy)

    try:
        samples = list(op.samples(make, kind))
    except Exception:  # samples of random draws need real bounds
        return
    for _ in range(count if samples else 0):
        inputs, params = samples[draw.randrange(len(samples))]
        sizes: dict[int, int] = {0: 0, 1: 1}
        largest = draw.choice((4, 40, 300, 3000))
        operands: list[Any] = []
        for x in inputs:
            if not hasattr(x, "shape"):
                operands.append(type(x))
                continue
            for n in x.shape:
                sizes.setdefault(n, draw.randint(1, largest))
            shape = tuple([sizes[n] for n in x.shape])
            operands.append(_laid(shape, from_numpy(np.asarray(x).dtype), draw))
        yield operands, params


def _laid(shape: tuple[int, ...], kind: Any, draw: random.Random) -> Meta:
    """Return a contiguous meta, or one with its dimensions in another order."""
    meta = Meta.contiguous_of(shape, kind, CUDA)
    if len(shape) < 2 or draw.random() < 0.7:
        return meta
    order = list(range(len(shape)))
    draw.shuffle(order)
    packed = Meta.contiguous_of(tuple([shape[d] for d in order]), kind, CUDA)
    strides = [0] * len(shape)
    for stride, d in zip(packed.strides, order, strict=True):
        strides[d] = stride
    return Meta.of(shape, tuple(strides), kind, CUDA)


class Comparison:
    """Plans calls of one operator both ways.

    Attributes:
        compared: Calls that the trees served.
        structures: The trees.
    """

    def __init__(self, op: Op) -> None:
        self.op = op
        self.compared = 0
        self.structures = Structures()
        self.planned = 0

    def plan(self, operands: Sequence[Any], params: tuple[Any, ...]) -> None:
        """Plan a call; raise AssertionError if a tree's plan differs from that made from the start.

        A call that the operator refuses is left out.
        """
        op = self.op
        if op.planned:  # each launch looks up its executable
            return
        try:
            signature = op.rule(operands, call._with_flags(op, params))
            wanted = call._load_signature(op, call.system.context_of(signature.outputs[0].device), signature)
        except (RuntimeError, AssertionError):  # drawn sizes need not go together
            return
        self.planned += 1
        key = (op, params, *operands)
        found = self.structures.find(key)
        self.structures.note(key, lambda o, p: call._trace_plan(op, o, p))
        if found is None:
            return
        self.compared += 1
        assert found.outputs == wanted.outputs, f"{op.name}: {operands} {params}"
        assert _launched(found) == _launched(wanted), f"{op.name}: {operands} {params}"
        assert found.tensors == wanted.tensors
        assert [at for at, _ in found.scalars] == [at for at, _ in wanted.scalars]


def _launched(plan: Any) -> Any:
    launch = plan.launch
    if isinstance(launch, Launch):
        return (launch.kernel, launch.outputs, launch.inputs, launch.params)
    return launch
