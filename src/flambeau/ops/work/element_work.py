"""The work of kernels that compute their elements independently, beyond the default `stream_work`."""

from __future__ import annotations

import math
from collections.abc import Callable

from flambeau.core.meta import Meta
from flambeau.driver.protocol import Launch, Work, distinct_bytes, stream_work

_LONG_FORMULA = 4  # number of statements beyond which PyTorch uses several kernels

CYCLES_OF_A_MICROSECOND = 1755.0
"""Of an H100 under load, on which the times of these modules were measured."""
MULTIPROCESSORS = 132
"""Of the same GPU."""


def source_of(launch: Launch) -> Meta:
    """Return the first input of a launch that begins with a tensor."""
    source = launch.inputs[0]
    assert isinstance(source, Meta)
    return source


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


def formula(instructions: float, microseconds: float, doubled: float = 0.0) -> Callable[[Launch], Work]:
    """Return the work of functions whose formulas are longer than `stream_work` estimates.

    Args:
        instructions: Additional ones for each element.
        microseconds: Latency beyond that of `stream_work`.
        doubled: Additional instructions for each element in double precision.
    """

    def work(launch: Launch) -> Work:
        found = stream_work(launch)
        out = launch.outputs[0]
        each = instructions + (doubled if out.itemsize == 8 and out.dtype.is_floating_point else 0.0)
        return found.with_(
            instructions=found.instructions + each * out.numel,
            cycles=found.cycles + microseconds * CYCLES_OF_A_MICROSECOND,
        )

    return work


