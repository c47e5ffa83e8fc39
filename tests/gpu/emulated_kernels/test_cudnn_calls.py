"""Convolutions by cuDNN with NumPy in the library's place, by the letter of its C interface: no GPU needed."""

from __future__ import annotations

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
from flambeau.core.host_arrays import array_at
from flambeau.driver.cuda.kernel_builder import find_function
from flambeau.driver.cuda.libraries import cudnn
from flambeau.driver.protocol import Launch
from flambeau.ops.nn import convolution as ops
from flambeau.ops.nn.convolution import Geometry
from flambeau.ops.op import Op, table
from flambeau.testing import operator_properties

KINDS = {0: float32, 1: float64, 2: float16, 9: bfloat16}
FORWARD, WEIGHT_GRADIENT, INPUT_GRADIENT = 10, 11, 12
# Attributes of an operation: how, x, w, y.
ATTRIBUTES = {
    FORWARD: (702, 704, 703, 705),
    INPUT_GRADIENT: (708, 710, 709, 711),
    WEIGHT_GRADIENT: (714, 716, 715, 717),
}
TENSOR_CORE, DOWN_CONVERT, NONDETERMINISTIC = 0, 1, 4
# Engines in the order of the heuristics: numerical notes, behavior notes, bytes to work with, whether its plan is made.
ENGINES: list[tuple[list[int], list[int], int, bool]] = [
    ([NONDETERMINISTIC], [], 64, True),
    ([], [0], 64, True),  # compiled when first used
    ([], [], 1 << 40, True),
    ([], [], 64, False),
    ([TENSOR_CORE, DOWN_CONVERT], [], 64, True),
    ([], [], 64, True),
]
TENSOR, PLAIN = 4, 5
ARGUMENTS = 16


