"""Convolutions by cuDNN with NumPy in the library's place, by the letter of its C interface: no GPU needed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

from library_kit import Device
from test_convolution_steps import NAMES, NEAR, Driver, cases, meta_of

from flambeau.core.dtype import bfloat16, complex64, dtype, float16, float32, float64
from flambeau.core.errors import DriverError, NotSupportedError
from flambeau.core.memory import array_at
from flambeau.driver.api import Launch
from flambeau.driver.cuda import convolution, cudnn
from flambeau.ops import convolution as ops
from flambeau.ops.convolution import Geometry
from flambeau.ops.op import Op, table
from flambeau.testing import operators

KINDS = {0: float32, 1: float64, 2: float16, 9: bfloat16}
SLOW, FAST, BIG = (
    7,
    5,
    3,
)  # algorithms: one that is not deterministic, the one to take, one that wants much memory


class Dnn:
    """In the place of the library: descriptors by number, and what was called."""

    def __init__(self) -> None:
        self.descriptors: dict[int, Any] = {}
        self.names: list[str] = []
        self.math: list[int] = []
        self.refuses = False

    def function(self, name: str, signature: str) -> Callable[..., None]:
        def call(*args: Any) -> None:
            assert len(args) == len(signature), (name, args)
            self.names.append(name)
            values = [a.value if isinstance(a, ctypes.c_void_p) else a for a in args]
            self.run(name.removeprefix("cudnn"), values)

        return call

    def run(self, name: str, args: list[Any]) -> None:
        if name == "Create":
            args[0]._obj.value = 99
        elif name.startswith("Create"):
            number = 1 + max(self.descriptors, default=0)
            self.descriptors[number] = {}
            args[0]._obj.value = number
        elif name.startswith("Destroy"):
            del self.descriptors[args[0]]
        elif name == "SetTensorNdDescriptor":
            found, kind, _, dims, strides = args
            self.descriptors[found] |= {"kind": KINDS[kind], "shape": list(dims), "strides": list(strides)}
        elif name == "SetFilterNdDescriptor":
            found, kind, order, count, dims = args
            assert order == 0 and count == len(dims)
            self.descriptors[found] |= {"kind": KINDS[kind], "shape": list(dims)}
        elif name == "SetConvolutionNdDescriptor":
            found, count, padding, stride, dilation, mode, computed = args
            assert mode == 1 and count == len(padding)
            self.descriptors[found] |= {"how": (stride, padding, dilation), "computed": computed}
        elif name == "SetConvolutionGroupCount":
            self.descriptors[args[0]]["groups"] = args[1]
        elif name == "SetConvolutionMathType":
            self.math.append(args[1])
        elif name.startswith("GetConvolution"):
            self.choose(*args)
        elif name.startswith("Convolution"):
            self.convolve(name.removeprefix("Convolution"), *args)
        else:
            assert name == "SetStream" and args == [99, 0]

    def choose(
        self, handle: int, a: int, b: int, how: int, out: int, most: int, count: Any, found: Any
    ) -> None:
        if self.refuses:
            raise DriverError("cuDNN: CUDNN_STATUS_NOT_SUPPORTED")
        assert handle == 99 and most >= 3
        choices = [(SLOW, 0, 0), (BIG, 1, 1 << 40), (FAST, 1, 64)]
        for place, (algorithm, fixed, memory) in zip(found, choices, strict=False):
            place.algorithm, place.determinism, place.memory, place.math = (
                algorithm,
                fixed,
                memory,
                self.math[-1],
            )
        count._obj.value = len(choices)

    def convolve(
        self, name: str, handle: int, one: Any, a: int, a_at: int, b: int, b_at: int, how: int, algorithm: int,
        work: int, size: int, zero: Any, out: int, out_at: int,
    ) -> None:  # fmt: skip
        assert (handle, algorithm, size) == (99, FAST, 64) and work % 256 == 0
        wide = self.descriptors[out]["kind"] is float64
        assert isinstance(one._obj, ctypes.c_double if wide else ctypes.c_float)
        assert (one._obj.value, zero._obj.value) == (1, 0)
        assert self.descriptors[how]["computed"] == int(wide)
        stride, padding, dilation = map(tuple, self.descriptors[how]["how"])
        geometry = Geometry(stride, padding, dilation, groups=self.descriptors[how]["groups"])
        x, y, target = (self.array(i, at) for i, at in ((a, a_at), (b, b_at), (out, out_at)))
        exact = np.float64 if wide else np.float32
        found = np.zeros(target.shape, exact)
        x, y = x.astype(exact), y.astype(exact)
        if name == "Forward":  # x, weight
            ops._forward(found, x, y, geometry)
        elif name == "BackwardData":  # weight, grad
            ops._transposed(found, y, x, geometry)
        else:  # BackwardFilter: x, grad
            found = ops._weight(y, x, tuple(target.shape[2:]), geometry).reshape(target.shape)
        target[...] = found

    def array(self, descriptor: int, at: int) -> Any:
        about = self.descriptors[descriptor]
        kind: dtype = about["kind"]
        strides, step = [], kind.itemsize
        for n in about["shape"][::-1]:
            strides.insert(0, step)
            step *= n
        assert about.get("strides", [s // kind.itemsize for s in strides]) == [
            s // kind.itemsize for s in strides
        ]
        return array_at(at, tuple(about["shape"]), kind.numpy, tuple(strides))


@pytest.fixture
def dnn(monkeypatch: pytest.MonkeyPatch) -> Dnn:
    found = Dnn()
    monkeypatch.setattr(cudnn, "Library", lambda *about: found)
    return found


def check(op: Op, inputs: Any, params: Any, tf32: bool = False, enabled: bool = True) -> None:
    signature = op.rule([meta_of(x) for x in inputs], (*params, enabled, tf32))
    launch = Launch(op.kernel, signature.outputs, signature.inputs, signature.params, capability=(7, 0))
    device = Device()
    run = convolution.ROUTINES[op.kernel.cuda.name](launch, device, Adding(device))
    (out,) = signature.outputs
    got, want = (np.zeros(out.shape, out.dtype.numpy) for _ in range(2))
    run([got.ctypes.data, *[x.ctypes.data for x in inputs]], (), 0, 0)
    run.close()
    assert not device.held, "workspace was not given back"
    op.kernel.host(launch)([want], list(inputs))
    near, exact = NEAR[out.dtype.name], complex if out.dtype.is_complex else float
    np.testing.assert_allclose(got.astype(exact), want.astype(exact), near * 4, near * 20)


class Adding(Driver):
    """Also adds a bias."""

    def load(self, launch: Launch, index: int) -> Any:
        return (launch, None) if launch.kernel.name == "plus" else super().load(launch, index)

    def launch(self, exe: Any, ptrs: Any, scalars: Any, stream: int) -> None:
        launch, _ = exe
        if launch.kernel.name != "plus":
            return super().launch(exe, ptrs, scalars, stream)
        out, a, b = (
            array_at(ptr, m.shape, m.dtype.numpy, m.byte_strides)
            for ptr, m in zip(ptrs, launch.operands, strict=True)
        )
        out[...] = a + b


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", (float16, bfloat16, float32, float64))
def test_samples(name: str, kind: Any, dnn: Dnn) -> None:
    op = table[name]
    for inputs, params in op.samples(operators.maker(kind, 0), kind):
        for layout in (operators.plain, operators.reversed_dims):
            check(op, [layout(x)[1] for x in inputs], params)
        assert any(name.startswith("cudnnConvolution") for name in dnn.names)
        assert not dnn.descriptors, "descriptors were kept"


def test_all_three_of_a_meeting(dnn: Dnn) -> None:
    for x, weight, bias, how in cases():
        check(table["convolution"], [x, weight] if bias is None else [x, weight, bias], (how,))
        channels = weight.shape[1] * how.groups if how.transposed else weight.shape[0]
        grad = operators.maker(float32, 2)(len(x), channels, *how.size(x.shape[2:], weight.shape[2:]))
        check(table["convolution_backward_input"], [grad, weight], (how, x.shape[2:]))
        check(table["convolution_backward_weight"], [grad, x], (how, weight.shape[2:]))


@pytest.mark.parametrize(
    "kind, tf32, wanted", ((float32, True, 0), (float32, False, 3), (float16, False, 1), (float64, True, 0))
)
def test_the_kind_of_arithmetic(kind: Any, tf32: bool, wanted: int, dnn: Dnn) -> None:
    make = operators.maker(kind, 0)
    check(table["convolution"], [make(1, 2, 5), make(3, 2, 3)], (Geometry((1,), (0,), (1,)),), tf32)
    assert set(dnn.math) == {wanted}


def ran(dnn: Dnn) -> bool:
    return any(name.startswith("cudnnConvolution") for name in dnn.names)


def test_columns_take_what_cudnn_does_not(dnn: Dnn) -> None:
    make, how = operators.maker(float32, 0), Geometry((1,), (0,), (1,))
    check(table["convolution"], [make(1, 2, 5), make(3, 2, 3)], (how,), enabled=False)
    assert not dnn.names
    wide = operators.maker(complex64, 0)
    check(table["convolution"], [wide(1, 2, 5), wide(3, 2, 3)], (how,))
    left_over = Geometry((1,), (0,), (3,), True, (2,))  # more elements than windows reach
    check(table["convolution"], [make(1, 2, 5), make(2, 3, 3)], (left_over,))
    assert not ran(dnn)
    dnn.refuses = True
    check(table["convolution"], [make(1, 2, 5), make(3, 2, 3)], (how,))
    assert not ran(dnn) and not dnn.descriptors


def test_without_the_extra_columns_take_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*about: Any) -> Any:
        raise NotSupportedError("cuDNN is not on this machine")

    monkeypatch.setattr(cudnn, "Library", missing)
    make = operators.maker(float32, 0)
    check(table["convolution"], [make(1, 2, 5), make(3, 2, 3)], (Geometry((1,), (0,), (1,)),))


def test_other_failures_are_told(dnn: Dnn, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any) -> None:
        raise DriverError("cuDNN: cudnnCreate: CUDNN_STATUS_NOT_INITIALIZED")

    monkeypatch.setattr(dnn, "run", failing)
    make = operators.maker(float32, 0)
    with pytest.raises(DriverError, match="NOT_INITIALIZED"):
        check(table["convolution"], [make(1, 2, 5), make(3, 2, 3)], (Geometry((1,), (0,), (1,)),))
