"""The driver of the meta device, whose tensors have shapes, strides and dtypes but no data.

Nothing is stored and nothing runs: launches, copies and fills do nothing, and every address is an offset into its
storage. Reading a value raises NotImplementedError, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.core.errors import NO_META_DATA
from flambeau.driver.host.driver import HostDriver
from flambeau.driver.protocol import Executable, HostMemory, Launch, Launcher


class MetaDriver(HostDriver):
    """A `HostDriver` without memory and kernels."""

    name = "meta"
    runs_bodies = False

    def mem_alloc(self, index: int, nbytes: int) -> int:
        self._check_device(index)
        return 0

    def mem_free(self, ptr: int) -> None:
        pass

    def copy_in(self, target: int, source: HostMemory, stream: int) -> None:
        pass

    def copy_out(self, target: HostMemory, source: int, stream: int) -> None:
        raise NotImplementedError(NO_META_DATA)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        pass

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        pass

    def load(self, launch: Launch, index: int) -> Any:
        self._check_device(index)
        return Executable(launch, 0)

    def launcher(self, exe: Executable) -> Launcher:
        return _launch_nothing


def _launch_nothing(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
    """Do nothing: tensors of the meta device have no data."""