class Dnn:
    """In the place of the library: descriptors by number, and what was called."""

    def __init__(self) -> None:
        self.descriptors: dict[int, Any] = {}
        self.names: list[str] = []
        self.taken: list[int] = []  # engines of plans that were executed
        self.aligned: set[int] = set()
        self.refuses = False
        self._count = 0

    def function(self, name: str, signature: str) -> Callable[..., None]:
        def call(*args: Any) -> None:
            assert len(args) == len(signature), (name, args)
            self.names.append(name)
            self.run(name.removeprefix("cudnn").removeprefix("Backend"), args)

        return call

    def run(self, name: str, args: Any) -> None:
        getattr(self, f"on_{name}")(*args)

    def on_Create(self, found: Any) -> None:  # noqa: N802
        found._obj.value = 99

    def on_CreateDescriptor(self, kind: int, found: Any) -> None:  # noqa: N802
        self._count += 1
        self.descriptors[self._count] = {"kind": kind}
        found._obj.value = self._count

    def on_Destroy(self, handle: int) -> None:  # noqa: N802
        assert handle == 99

    def on_DestroyDescriptor(self, found: int) -> None:  # noqa: N802
        del self.descriptors[found]

    def on_SetAttribute(self, found: int, name: int, kind: int, count: int, values: Any) -> None:  # noqa: N802
        about = self.descriptors[found]
        assert "final" not in about
        given = [values._obj.value] if hasattr(values, "_obj") else list(values)
        assert len(given) == count
        about[name] = given

    def on_GetAttribute(  # noqa: N802
        self, found: int, name: int, kind: int, most: int, count: Any, values: Any
    ) -> None:
        about, blanks = self.descriptors[found], list(values or ())
        answer: list[Any] = []
        if name == 202:  # the results of heuristics
            engines = [] if self.refuses or about[200] == [2] else range(len(ENGINES))
            answer = list(engines)
            for blank, engine in zip(blanks, engines, strict=False):
                assert self.descriptors[blank]["kind"] == 3
                self.descriptors[blank]["engine"] = engine
            values, blanks = None, []
        elif name == 300:
            self.descriptors[blanks[0]]["engine"] = about["engine"]
            answer, values = [None], None
        elif name == 1303:
            answer = ENGINES[about["engine"]][0]
        elif name == 1305:
            answer = ENGINES[about["engine"]][1]
        else:
            assert name == 402
            answer = [ENGINES[about["engine"]][2]]
        count._obj.value = len(answer)
        for i, value in enumerate(answer if values else ()):
            values[i] = value

    def on_Finalize(self, found: int) -> None:  # noqa: N802
        about = self.descriptors[found]
        about["final"] = True
        if about["kind"] == 5:
            assert about[400] == [99]
            about["engine"] = self.descriptors[about[401][0]]["engine"]
            about["operation"] = self.operation_of()
            if not ENGINES[about["engine"]][3]:
                raise DriverError("cuDNN: cudnnBackendFinalize: CUDNN_STATUS_NOT_SUPPORTED")

    def operation_of(self) -> int:
        """Of the graph that was described last."""
        graph = max(n for n, about in self.descriptors.items() if about["kind"] == 15)
        assert self.descriptors[graph][800] == [99]
        (operation,) = self.descriptors[graph][801]
        return int(operation)

    def on_SetStream(self, handle: int, stream: int) -> None:  # noqa: N802
        assert (handle, stream) == (99, 0)

    def on_Execute(self, handle: int, plan: int, arguments: int) -> None:  # noqa: N802
        about, given = self.descriptors[plan], self.descriptors[arguments]
        assert handle == 99 and given["final"] and given[1003][0] % 256 == 0
        self.taken.append(about["engine"])
        operation = self.descriptors[about["operation"]]
        how, *sides = (self.descriptors[operation[name][0]] for name in ATTRIBUTES[operation["kind"]])
        at = dict(zip(given[1000], given[1001], strict=True))
        x, w, y = (self.array(side, at[side[906][0]]) for side in sides)
        self.convolve(operation, how, x, w, y)

    def convolve(self, operation: Any, how: Any, x: Any, w: Any, y: Any) -> None:
        wide = x.dtype == np.float64
        alpha = ATTRIBUTES[operation["kind"]][0] - 2
        assert (operation[alpha], operation[alpha + 1]) == ([1.0], [0.0])
        assert how[100] == [int(wide)] and how[101] == [1] and how[104] == how[105]
        assert how[106] == [len(how[103])]
        geometry = Geometry(
            tuple(how[103]), tuple(how[105]), tuple(how[102]), groups=x.shape[1] // w.shape[1]
        )
        exact = np.float64 if wide else np.float32
        a, b, c = (side.astype(exact) for side in (x, w, y))
        if operation["kind"] == FORWARD:
            y[...] = ops.sum_windows(a, b, geometry, y.shape[2:])
        elif operation["kind"] == INPUT_GRADIENT:
            x[...] = ops.add_windows(c, b, geometry, x.shape[2:])
        else:
            w[...] = ops.sum_products(c, a, geometry, w.shape[2:])

    def array(self, about: Any, at: int) -> Any:
        kind: dtype = KINDS[about[901][0]]
        (alignment,) = about[900]
        assert at % alignment == 0
        self.aligned.add(alignment)
        strides, step = [], 1
        for n in about[902][::-1]:
            strides.insert(0, step)
            step *= n
        assert about[903] == strides
        return array_at(at, tuple(about[902]), kind.numpy, tuple(s * kind.itemsize for s in strides))


@pytest.fixture
def dnn(monkeypatch: pytest.MonkeyPatch) -> Dnn:
    found = Dnn()
    monkeypatch.setattr(cudnn, "NativeLibrary", lambda *about: found)
    return found


def check(op: Op, inputs: Any, params: Any, tf32: bool = False, enabled: bool = True) -> None:
    signature = op.rule([meta_of(x) for x in inputs], (*params, enabled, tf32))
    launch = Launch(op.kernel, signature.outputs, signature.inputs, signature.params, capability=(7, 0))
    device = Device()
    run = find_function(op.kernel.cuda.library)(launch, device, Adding(device))
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
    for inputs, params in op.samples(operator_properties.maker(kind, 0), kind):
        for layout in (operator_properties.plain, operator_properties.reversed_dims):
            check(op, [layout(x)[1] for x in inputs], params)
        assert ran(dnn)
        assert kinds(dnn) <= {ARGUMENTS}, "descriptors were kept"


def test_all_three_of_a_meeting(dnn: Dnn) -> None:
    for x, weight, bias, how in cases():
        check(table["convolution"], [x, weight] if bias is None else [x, weight, bias], (how,))
        channels = weight.shape[1] * how.groups if how.transposed else weight.shape[0]
        grad = operator_properties.maker(float32, 2)(
            len(x), channels, *how.size(x.shape[2:], weight.shape[2:])
        )
        check(table["convolution_backward_input"], [grad, weight], (how, x.shape[2:]))
        check(table["convolution_backward_weight"], [grad, x], (how, weight.shape[2:]))


