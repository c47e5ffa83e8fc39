"""`Resource`: a source of an allocator's segments. Resources wrap resources: limits, logs, statistics, failures.

The default is the driver. A MemPool may bring its own, and `torch.cuda.memory.change_current_allocator` puts one
in the place of the whole caching allocator: each tensor's memory is then requested from it. A resource is any
object with `allocate` and `free`; those here wrap another one, as in `Logged(Limited(DriverMemory(), 1 << 30))`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Protocol, cast

from flambeau.core.errors import NotSupportedError, OutOfMemoryError
from flambeau.driver.protocol import Driver
from flambeau.runtime.memory.allocator_statistics import Tally, format_size

ALIGNED = 256
"""Bytes that all device memory is aligned to, by the CUDA C++ Programming Guide."""


class Resource(Protocol):
    """A source of device memory. `driver` and `index` identify the device; `stream` is the requesting stream's
    handle.
    """

    def allocate(self, nbytes: int, driver: Driver, index: int, stream: int, /) -> int:
        """Return the address of `nbytes` new bytes, a multiple of ALIGNED. After an OutOfMemoryError nothing has
        changed.
        """
        ...

    def free(self, ptr: int, nbytes: int, driver: Driver, index: int, stream: int, /) -> None:
        """Free memory that `allocate` returned."""
        ...


def as_resource(source: object) -> Resource:
    """Return `source` itself.

    Raises:
        TypeError: If it has no `allocate` and `free`.
    """
    if not all(callable(getattr(source, name, None)) for name in ("allocate", "free")):
        raise TypeError(
            f"a source of memory has the methods allocate and free (see flambeau.runtime.memory.resources), and "
            f"{type(source).__name__} lacks them"
        )
    return cast(Resource, source)


class DriverMemory:
    """A resource that calls the driver: cudaMalloc and cudaFree."""

    def allocate(self, nbytes: int, driver: Driver, index: int, stream: int, /) -> int:
        return driver.mem_alloc(index, nbytes)

    def free(self, ptr: int, nbytes: int, driver: Driver, index: int, stream: int, /) -> None:
        driver.mem_free(ptr)


class LibraryMemory:
    """A resource that calls two functions of a shared library, for real GPUs.

    allocate: `void* f(ssize_t size, int device, cudaStream_t stream)`, free: `void f(void* ptr, ssize_t size, int
    device, cudaStream_t stream)`.

    Raises:
        OSError: If the library does not exist.
        AttributeError: If the library lacks a function.
    """

    def __init__(self, path: str, allocate: str, free: str) -> None:
        library = ctypes.CDLL(path)
        self._allocate, self._free = getattr(library, allocate), getattr(library, free)
        self._allocate.restype = ctypes.c_void_p
        self._allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self._free.restype = None
        self._free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]

    def allocate(self, nbytes: int, driver: Driver, index: int, stream: int, /) -> int:
        if driver.name != "cuda":
            raise NotSupportedError(
                "a library's memory is of real GPUs; virtual ones take a Python object with allocate and free"
            )
        ptr = self._allocate(nbytes, index, driver.stream_native(stream))
        if not ptr:
            raise OutOfMemoryError(f"the library refuses {nbytes} bytes")
        return int(ptr)

    def free(self, ptr: int, nbytes: int, driver: Driver, index: int, stream: int, /) -> None:
        self._free(ptr, nbytes, index, driver.stream_native(stream))


class Wrapped:
    """A resource that forwards calls to the resource `inner`: the base class of the resources below."""

    def __init__(self, inner: Resource | None = None) -> None:
        self.inner: Resource = DriverMemory() if inner is None else inner

    def allocate(self, nbytes: int, driver: Driver, index: int, stream: int, /) -> int:
        return self.inner.allocate(nbytes, driver, index, stream)

    def free(self, ptr: int, nbytes: int, driver: Driver, index: int, stream: int, /) -> None:
        self.inner.free(ptr, nbytes, driver, index, stream)


class Limited(Wrapped):
    """A resource that refuses requests beyond a total of `limit` bytes on all devices."""

    def __init__(self, inner: Resource | None = None, limit: int = 0) -> None:
        super().__init__(inner)
        self.limit = limit
        self.used = 0

    def allocate(self, nbytes: int, driver: Driver, index: int, stream: int, /) -> int:
        if self.used + nbytes > self.limit:
            raise OutOfMemoryError(
                f"{format_size(nbytes)} more would exceed the limit of {format_size(self.limit)}; "
                f"{format_size(self.used)} are in use"
            )
        ptr = super().allocate(nbytes, driver, index, stream)
        self.used += nbytes
        return ptr

    def free(self, ptr: int, nbytes: int, driver: Driver, index: int, stream: int, /) -> None:
        super().free(ptr, nbytes, driver, index, stream)
        self.used -= nbytes


class Logged(Wrapped):
    """A resource that logs each call with `write`, as "allocate 2097152 bytes on cuda:0, stream 1: 0x7f0000000000"."""

    def __init__(self, inner: Resource | None = None, write: Callable[[str], object] = print) -> None:
        super().__init__(inner)
        self.write = write

    def allocate(self, nbytes: int, driver: Driver, index: int, stream: int, /) -> int:
        what = f"allocate {nbytes} bytes on device {index}, stream {stream}"
        try:
            ptr = super().allocate(nbytes, driver, index, stream)
        except OutOfMemoryError as error:
            self.write(f"{what}: {error}")
            raise
        self.write(f"{what}: {ptr:#x}")
        return ptr

    def free(self, ptr: int, nbytes: int, driver: Driver, index: int, stream: int, /) -> None:
        super().free(ptr, nbytes, driver, index, stream)
        self.write(f"free {nbytes} bytes on device {index}, stream {stream}: {ptr:#x}")


class Counted(Wrapped):
    """A resource that counts: `calls` (allocations) and `nbytes`, each with current, peak, allocated and freed."""

    def __init__(self, inner: Resource | None = None) -> None:
        super().__init__(inner)
        self.calls, self.nbytes = Tally(), Tally()

    def allocate(self, nbytes: int, driver: Driver, index: int, stream: int, /) -> int:
        ptr = super().allocate(nbytes, driver, index, stream)
        self.calls.add(1)
        self.nbytes.add(nbytes)
        return ptr

    def free(self, ptr: int, nbytes: int, driver: Driver, index: int, stream: int, /) -> None:
        super().free(ptr, nbytes, driver, index, stream)
        self.calls.add(-1)
        self.nbytes.add(-nbytes)


class Failing(Wrapped):
    """A resource that refuses the `nth` allocation, counting from 1, or each one with `probability`, drawn from
    `seed`.
    """

    def __init__(
        self, inner: Resource | None = None, nth: int = 0, probability: float = 0.0, seed: int = 0
    ) -> None:
        super().__init__(inner)
        self.nth = nth
        self.probability = probability
        self.count = 0
        from random import Random  # imported here because few programs need it

        self._random = Random(seed)

    def allocate(self, nbytes: int, driver: Driver, index: int, stream: int, /) -> int:
        self.count += 1
        if self.count == self.nth or self._random.random() < self.probability:
            raise OutOfMemoryError(f"allocation {self.count}, of {nbytes} bytes, was made to fail")
        return super().allocate(nbytes, driver, index, stream)
