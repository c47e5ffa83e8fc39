"""cuBLASLt by ctypes: a handle for each device, and `Product`, a matrix product with its descriptors.

Descriptors are created when a launch is loaded. A call then passes prepared ctypes objects and new addresses, which
costs about as much as a compiled binding, without the half second of its import.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import lru_cache, partial
from threading import Lock
from typing import Any, NamedTuple

from flambeau.core.dtype import (
    bfloat16,
    complex64,
    complex128,
    dtype,
    float16,
    float32,
    float64,
)  # fmt: skip
from flambeau.core.errors import DriverError, NotSupportedError
from flambeau.driver.cuda.libraries.native_library import load_library

WORKSPACE = 32 << 20  # bytes per stream, PyTorch's choice for Hopper
ALIGNMENT = 256  # bytes; every allocation has it, and no kernel of the library requires more

# cudaDataType, cublasComputeType_t, and the attributes of cublasLt.h.
DATA = {float32: 0, float64: 1, float16: 2, complex64: 4, complex128: 5, bfloat16: 14}
_COMPUTE_32F, _COMPUTE_64F, _COMPUTE_TF32 = 68, 70, 77
_DESC_TRANSA, _DESC_TRANSB, _DESC_EPILOGUE, _DESC_BIAS = 3, 4, 7, 8
_EPILOGUE_BIAS = 4
_LAYOUT_BATCH, _LAYOUT_BATCH_STRIDE = 5, 6
_PREF_WORKSPACE, _PREF_REDUCTION, _PREF_ALIGN = 1, 3, (5, 6, 7, 8)
_REDUCE_IN_COMPUTE_TYPE = 2
_UNSUITABLE = (7, 15)  # CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_NOT_SUPPORTED


class _Heuristic(ctypes.Structure):
    """The C struct cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", c_uint64 * 8), ("workspace", c_size_t), ("state", c_int), ("waves", c_float), ("reserved", c_int * 4),
    )  # fmt: skip


class Matrix(NamedTuple):
    """A batch of column-major matrices in memory. `ld` and `batch_stride` in elements."""

    rows: int
    columns: int
    ld: int
    batch_stride: int
    transposed: bool = False  # True if the product takes the operand transposed


class Gemm(NamedTuple):
    """A product D = alpha op(A) op(B) + beta C, or with a vector added along D's columns, for a batch of matrices.

    Attributes:
        kind: The dtype of A and B.
        out: The dtype of C and D: `kind`, or float32 for 16-bit products that are not rounded.
        bias: True if C is a vector that is added along D's columns.
        tf32: True if products of float32 may round to TF32.
    """

    kind: dtype
    out: dtype
    batch: int
    a: Matrix
    b: Matrix
    c: Matrix
    d: Matrix
    bias: bool = False
    tf32: bool = False


class _Handle:
    """An object of the library, which is destroyed with the last reference to it."""

    __slots__ = ("_destroy", "lock", "value")

    def __init__(self, value: c_void_p, destroy: Any) -> None:
        self.value, self._destroy = value, destroy
        self.lock = Lock()  # protects the address of the bias in a description

    def __del__(self) -> None:
        self._destroy(self.value)


