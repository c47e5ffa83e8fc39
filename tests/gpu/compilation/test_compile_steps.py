"""The kernels between the calls of NVIDIA's libraries compile for an H100. Needs NVRTC, and no GPU."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda") or not (find_spec("nvidia.cuda_nvrtc") or find_spec("nvidia.cu13")):
    pytest.skip("NVRTC is not installed", allow_module_level=True)

from compiling import compile_all
from library_kit import Device, Library

import flambeau
from flambeau.core.dtype import bfloat16, complex32, complex64, float16, float32, from_numpy, int32
from flambeau.core.flags import flags
from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen import pointwise, reduction, source
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan
from flambeau.driver.cuda.device.program import KernelProgram
from flambeau.driver.cuda.kernel_builder import find_function
from flambeau.driver.cuda.libraries import cublas, cufft, cusolver
from flambeau.driver.cuda.nn import attention, attention_gradients
from flambeau.driver.protocol import Expression, Fold, Launch, Routine, Source
from flambeau.ops.op import table
from flambeau.testing import operator_properties

GPU = flambeau.device("cuda", 0)
NAMES = [
    name
    for name, op in table.items()
    if isinstance(op.kernel.cuda, Routine)
    and op.kernel.cuda.library
    and op.kernel.cuda.library != "linalg.products:product"
]


class Collector:
    """A driver that keeps the programs of what it loads."""

    def __init__(self) -> None:
        self.programs: list[KernelProgram] = []

    def load(self, launch: Launch, index: int) -> None:
        form = launch.kernel.cuda
        if isinstance(form, Expression):
            self.programs.append(pointwise.program(launch, form))
        elif isinstance(form, Fold):
            self.programs.append(reduction.program(launch, form, 132))
        elif isinstance(form, Source):
            self.programs.append(source.program(launch, form))
        elif isinstance(form, Routine) and not form.library:
            built = find_function(form.builder)(launch, Device())  # type: ignore[arg-type]
            self.programs += (
                [step.program for step in built.passes] if isinstance(built, KernelPlan) else [built]
            )

    def launch(self, *args: Any) -> None:
        raise AssertionError("nothing runs")


@pytest.fixture(autouse=True)
def libraries(monkeypatch: Any) -> None:
    for module in (cublas, cufft, cusolver):
        monkeypatch.setattr(module, "NativeLibrary", Library)


def meta_of(x: Any) -> Meta:
    kind = from_numpy(x.dtype)
    return Meta.of(x.shape, tuple([step // kind.itemsize for step in x.strides]), kind, GPU)


def chosen(flag: str) -> Any:
    """A flag's value, without cuDNN: what it computes has no source."""
    return flag != "cudnn_enabled" and getattr(flags, flag)


@pytest.mark.parametrize("name", NAMES)
def test_kernels_compile(name: str) -> None:
    op, collector = table[name], Collector()
    for kind in (float16, float32, complex32, complex64, int32):
        if kind not in op.dtypes and not (op.planned and kind in (float16, complex32)):
            continue
        for inputs, params in op.samples(operator_properties.maker(kind, 0), kind):
            try:
                found = op.rule([meta_of(np.asarray(x)) for x in inputs], (*params, *map(chosen, op.flags)))
            except (NotImplementedError, RuntimeError):
                continue  # a size or dtype that CUDA refuses
            launch = Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
            if any(meta.numel for meta in launch.outputs):
                find_function(op.kernel.cuda.library)(launch, Device(), collector)  # type: ignore[union-attr]
    assert collector.programs or name.endswith("_fft_r2c")
    compile_all(collector.programs)


def test_attention_of_each_depth_compiles() -> None:
    op, programs = table["scaled_dot_product_attention"], []
    for depth, kind in ((16, float16), (64, bfloat16), (96, float16), (128, bfloat16)):
        x, sums = Meta.contiguous_of((2, 300, depth), kind, GPU), Meta.contiguous_of((2, 300), float32, GPU)
        found = op.rule([x, x, x], (True, 0.1, False))
        forward = Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
        programs.append(attention.attention(forward, Device()))  # type: ignore[arg-type]
        for build, kernel, outputs, inputs in (
            (
                attention_gradients.by_queries,
                attention_gradients.BY_QUERIES,
                (x, sums),
                (x, x, x, x, x, sums),
            ),
            (attention_gradients.by_keys, attention_gradients.BY_KEYS, (x, x), (x, x, x, x, sums, sums)),
        ):
            launch = Launch(kernel, outputs, inputs, (True, 0.1), capability=(9, 0))
            programs.append(build(launch, Device()))  # type: ignore[arg-type]
    compile_all(programs)
