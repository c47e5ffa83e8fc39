"""The work of kernels that compute their elements independently, beyond the default `stream_work`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.core.meta import Meta
from flambeau.driver.api import Launch, Work, distinct_bytes, stream_work

_LONG_FORMULA = 4  # statements, more than which PyTorch computes by several kernels

CYCLES_OF_A_MICROSECOND = 1755.0
"""Of an H100 under load, in which the latencies of these modules were measured."""


def per_element(instructions: float, microseconds: float = 0.0) -> Callable[[Launch], Work]:
    """Return the work of kernels that take this many instructions for each element, mostly to find its place.

    Args:
        instructions: Number per element of the output.
        microseconds: Latency beyond that of a plain kernel.
    """

    def work(launch: Launch) -> Work:
        found = stream_work(launch, instructions)
        return found.with_(nbytes=float(launch.nbytes), cycles=microseconds * CYCLES_OF_A_MICROSECOND)

    return work


def concatenation(launch: Launch) -> Work:
    """Return the work of `cat`: slow where single elements alternate."""
    out = launch.outputs[0]
    parts = [x for x in launch.inputs if isinstance(x, Meta) and x.ndim]
    single = any(x.shape[-1] == 1 for x in parts)
    instructions = (120.0 if single else 15.0) * out.numel
    return Work(float(launch.nbytes), launch.nbytes, out.numel, instructions, 0.3 * CYCLES_OF_A_MICROSECOND)


def copy_and_change(launch: Launch) -> Work:
    """Return the work of an operator that copies its input and then changes elements in place."""
    out = launch.outputs[0]
    nbytes = launch.nbytes + 2 * distinct_bytes(out)
    return Work(float(nbytes), nbytes, out.numel, kernels=2)


def windows(microseconds: float, instructions: float) -> Callable[[Launch], Work]:
    """Return the work of kernels that read a small window of the input for each output.

    Args:
        microseconds: Latency beyond that of a plain kernel.
        instructions: Number per output.
    """

    def work(launch: Launch) -> Work:
        count = launch.outputs[0].numel
        cycles = microseconds * CYCLES_OF_A_MICROSECOND
        return Work(float(launch.nbytes), launch.nbytes, count, instructions * count, cycles)

    return work


def transform(launch: Launch) -> Work:
    """Return the work of a Fourier transform; more than one kernel beyond 4,096 points."""
    out = launch.outputs[0]
    length = max(out.shape, default=1)
    real: Any = launch.inputs[0]
    cycles = (3.6 if real.dtype.is_complex else 6.5) * CYCLES_OF_A_MICROSECOND
    nbytes = 1.6 * launch.nbytes * (2 if length > 4096 else 1)
    return Work(nbytes, launch.nbytes, out.numel, 5.0 * out.numel, cycles)


def optimizer_step(launch: Launch) -> Work:
    """Return the work of a computation over many tensors: long formulas are a row of kernels that pass over them."""
    count = sum([meta.numel for meta in launch.outputs])
    several = launch.kernel.flops(launch) > _LONG_FORMULA * count
    nbytes = (3.4 if several else 1.0) * launch.nbytes
    return Work(nbytes, launch.nbytes, count, 5.0 * count, kernels=8 if several else 1)
