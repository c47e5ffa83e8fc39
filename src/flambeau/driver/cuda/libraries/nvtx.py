"""Ranges and marks for NVIDIA's tools, such as Nsight Systems, through the nvtx package."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from typing import Any

from flambeau.core.errors import DriverError


class Nvtx:
    """A subscriber of `runtime.hooks.annotations` that forwards ranges and marks."""

    def __init__(self, package: Any) -> None:
        self._package = package
        self._open: dict[int, Any] = {}

    def on_range_begin(self, text: str, number: int | None) -> None:
        if number is None:
            self._package.push_range(text)
        else:
            self._open[number] = self._package.start_range(text)

    def on_range_end(self, number: int | None) -> None:
        if number is None:
            self._package.pop_range()
        elif (range_id := self._open.pop(number, None)) is not None:
            self._package.end_range(range_id)

    def on_mark(self, text: str) -> None:
        self._package.mark(text)


def tool() -> Nvtx | None:
    """Return a subscriber that forwards to the profiling tool that runs this process; None without one."""
    if not os.environ.get("NVTX_INJECTION64_PATH"):
        return None
    try:
        return Nvtx(import_module("nvtx"))
    except ImportError:
        warnings.warn(
            "a tool that reads NVTX runs this process, but the package nvtx is not installed: it receives "
            "nothing from torch.cuda.nvtx. Install it with `pip install nvtx`.",
            UserWarning,
            stacklevel=2,
        )
        return None


def tools_range(on: bool) -> None:
    """Start or stop the recording of a profiling tool: cuProfilerStart and cuProfilerStop."""
    driver = import_module("cuda.bindings.driver")
    (code,) = driver.cuProfilerStart() if on else driver.cuProfilerStop()
    if int(code):
        raise DriverError(
            f"{'cuProfilerStart' if on else 'cuProfilerStop'} failed with CUDA error {int(code)}"
        )