def columns_of_windows(launch: Launch) -> Work:
    """Return the work of `unfold`: copies of the input, then a kernel for each sample."""
    source, out = source_of(launch), launch.outputs[0]
    samples, places = max(source.shape[0], 1), out.shape[1] * out.shape[2] // 9
    work = pass_over(launch, out.numel // samples)
    each = 2.2 + min(places / 4096, 1.0) * 1.6
    return work.with_(cycles=samples * each * CYCLES_OF_A_MICROSECOND, kernels=samples + 1)


def windows(base: float, tap: float) -> Callable[[Launch], Work]:
    """Return the work of pooling, which computes the bounds of each window and reads its elements.

    Args:
        base: Instructions of an output.
        tap: Instructions of an element of its window.
    """

    def work(launch: Launch) -> Work:
        count = launch.outputs[0].numel
        taps = launch.kernel.flops(launch) / max(count, 1)
        return pass_over(launch, count, 1.0, (base + tap * taps) * count)

    return work


_SAMPLE, _LINEAR, _CUBIC = 0.18, 0.2, 0.6  # microseconds of a channel of a place


def samples_of_channels(launch: Launch) -> Work:
    """Return the work of `grid_sample`: a thread goes over the channels of its place."""
    out = launch.outputs[0]
    work = pass_over(launch, out.numel, 1.2, 60.0 * out.numel)
    return work.with_(chain=out.shape[1] * _SAMPLE * CYCLES_OF_A_MICROSECOND)


def resampling(launch: Launch) -> Work:
    """Return the work of `interpolate`; except for the nearest element, a thread goes over all channels of a place."""
    out, mode = launch.outputs[0], launch.params[0].mode
    work = pass_over(launch, out.numel, 0.6, 72.0 * out.numel)
    if mode.startswith("nearest"):
        return work
    each = _CUBIC if mode == "cubic" else _LINEAR
    return work.with_(chain=out.shape[0] * out.shape[1] * each * CYCLES_OF_A_MICROSECOND)


def padding(launch: Launch) -> Work:
    """Return the work of `pad`: a fill and a copy of the middle, or one kernel that finds each element's source."""
    count = launch.outputs[0].numel
    return pass_over(launch, count, 2.6 if launch.params[0] == "constant" else 0.5, 90.0 * count)


def within_another(launch: Launch) -> Work:
    """Return no work: PyTorch computes these results in the kernel of an earlier launch."""
    return Work(0.0, 0.0, 1, kernels=0)


def two_kernels(launch: Launch) -> Work:
    """Return the work of a fill and a second fill of few elements."""
    return pass_over(launch, launch.outputs[0].numel, kernels=2)


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


_RADICES = 127  # the greatest prime factor that a transform has a kernel for; few are fast
_FAST_RADICES = 13


def transform(launch: Launch) -> Work:
    """Return the work of a Fourier transform along the last dimension.

    Above 4,096 points it takes several kernels. Lengths with great prime factors are convolutions of twice the length,
    filled up to a power of two (Bluestein, 1970).
    """
    out, source = launch.outputs[0], launch.inputs[0]
    is_complex = isinstance(source, Meta) and source.dtype.is_complex
    length = source.shape[-1] if isinstance(source, Meta) and source.ndim else 1
    if _greatest_prime(length) > (_RADICES if is_complex else 73):
        padded = 1 << (2 * length - 1).bit_length()
        nbytes = 8.0 * padded * out.numel / max(out.shape[-1], 1)
        moved = nbytes * (10.0 if padded > 1 << 16 else 3.0)
        return Work(moved, nbytes, out.numel, 5.0 * padded, 6.0 * CYCLES_OF_A_MICROSECOND, 3)
    passes = 1.6 * (2 if max(out.shape, default=1) > 4096 else 1)
    latency = 3.6 if is_complex or _greatest_prime(length) < _FAST_RADICES else 6.5
    return pass_over(launch, out.numel, latency, 5.0 * out.numel, passes)


def _greatest_prime(number: int) -> int:
    """Return the greatest prime factor of a number, or 1."""
    greatest, factor = 1, 2
    while factor * factor <= number:
        while number % factor == 0:
            greatest, number = factor, number // factor
        factor += 1
    return max(greatest, number)


_CHUNK, _CHUNK_STEP = 65536, 2048  # elements of a tensor that a block takes, at all and in a step
_CHUNK_MICROSECONDS = 0.45  # of a step


def factorization(least: float, column: float, pair: float = 0.0) -> Callable[[Launch], Work]:
    """Return the work of a factorization by cuSOLVER: each column depends on the columns before it.

    Args:
        least: Microseconds of any matrix.
        column: Microseconds of a column.
        pair: Microseconds of a pair of columns.
    """

    def work(launch: Launch) -> Work:
        source = launch.inputs[0]
        side = min(source.shape[-2:], default=1) if isinstance(source, Meta) else 1
        microseconds = least + side * (column + pair * side)
        found = stream_work(launch)
        return found.with_(cycles=found.cycles + microseconds * CYCLES_OF_A_MICROSECOND)

    return work


def one_by_one(least: float, column: float, many: int, further: float) -> Callable[[Launch], Work]:
    """Return the work of a factorization that cuSOLVER makes for one matrix of a batch after the other.

    Args:
        least: Microseconds of any matrix.
        column: Microseconds of a column.
        many: Number of columns from which each takes `further` microseconds more.
    """

    def work(launch: Launch) -> Work:
        source = source_of(launch)
        side, count = min(source.shape[-2:]), source.numel // max(math.prod(source.shape[-2:]), 1)
        microseconds = count * (least + column * side + further * max(side - many, 0))
        found = stream_work(launch)
        return found.with_(cycles=found.cycles + microseconds * CYCLES_OF_A_MICROSECOND)

    return work


_BATCHED_SIDE = 32  # largest matrices whose eigenvectors are computed together for a batch
_eigenvectors_together = factorization(110, 3)
_eigenvectors_one_by_one = one_by_one(560, 4.0, 1 << 20, 0.0)


def eigenvectors(launch: Launch) -> Work:
    """Return the work of `eigh`: of small matrices together, of several larger ones one by one."""
    values = launch.outputs[0]
    several = values.ndim > 1 and values.shape[-1] > _BATCHED_SIDE and values.numel > values.shape[-1]
    return (_eigenvectors_one_by_one if several else _eigenvectors_together)(launch)


def many_tensors(launch: Launch) -> Work:
    """Return the work of a computation over many tensors. Long formulas are a series of kernels."""
    count = sum([meta.numel for meta in launch.outputs])
    several = launch.kernel.flops(launch) > _LONG_FORMULA * count
    passes, kernels = (3.4, 8) if several else (1.0, 1)
    work = pass_over(launch, count, 0.0, 5.0 * count, passes, kernels)
    steps = min(max([meta.numel for meta in launch.outputs]), _CHUNK) / _CHUNK_STEP
    return work.with_(chain=kernels * steps * _CHUNK_MICROSECONDS * CYCLES_OF_A_MICROSECOND)
