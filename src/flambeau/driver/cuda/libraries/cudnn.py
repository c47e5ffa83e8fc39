"""cuDNN by ctypes, an extra: `Dnn`, the library on one device, and `Convolution`, an execution plan.

The module uses cuDNN's backend API of descriptors
(https://docs.nvidia.com/deeplearning/cudnn/latest/api/cudnn-graph-library.html): an operation is described, the
library's heuristics list engines for it, the best first, and the chosen engine becomes an execution plan. Only engines
with bitwise reproducible results are chosen, so `torch.backends.cudnn.deterministic` holds for any setting. The older
function API prepares its work on each call, which takes 45 us on the host; executing a plan takes less than 10 us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ctypes import byref, c_double, c_float, c_int, c_int64, c_void_p
from threading import Lock
from typing import Any

from flambeau.core.dtype import bfloat16, dtype, float16, float32, float64
from flambeau.core.errors import DriverError, NotSupportedError
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.libraries.native_library import NativeLibrary

DATA = {float32: 0, float64: 1, float16: 2, bfloat16: 9}  # cudnnDataType_t
_CROSS_CORRELATION = 1
_WORKSPACE = 1 << 30  # the maximum workspace of a plan in bytes
_DIMS = 2  # the minimum number of spatial dimensions
_ALIGNED = 16  # bytes; engines with the widest loads require this alignment

# cudnnBackendDescriptorType_t
_HOW, _ENGINE, _CHOICE, _HEURISTICS, _PLAN = 1, 2, 3, 4, 5
_GRAPH, _ARGUMENTS, _TENSOR = 15, 16, 17
# cudnnBackendAttributeType_t, and the ctypes type of a value
_HANDLE, _DATA_TYPE, _INT64, _FLOAT, _DOUBLE, _POINTER, _CONVOLUTION_MODE, _HEURISTIC = 0, 1, 3, 4, 5, 6, 7, 8
_NUMERICAL_NOTE, _DESCRIPTOR, _BEHAVIOR_NOTE = 11, 15, 19
_HOLDERS: dict[int, Any] = {
    _HANDLE: c_void_p, _DATA_TYPE: c_int, _INT64: c_int64, _FLOAT: c_float, _DOUBLE: c_double, _POINTER: c_void_p,
    _CONVOLUTION_MODE: c_int, _HEURISTIC: c_int, _NUMERICAL_NOTE: c_int, _DESCRIPTOR: c_void_p, _BEHAVIOR_NOTE: c_int,
}  # fmt: skip
# cudnnBackendAttributeName_t
_HOW_COMPUTED, _HOW_MODE, _HOW_DILATIONS, _HOW_STRIDES, _HOW_AFTER, _HOW_BEFORE, _HOW_DIMS = range(100, 107)
_HEURISTICS_MODE, _HEURISTICS_GRAPH, _HEURISTICS_RESULTS = 200, 201, 202
_CHOICE_ENGINE = 300
_PLAN_HANDLE, _PLAN_CHOICE, _PLAN_WORKSPACE = 400, 401, 402
_GRAPH_HANDLE, _GRAPH_OPERATIONS = 800, 801
_TENSOR_ALIGNMENT, _TENSOR_DATA_TYPE, _TENSOR_SIZES, _TENSOR_STRIDES, _TENSOR_ID = 900, 901, 902, 903, 906
_ARGUMENTS_IDS, _ARGUMENTS_POINTERS, _ARGUMENTS_WORKSPACE = 1000, 1001, 1003
_ENGINE_NUMERICS, _ENGINE_BEHAVIOR = 1303, 1305

_MODES = (3, 2)  # heuristics: mode A, then the fallback
_TENSOR_CORE, _DOWN_CONVERT, _NONDETERMINISTIC = 0, 1, 4  # numerical notes
_COMPILES = 0  # a behavior note: the engine would be compiled now, for a second or more
_NOTES = 16  # the maximum number of an engine's notes
_MOST_ARGUMENTS = 1024
_STATUSES = {
    1001: "CUDNN_STATUS_NOT_INITIALIZED", 1002: "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
    1008: "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED", 2000: "CUDNN_STATUS_BAD_PARAM",
    3000: "CUDNN_STATUS_NOT_SUPPORTED", 4000: "CUDNN_STATUS_INTERNAL_ERROR", 5000: "CUDNN_STATUS_EXECUTION_FAILED",
}  # fmt: skip

Attribute = tuple[int, int, Sequence[Any]]
"""(name, type, values)."""
Key = tuple[int, int, int, int]
"""Addresses: of three tensors and of a workspace, 0 for none."""


class Dnn:
    """The library cuDNN on the device whose context is current.

    Raises:
        NotSupportedError: If cuDNN is not installed.
    """

    def __init__(self) -> None:
        self.library = NativeLibrary("cudnn", "cuDNN", "cudnn", _STATUSES)
        function: Callable[[str, str], Any] = self.library.function
        self._create = function("cudnnBackendCreateDescriptor", "ip")
        self._set = function("cudnnBackendSetAttribute", "piilp")
        self._get = function("cudnnBackendGetAttribute", "piilpp")
        self._finalize = function("cudnnBackendFinalize", "p")
        self.destroy = function("cudnnBackendDestroyDescriptor", "p")
        self._execute = function("cudnnBackendExecute", "ppp")
        self._set_stream = function("cudnnSetStream", "pp")
        self._close = function("cudnnDestroy", "p")
        # held from the choice of the handle's stream, or of addresses, until the call that uses them
        self._lock = Lock()
        self._native: Any = None  # the handle's stream
        self._arguments: dict[Key, int] = {}  # descriptors
        # Descriptors of arguments, rewritten for each set: creating them costs more than the calls.
        self._numbers, self._ptrs, self._work = (c_int64 * 3)(1, 2, 3), (c_void_p * 3)(), (c_void_p * 1)()
        self._found = c_void_p()
        self._found_at = byref(self._found)
        self.recurrent: Any = None  # the functions of recurrent networks, see cudnn_recurrent.py
        handle = c_void_p()
        function("cudnnCreate", "p")(byref(handle))
        self.handle = handle.value

    # -- descriptors ----------------------------------------------------------------------------------
    def make(self, kind: int, *attributes: Attribute) -> int:
        """Return a complete descriptor."""
        found = self.blank(kind)
        try:
            for name, type, values in attributes:
                self._set(found, name, type, len(values), (_HOLDERS[type] * len(values))(*values))
            self._finalize(found)
        except BaseException:
            self.destroy(found)
            raise
        return found

    def blank(self, kind: int) -> int:
        """Return a descriptor that the library fills in."""
        found = c_void_p()
        self._create(kind, byref(found))
        return found.value or 0

    def values(
        self, descriptor: int, name: int, type: int, most: int, blanks: Sequence[int] = ()
    ) -> list[Any]:
        """Return the values of an attribute. `blanks` are descriptors that the library fills in."""
        count, found = c_int64(), (_HOLDERS[type] * most)(*blanks)
        self._get(descriptor, name, type, most, byref(count), found if most else None)
        return list(found[: count.value])

    def count(self, descriptor: int, name: int, type: int) -> int:
        """Return the number of values of an attribute."""
        count = c_int64()
        self._get(descriptor, name, type, 0, byref(count), None)
        return count.value

    # -- launches -------------------------------------------------------------------------------------
    def execute(self, plan: int, key: Key, native: Any) -> None:
        """Enqueue a plan with the addresses of its tensors, numbered 1, 2, 3, and of its workspace."""
        with self._lock:
            arguments = self._arguments.get(key)
            if arguments is None:
                arguments = self._new_arguments(key)
            self._select(native)
            self._execute(self.handle, plan, arguments)

    def run(self, call: Callable[[], None], native: Any) -> None:
        """Run a call of the library whose work goes to a stream."""
        with self._lock:
            self._select(native)
            call()

    def _select(self, native: Any) -> None:
        if native is not self._native:
            self._set_stream(self.handle, int(native))
            self._native = native

    def _new_arguments(self, key: Key) -> int:
        """Return cuDNN's descriptor of a set of addresses. It is cached, because training repeats the sets."""
        if len(self._arguments) >= _MOST_ARGUMENTS:
            self._forget_arguments()
        self._ptrs[0], self._ptrs[1], self._ptrs[2], self._work[0] = key
        self._create(_ARGUMENTS, self._found_at)
        found = self._found.value or 0
        try:
            self._set(found, _ARGUMENTS_IDS, _INT64, 3, self._numbers)
            self._set(found, _ARGUMENTS_POINTERS, _POINTER, 3, self._ptrs)
            self._set(found, _ARGUMENTS_WORKSPACE, _POINTER, 1, self._work)
            self._finalize(found)
        except BaseException:
            self.destroy(found)
            raise
        self._arguments[key] = found
        return found

    def _forget_arguments(self) -> None:
        while self._arguments:
            self.destroy(self._arguments.popitem()[1])

    def close(self) -> None:
        self._forget_arguments()
        self._close(self.handle)


