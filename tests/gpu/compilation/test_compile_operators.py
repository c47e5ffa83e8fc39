"""Every source that a CUDA form generates compiles for an H100. Needs NVRTC, and no GPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from compiling import EACH_ALONE, compile_all
from seeds import session_seed

import flambeau
from flambeau.core.dtype import from_numpy
from flambeau.core.flags import flags
from flambeau.core.meta import Meta
from flambeau.driver.cuda.device.program import KernelProgram
from flambeau.driver.protocol import Expression, Fold, Launch, Lists, Routine, Source
from flambeau.ops.op import Op, table
from flambeau.testing import operator_properties

GPU = flambeau.device("cuda", 0)
LAYOUTS = (operator_properties.plain, operator_properties.reversed_dims, operator_properties.with_gaps)
FEW = ("bool", "int32", "bfloat16", "float32", "complex64")  # one of each kind


def _has_nvrtc() -> bool:
    try:
        return bool(importlib.util.find_spec("cuda.bindings.nvrtc")) and bool(
            importlib.util.find_spec("nvidia.cuda_nvrtc") or importlib.util.find_spec("nvidia.cu13")
        )
    except ImportError:
        return False


pytestmark = pytest.mark.skipif(not _has_nvrtc(), reason="NVRTC is not installed")


class _Assertions:
    def guard(self, *about: str) -> bytes:
        return bytes(16)


class _Properties:
    multi_processor_count = 132
    max_threads_per_multi_processor = 2048


class _Device:
    """What builders ask of a device."""

    index = 0
    capability = (9, 0)
    assertions = _Assertions()
    properties = _Properties()


def _meta(x: Any, layout: operator_properties.Layout) -> Any:
    if not isinstance(x, np.ndarray):
        return type(x)
    _, view = layout(x)
    kind = from_numpy(x.dtype)
    return Meta.of(view.shape, tuple([step // kind.itemsize for step in view.strides]), kind, GPU)


def _kinds(op: Op) -> list[Any]:
    """Return dtypes of an operator: one of them, another each day; all in the exhaustive runs."""
    kinds = [kind for kind in op.dtypes if kind.name in FEW]
    return kinds if EACH_ALONE else kinds[session_seed() % max(len(kinds), 1) :][:1]


def _layouts(op: Op) -> tuple[operator_properties.Layout, ...]:
    """Return one of the layouts, another each day and not the same of all operators; all in the exhaustive runs."""
    return LAYOUTS if EACH_ALONE else (LAYOUTS[(session_seed() + len(op.name)) % len(LAYOUTS)],)


def _launches(op: Op) -> Iterator[Launch]:
    layouts = _layouts(op)
    for kind in _kinds(op):
        for inputs, params in op.samples(operator_properties.maker(kind, 0), kind):
            for layout in layouts:
                moved = tuple([GPU if isinstance(x, flambeau.device) else x for x in params])
                moved += tuple([getattr(flags, name) for name in op.flags])
                try:
                    found = op.rule([_meta(x, layout) for x in inputs], moved)
                except NotImplementedError:
                    continue
                if any(meta.numel for meta in found.outputs):
                    yield Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))


def _programs(op: Op) -> Iterator[KernelProgram]:
    from flambeau.driver.cuda.codegen import multi_tensor, pointwise, reduction, source
    from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan
    from flambeau.driver.cuda.kernel_builder import find_function

    form = op.kernel.cuda
    for launch in _launches(op):
        if isinstance(form, Expression):
            built: Any = pointwise.program(launch, form)
        elif isinstance(form, Fold):
            built = reduction.program(launch, form, 132)
        elif isinstance(form, Lists):
            built = multi_tensor.program(launch, form)
        elif isinstance(form, Source):
            built = source.program(launch, form)
        elif isinstance(form, Routine) and form.builder:
            built = find_function(form.builder)(launch, _Device())
        else:
            return
        if built is not None:  # None: a library runs it
            yield from [step.program for step in built.passes] if isinstance(built, KernelPlan) else [built]


NAMES = sorted(name for name, op in table.items() if op.kernel.cuda is not None)
TOGETHER = (
    1 if EACH_ALONE else 8
)  # operators of one text: its prelude takes longer than most of their sources


@pytest.mark.parametrize(
    "names", [NAMES[i : i + TOGETHER] for i in range(0, len(NAMES), TOGETHER)], ids=",".join
)
def test_sources_compile(names: list[str]) -> None:
    compile_all([program for name in names for program in _programs(table[name])])
