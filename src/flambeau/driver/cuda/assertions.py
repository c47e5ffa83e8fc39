"""`Assertions`: what kernels check, told late, without losing the context.

A real device-side assert ends the context, and with it every tensor of the process. So a kernel that finds an index
out of range leaves that element alone and writes into four words of host memory that the device has mapped: which
assertion (of the first that failed), and its numbers. The driver reads the first word where it waits for the device,
and from then on refuses the device's work, as the virtual driver does.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from cuda.bindings import driver as cu

from flambeau.core.errors import DriverError
from flambeau.driver.cuda.calls import check

_WORDS = 4  # code, index, size, dim
_FLAGS = int(cu.CU_MEMHOSTALLOC_PORTABLE) | int(cu.CU_MEMHOSTALLOC_DEVICEMAP)

OUT_OF_BOUNDS = "index {index} is out of bounds for dimension {dim} with size {size}"


class Assertions:
    """Of one device. `words[0]` is 0 until a kernel's assertion failed."""

    def __init__(self) -> None:
        self.words: Any = (ctypes.c_int64 * _WORDS)()
        self._address = 0
        self._texts: list[tuple[str, str]] = []

    def guard(self, name: str, text: str = OUT_OF_BOUNDS) -> bytes:
        """A kernel's parameter of type `Guard`: where to say that the operator `name` failed with `text`."""
        if not self._address:
            self._address = int(check(cu.cuMemHostAlloc(8 * _WORDS, _FLAGS)))
            self.words = (ctypes.c_int64 * _WORDS).from_address(self._address)
            self.words[:] = [0] * _WORDS
        if (name, text) not in self._texts:
            self._texts.append((name, text))
        return struct.pack("<QQ", self._address, 1 + self._texts.index((name, text)))

    def error(self, index: int) -> DriverError:
        """The error of device `index` after an assertion failed."""
        code, at, size, dim = self.words
        name, text = self._texts[code - 1]
        said = text.format(index=at, size=size, dim=dim)
        return DriverError(
            f"CUDA error: device-side assert triggered: '{name}' on cuda:{index} failed: {said}. The error came "
            "late, at a synchronization, and stays: no later work of this device runs."
        )

    def close(self) -> None:
        if self._address:
            self.words = (ctypes.c_int64 * _WORDS)()
            cu.cuMemFreeHost(self._address)
            self._address = 0
