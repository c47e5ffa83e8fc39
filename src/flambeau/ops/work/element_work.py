"""The work of kernels that compute their elements independently, beyond the default `stream_work`."""

from __future__ import annotations

from collections.abc import Callable

from flambeau.core.meta import Meta
from flambeau.driver.api import Launch, Work, distinct_bytes

_LONG_FORMULA = 4  # number of statements beyond which PyTorch uses several kernels

CYCLES_OF_A_MICROSECOND = 1755.0
"""Of an H100 under load, on which the times of these modules were measured."""
MULTIPROCESSORS = 132
"""Of the same GPU."""


def pass_over(
    launch: Launch, threads: int, microseconds: float = 0.0, instructions: float = 0.0, passes: float = 1.0,
    kernels: int = 1,
) -> Work:  # fmt: skip
    """Return the work of kernels that move all operands.

    Args:
        launch: The launch.
        threads: Number of elements that can be worked on at the same time.
        microseconds: Latency beyond that of a plain kernel.
        instructions: Number of instructions, of all threads together.
        passes: How often the operands move.
        kernels: Number of kernels that run one after the other.
    """
    cycles = microseconds * CYCLES_OF_A_MICROSECOND
    return Work(passes * launch.nbytes, launch.nbytes, max(threads, 1), instructions, cycles, kernels)


def per_element(instructions: float, microseconds: float = 0.0) -> Callable[[Launch], Work]:
    """Return the work of kernels that need many instructions for each output, such as index arithmetic or windows.

    Args:
        instructions: Number per element of the output.
        microseconds: Latency beyond that of a plain kernel.
    """

    def work(launch: Launch) -> Work:
        count = max([meta.numel for meta in launch.outputs])
        return pass_over(launch, count, microseconds, instructions * count)

    return work


def concatenation(launch: Launch) -> Work:
    """Return the work of `cat`: slow where single elements alternate."""
    count = launch.outputs[0].numel
    single = any(x.shape[-1] == 1 for x in launch.inputs if isinstance(x, Meta) and x.ndim)
    return pass_over(launch, count, 0.3, (120.0 if single else 15.0) * count)


def copy_and_change(launch: Launch) -> Work:
    """Return the work of an operator that copies its input and then changes elements in place."""
    out = launch.outputs[0]
    nbytes = launch.nbytes + 2 * distinct_bytes(out)
    return Work(float(nbytes), nbytes, out.numel, kernels=2)


def transform(launch: Launch) -> Work:
    """Return the work of a Fourier transform. Above 4,096 points it takes several kernels."""
    out, source = launch.outputs[0], launch.inputs[0]
    is_complex = isinstance(source, Meta) and source.dtype.is_complex
    passes = 1.6 * (2 if max(out.shape, default=1) > 4096 else 1)
    return pass_over(launch, out.numel, 3.6 if is_complex else 6.5, 5.0 * out.numel, passes)


def many_tensors(launch: Launch) -> Work:
    """Return the work of a computation over many tensors. Long formulas are a series of kernels."""
    count = sum([meta.numel for meta in launch.outputs])
    several = launch.kernel.flops(launch) > _LONG_FORMULA * count
    passes, kernels = (3.4, 8) if several else (1.0, 1)
    return pass_over(launch, count, 0.0, 5.0 * count, passes, kernels)
