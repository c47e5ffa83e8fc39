"""Handles of NVIDIA's libraries for programs that call the libraries themselves. Operators use other handles."""

from __future__ import annotations

from ctypes import byref, c_void_p

from flambeau.core.errors import DriverError
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.libraries import cublas, cusolver
from flambeau.driver.cuda.libraries.native_library import NativeLibrary

_LIBRARIES = {
    "cublas": (("cublas", "cuBLAS", "cuda13", cublas.STATUSES), "cublas{}_v2"),
    "cusolver": (("cusolver", "cuSOLVER", "cusolver", cusolver.STATUSES), "cusolverDn{}"),
}


class Handle:
    """A library's handle on the device whose context is current."""

    def __init__(self, name: str) -> None:
        if name not in _LIBRARIES:
            raise DriverError(f"library_handle: there are {', '.join(_LIBRARIES)}, not {name!r}")
        about, call = _LIBRARIES[name]
        library = NativeLibrary(*about)
        self._handle = c_void_p()
        library.function(call.format("Create"), "p")(byref(self._handle))
        self._destroy = library.function(call.format("Destroy"), "p")
        self._set_stream = library.function(call.format("SetStream"), "pp")

    def on(self, native: int) -> int:
        """Return the handle, set to this stream."""
        self._set_stream(self._handle, native)
        return self._handle.value or 0

    def close(self) -> None:
        self._destroy(self._handle)


def handle_of(device: CudaDevice, name: str, native: int) -> int:
    """Return the device's handle of a library, created on first use, on a stream."""
    key = f"{name} of programs"
    if key not in device.libraries:
        device.libraries[key] = Handle(name)
    found: Handle = device.libraries[key]
    return found.on(native)
