"""cuDNN by ctypes, an extra: `Dnn`, the library on one device, and `Convolution`, ready to be launched many times.

Its older interface of plain C functions, which version 9 still has. Only algorithms that give the same bits on each run
are taken, so that `torch.backends.cudnn.deterministic` holds whatever it is set to.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_double, c_float, c_int, c_size_t, c_void_p
from threading import Lock
from typing import Any

from flambeau.core.dtype import bfloat16, dtype, float16, float32, float64
from flambeau.core.errors import DriverError, NotSupportedError
from flambeau.driver.cuda.device import Device
from flambeau.driver.cuda.libraries import Library

DATA = {float32: 0, float64: 1, float16: 2, bfloat16: 9}  # cudnnDataType_t
_FLOAT, _DOUBLE = 0, 1
_NCHW, _CROSS_CORRELATION = 0, 1
_DEFAULT_MATH, _TENSOR_MATH, _FMA_MATH = 0, 1, 3
_TENSOR_MATHS = (1, 2)
_DETERMINISTIC = 1
_CHOICES = 10  # algorithms asked for; the library has fewer
_WORKSPACE = 1 << 30  # bytes that an algorithm may ask for at most
_DIMS = 2  # spatial ones that the library wants at least
_STATUSES = {
    1001: "CUDNN_STATUS_NOT_INITIALIZED", 1002: "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
    1008: "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED", 2000: "CUDNN_STATUS_BAD_PARAM",
    3000: "CUDNN_STATUS_NOT_SUPPORTED", 4000: "CUDNN_STATUS_INTERNAL_ERROR", 5000: "CUDNN_STATUS_EXECUTION_FAILED",
}  # fmt: skip


class _Performance(ctypes.Structure):
    """cudnnConvolution*AlgoPerf_t."""

    _fields_ = (
        ("algorithm", c_int), ("status", c_int), ("time", c_float), ("memory", c_size_t), ("determinism", c_int),
        ("math", c_int), ("reserved", c_int * 3),
    )  # fmt: skip


class Dnn:
    """cuDNN on the device whose context is current. NotSupportedError: it is not installed."""

    def __init__(self) -> None:
        self._library = Library("cudnn", "cuDNN", "cudnn", _STATUSES)
        self._calls: dict[str, Any] = {}
        self.lock = Lock()  # from choosing the handle's stream to the call that uses it
        handle = c_void_p()
        self.call("cudnnCreate", "p", byref(handle))
        self.handle = handle.value

    def call(self, name: str, signature: str, *args: Any) -> None:
        found = self._calls.get(name)
        if found is None:
            found = self._calls[name] = self._library.function(name, signature)
        found(*args)

    def made(self, kind: str) -> c_void_p:
        """A new descriptor: of a Tensor, a Filter or a Convolution."""
        found = c_void_p()
        self.call(f"cudnnCreate{kind}Descriptor", "p", byref(found))
        return found

    def close(self) -> None:
        self.call("cudnnDestroy", "p", self.handle)


def of(device: Device) -> Dnn | None:
    """The device's; None where cuDNN is not installed."""
    if "cudnn" not in device.libraries:
        try:
            device.libraries["cudnn"] = Dnn()
        except NotSupportedError:
            return None
    found: Dnn = device.libraries["cudnn"]
    return found


TARGETS = {
    "narrow": ("Forward", ("broad", "weight")),
    "broad": ("BackwardData", ("weight", "narrow")),
    "weight": ("BackwardFilter", ("broad", "narrow")),
}
"""What is computed of the three tensors that meet (see driver/cuda/convolution.py): cuDNN's name for it, and the order
in which it takes the two others."""