class CublasLt:
    """cuBLASLt with a handle for the device whose context is current.

    Descriptions and layouts are shared by products. Heuristics are kept for classes of products: see `size_class`.
    """

    def __init__(self) -> None:
        self._dll = load_library("cublasLt", "cuBLASLt", "cuda13")
        self._dll.cublasLtGetStatusName.restype = ctypes.c_char_p
        self.matmul = self._dll.cublasLtMatmul
        self.handle = c_void_p()
        self.check(self._dll.cublasLtCreate(byref(self.handle)))
        self._descriptions: dict[Any, _Handle] = {}
        self._layouts: dict[Any, _Handle] = {}
        self._algorithms: dict[Any, Any] = {}  # (class of products, alignment in bytes) -> heuristic

    def close(self) -> None:
        self._descriptions.clear()
        self._layouts.clear()
        self._dll.cublasLtDestroy(self.handle)

    def check(self, status: int) -> None:
        if status:
            raise DriverError(f"cuBLASLt: {self._dll.cublasLtGetStatusName(status).decode()}")

    def description(self, gemm: Gemm) -> _Handle:
        """Return the description of products of these dtypes."""
        key = (gemm.kind, gemm.out, gemm.tf32, gemm.a.transposed, gemm.b.transposed, gemm.bias)
        found = self._descriptions.get(key)
        if found is None:
            found = self._descriptions[key] = _Handle(
                self._describe_product(gemm), self._dll.cublasLtMatmulDescDestroy
            )
        return found

    def _describe_product(self, gemm: Gemm) -> c_void_p:
        out = c_void_p()
        real = float64 if gemm.kind in (float64, complex128) else float32
        compute = _COMPUTE_64F if real is float64 else _COMPUTE_TF32 if gemm.tf32 else _COMPUTE_32F
        self.check(self._dll.cublasLtMatmulDescCreate(byref(out), compute, DATA[scale_of(gemm.kind)]))
        self._describe(out, _DESC_TRANSA, c_int32(gemm.a.transposed))
        self._describe(out, _DESC_TRANSB, c_int32(gemm.b.transposed))
        if gemm.bias:
            self._describe(out, _DESC_EPILOGUE, c_int32(_EPILOGUE_BIAS))
        return out

    def set_bias(self, description: c_void_p, ptr: int) -> None:
        self._describe(description, _DESC_BIAS, c_void_p(ptr))

    def _describe(self, description: c_void_p, attribute: int, value: Any) -> None:
        status = self._dll.cublasLtMatmulDescSetAttribute(
            description, attribute, byref(value), c_size_t(ctypes.sizeof(value))
        )
        self.check(status)

    def layouts(self, gemm: Gemm) -> tuple[_Handle, ...]:
        """Return the layouts of a product's four matrices."""
        kind, out, batch = gemm.kind, gemm.out, gemm.batch
        d = self._layout(out, gemm.d, batch)
        c = d if gemm.c == gemm.d else self._layout(out, gemm.c, batch)
        return self._layout(kind, gemm.a, batch), self._layout(kind, gemm.b, batch), c, d

    def _layout(self, kind: dtype, matrix: Matrix, batch: int) -> _Handle:
        key = (kind, matrix.rows, matrix.columns, matrix.ld, batch, matrix.batch_stride)
        found = self._layouts.get(key)
        if found is None:
            if len(self._layouts) >= _MOST:
                self._layouts.clear()
            found = self._layouts[key] = self._make_layout(*key)
        return found

    def _make_layout(
        self, kind: dtype, rows: int, columns: int, ld: int, batch: int, batch_stride: int
    ) -> _Handle:
        out = c_void_p()
        self.check(
            self._dll.cublasLtMatrixLayoutCreate(
                byref(out), DATA[kind], c_uint64(rows), c_uint64(columns), c_int64(ld)
            )
        )
        layout = _Handle(out, self._dll.cublasLtMatrixLayoutDestroy)
        if batch != 1:
            for attribute, value in (
                (_LAYOUT_BATCH, c_int32(batch)),
                (_LAYOUT_BATCH_STRIDE, c_int64(batch_stride)),
            ):
                size = c_size_t(ctypes.sizeof(value))
                self.check(self._dll.cublasLtMatrixLayoutSetAttribute(out, attribute, byref(value), size))
        return layout

    def algorithm(self, gemm: Gemm, alignment: int) -> Any:
        """Return the library's choice for products of this class whose operands have this alignment.

        Raises:
            NotSupportedError: If it has none.
        """
        alike = size_class(gemm)
        key = (alike, alignment)
        found = self._algorithms.get(key)
        if found is None:
            if len(self._algorithms) >= _MOST:
                self._algorithms.clear()
            try:
                found = self.choose(alike, alignment)
            except NotSupportedError:
                found = self.choose(gemm, alignment)
            self._algorithms[key] = found
        return found

    def choose(self, gemm: Gemm, alignment: int) -> Any:
        """Return a reference to the library's first choice for a product.

        Raises:
            NotSupportedError: If it has none.
        """
        preference, found, count = c_void_p(), _Heuristic(), c_int()
        self.check(self._dll.cublasLtMatmulPreferenceCreate(byref(preference)))
        try:
            preferences: list[tuple[int, Any]] = [(_PREF_WORKSPACE, c_uint64(WORKSPACE))]
            preferences += [(attribute, c_uint32(alignment)) for attribute in _PREF_ALIGN]
            if gemm.kind.itemsize == 2:  # split products are summed in float32, not in 16 bits
                preferences.append((_PREF_REDUCTION, c_uint32(_REDUCE_IN_COMPUTE_TYPE)))
            for attribute, value in preferences:
                size = c_size_t(ctypes.sizeof(value))
                self.check(
                    self._dll.cublasLtMatmulPreferenceSetAttribute(preference, attribute, byref(value), size)
                )
            layouts = self.layouts(gemm)
            status = self._dll.cublasLtMatmulAlgoGetHeuristic(
                self.handle, self.description(gemm).value, *[layout.value for layout in layouts], preference, 1,
                byref(found), byref(count),
            )  # fmt: skip
        finally:
            self._dll.cublasLtMatmulPreferenceDestroy(preference)
        if status or not count.value or found.state:
            raise NotSupportedError(f"cuBLASLt has no routine for {gemm}")
        return byref(found)


