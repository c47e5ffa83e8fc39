"""`build`: create the kernel program of a launch's CUDA implementation, or the function that calls a library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from flambeau.core.errors import NotSupportedError
from flambeau.driver.cuda.codegen import (
    fused,
    fused_rows,
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
from flambeau.driver.cuda.nn import fused_held_rows
from flambeau.driver.protocol import (
    Expression,
    Expressions,
    Fold,
    Fused,
    Launch,
    Lists,
    Routine,
    Scan,
    Source,
    has_held_rows,
)

Run = Callable[[Sequence[int], Sequence[Any], Any, int], None]
"""A launch that is more than one kernel: `run(ptrs, scalars, native stream, stream handle)`."""


def build(launch: Launch, device: CudaDevice, driver: Any) -> KernelProgram | Run:
    """Return the kernel program or plan of a launch on a real GPU.

    Raises:
        NotSupportedError: If the kernel has no CUDA implementation.
    """
    if launch.outputs and not any(meta.numel for meta in launch.outputs):
        return _nothing
    form = launch.kernel.cuda
    built = build_kernels(launch, device)
    if built is None and isinstance(form, Routine) and form.library:
        return find_function(form.library)(launch, device, driver)
    if isinstance(built, multi_kernel.KernelPlan):
        numbers, run_of_shape = multi_kernel.sequence(launch, built, device, driver.functions.of)
        return run_of_shape(*numbers)
    if built is None:
        raise NotSupportedError(
            f"operator {launch.kernel.name!r} has no CUDA form yet: it runs on the CPU and on virtual GPUs only"
        )
    return built


def build_kernels(launch: Launch, device: CudaDevice) -> KernelProgram | multi_kernel.KernelPlan | None:
    """Return the kernels of a launch; None if a library runs it or there is nothing to run."""
    form = launch.kernel.cuda
    if isinstance(form, Expression):
        return fused.drawn_alone(launch) if form.drawn else pointwise.program(launch, form)
    if isinstance(form, Expressions):
        return pointwise_several.program(launch, form)
    if isinstance(form, Fused):
        if has_held_rows(form):
            return fused_held_rows.program(launch, form)
        return fused_rows.program(launch, form) if form.has_rows else fused.program(launch, form)
    if isinstance(form, Fold):
        return reduction.program(launch, form, device.properties.multi_processor_count)
    if isinstance(form, Scan):
        return scan.program(launch, form, device.properties.multi_processor_count)
    if isinstance(form, Source):
        return source.program(launch, form)
    if isinstance(form, Lists):
        return multi_tensor.program(launch, form)
    assert form is None or isinstance(form, Routine)
    if form is None or not form.builder:
        return None
    return find_function(form.builder)(launch, device)


def build_structure(
    launch: Launch, device: CudaDevice, driver: Any
) -> tuple[tuple[Any, ...], Callable[..., Run]] | None:
    """Return what serves all launches of one structure that a library computes.

    Returns:
        The sizes and strides that the library's call takes, which may be symbols, and a function that makes the
        function which launches from their values. None if each launch must be built separately.
    """
    form = launch.kernel.cuda
    if not isinstance(form, Routine) or not form.structure:
        return None
    planned: tuple[tuple[Any, ...], Callable[..., Run]] | None = find_function(form.structure)(
        launch, device, driver
    )
    return planned


def find_function(path: str) -> Callable[..., Any]:
    """Return the function that a `Routine` names as "module:function"."""
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(import_module(f"flambeau.driver.cuda.{module}"), name)
    return function


def _nothing(ptrs: Sequence[int], scalars: Sequence[Any], native: Any, stream: int) -> None:
    """Do nothing, because the outputs of the kernel are empty."""
