"""A driver whose calls fail by rules, for tests of error handling."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flambeau.core.errors import DriverError, OutOfMemoryError
from flambeau.driver.protocol import Driver, Executable, HostMemory
from flambeau.observe.driver_proxy import Forward


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule that makes driver calls fail.

    Attributes:
        call: "mem_alloc", "range_map" or "host_alloc" (OutOfMemoryError), or "launch", "copy_in",
            "copy_out", "copy" or "fill" (DriverError).
        nth: The number, from 1, of the matching call that fails.
        probability: The probability with which each matching call fails.
        name: The kernel whose launches match; all kernels by default.
        corrupts: True if a "copy" delivers wrong bytes instead of failing, as peer copies do on some
            machines.
    """

    call: str
    nth: int | None = None
    probability: float = 0.0
    name: str | None = None
    corrupts: bool = False

    def __post_init__(self) -> None:
        if self.call not in _ERRORS:
            raise ValueError(f"no fault can be put into {self.call!r}; into {', '.join(_ERRORS)} it can")
        if (self.nth is None) == (not self.probability) or not 0 <= self.probability <= 1:
            raise ValueError("a fault needs either nth or a probability from 0 to 1")
        if self.corrupts and self.call != "copy":
            raise ValueError(f"a fault corrupts copies between devices, not {self.call}")


_ERRORS: dict[str, Callable[[str], Exception]] = {
    "mem_alloc": OutOfMemoryError,
    "range_map": OutOfMemoryError,
    "host_alloc": OutOfMemoryError,
    "launch": DriverError,
    "copy_in": DriverError,
    "copy_out": DriverError,
    "copy": DriverError,
    "fill": DriverError,
}


class FaultDriver(Forward):
    """An observer that raises by rules before a call reaches `inner`, so a failed call has changed nothing.

    Equal faults, seed and calls give equal failures. `injected` lists the calls that failed.
    """

    def __init__(self, inner: Driver, faults: Sequence[Fault], seed: int = 0) -> None:
        super().__init__(inner)
        self.injected: list[str] = []
        self._faults = [[fault, 0] for fault in faults]
        self._random = random.Random(seed)

    def mem_alloc(self, index: int, nbytes: int) -> int:
        self._may_fail("mem_alloc")
        return self.inner.mem_alloc(index, nbytes)

    def range_map(self, ptr: int, nbytes: int) -> None:
        self._may_fail("range_map")
        self.inner.range_map(ptr, nbytes)

    def host_alloc(self, nbytes: int) -> HostMemory:
        self._may_fail("host_alloc")
        return self.inner.host_alloc(nbytes)

    def copy_in(self, target: int, source: HostMemory, stream: int) -> None:
        self._may_fail("copy_in")
        self.inner.copy_in(target, source, stream)

    def copy_out(self, target: HostMemory, source: int, stream: int) -> None:
        self._may_fail("copy_out")
        self.inner.copy_out(target, source, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        corrupt = self._may_fail("copy")
        self.inner.copy(target, source, nbytes, stream)
        if corrupt:
            self.inner.fill(target, 0xA5, nbytes, stream)

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        self._may_fail("fill")
        self.inner.fill(target, byte, nbytes, stream)

    def launch(self, exe: Executable, ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
        self._may_fail("launch", exe.launch.kernel.name)
        self.inner.launch(exe, ptrs, scalars, stream)

    def _may_fail(self, call: str, name: str = "") -> bool:
        """Count the call in every rule that it matches, and raise if one makes it fail.

        Return True if a rule corrupts the call's data.
        """
        due: list[Any] = [rule[0] for rule in self._faults if self._is_due(rule, call, name)]
        if any(not fault.corrupts for fault in due):
            text = f"injected fault {len(self.injected) + 1}: {call}{f' of {name!r}' if name else ''} failed"
            self.injected.append(f"{call} {name}".strip())
            raise _ERRORS[call](text)
        if due:
            self.injected.append(f"{call} corrupted")
        return bool(due)

    def _is_due(self, rule: list[Any], call: str, name: str) -> bool:
        fault: Fault = rule[0]
        if fault.call != call or (fault.name is not None and fault.name != name):
            return False
        rule[1] += 1
        if fault.nth is not None:
            return bool(rule[1] == fault.nth)
        return self._random.random() < fault.probability