_EXACT = 16  # smaller sizes stand for themselves
_MOST = 4096  # layouts and heuristics that are kept
_ALIGNED = 16  # elements beyond which the alignment of a leading dimension does not matter


def size_class(gemm: Gemm) -> Gemm:
    """Return the product that stands for all of about this size: eight sizes stand for those of an octave.

    The choice of an algorithm takes the host longer than the call, and programs with ever new lengths would pay it each
    time. It depends on the class alone, so that the bits of a product do not depend on earlier calls.
    """
    d = _class_of(gemm.d)
    return Gemm(
        gemm.kind,
        gemm.out,
        _round_up(gemm.batch),
        _class_of(gemm.a),
        _class_of(gemm.b),
        d if gemm.c == gemm.d else _class_of(gemm.c),
        d,
        gemm.bias,
        gemm.tf32,
    )


@lru_cache(maxsize=1024)  # weights occur again
def _class_of(x: Matrix) -> Matrix:
    rows, columns = _round_up(x.rows), _round_up(x.columns)
    ld = _aligned_as(x.ld, max(_round_up(x.ld), rows))
    batch_stride = x.batch_stride and _aligned_as(
        x.batch_stride, max(_round_up(x.batch_stride), ld * columns)
    )
    return Matrix(rows, columns, ld, batch_stride, x.transposed)


def _round_up(n: int) -> int:
    """Return the smallest multiple of an eighth of the largest power of two in `n` that is not below `n`."""
    if n < _EXACT:
        return n
    step = 1 << (n.bit_length() - 4)
    return -(-n // step) * step


def _aligned_as(like: int, least: int) -> int:
    """Return a number of at least `least` that is divisible by the powers of two that divide `like`, and no others."""
    bit = like & -like
    if bit >= _ALIGNED:
        return -(-least // _ALIGNED) * _ALIGNED
    return least + (bit - least) % (2 * bit)


class Product:
    """A matrix product that can be launched many times and from any thread."""

    def __init__(self, library: CublasLt, gemm: Gemm) -> None:
        self.gemm = gemm
        self._library = library
        self._description = library.description(gemm)
        self._call = partial(library.matmul, library.handle, self._description.value)
        self._kept = library.layouts(gemm)
        self._layouts = tuple([layout.value for layout in self._kept])
        self._algorithms: dict[int, Any] = {}  # alignment in bytes -> heuristic
        self._size = c_size_t(WORKSPACE)
        self.zero, self.one = scalar(gemm.kind, 0), scalar(gemm.kind, 1)
        self.algorithm(ALIGNMENT)

    def algorithm(self, alignment: int) -> Any:
        found = self._algorithms.get(alignment)
        if found is None:
            found = self._algorithms[alignment] = self._library.algorithm(self.gemm, alignment)
        return found

    def __call__(self, a: int, b: int, c: int, d: int, alpha: Any, beta: Any, place: tuple[Any, Any]) -> None:
        """Enqueue the product. `alpha` and `beta` are from `scalar`, c is d's address for none, `place` workspace
        and stream.
        """
        if self.gemm.bias:
            with self._description.lock:
                self._library.set_bias(self._description.value, c)
                return self._queue(a, b, d, d, alpha, beta, place)
        return self._queue(a, b, c, d, alpha, beta, place)

    def _queue(self, a: int, b: int, c: int, d: int, alpha: Any, beta: Any, place: tuple[Any, Any]) -> None:
        bits = a | b | c | d | ALIGNMENT
        algorithm = self._algorithms.get(bits & -bits) or self.algorithm(bits & -bits)
        la, lb, lc, ld = self._layouts
        target = c_void_p(d)
        source = target if c == d else c_void_p(c)
        status = self._call(
            alpha, c_void_p(a), la, c_void_p(b), lb, beta, source, lc, target, ld, algorithm, place[0], self._size,
            place[1],
        )  # fmt: skip
        if status in _UNSUITABLE:  # the choice for the class does not serve this size
            algorithm = self._algorithms[bits & -bits] = self._library.choose(self.gemm, bits & -bits)
            status = self._call(
                alpha, c_void_p(a), la, c_void_p(b), lb, beta, source, lc, target, ld, algorithm, place[0],
                self._size, place[1],
            )  # fmt: skip
        if status:
            self._library.check(status)


def scale_of(kind: dtype) -> dtype:
    """Return the dtype of alpha and beta."""
    return float32 if kind in (float16, bfloat16) else kind


def scalar(kind: dtype, value: float) -> Any:
    """Return a reference to a factor in host memory, in the type that a product of the dtype expects."""
    number = ctypes.c_double if kind in (float64, complex128) else c_float
    return byref((number * 2)(value, 0)) if kind.is_complex else byref(number(value))
