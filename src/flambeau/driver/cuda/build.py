"""`build`: from a launch's CUDA form to a program, or to a function that calls a library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.errors import NotSupportedError
from flambeau.driver.api import Expression, Launch, Source
from flambeau.driver.cuda import pointwise, source
from flambeau.driver.cuda.device import Device
from flambeau.driver.cuda.program import Program

Run = Callable[[Sequence[int], Sequence[Any], Any, int], None]
"""A launch that is more than one kernel: `run(ptrs, scalars, native stream, stream handle)`."""


def build(launch: Launch, device: Device, driver: Any) -> Program | Run:
    """Raises NotSupportedError: the kernel has no CUDA form yet."""
    if not all(meta.numel for meta in launch.outputs):
        return _nothing
    form = launch.kernel.cuda
    if isinstance(form, Expression):
        return pointwise.program(launch, form)
    if isinstance(form, Source):
        return source.program(launch, form)
    raise NotSupportedError(
        f"operator {launch.kernel.name!r} has no CUDA form yet: it runs on the CPU and on virtual GPUs only"
    )


def _nothing(ptrs: Sequence[int], scalars: Sequence[Any], native: Any, stream: int) -> None:
    """The launch of a kernel whose outputs are empty."""
