"""Launches that are prepared for a virtual device."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from flambeau.core.dtype import INTEGRAL
from flambeau.core.host.array_grants import LARGE
from flambeau.core.host_arrays import address_of
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Executable, Launch, NativeBody, copied_bytes, host_body
from flambeau.driver.virtual import cost
from flambeau.driver.virtual.device import VirtualDevice
from flambeau.driver.virtual.host_time import HostCosts
from flambeau.driver.virtual.profile import Profile

_KEPT = 16  # arrays per operand


class ArrayCache(dict[int, np.ndarray[Any, Any]]):
    """NumPy arrays of one layout by device address. `windows[ptr]` creates a missing one.

    Creating an array costs as much as a small kernel, and allocators reuse few addresses. Each launch
    checks its addresses; the cache does not.
    """

    __slots__ = ("find", "layout")

    def __init__(self, meta: Meta, find: Callable[[str, int, int], VirtualDevice]) -> None:
        self.layout = (meta.shape, meta.dtype.numpy, meta.byte_strides)
        self.find = find

    def __missing__(self, ptr: int) -> np.ndarray[Any, Any]:
        shape, dtype, strides = self.layout
        if 0 in shape:  # an empty tensor has no memory
            return np.empty(shape, dtype)
        if len(self) >= _KEPT:
            self.clear()
        arena = self.find("launch", ptr, 1).arena
        found = self[ptr] = np.ndarray(shape, dtype, arena.bytes, ptr - arena.base, strides)
        return found


class AddressCache(dict[int, int]):
    """Host addresses of one operand by device address, for native bodies."""

    __slots__ = ("arrays",)

    def __init__(self, arrays: ArrayCache) -> None:
        self.arrays = arrays

    def __missing__(self, ptr: int) -> int:
        if len(self) >= _KEPT:
            self.clear()
        found = self[ptr] = address_of(self.arrays[ptr])
        return found


class VirtualExecutable(Executable):
    """A loaded launch: its body, cached arrays of its operands, its duration, and the host's time for the call.

    Attributes:
        addresses: For a native body, the host addresses of its operands; otherwise empty.
        run_at: Of a native body, what runs it; otherwise None.
        copies: Bytes of dense copies that the body makes of expanded inputs, by estimate.
        is_large: True if the body may take much memory for temporary arrays; see Note [Temporary arrays].
    """

    __slots__ = (
        "addresses", "body", "code", "copies", "cycles", "host_ns", "is_large", "may_fail", "name", "nbytes", "outputs",
        "run_at", "scalars", "sms", "spans", "start_ns", "windows", "work",
    )  # fmt: skip

    def __init__(
        self,
        launch: Launch,
        index: int,
        profile: Profile,
        find: Callable[[str, int, int], VirtualDevice],
        host: HostCosts,
    ) -> None:
        super().__init__(launch, index)
        self.body = host_body(launch)
        self.name = launch.kernel.name
        self.code = zlib.crc32(self.name.encode())
        self.windows = [ArrayCache(meta, find) for meta in launch.operands]
        self.run_at = self.body.run_at if isinstance(self.body, NativeBody) else None
        self.addresses = [AddressCache(arrays) for arrays in self.windows] if self.run_at else []
        self.spans = tuple([m.span for m in launch.operands])
        self.outputs = len(launch.outputs)
        self.scalars = [i for i, x in enumerate(launch.inputs) if not isinstance(x, Meta)]
        self.nbytes = launch.nbytes
        inputs = launch.operands[self.outputs :]
        # integers may be indices that are out of range
        self.may_fail = any(m.dtype.category == INTEGRAL for m in inputs)
        self.copies = copied_bytes(launch)
        elements = sum([m.numel * m.itemsize for m in launch.operands])  # expanded ones, too
        self.is_large = max(elements, launch.kernel.flops(launch)) >= LARGE
        self.cycles = launch.kernel.cycles
        self.workspace = launch.kernel.workspace(launch)
        self.host_ns = host.of_launch(self.name, len(self.spans))
        self.sms, self.work, self.start_ns = 1, 0, profile.costs.kernel_ns
        if self.cycles is None:
            work = launch.kernel.work(launch)
            self.sms, self.work = cost.kernel_sms(work, profile), cost.kernel_ns(work, profile)
            if not work.kernels:
                self.start_ns = 0
