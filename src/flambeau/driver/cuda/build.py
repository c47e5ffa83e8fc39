"""`build`: from a launch's CUDA form to a program, or to a function that calls a library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.errors import NotSupportedError
from flambeau.driver.api import Expression, Expressions, Fold, Launch, Lists, Routine, Scan, Source
from flambeau.driver.cuda import routines
from flambeau.driver.cuda.codegen import (
    multi_kernel,
    multi_tensor,
    pointwise,
    pointwise_several,
    reduction,
    scan,
    source,
)
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram

Run = Callable[[Sequence[int], Sequence[Any], Any, int], None]
"""A launch that is more than one kernel: `run(ptrs, scalars, native stream, stream handle)`."""


def build(launch: Launch, device: CudaDevice, driver: Any) -> KernelProgram | Run:
    """Raises NotSupportedError: the kernel has no CUDA form yet."""
    if launch.outputs and not any(meta.numel for meta in launch.outputs):
        return _nothing
    form = launch.kernel.cuda
    if isinstance(form, Expression):
        return pointwise.program(launch, form)
    if isinstance(form, Expressions):
        return pointwise_several.program(launch, form)
    if isinstance(form, Fold):
        return reduction.program(launch, form, device.properties.multi_processor_count)
    if isinstance(form, Scan):
        built = scan.program(launch, form, device.properties.multi_processor_count)
        return _whole(built, launch, device, driver)
    if isinstance(form, Source):
        return source.program(launch, form)
    if isinstance(form, Lists):
        return _whole(multi_tensor.program(launch, form), launch, device, driver)
    if isinstance(form, Routine) and form.name in routines.LIBRARIES:
        return routines.LIBRARIES[form.name](launch, device, driver)
    if isinstance(form, Routine) and form.name in routines.TABLE:
        return _whole(routines.TABLE[form.name](launch, device), launch, device, driver)
    raise NotSupportedError(
        f"operator {launch.kernel.name!r} has no CUDA form yet: it runs on the CPU and on virtual GPUs only"
    )


def _whole(
    built: KernelProgram | multi_kernel.KernelPlan, launch: Launch, device: CudaDevice, driver: Any
) -> KernelProgram | Run:
    """Several passes as one run."""
    if isinstance(built, multi_kernel.KernelPlan):
        return multi_kernel.sequence(launch, built, device, driver.functions.of)
    return built


def _nothing(ptrs: Sequence[int], scalars: Sequence[Any], native: Any, stream: int) -> None:
    """The launch of a kernel whose outputs are empty."""
