"""torch.cuda.profiler: from where to where an NVIDIA tool records. For profiles of our own there is torch.profiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flambeau.core.public_names import explain_absent_names
from flambeau.driver.driver_registry import tools_range
from flambeau.runtime import system
from flambeau.runtime.hooks import annotations

__all__ = ["profile", "start", "stop"]

explain_absent_names(globals(), "torch.cuda.profiler")


def start() -> None:
    """Let a tool record from now on (cudaProfilerStart). On virtual GPUs the trace gets a mark."""
    _switch(True)


def stop() -> None:
    """Let it record no more (cudaProfilerStop)."""
    _switch(False)


@contextmanager
def profile() -> Iterator[None]:
    """Return a context manager inside which profiling tools record."""
    start()
    try:
        yield
    finally:
        stop()


def _switch(on: bool) -> None:
    system.init()
    if system.is_virtual():
        annotations.mark("cudaProfilerStart" if on else "cudaProfilerStop")
    else:
        tools_range(on)
