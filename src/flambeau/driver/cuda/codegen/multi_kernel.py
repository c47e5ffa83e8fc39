"""Launches of several kernels: `Pass`, `KernelPlan`, and `sequence`, which makes a plan a `Run`.

A pass is a program whose addresses come from the launch or from a workspace: device memory that the launch takes
from the device's pool and gives back, in the stream's order.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

from cuda.bindings import driver as cu

from flambeau.core.meta import Meta
from flambeau.driver.api import Expression, Kernel, Launch
from flambeau.driver.cuda.codegen import pointwise
from flambeau.driver.cuda.device.calls import check, error_of
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import (
    ADDRESS,
    KernelProgram,
    flatten_scalars,
    guards_of,
    mark,
    wire_format,
)

Run = Callable[[Sequence[int], Sequence[Any], Any, int], None]
WORK = -1
"""The position of an address that is in the workspace."""

_ALIGNMENT = 256


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One kernel: its program, and for each address its position among the launch's operands and bytes to add.

    scalars: the launch's scalars follow the addresses. unless_same: two positions; where their addresses are equal,
    the pass is left out (the copy of a tensor that is changed in place).
    """

    program: KernelProgram
    places: tuple[tuple[int, int], ...]
    scalars: bool = False
    unless_same: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class KernelPlan:
    """Passes in their order, the bytes of workspace that they share, how many of the first are zeroed before."""

    passes: tuple[Pass, ...]
    workspace: int = 0
    zeroed: int = 0


class WorkspaceLayout:
    """Hands out places of a workspace; what must be zeroed comes first."""

    def __init__(self) -> None:
        self.nbytes = 0

    def take(self, nbytes: int) -> tuple[int, int]:
        place = (WORK, self.nbytes)
        self.nbytes += -(-max(nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
        return place


def copying(out: Meta, x: Meta, at: int, source: int, unless_same: bool = False) -> Pass:
    """The pass that copies operand `source`, of layout `x`, to operand `at`."""
    launch = Launch(Kernel("copy", no_host, cuda=_COPY), (out,), (x,))
    program = pointwise.program(launch, _COPY)
    return Pass(program, ((at, 0), (source, 0)), unless_same=(at, source) if unless_same else None)


_COPY = Expression("a")


def no_host(launch: Launch) -> Any:
    """The host body of a kernel that is a pass alone."""
    raise AssertionError("a pass of a CUDA launch runs on no host")


class _PreparedPass:
    """A pass made ready: its function and a kept buffer of parameters."""

    __slots__ = (
        "address", "buffer", "call", "guards", "keep", "pack", "places", "scalars", "scratch", "scratch_at",
        "unless_same",
    )  # fmt: skip

    def __init__(self, launch: Launch, step: Pass, function: Any) -> None:
        self.call = partial(cu.cuLaunchKernel, function, *step.program.grid, step.program.block, 1, 1, 0)
        self.places, self.scalars, self.unless_same = step.places, step.scalars, step.unless_same
        wire = [wire_format(x) for x in launch.inputs if not isinstance(x, Meta)] if step.scalars else []
        packed, sizes = step.program.addresses(len(step.places))
        packing = struct.Struct("<" + packed + "".join(wire))
        offsets, at = [], 0
        for size in sizes + [8 * len(w) for w in wire]:
            offsets.append(at)
            at += size
        tail = []
        self.scratch = step.program.scratch
        for part in (*step.program.tail, bytes(8)) if self.scratch else step.program.tail:
            at = -(-at // 16) * 16
            offsets.append(at)
            tail.append((at, part))
            at += len(part)
        self.scratch_at = offsets[-1] if self.scratch else 0
        self.buffer = ctypes.create_string_buffer(max(at, 16))
        self.pack = partial(packing.pack_into, self.buffer, 0)
        base = ctypes.addressof(self.buffer)
        for start, part in tail:
            ctypes.memmove(base + start, part, len(part))
        self.guards = guards_of(tail)
        self.keep = (ctypes.c_void_p * max(len(offsets), 1))(*[base + offset for offset in offsets])
        self.address = ctypes.addressof(self.keep)

    def launch(
        self, ptrs: Sequence[int], scalars: Sequence[Any], work: int, device: CudaDevice, native: Any, stream: int
    ) -> None:  # fmt: skip
        if self.unless_same is not None and ptrs[self.unless_same[0]] == ptrs[self.unless_same[1]]:
            return
        addresses = [(work if at < 0 else ptrs[at]) + offset for at, offset in self.places]
        if self.scalars:
            self.pack(*addresses, *scalars)
        else:
            self.pack(*addresses)
        if self.scratch:
            ADDRESS.pack_into(self.buffer, self.scratch_at, device.scratch_of(stream, self.scratch, native))
        (code,) = self.call(native, self.address, 0)
        if code:
            raise error_of(code)


def sequence(
    launch: Launch,
    plan: KernelPlan,
    device: CudaDevice,
    function_of: Callable[[CudaDevice, Launch, KernelProgram], Any],
) -> Run:
    """A launch that runs the plan's passes one after the other. `function_of` compiles for the device."""
    passes = [step for step in plan.passes if all(step.program.grid)]  # the driver refuses those over nothing
    steps = [_PreparedPass(launch, step, function_of(device, launch, step.program)) for step in passes]
    guarded = [step for step in steps if step.guards]
    lock = Lock()  # held from packing the parameters until the launches have read them

    def run(ptrs: Sequence[int], scalars: Sequence[Any], native: Any, stream: int) -> None:
        values = flatten_scalars(scalars) if scalars else scalars
        with lock:
            work = device.take(plan.workspace, native) if plan.workspace else 0
            if guarded:
                number = device.assertions.note_launch()
                for step in guarded:
                    mark(step.buffer, step.guards, number)
            try:
                if plan.zeroed:
                    check(cu.cuMemsetD8Async(work, 0, plan.zeroed, native))
                for step in steps:
                    step.launch(ptrs, values, work, device, native, stream)
            finally:
                if work:
                    device.give(work, native)

    return run