def of(device: CudaDevice) -> Dnn | None:
    """Return cuDNN on a device, loaded on first use; None if it is not installed."""
    if "cudnn" not in device.libraries:
        try:
            device.libraries["cudnn"] = Dnn()
        except NotSupportedError:
            return None
    found: Dnn = device.libraries["cudnn"]
    return found


class Target:
    """The tensor that an operation computes from the two other tensors (see driver/cuda/nn/convolution.py).

    Args:
        order: The two other tensors.
        operation: cuDNN's type of the operation's descriptor.
        *attributes: cuDNN's attributes for the convolution, alpha, beta, the tensors in `order` and the target.
    """

    def __init__(self, order: tuple[str, str], operation: int, *attributes: int) -> None:
        self.order, self.operation = order, operation
        self.how, self.alpha, self.beta = attributes[:3]
        self.sides = attributes[3:]


TARGETS = {
    "narrow": Target(("broad", "weight"), 10, 702, 700, 701, 704, 703, 705),
    "broad": Target(("weight", "narrow"), 12, 708, 706, 707, 709, 711, 710),
    "weight": Target(("broad", "narrow"), 11, 714, 712, 713, 716, 717, 715),
}


class Convolution:
    """A convolution or one of its gradients, computed from contiguous tensors. The engine is chosen once.

    Args:
        target: The tensor that is computed, a name of TARGETS.
        shapes: Name of TARGETS -> shape.
        geometry: Padding, stride and dilation of each spatial dim.
        tf32: True if products of float32 may round to TF32.

    Raises:
        NotSupportedError: If cuDNN has no deterministic engine for it.
    """

    def __init__(
        self, dnn: Dnn, kind: dtype, target: str, shapes: dict[str, Sequence[int]],
        geometry: tuple[Sequence[int], Sequence[int], Sequence[int]], tf32: bool,
    ) -> None:  # fmt: skip
        self._dnn, self._kind, self._target, self._geometry = dnn, kind, TARGETS[target], geometry
        self._exact = kind is float32 and not tf32
        self.order = self._target.order
        self._shapes = [_pad_shape(shapes[name]) for name in (*self.order, target)]
        self._descriptors: list[int] = []
        self._plans: dict[int, tuple[int, int]] = {}  # alignment -> plan, bytes of workspace
        self._plan(_ALIGNED)

    # -- plans ----------------------------------------------------------------------------------------
    def _plan(self, alignment: int) -> tuple[int, int]:
        """Return the plan for addresses of an alignment, created on first use."""
        found = self._plans.get(alignment)
        if found is None:
            try:
                found = self._plans[alignment] = self._first_good(self._graph(alignment))
            except BaseException:
                self.close()
                raise
        return found

    def _graph(self, alignment: int) -> int:
        """Return the graph with this single operation."""
        target, number = self._target, _DOUBLE if self._kind is float64 else _FLOAT
        sides = [self._tensor(n, shape, alignment) for n, shape in enumerate(self._shapes, 1)]
        operation = self._keep(
            target.operation,
            (target.how, _DESCRIPTOR, (self._how(),)),
            (target.alpha, number, (1.0,)),
            (target.beta, number, (0.0,)),
            *[(name, _DESCRIPTOR, (side,)) for name, side in zip(target.sides, sides, strict=True)],
        )
        handle = (_GRAPH_HANDLE, _HANDLE, (self._dnn.handle,))
        return self._keep(_GRAPH, handle, (_GRAPH_OPERATIONS, _DESCRIPTOR, (operation,)))

    def _tensor(self, number: int, shape: Sequence[int], alignment: int) -> int:
        strides = [1]
        for n in shape[:0:-1]:
            strides.insert(0, strides[0] * n)
        return self._keep(
            _TENSOR,
            (_TENSOR_DATA_TYPE, _DATA_TYPE, (DATA[self._kind],)),
            (_TENSOR_SIZES, _INT64, shape),
            (_TENSOR_STRIDES, _INT64, strides),
            (_TENSOR_ID, _INT64, (number,)),
            (_TENSOR_ALIGNMENT, _INT64, (alignment,)),
        )

    def _how(self) -> int:
        dims = max(_DIMS, len(self._geometry[0]))
        padding, stride, dilation = (
            (one,) * (dims - len(row)) + tuple(row)
            for row, one in zip(self._geometry, (0, 1, 1), strict=True)
        )
        return self._keep(
            _HOW,
            (_HOW_DIMS, _INT64, (dims,)),
            (_HOW_COMPUTED, _DATA_TYPE, (DATA[float64 if self._kind is float64 else float32],)),
            (_HOW_MODE, _CONVOLUTION_MODE, (_CROSS_CORRELATION,)),
            (_HOW_BEFORE, _INT64, padding),
            (_HOW_AFTER, _INT64, padding),
            (_HOW_STRIDES, _INT64, stride),
            (_HOW_DILATIONS, _INT64, dilation),
        )

    def _first_good(self, graph: int) -> tuple[int, int]:
        """Return the first suitable plan in the library's order: deterministic, exact and small enough."""
        for choice in self._choices(graph):
            if not self._is_good(choice):
                continue
            handle = (_PLAN_HANDLE, _HANDLE, (self._dnn.handle,))
            try:
                plan = self._keep(_PLAN, handle, (_PLAN_CHOICE, _DESCRIPTOR, (choice,)))
            except DriverError:  # the heuristics also list engines that refuse
                continue
            (nbytes,) = self._dnn.values(plan, _PLAN_WORKSPACE, _INT64, 1)
            if nbytes <= _WORKSPACE:
                return plan, nbytes
        raise NotSupportedError("cuDNN has no deterministic engine for this convolution")

    def _choices(self, graph: int) -> Iterator[int]:
        """Yield engines with settings, the best first."""
        dnn = self._dnn
        for mode in _MODES:
            try:
                heuristics = self._keep(
                    _HEURISTICS,
                    (_HEURISTICS_GRAPH, _DESCRIPTOR, (graph,)),
                    (_HEURISTICS_MODE, _HEURISTIC, (mode,)),
                )
            except DriverError:  # no engine supports this operation
                continue
            count = dnn.count(heuristics, _HEURISTICS_RESULTS, _DESCRIPTOR)
            blanks = [self._blank(_CHOICE) for _ in range(count)]
            yield from dnn.values(heuristics, _HEURISTICS_RESULTS, _DESCRIPTOR, count, blanks)

    def _is_good(self, choice: int) -> bool:
        dnn, engine = self._dnn, self._blank(_ENGINE)
        dnn.values(choice, _CHOICE_ENGINE, _DESCRIPTOR, 1, (engine,))
        notes = dnn.values(engine, _ENGINE_NUMERICS, _NUMERICAL_NOTE, _NOTES)
        if _NONDETERMINISTIC in notes:
            return False
        if self._exact and (_TENSOR_CORE in notes or _DOWN_CONVERT in notes):
            return False
        return _COMPILES not in dnn.values(engine, _ENGINE_BEHAVIOR, _BEHAVIOR_NOTE, _NOTES)

    def _keep(self, kind: int, *attributes: Attribute) -> int:
        self._descriptors.append(self._dnn.make(kind, *attributes))
        return self._descriptors[-1]

    def _blank(self, kind: int) -> int:
        self._descriptors.append(self._dnn.blank(kind))
        return self._descriptors[-1]

    # -- launches -------------------------------------------------------------------------------------
    def launch(self, first: int, second: int, target: int, device: CudaDevice, native: Any) -> None:
        """Enqueue the operation, with the addresses of the inputs and the target."""
        alignment = self._kind.itemsize if (first | second | target) % _ALIGNED else _ALIGNED
        plan, nbytes = self._plans.get(alignment) or self._plan(alignment)
        if not nbytes:
            self._dnn.execute(plan, (first, second, target, 0), native)
            return
        work = device.take(nbytes, native)
        try:
            self._dnn.execute(plan, (first, second, target, work), native)
        finally:
            device.give(work, native)

    def close(self) -> None:
        self._plans.clear()
        while self._descriptors:
            self._dnn.destroy(self._descriptors.pop())


def _pad_shape(shape: Sequence[int]) -> list[int]:
    """Return the shape with as many spatial dimensions as the library requires."""
    return [*shape[:2], *(1,) * (2 + _DIMS - len(shape)), *shape[2:]]
