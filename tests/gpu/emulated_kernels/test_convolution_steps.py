"""Convolutions by columns with NumPy in cuBLASLt's place and the kernels emulated: no GPU needed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated
import library_kit
from library_kit import Device

import flambeau
from flambeau.core.dtype import bfloat16, complex64, float16, float32, float64, from_numpy
from flambeau.core.meta import Meta
from flambeau.driver.cuda.kernel_builder import find_function
from flambeau.driver.cuda.nn import convolution
from flambeau.driver.protocol import Launch
from flambeau.ops.nn.convolution import Geometry
from flambeau.ops.op import Op, table
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)
NAMES = ("convolution", "convolution_backward_input", "convolution_backward_weight")
NEAR = {"float16": 2e-2, "bfloat16": 0.15, "float32": 1e-5, "float64": 1e-12, "complex64": 1e-5}


class Driver(library_kit.Driver):
    """Also adds to products, and computes all of them wide."""

    def load(self, launch: Launch, index: int) -> Any:
        if launch.kernel.name in ("matmul", "addmm"):
            return launch, None
        return super().load(launch, index)

    def launch(self, exe: Any, ptrs: Any, scalars: Any, stream: int) -> None:
        launch, _ = exe
        if launch.kernel.name not in ("matmul", "addmm"):
            return super().launch(exe, ptrs, scalars, stream)
        out, *inputs = (library_kit.at(ptr, meta) for ptr, meta in zip(ptrs, launch.operands, strict=True))
        kind = np.result_type(np.complex64 if out.dtype.kind == "c" else np.float32, out.dtype)
        kind = np.dtype(np.float32) if out.dtype.itemsize == 2 else kind
        *added, a, b = (x.astype(kind) for x in inputs)
        assert not scalars or scalars == (1, 1)
        out[...] = a @ b + (added[0] if added else 0)


def meta_of(x: Any) -> Meta:
    return Meta.of(x.shape, tuple([s // x.itemsize for s in x.strides]), from_numpy(x.dtype), GPU)


def check(op: Op, inputs: Any, params: Any, out_step: int = 1) -> None:
    """The steps give what the host body gives, return the workspace and leave the inputs."""
    found = op.rule([meta_of(x) for x in inputs], (*params, False, False))
    (natural,) = found.outputs
    wide = np.zeros((*natural.shape[:-1], natural.shape[-1] * out_step), natural.dtype.numpy)
    got = wide[..., ::out_step]
    out = Meta.of(natural.shape, tuple([s // got.itemsize for s in got.strides]), natural.dtype, GPU)
    launch = Launch(op.kernel, (out,), found.inputs, found.params, capability=(9, 0))
    device = Device()
    run = find_function(op.kernel.cuda.library)(launch, device, Driver(device))
    before = [np.array(x) for x in inputs]
    run([got.ctypes.data, *[x.ctypes.data for x in inputs]], (), 0, 0)
    assert not device.held, "workspace was not given back"
    assert all(np.array_equal(x, y) for x, y in zip(inputs, before, strict=True))
    want = np.zeros(natural.shape, natural.dtype.numpy)
    with np.errstate(all="ignore"):
        op.kernel.host(launch)([want], list(inputs))
    near = NEAR[natural.dtype.name]
    exact = complex if natural.dtype.is_complex else float
    np.testing.assert_allclose(got.astype(exact), want.astype(exact), near * 4, near * 20)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", (float16, bfloat16, float32, float64, complex64))
def test_samples_in_every_layout(name: str, kind: Any) -> None:
    op = table[name]
    for inputs, params in op.samples(operator_properties.maker(kind, 0), kind):
        for layout in (
            operator_properties.plain,
            operator_properties.reversed_dims,
            operator_properties.with_gaps,
        ):
            check(op, [layout(x)[1] for x in inputs], params)
        check(op, inputs, params, out_step=2)


def cases() -> Any:
    """(x, weight, bias, Geometry): several samples and groups, windows of one element, transposed ones with room left."""
    make = operator_properties.maker(float32, 1)
    yield make(3, 6, 5, 4), make(4, 3, 1, 1), make(4), Geometry((1, 1), (0, 0), (1, 1), groups=2)
    yield make(3, 4, 5), make(6, 4, 1), make(6), Geometry((1,), (0,), (1,))
    yield make(3, 4, 5), make(4, 3, 1), make(6), Geometry((1,), (0,), (1,), True, (0,), 2)
    yield make(3, 4, 6), make(4, 1, 3), make(4), Geometry((1,), (1,), (1,), groups=4)
    yield make(2, 4, 3, 3), make(4, 1, 2, 3), make(2), Geometry((1, 2), (0, 1), (3, 1), True, (2, 1), 2)
    yield make(5, 2, 9), make(3, 2, 3), None, Geometry((2,), (2,), (3,))


@pytest.mark.parametrize("limit", (1 << 29, 500, 1))
def test_all_three_of_a_meeting_and_samples_in_parts(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "_COLUMN_BYTES", limit)
    for x, weight, bias, how in cases():
        check(table["convolution"], [x, weight] if bias is None else [x, weight, bias], (how,))
        channels = weight.shape[1] * how.groups if how.transposed else weight.shape[0]
        shape = (len(x), channels, *how.size(x.shape[2:], weight.shape[2:]))
        grad = operator_properties.maker(float32, 2)(*shape)
        check(table["convolution_backward_input"], [grad, weight], (how, x.shape[2:]))
        check(table["convolution_backward_weight"], [grad, x], (how, weight.shape[2:]))


def test_of_nothing() -> None:
    make, how = operator_properties.maker(float32, 1), Geometry((1,), (1,), (1,))
    check(table["convolution_backward_weight"], [make(0, 3, 5), make(0, 2, 5)], (how, (3,)))
    check(table["convolution"], [make(2, 0, 5), make(3, 0, 3), make(3)], (how,))
    check(table["convolution_backward_input"], [make(2, 3, 5), make(3, 0, 3)], (how, (5,)))
