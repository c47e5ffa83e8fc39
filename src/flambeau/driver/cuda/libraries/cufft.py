"""cuFFT by ctypes: `Transforms`, the library on one device, and `FftPlan`, a transform that may run many times.

Plans do not own memory: each launch allocates their work area from the device's pool.
"""

from __future__ import annotations

from ctypes import byref, c_int, c_longlong, c_size_t
from dataclasses import dataclass
from threading import Lock
from typing import Any

from flambeau.core.dtype import complex32, complex64, complex128, dtype, float16, float32, float64
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.libraries.native_library import NativeLibrary

DATA = {float32: 0, float64: 1, float16: 2, complex64: 4, complex128: 5, complex32: 6}  # cudaDataType
FORWARD, INVERSE = -1, 1
_STATUSES = {
    1: "CUFFT_INVALID_PLAN", 2: "CUFFT_ALLOC_FAILED", 3: "CUFFT_INVALID_TYPE", 4: "CUFFT_INVALID_VALUE",
    5: "CUFFT_INTERNAL_ERROR", 6: "CUFFT_EXEC_FAILED", 7: "CUFFT_SETUP_FAILED", 8: "CUFFT_INVALID_SIZE",
    9: "CUFFT_UNALIGNED_DATA", 11: "CUFFT_INVALID_DEVICE", 13: "CUFFT_NO_WORKSPACE", 14: "CUFFT_NOT_IMPLEMENTED",
    16: "CUFFT_NOT_SUPPORTED", 17: "CUFFT_MISSING_DEPENDENCY", 18: "CUFFT_NVRTC_FAILURE",
    19: "CUFFT_NVJITLINK_FAILURE",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Side:
    """The memory layout of one side of a plan, in elements.

    Point (i, j, k) of transform b is at b * distance + ((i * embed[1] + j) * embed[2] + k) * stride.
    """

    kind: dtype
    embed: tuple[int, ...]
    stride: int
    distance: int


class Transforms:
    """The library cuFFT on the device whose context is current."""

    def __init__(self) -> None:
        library = NativeLibrary("cufft", "cuFFT", "cuda13", _STATUSES)
        self.create = library.function("cufftCreate", "p")
        self.destroy = library.function("cufftDestroy", "i")
        self.keep_no_memory = library.function("cufftSetAutoAllocation", "ii")
        self.make = library.function("cufftXtMakePlanMany", "iippllipllilpi")
        self.set_stream = library.function("cufftSetStream", "ip")
        self.set_work = library.function("cufftSetWorkArea", "ip")
        self.run = library.function("cufftXtExec", "ippi")
        self.open: set[int] = set()  # handles of plans

    def close(self) -> None:
        for handle in self.open:
            self.destroy(handle)
        self.open.clear()


class FftPlan:
    """Transforms of `sizes` points, as many as `batch`, from one layout to another.

    A plan has one stream and one work area, so only one thread at a time may launch it.
    """

    def __init__(
        self, transforms: Transforms, sizes: tuple[int, ...], source: Side, target: Side, batch: int
    ) -> None:
        self._transforms = transforms
        self._lock = Lock()
        handle, work = c_int(), c_size_t()
        transforms.create(byref(handle))
        self._handle = handle.value
        transforms.open.add(self._handle)
        try:
            transforms.keep_no_memory(self._handle, 0)
            transforms.make(
                self._handle, len(sizes), _longs(sizes),
                _longs(source.embed), source.stride, source.distance, DATA[source.kind],
                _longs(target.embed), target.stride, target.distance, DATA[target.kind],
                batch, byref(work), DATA[source.kind.to_complex()],
            )  # fmt: skip
        except BaseException:
            self.close()
            raise
        self._work = work.value

    def launch(self, source: int, target: int, direction: int, device: CudaDevice, native: Any) -> None:
        """Enqueue the transform of the data at `source` into `target`."""
        work = device.take(self._work, native) if self._work else 0
        try:
            with self._lock:
                self._transforms.set_stream(self._handle, int(native))
                if work:
                    self._transforms.set_work(self._handle, work)
                self._transforms.run(self._handle, source, target, direction)
        finally:
            if work:
                device.give(work, native)

    def close(self) -> None:
        """Destroy the plan. The library waits for launches under way."""
        if self._handle in self._transforms.open:
            self._transforms.open.discard(self._handle)
            self._transforms.destroy(self._handle)


def _longs(values: tuple[int, ...]) -> Any:
    return (c_longlong * len(values))(*values)