@pytest.mark.parametrize(
    "kind, tf32, wanted",
    ((float32, True, TENSOR), (float32, False, PLAIN), (float16, False, TENSOR), (float64, True, TENSOR)),
)
def test_the_engine_that_is_taken(kind: Any, tf32: bool, wanted: int, dnn: Dnn) -> None:
    make = operator_properties.maker(kind, 0)
    check(table["convolution"], [make(1, 2, 5), make(3, 2, 3)], (Geometry((1,), (0,), (1,)),), tf32)
    assert set(dnn.taken) == {wanted}


def a_convolution(library: cudnn.Dnn) -> cudnn.Convolution:
    shapes = {"broad": (1, 2, 5), "weight": (3, 2, 3), "narrow": (1, 3, 3)}
    return cudnn.Convolution(library, float32, "narrow", shapes, ((0,), (1,), (1,)), tf32=False)


def test_addresses_between_wide_loads_have_a_plan_of_their_own(dnn: Dnn) -> None:
    library = cudnn.Dnn()
    found, room = a_convolution(library), np.zeros(64, np.float32)
    base = -(-room.ctypes.data // 16) * 16
    for at, alignments in ((base, {16}), (base + 4, {16, 4}), (base + 16, {16, 4})):
        found.launch(base, base, at, Device(), 0)
        assert dnn.aligned == alignments
    assert dnn.names.count("cudnnBackendExecute") == 3
    found.close()
    library.close()
    assert not dnn.descriptors


def test_addresses_are_described_once(dnn: Dnn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "_MOST_ARGUMENTS", 2)
    library = cudnn.Dnn()
    found, room = a_convolution(library), np.zeros(64, np.float32)
    base, device = -(-room.ctypes.data // 16) * 16, Device()
    device.take = lambda nbytes, native: 256  # type: ignore[method-assign,assignment]
    device.give = lambda ptr, native: None  # type: ignore[method-assign,assignment]
    for at, count in ((0, 1), (0, 1), (16, 2), (0, 2), (32, 1), (0, 2)):
        found.launch(base, base, base + at, device, 0)
        assert [about["kind"] for about in dnn.descriptors.values()].count(ARGUMENTS) == count


def kinds(dnn: Dnn) -> set[int]:
    return {about["kind"] for about in dnn.descriptors.values()}


def ran(dnn: Dnn) -> bool:
    return "cudnnBackendExecute" in dnn.names


def test_columns_take_what_cudnn_does_not(dnn: Dnn) -> None:
    make, how = operator_properties.maker(float32, 0), Geometry((1,), (0,), (1,))
    check(table["convolution"], [make(1, 2, 5), make(3, 2, 3)], (how,), enabled=False)
    assert not dnn.names
    wide = operator_properties.maker(complex64, 0)
    check(table["convolution"], [wide(1, 2, 5), wide(3, 2, 3)], (how,))
    left_over = Geometry((1,), (0,), (3,), True, (2,))  # more elements than windows reach
    check(table["convolution"], [make(1, 2, 5), make(2, 3, 3)], (left_over,))
    assert not ran(dnn)
    dnn.refuses = True
    check(table["convolution"], [make(1, 2, 5), make(3, 2, 3)], (how,))
    assert not ran(dnn) and kinds(dnn) <= {ARGUMENTS}


def test_without_the_extra_columns_take_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*about: Any) -> Any:
        raise NotSupportedError("cuDNN is not on this machine")

    monkeypatch.setattr(cudnn, "NativeLibrary", missing)
    make = operator_properties.maker(float32, 0)
    check(table["convolution"], [make(1, 2, 5), make(3, 2, 3)], (Geometry((1,), (0,), (1,)),))


def test_other_failures_are_told(dnn: Dnn, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any) -> None:
        raise DriverError("cuDNN: cudnnCreate: CUDNN_STATUS_NOT_INITIALIZED")

    monkeypatch.setattr(dnn, "run", failing)
    make = operator_properties.maker(float32, 0)
    with pytest.raises(DriverError, match="NOT_INITIALIZED"):
        check(table["convolution"], [make(1, 2, 5), make(3, 2, 3)], (Geometry((1,), (0,), (1,)),))
