"""Launches of several kernels: `Pass`, `KernelPlan`, and `sequence`, which makes a plan a `Run`.

A pass is a program whose addresses are those of the launch or of a workspace: device memory that the launch
allocates from the device's pool and frees, in stream order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from cuda.bindings import driver as cu

from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen import pointwise
from flambeau.driver.cuda.device.calls import check, error_of
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import (
    ADDRESS,
    GenericKernel,
    KernelProgram,
    flatten_scalars,
    mark,
    wire_format,
)
from flambeau.driver.protocol import Expression, Kernel, Launch

Run = Callable[[Sequence[int], Sequence[Any], Any, int], None]
WORK = -1
"""The position of an address that is in the workspace."""

_ALIGNMENT = 256


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One kernel of a plan: its program and its addresses, each as an operand's index and an offset in bytes.

    Attributes:
        scalars: True if the launch's scalars follow the addresses.
        unless_same: Two positions of operands; the pass is skipped if their addresses are equal. Used for the copy of a
            tensor that is changed in place.
    """

    program: KernelProgram
    places: tuple[tuple[int, int], ...]
    scalars: bool = False
    unless_same: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class KernelPlan:
    """The passes of a launch in order, the bytes of workspace that they share, and how many of these are zeroed
    first.
    """

    passes: tuple[Pass, ...]
    workspace: int = 0
    zeroed: int = 0


class WorkspaceLayout:
    """An allocator of ranges in a workspace. Ranges that must be zeroed are first."""

    def __init__(self) -> None:
        self.nbytes = 0

    def take(self, nbytes: int) -> tuple[int, int]:
        place = (WORK, self.nbytes)
        self.nbytes += -(-max(nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
        return place


def copying(out: Meta, x: Meta, at: int, source: int, unless_same: bool = False) -> Pass:
    """Return a pass that copies operand `source`, of layout `x`, to operand `at`."""
    launch = Launch(Kernel("copy", no_host, cuda=_COPY), (out,), (x,))
    program = pointwise.program(launch, _COPY)
    return Pass(program, ((at, 0), (source, 0)), unless_same=(at, source) if unless_same else None)


_COPY = Expression("a")


def no_host(launch: Launch) -> Any:
    """Raise, as the reference implementation of a kernel that exists only as a pass."""
    raise AssertionError("a pass of a CUDA launch runs on no host")


class _PassKernel:
    """A pass prepared for all shapes of a launch.

    Attributes:
        kernel: Its function and parameters.
        positions: The position of each address among the launch's operands.
        scalars, unless_same: See `Pass`.
        numbers: The values that depend on the shape: the kernel's numbers, and the bytes to add to each address.
    """

    __slots__ = ("kernel", "numbers", "positions", "scalars", "unless_same")

    def __init__(self, launch: Launch, step: Pass, function: Any) -> None:
        wire = [wire_format(x) for x in launch.inputs if not isinstance(x, Meta)] if step.scalars else []
        self.kernel = kernel = GenericKernel(step.program, function, len(step.places), wire)
        self.positions = [at for at, _ in step.places]
        self.scalars, self.unless_same = step.scalars, step.unless_same
        self.numbers = (*kernel.numbers, tuple([offset for _, offset in step.places]))

    def launch(
        self,
        numbers: tuple[Any, ...],
        ptrs: Sequence[int],
        scalars: Sequence[Any],
        work: int,
        device: CudaDevice,
        native: Any,
        stream: int,
        assertions: int,
    ) -> None:
        if self.unless_same is not None and ptrs[self.unless_same[0]] == ptrs[self.unless_same[1]]:
            return
        (x, y, z), scratch, tail, offsets = numbers
        kernel = self.kernel
        addresses = [
            (work if at < 0 else ptrs[at]) + offset
            for at, offset in zip(self.positions, offsets, strict=True)
        ]
        if self.scalars:
            kernel.pack(*addresses, *scalars, tail)
        else:
            kernel.pack(*addresses, tail)
        if kernel.guards:
            mark(kernel.params, kernel.guards, assertions)
        if scratch:
            ADDRESS.pack_into(kernel.params, kernel.scratch_at, device.scratch_of(stream, scratch, native))
        (code,) = cu.cuLaunchKernel(
            kernel.function, x, y, z, kernel.block, 1, 1, kernel.shared, native, kernel.address, 0
        )
        if code:
            raise error_of(code)


def sequence(
    launch: Launch,
    plan: KernelPlan,
    device: CudaDevice,
    function_of: Callable[[CudaDevice, Launch, KernelProgram], Any],
) -> tuple[tuple[Any, ...], Callable[..., Run]]:
    """Return the shape-dependent data of a launch, and a function that turns them into a run of the plan's passes."""
    passes = [step for step in plan.passes if all(step.program.grid)]  # the driver refuses a grid of size 0
    steps = [_PassKernel(launch, step, function_of(device, launch, step.program)) for step in passes]
    guarded = any(step.kernel.guards for step in steps)
    lock = Lock()  # held from packing the parameters until the launches have read them

    def run_of_shape(workspace: int, zeroed: int, numbers: Sequence[tuple[Any, ...]]) -> Run:
        each = list(zip(steps, numbers, strict=True))

        def run(ptrs: Sequence[int], scalars: Sequence[Any], native: Any, stream: int) -> None:
            values = flatten_scalars(scalars) if scalars else scalars
            with lock:
                work = device.take(workspace, native) if workspace else 0
                number = device.assertions.note_launch() if guarded else 0
                try:
                    if zeroed:
                        check(cu.cuMemsetD8Async(work, 0, zeroed, native))
                    for step, given in each:
                        step.launch(given, ptrs, values, work, device, native, stream, number)
                finally:
                    if work:
                        device.give(work, native)

        return run

    return (plan.workspace, plan.zeroed, tuple([step.numbers for step in steps])), run_of_shape
