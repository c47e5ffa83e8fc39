"""`torch.cuda.cudart()`: what programs call of the CUDA runtime library, under its names and with its error codes."""

# ruff: noqa: N802, N815 (CUDA's own names)

from __future__ import annotations

import enum
from typing import Any

from flambeau.core.names import lacks
from flambeau.cuda import profiler
from flambeau.runtime import current, system

__all__ = ["cudart"]


class cudaError(enum.IntEnum):
    """Error codes."""

    success = 0


class _Runtime:
    """Each call returns a code; where something is wrong it raises RuntimeError instead."""

    cudaError = cudaError
    __getattr__ = lacks

    def cudaGetErrorString(self, error: int) -> str:
        """A code in words; there is one code, for the others raise."""
        return {cudaError.success: "no error"}[cudaError(error)]

    def cudaMemGetInfo(self, device: Any) -> tuple[int, int]:
        """(free, total) bytes of a device's memory."""
        context = current.context_at(current.index_of(device, optional=True))
        return context.driver.mem_info(context.driver_index)

    def cudaProfilerStart(self) -> int:
        """As `torch.cuda.profiler.start`."""
        profiler.start()
        return cudaError.success

    def cudaProfilerStop(self) -> int:
        """As `torch.cuda.profiler.stop`."""
        profiler.stop()
        return cudaError.success


_runtime = _Runtime()


def cudart() -> _Runtime:
    """The CUDA runtime's calls. Initializes CUDA."""
    system.init()
    return _runtime
