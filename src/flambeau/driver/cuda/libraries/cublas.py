"""cuBLAS by ctypes: `Blas`, its routines for linear algebra except products: triangular systems, batched LU.

Matrices are column-major there. A batch is an array of addresses in device memory.
"""

from __future__ import annotations

from ctypes import byref, c_double, c_float, c_int, c_void_p
from threading import Lock
from typing import Any

from flambeau.core.dtype import complex128, dtype, float64
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.libraries.cusolver import LETTER
from flambeau.driver.cuda.libraries.native_library import NativeLibrary

LEFT, RIGHT = 0, 1  # cublasSideMode_t
STATUSES = {
    1: "CUBLAS_STATUS_NOT_INITIALIZED", 3: "CUBLAS_STATUS_ALLOC_FAILED", 7: "CUBLAS_STATUS_INVALID_VALUE",
    8: "CUBLAS_STATUS_ARCH_MISMATCH", 11: "CUBLAS_STATUS_MAPPING_ERROR", 13: "CUBLAS_STATUS_EXECUTION_FAILED",
    14: "CUBLAS_STATUS_INTERNAL_ERROR", 15: "CUBLAS_STATUS_NOT_SUPPORTED",
}  # fmt: skip


class Blas:
    """cuBLAS's handle for the device whose context is current. Only one thread at a time may use it."""

    def __init__(self) -> None:
        self._library = NativeLibrary("cublas", "cuBLAS", "cuda13", STATUSES)
        self._lock = Lock()
        self._calls: dict[str, Any] = {}
        self._handle = c_void_p()
        self._library.function("cublasCreate_v2", "p")(byref(self._handle))

    def close(self) -> None:
        self._library.function("cublasDestroy_v2", "p")(self._handle)

    def trsm(
        self, kind: dtype, uplo: int, operation: int, ones: bool, m: int, n: int, a: int, lda: int, b: int, native: Any
    ) -> None:  # fmt: skip
        """Solve X op(A) = B for a triangular A, in place of the m by n matrix B."""
        self._call(
            f"cublas{LETTER[kind]}trsm_v2", "piiiiiippipi", native,
            RIGHT, uplo, operation, int(ones), m, n, _one(kind), a, lda, b, m,
        )  # fmt: skip

    def trsm_batched(
        self, kind: dtype, uplo: int, operation: int, ones: bool, m: int, n: int, a: int, lda: int, b: int,
        count: int, native: Any,
    ) -> None:  # fmt: skip
        self._call(
            f"cublas{LETTER[kind]}trsmBatched", "piiiiiippipii", native,
            RIGHT, uplo, operation, int(ones), m, n, _one(kind), a, lda, b, m, count,
        )  # fmt: skip

    def getrf_batched(
        self, kind: dtype, n: int, a: int, pivots: int, info: int, count: int, native: Any
    ) -> None:
        """Compute LU factors in place of square matrices. With `pivots` 0, no rows are exchanged."""
        self._call(
            f"cublas{LETTER[kind]}getrfBatched", "pipippi", native, n, a, n, pivots or None, info, count
        )

    def getrs_batched(
        self, kind: dtype, operation: int, n: int, columns: int, a: int, pivots: int, b: int, count: int, native: Any
    ) -> None:  # fmt: skip
        wrong = c_int()  # number of a wrong argument, in host memory
        self._call(
            f"cublas{LETTER[kind]}getrsBatched", "piiipippipi", native,
            operation, n, columns, a, n, pivots, b, n, byref(wrong), count,
        )  # fmt: skip

    def _call(self, name: str, signature: str, native: Any, *args: Any) -> None:
        call = self._calls.get(name)
        if call is None:
            call = self._calls[name] = self._library.function(name, signature)
        with self._lock:
            self._set_stream(int(native))
            call(self._handle, *args)

    def _set_stream(self, native: int) -> None:
        call = self._calls.get("cublasSetStream_v2")
        if call is None:
            call = self._calls["cublasSetStream_v2"] = self._library.function("cublasSetStream_v2", "pp")
        call(self._handle, native)


def _one(kind: dtype) -> Any:
    number = c_double if kind in (float64, complex128) else c_float
    return byref((number * 2)(1, 0))


def blas_of(device: CudaDevice) -> Blas:
    """Return cuBLAS on a device, loaded on first use."""
    if "cublas" not in device.libraries:
        device.libraries["cublas"] = Blas()
    found: Blas = device.libraries["cublas"]
    return found
