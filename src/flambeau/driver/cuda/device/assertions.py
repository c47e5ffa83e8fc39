"""`Assertions`: device-side assertions that are reported later and do not corrupt the context.

A real device-side assert ends the context, and with it every tensor of the process. Here a kernel that finds an index
out of range skips that element and writes four words to mapped host memory: the assertion, its launch (the first that
failed) and two numbers. The driver reads the first word when it waits for the device, and refuses all later work of the
device, as the virtual driver does.

# Note [Call sites of failed assertions]
A launch that can fail gets a number, which its kernel writes with the assertion's number. The call site is stored under
that number, but only for the most recent launches. An error of an older launch names the operator without a line.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from cuda.bindings import driver as cu

from flambeau.core.callsite import Site, caller, launched_at
from flambeau.core.errors import DriverError
from flambeau.driver.cuda.device.calls import check

_WORDS = 4  # the words: number of the launch, number of the assertion, index, size, dim
_KEPT = 8192  # launches whose call sites are stored
_BITS = 16  # bits of an assertion's number
_FLAGS = int(cu.CU_MEMHOSTALLOC_PORTABLE) | int(cu.CU_MEMHOSTALLOC_DEVICEMAP)

OUT_OF_BOUNDS = "index {index} is out of bounds for dimension {dim} with size {size}"


class Guard(bytes):
    """A kernel parameter of type `Guard` of checked.cuh: the address of the words, and the assertion's number.

    A launch adds its own number to the latter.
    """

    __slots__ = ()
    NUMBER_AT = 8  # bytes

    @property
    def number(self) -> int:
        return int.from_bytes(self[self.NUMBER_AT :], "little")


class Assertions:
    """The results of device-side assertions of one device. `words[0]` is 0 until an assertion fails."""

    def __init__(self) -> None:
        self.words: Any = (ctypes.c_int64 * _WORDS)()
        self._address = 0
        self._texts: list[tuple[str, str]] = []
        self._launches = 0
        self._sites: dict[int, Site] = {}  # number of a launch modulo _KEPT -> call site
        self._was_reported = False

    def guard(self, name: str, text: str = OUT_OF_BOUNDS) -> Guard:
        """Return the guard through which a kernel reports that the operator `name` failed with the message `text`."""
        if not self._address:
            self._address = int(check(cu.cuMemHostAlloc(8 * _WORDS, _FLAGS)))
            self.words = (ctypes.c_int64 * _WORDS).from_address(self._address)
            self.words[:] = [0] * _WORDS
        if (name, text) not in self._texts:
            self._texts.append((name, text))
        return Guard(struct.pack("<QQ", self._address, 1 + self._texts.index((name, text))))

    def note_launch(self) -> int:
        """Store the call site of a launch. Returns the number to add to its assertions' numbers."""
        self._launches += 1
        self._sites[self._launches % _KEPT] = caller(1)
        return self._launches << _BITS

    def error(self, index: int) -> DriverError:
        """Return the error to raise for device `index` after an assertion failed."""
        code, at, size, dim = self.words
        name, text = self._texts[(code & (1 << _BITS) - 1) - 1]
        said = text.format(index=at, size=size, dim=dim)
        error = DriverError(
            f"CUDA error: device-side assert triggered: '{name}' on cuda:{index} failed: {said}."
            f"{self._origin(code >> _BITS)} The error was seen at a synchronization, and stays: no later work of "
            "this device runs."
        )
        error.known, self._was_reported = self._was_reported, True
        return error

    def _origin(self, launch: int) -> str:
        """Return the call site of a launch, if it is still stored."""
        site = self._sites.get(launch % _KEPT)
        return launched_at(site if 0 < launch <= self._launches < launch + _KEPT else None)

    def close(self) -> None:
        if self._address:
            self.words = (ctypes.c_int64 * _WORDS)()
            cu.cuMemFreeHost(self._address)
            self._address = 0
