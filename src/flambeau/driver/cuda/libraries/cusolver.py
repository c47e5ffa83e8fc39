"""cuSOLVER by ctypes: `Solver`, the dense routines on one device. Matrices are column-major there.

The library has two interfaces: generic routines, which take data types and 64-bit sizes, and older ones with the type
in the name. `generic` and `call_typed` ask for the size of the workspace, take it from the device's pool, call the
routine, and return the workspace.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_void_p
from threading import Lock
from typing import Any

from flambeau.core.dtype import complex64, complex128, dtype, float32, float64
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.libraries.native_library import NativeLibrary

DATA = {float32: 0, float64: 1, complex64: 4, complex128: 5}  # cudaDataType
LETTER = {float32: "S", float64: "D", complex64: "C", complex128: "Z"}
LOWER, UPPER = 0, 1  # cublasFillMode_t
PLAIN, TRANSPOSED, ADJOINT = 0, 1, 2  # cublasOperation_t
VALUES, VECTORS = 0, 1  # cusolverEigMode_t
STATUSES = {
    1: "CUSOLVER_STATUS_NOT_INITIALIZED", 2: "CUSOLVER_STATUS_ALLOC_FAILED", 3: "CUSOLVER_STATUS_INVALID_VALUE",
    4: "CUSOLVER_STATUS_ARCH_MISMATCH", 5: "CUSOLVER_STATUS_MAPPING_ERROR", 6: "CUSOLVER_STATUS_EXECUTION_FAILED",
    7: "CUSOLVER_STATUS_INTERNAL_ERROR", 8: "CUSOLVER_STATUS_MATRIX_TYPE_NOT_SUPPORTED",
    9: "CUSOLVER_STATUS_NOT_SUPPORTED",
}  # fmt: skip

# The arguments of a generic routine before its workspace, those only of the call, and those after info.
_GENERIC = {
    "Xgetrf": ("llipl", "p", ""),
    "Xpotrf": ("ilipl", "", ""),
    "Xgeqrf": ("llipl" "ip", "", ""),
    "Xsyevd": ("iil" "ipl" "ip", "", ""),
    "XsyevBatched": ("iil" "ipl" "ip", "", "l"),
    "Xgeev": ("iil" "ipl" "ip" "ipl" "ipl", "", ""),
}  # fmt: skip
_TYPED = {
    "orgqr": ("iii" "pi" "p", ""),
    "ungqr": ("iii" "pi" "p", ""),
    "gesvdj": ("iiii" "pi" "p" "pi" "pi", "p"),
    "gesvdjBatched": ("iii" "pi" "p" "pi" "pi", "pi"),
}  # fmt: skip
_SWEEPS = 400  # the limit of a Jacobi iteration, as in PyTorch


class Solver:
    """cuSOLVER's handle for the device whose context is current. Only one thread at a time may use it."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._library = NativeLibrary("cusolver", "cuSOLVER", "cusolver", STATUSES)
        self._lock = Lock()
        self._calls: dict[str, Any] = {}
        self._handle, self._params, self.jacobi = c_void_p(), c_void_p(), c_void_p()
        self._library.function("cusolverDnCreate", "p")(byref(self._handle))
        self._library.function("cusolverDnCreateParams", "p")(byref(self._params))
        self._library.function("cusolverDnCreateGesvdjInfo", "p")(byref(self.jacobi))
        self._library.function("cusolverDnXgesvdjSetMaxSweeps", "pi")(self.jacobi, _SWEEPS)
        self._set_stream = self._library.function("cusolverDnSetStream", "pp")

    def close(self) -> None:
        self._library.function("cusolverDnDestroyGesvdjInfo", "p")(self.jacobi)
        self._library.function("cusolverDnDestroyParams", "p")(self._params)
        self._library.function("cusolverDnDestroy", "p")(self._handle)

    def generic(
        self,
        name: str,
        kind: dtype,
        head: tuple[Any, ...],
        native: Any,
        info: int,
        own: tuple[Any, ...] = (),
        tail: tuple[Any, ...] = (),
    ) -> None:
        """Call a routine that computes in `kind`.

        Args:
            head: Arguments before the workspace.
            own: Arguments of the call that the workspace query does not have.
            tail: Arguments after info.
        """
        first, only, last = _GENERIC[name]
        ask = self._function(f"cusolverDn{name}_bufferSize", f"pp{first}ipp{last}")
        call = self._function(f"cusolverDn{name}", f"pp{first}{only}ipzpzp{last}")
        common = (self._handle, self._params, *head)
        on_device, on_host = c_size_t(), c_size_t()
        with self._lock:
            self._set_stream(self._handle, int(native))
            ask(*common, DATA[kind], byref(on_device), byref(on_host), *tail)
            host = ctypes.create_string_buffer(on_host.value) if on_host.value else None
            work = self._device.take(on_device.value, native) if on_device.value else 0
            try:
                call(
                    *common, *own, DATA[kind], work, on_device.value, host, on_host.value, info, *tail
                )  # fmt: skip
            finally:
                if work:
                    self._device.give(work, native)

    def call_typed(
        self, name: str, kind: dtype, head: tuple[Any, ...], native: Any, info: int, tail: tuple[Any, ...] = ()
    ) -> None:  # fmt: skip
        """Call a routine of the older interface: `head` up to its workspace, `tail` after info."""
        first, last = _TYPED[name]
        full = f"cusolverDn{LETTER[kind]}{name}"
        ask = self._function(f"{full}_bufferSize", f"p{first}p{last}")
        call = self._function(full, f"p{first}pip{last}")
        size = c_int()
        with self._lock:
            self._set_stream(self._handle, int(native))
            ask(self._handle, *head, byref(size), *tail)
            work = self._device.take(max(size.value, 1) * kind.itemsize, native)
            try:
                call(self._handle, *head, work, size.value, info, *tail)
            finally:
                self._device.give(work, native)

    def getrs(
        self, operation: int, n: int, columns: int, kind: dtype, a: int, pivots: int, b: int, native: Any, info: int
    ) -> None:  # fmt: skip
        """Solve a system with one matrix's LU factors, in place of b."""
        call = self._function("cusolverDnXgetrs", "ppill" "ipl" "p" "ipl" "p")  # fmt: skip
        with self._lock:
            self._set_stream(self._handle, int(native))
            data = DATA[kind]
            call(self._handle, self._params, operation, n, columns, data, a, n, pivots, data, b, n, info)

    def potrf_batched(
        self, uplo: int, n: int, kind: dtype, pointers: int, info: int, count: int, native: Any
    ) -> None:
        """Compute the Cholesky factors of many matrices in place; `pointers` holds their addresses in device memory."""
        call = self._function(f"cusolverDn{LETTER[kind]}potrfBatched", "piipipi")
        with self._lock:
            self._set_stream(self._handle, int(native))
            call(self._handle, uplo, n, pointers, n, info, count)

    def _function(self, name: str, signature: str) -> Any:
        found = self._calls.get(name)
        if found is None:
            found = self._calls[name] = self._library.function(name, signature)
        return found


def solver_of(device: CudaDevice) -> Solver:
    """Return cuSOLVER on a device, loaded on first use."""
    if "cusolver" not in device.libraries:
        device.libraries["cusolver"] = Solver(device)
    found: Solver = device.libraries["cusolver"]
    return found