class Convolution:
    """One of three tensors from the two others, all contiguous. The algorithm is chosen once.

    shapes: by the names in TARGETS. geometry: padding, stride and dilation of each spatial dim.

    Raises NotSupportedError: cuDNN has no deterministic algorithm for it.
    """

    def __init__(
        self, dnn: Dnn, kind: dtype, target: str, shapes: dict[str, Sequence[int]],
        geometry: tuple[Sequence[int], Sequence[int], Sequence[int]], groups: int, tf32: bool,
    ) -> None:  # fmt: skip
        self._dnn = dnn
        self._name, self.order = TARGETS[target]
        self._descriptors: list[tuple[str, c_void_p]] = []
        number = c_double if kind is float64 else c_float
        self._one, self._zero = number(1), number(0)
        try:
            sides = {name: self._tensor(name, shape, kind) for name, shape in shapes.items()}
            self._how = self._convolution(geometry, groups, kind, tf32)
            self._sides = [*[sides[name] for name in self.order], sides[target]]
            self._choose(kind, tf32)
        except BaseException:
            self.close()
            raise

    # -- descriptors ----------------------------------------------------------------------------------
    def _new(self, kind: str) -> c_void_p:
        found = self._dnn.made(kind)
        self._descriptors.append((kind, found))
        return found

    def _tensor(self, name: str, shape: Sequence[int], kind: dtype) -> c_void_p:
        shape = (*shape[:2], *(1,) * (2 + _DIMS - len(shape)), *shape[2:])
        if name == "weight":
            found = self._new("Filter")
            args = (found, DATA[kind], _NCHW, len(shape), _ints(shape))
            self._dnn.call("cudnnSetFilterNdDescriptor", "piiip", *args)
            return found
        found, strides = self._new("Tensor"), [1]
        for n in shape[:0:-1]:
            strides.insert(0, strides[0] * n)
        args = (found, DATA[kind], len(shape), _ints(shape), _ints(strides))
        self._dnn.call("cudnnSetTensorNdDescriptor", "piipp", *args)
        return found

    def _convolution(self, geometry: Any, groups: int, kind: dtype, tf32: bool) -> c_void_p:
        found, dims = self._new("Convolution"), max(_DIMS, len(geometry[0]))
        padding, stride, dilation = (
            _ints((one,) * (dims - len(row)) + tuple(row))
            for row, one in zip(geometry, (0, 1, 1), strict=True)
        )
        computed = _DOUBLE if kind is float64 else _FLOAT
        self._dnn.call(
            "cudnnSetConvolutionNdDescriptor", "pipppii",
            found, dims, padding, stride, dilation, _CROSS_CORRELATION, computed,
        )  # fmt: skip
        self._dnn.call("cudnnSetConvolutionGroupCount", "pi", found, groups)
        self._dnn.call("cudnnSetConvolutionMathType", "pi", found, _math(kind, tf32))
        return found

    def _choose(self, kind: dtype, tf32: bool) -> None:
        """The fastest algorithm by the library's own judgement that is deterministic and small enough."""
        found, count = (_Performance * _CHOICES)(), c_int()
        first, second, target = self._sides
        try:
            self._dnn.call(
                f"cudnnGetConvolution{self._name}Algorithm_v7", "pppppipp",
                self._dnn.handle, first, second, self._how, target, _CHOICES, byref(count), found,
            )  # fmt: skip
        except DriverError as error:
            raise NotSupportedError(str(error)) from error
        exact = _math(kind, tf32) == _FMA_MATH  # then it stays so: the default would round to TF32
        for choice in found[: count.value]:
            good = choice.status == 0 and choice.determinism == _DETERMINISTIC
            if good and choice.memory <= _WORKSPACE and not (exact and choice.math in _TENSOR_MATHS):
                self._algorithm, self._workspace = choice.algorithm, choice.memory
                math = _FMA_MATH if exact else choice.math
                self._dnn.call("cudnnSetConvolutionMathType", "pi", self._how, math)
                return
        raise NotSupportedError(f"cuDNN has no deterministic algorithm for this {self._name}")

    # -- launches -------------------------------------------------------------------------------------
    def launch(self, first: int, second: int, target: int, device: Device, native: Any) -> None:
        """Queue it, from the addresses of `order` to the target's."""
        dnn, (a, b, out) = self._dnn, self._sides
        work = device.take(self._workspace, native) if self._workspace else 0
        try:
            with dnn.lock:
                dnn.call("cudnnSetStream", "pp", dnn.handle, int(native))
                dnn.call(
                    f"cudnnConvolution{self._name}", "pppppppipzppp",
                    dnn.handle, byref(self._one), a, first, b, second, self._how, self._algorithm, work,
                    self._workspace, byref(self._zero), out, target,
                )  # fmt: skip
        finally:
            if work:
                device.give(work, native)

    def close(self) -> None:
        while self._descriptors:
            kind, found = self._descriptors.pop()
            self._dnn.call(f"cudnnDestroy{kind}Descriptor", "p", found)


def _math(kind: dtype, tf32: bool) -> int:
    if kind is float32 and not tf32:
        return _FMA_MATH
    return _TENSOR_MATH if kind in (float16, bfloat16) else _DEFAULT_MATH


def _ints(values: Sequence[int]) -> Any:
    return (c_int * len(values))(*values)
