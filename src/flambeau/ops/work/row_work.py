"""The work of kernels that combine elements of rows: reductions, softmax, norms, scans, sorts, losses."""

from __future__ import annotations

import math
from collections.abc import Callable

from flambeau.core.meta import Meta
from flambeau.driver.protocol import Launch, Work, distinct_bytes, stream_work
from flambeau.ops.work.element_work import CYCLES_OF_A_MICROSECOND, MULTIPROCESSORS, pass_over, source_of
from flambeau.ops.work.reduction_plan import plan_reduction, reduced_dims


def _rows_and_columns(launch: Launch) -> tuple[int, int]:
    """Return the number and the length of the rows along the launch's dimension, by default the last one."""
    source = source_of(launch)
    columns = source.shape[_dimension(launch)] if source.ndim else 1
    return source.numel // max(columns, 1), columns


def _dimension(launch: Launch) -> int:
    """Return the dimension that a launch combines: its first param, or the last one of its reduced dimensions."""
    first = launch.params[0] if launch.params else -1
    dims = getattr(first, "dims", None)
    if dims:
        return int(dims[-1])
    return first if isinstance(first, int) and not isinstance(first, bool) else -1


def _waves(rows: int, together: int) -> int:
    """Return how often the device is filled if each multiprocessor processes `together` rows at a time."""
    return max(-(-rows // (MULTIPROCESSORS * together)), 1)


def _row_wise(launch: Launch, microseconds: float, passes: float = 1.0, kernels: int = 1) -> Work:
    """Return the work of kernels whose threads share the elements of the input."""
    return pass_over(launch, source_of(launch).numel, microseconds, 0.0, passes, kernels)


def _at_least(launch: Launch, latency: float, microseconds: float, instructions: float = 0.0) -> Work:
    """Return the work of one pass over the operands, with a minimum duration after the latency."""
    count = source_of(launch).numel
    work = pass_over(launch, count, latency, instructions * max(count, 1))
    return work.with_(chain=microseconds * CYCLES_OF_A_MICROSECOND)


# -- reductions -------------------------------------------------------------------------------------------------------

_TOGETHER = 264  # groups from which each multiprocessor has several
_THREAD, _WIDE, _STRIDED = (
    180.0,
    13.5,
    21.0,
)  # instructions of a thread, and of an element of wide and of single loads
_LOAD, _STEP = (
    0.2,
    0.035,
)  # microseconds of four loads, and of a step of the tree that combines a block's threads
_PARTS, _PARTIAL = 3.0, 0.32  # microseconds of a second round among blocks, and of each partial result in it


_APART = 2.0  # factor of the latency of loads from dimensions that are apart in memory


def reduction(
    extra: float = 0.0, slower: float = 1.0, kernels: int = 1, halves: float = 1.0
) -> Callable[[Launch], Work]:
    """Return the work of a reduction. See Note [The plan of a reduction].

    Args:
        extra: Instructions for each element beyond those of a sum.
        slower: Factor of the latency of a step relative to that of a sum.
        kernels: Number of kernels that run one after the other.
        halves: Factor of the latency of loads of 16 bits, where threads have neighbouring results.
    """

    def work(launch: Launch) -> Work:
        source = source_of(launch)
        if not source.numel:
            return stream_work(launch)
        plan = plan_reduction(source, reduced_dims(launch))
        each = extra + (_WIDE if plan.is_wide else _STRIDED / (1.0 if plan.is_inner else plan.vector**0.5))
        tree = (plan.height.bit_length() - 1) * plan.has_parts + (plan.width.bit_length() - 1) * plan.is_inner
        latency = 0.5 * min(slower, 1.3) + _STEP * tree * slower**1.5
        if plan.parts > 1:
            latency += _PARTS + plan.partial_rows * _PARTIAL * slower**0.75
        threads, instructions = plan.threads, _THREAD * (1.5 if slower > 1 else 1.0)
        single = source.itemsize == 2 and not plan.is_inner
        load = _LOAD * slower * max(_APART if plan.groups > 1 else 1.0, halves if single else 1.0)
        return Work(
            float(distinct_bytes(source)), launch.nbytes, 2 * threads, threads * instructions + source.numel * each,
            latency * CYCLES_OF_A_MICROSECOND, kernels,
            chain=-(-plan.values // 4) * load * CYCLES_OF_A_MICROSECOND,
        )  # fmt: skip

    return work


reduction_of_pairs = reduction(19.0, 2.4)
"""Return the work of a reduction of values with indices."""
reduction_of_moments = reduction(38.0, 2.4)
"""Return the work of a reduction of means with sums of squares."""


reduction_of_extremes = reduction(halves=4.0)
"""Return the work of `amax` and `amin`, which load halves one by one."""
_COUNTED = reduction(slower=1.2, kernels=3)


def count_of_nonzero(launch: Launch) -> Work:
    """Return the work of `count_nonzero`: a comparison, a conversion to integers, and their sum."""
    found, count = _COUNTED(launch), source_of(launch).numel
    return found.with_(
        nbytes=found.nbytes + 18.0 * count, resident=found.resident + 9.0 * count,
        cycles=found.cycles + 1.6 * CYCLES_OF_A_MICROSECOND,
    )  # fmt: skip


def logarithm_of_sum(launch: Launch) -> Work:
    """Return the work of `logsumexp`, whose maximum, exponentials, sum and logarithm are separate kernels."""
    return _row_wise(launch, 4.5, passes=6.0, kernels=9)


# -- rows -------------------------------------------------------------------------------------------------------------


_CACHED = 25e6  # bytes, up to which repeated passes find their data in the L2 cache
_WARP_COLUMNS = 2048  # longest row of a warp
_ROW_RATE, _FAR_ROW_RATE = 68e3, 40e3  # bytes a microsecond of a block, from the cache and from memory


def softmax(launch: Launch) -> Work:
    """Return the work of softmax along the last dimension: a warp per short row, a block per long one."""
    rows, columns = _rows_and_columns(launch)
    if columns <= _WARP_COLUMNS:  # a warp keeps its row, filled up to a power of two, in registers
        count = rows * (1 << max(columns - 1, 0).bit_length())
        latency = 0.3 if columns <= 1024 else 4.4
        return pass_over(launch, max(count // 8, 16 * rows), latency, 40.0 * count)
    nbytes = columns * source_of(launch).itemsize
    passes = 2 if nbytes < 200e3 else 4
    rate = _ROW_RATE if rows * nbytes < _CACHED else _FAR_ROW_RATE
    return _at_least(launch, 1.3, _waves(rows, 2) * (1.0 + nbytes * passes / rate), 30.0)


def softmax_gradient(launch: Launch) -> Work:
    """Return the work of the gradient of softmax."""
    _, columns = _rows_and_columns(launch)
    kernels = 2 if launch.kernel.name == "softmax_backward" else 1  # a product before it
    return _row_wise(
        launch, 0.5 if columns <= 1024 and source_of(launch).itemsize >= 4 else 2.5 / kernels, 1.0, kernels
    )


def norm_of_rows(launch: Launch) -> Work:
    """Return the work of `layer_norm` and `rms_norm`: vectors of four, or two slow kernels for other lengths."""
    shape = source_of(launch).shape
    columns = math.prod(shape[len(shape) - launch.params[0] :])
    rows = source_of(launch).numel // max(columns, 1)
    if columns % 4 == 0:
        one = columns / 512 * 0.56  # a block alone waits for the memory in each of its steps
        return _at_least(
            launch, 0.8, max(rows / (16 * MULTIPROCESSORS) * (2.7 + columns / 512 * 0.12), one, 0.6)
        )
    return _at_least(launch, 1.4, row_moments(launch, rows, columns)).with_(kernels=2)


def row_moments(launch: Launch, rows: int, columns: int) -> float:
    """Return the microseconds of a kernel that finds each row's moments and of one that applies them.

    A block has a row: 512 threads in the first kernel, 256 in the second.
    """
    far = launch.nbytes > _CACHED or rows > 4 * MULTIPROCESSORS
    first, second = (0.41, 0.42) if far else (0.2, 0.1)
    moments = _waves(rows, 4) * (2.2 + columns / 512 * first)
    return moments + max(rows / (8 * MULTIPROCESSORS), 1.0) * (0.64 + columns / 256 * second)


def norm_of_groups(launch: Launch) -> Work:
    """Return the work of `group_norm`: a block per group finds the moments, then a kernel applies them."""
    source = source_of(launch)
    groups = launch.params[0] * source.shape[0]
    length = source.numel / max(groups, 1)
    far = launch.nbytes > _CACHED or groups > 4 * MULTIPROCESSORS
    moments = _waves(groups, 4) * (2.2 + length / 512 * (0.41 if far else 0.2))
    return pass_over(launch, source.numel, moments + 0.8, 70.0 * source.numel, 1.0, 2)


def norm_of_batch(launch: Launch) -> Work:
    """Return the work of batch normalization in training: a block per channel finds the moments, then the elements."""
    source = source_of(launch)
    channels = source.shape[1] if source.ndim > 1 else 1
    length = source.numel / max(channels, 1)
    waves = _waves(channels, 1) if channels < 4 * MULTIPROCESSORS else channels / MULTIPROCESSORS
    return _at_least(launch, 1.6, waves * length * 0.48e-3)


def norm_gradient(microseconds: float) -> Callable[[Launch], Work]:
    """Return the work of the gradient of a norm: several kernels with this total latency."""
    return lambda launch: _row_wise(launch, microseconds, passes=2.0)


# Note [The time of a scan]
# PyTorch scans rows with blocks of 512 threads (aten/src/ATen/native/cuda/ScanUtils.cuh). A row has 16 to 512 of
# them, in the ratio of its length to the number of rows, and takes its elements in chunks of twice as many. The
# choice is made in unsigned arithmetic: for many more rows than columns it wraps around, and short rows get all 512
# threads. The time of a chunk grows with the threads of its row and with the blocks that share a multiprocessor.

_THREADS_LOG, _LEAST_LOG = 9, 4  # of a block; the fewest of a row
_BLOCKS = 4  # of a multiprocessor
_OUTER_STEP = 0.18  # microseconds of an element of a scan along an outer dimension


def _scan_microseconds(launch: Launch, start: float, threads: float, blocks: float) -> float:
    """Return the time of all chunks. See Note [The time of a scan].

    Args:
        start: Microseconds of a chunk with the fewest threads.
        threads: Additional microseconds for each doubling of a row's threads.
        blocks: Additional microseconds for each further block of a multiprocessor.
    """
    rows, columns = _rows_and_columns(launch)
    source = source_of(launch)
    if source.ndim and source.strides[_dimension(launch)] > 1 and rows > 1:  # a thread scans its row alone
        return columns * _OUTER_STEP * max(rows / (2048 * MULTIPROCESSORS), 1.0)
    halves = _THREADS_LOG + (columns - 1).bit_length() - (rows - 1).bit_length()
    log = _THREADS_LOG if halves < 0 else min(max(halves // 2, _LEAST_LOG), _THREADS_LOG)
    chunks = -(-columns // (2 << log))
    count = -(-rows // (1 << (_THREADS_LOG - log)))
    together = min(-(-count // MULTIPROCESSORS), _BLOCKS)
    waves = max(count / (MULTIPROCESSORS * together), 1.0)
    return waves * chunks * (start + threads * (log - _LEAST_LOG) + blocks * (together - 1))


def scan(launch: Launch) -> Work:
    """Return the work of a scan along the last dimension that also finds indices."""
    if not source_of(launch).numel:
        return stream_work(launch)
    return _at_least(launch, 0.1, _scan_microseconds(launch, 1.65, 0.2, 0.9))


def cumulative_sum(launch: Launch) -> Work:
    """Return the work of `cumsum`; a single row is scanned by all multiprocessors."""
    rows, _ = _rows_and_columns(launch)
    if not source_of(launch).numel:
        return stream_work(launch)
    if rows == 1:
        return _row_wise(launch, 2.5, passes=1.5)
    return _at_least(launch, 0.1, _scan_microseconds(launch, 0.8, 0.1, 0.6))


# -- sorts ------------------------------------------------------------------------------------------------------------


def sort(launch: Launch) -> Work:
    """Return the work of a sort of rows: within a warp, within a block, or by passes over all digits."""
    rows, columns = _rows_and_columns(launch)
    if columns <= 128:
        filled = max(32, 1 << (columns - 1).bit_length()) if columns > 32 else columns
        microseconds = 10.4 + rows * filled / 12e3
    elif columns <= 4096:
        microseconds = 21.0 + _waves(rows, 1) * (2.0 + columns * 1.6e-3)
    else:
        microseconds = 43.0 + rows * columns / 11.5e3
    return Work(0.0, launch.nbytes, max(rows * columns, 1), 0.0, microseconds * CYCLES_OF_A_MICROSECOND)


_UNIQUE_KERNELS = 23  # of a radix sort of integers, which moves its operands eight times, and of what follows


def unique(launch: Launch) -> Work:
    """Return the work of `unique`: a radix sort, comparisons of neighbours, and scans of their results."""
    return _row_wise(launch, 50.0, 8.0, _UNIQUE_KERNELS)


def histogram(launch: Launch) -> Work:
    """Return the work of `histc`: the extremes, and counts by atomic operations."""
    return _row_wise(launch, 8.0, 2.0)


_SELECTED_BY_MANY = 55.0  # microseconds of a row that many blocks select from


def top(launch: Launch) -> Work:
    """Return the work of `topk`: radix selection with one block per row, then a sort of the selected elements."""
    rows, columns = _rows_and_columns(launch)
    single = min(16 * (0.1 + 0.27 * columns / 1024), _SELECTED_BY_MANY)  # sixteen passes of two bits
    threads = min(-(-columns // 32) * 32, 1024)
    waves = rows / (MULTIPROCESSORS * min(32, 2048 // max(threads, 1)))
    return _at_least(
        launch, 9.0, single + max(waves - 1, 0.0) * (4.5 + 0.16 * min(columns, 64) + columns * 5e-3)
    )


def rank(launch: Launch) -> Work:
    """Return the work of medians and quantiles: radix selection by a block per row."""
    rows, columns = _rows_and_columns(launch)
    together = 32 if columns <= 64 else 2
    return _at_least(launch, 2.5, _waves(rows, together) * max(columns * 3.4e-3, 3.5 if rows > 4096 else 0.8))


def kth_value(launch: Launch) -> Work:
    """Return the work of `kthvalue`: a radix selection as in `rank`, and a search for the index of the value."""
    rows, columns = _rows_and_columns(launch)
    each = columns * (0.9e-3 if columns < 1024 else 1.6e-3 if columns < 8192 else 3.1e-3)
    return _at_least(launch, 3.2, _waves(rows, 4) * each + rows * 0.9e-3)


# -- losses -----------------------------------------------------------------------------------------------------------


def paired_loss(launch: Launch) -> Work:
    """Return the work of `binary_cross_entropy_with_logits`, whose logarithm, sums and product are five kernels."""
    count = launch.outputs[0].numel
    return pass_over(launch, count, 0.6, 60.0 * count, passes=11 / 3, kernels=5)


def labelled_loss(launch: Launch) -> Work:
    """Return the work of `nll_loss`: one block gathers the scores of all labels."""
    labels = next((x for x in launch.inputs[1:] if isinstance(x, Meta)), launch.outputs[0])
    count = max(labels.numel, 1)
    slow = min(0.012 * count, 3.0 + 0.004 * count, 7.0)
    nbytes = 40.0 * count  # a sector for each score
    return Work(nbytes, nbytes, count, 0.0, (0.9 + slow) * CYCLES_OF_A_MICROSECOND)


def labelled_loss_gradient(launch: Launch) -> Work:
    """Return the work of the gradient of `nll_loss`: zeros, then an element of each row."""
    found = stream_work(launch)
    nbytes = float(distinct_bytes(launch.outputs[0]))
    return found.with_(nbytes=nbytes, resident=nbytes, cycles=0.8 * CYCLES_OF_A_MICROSECOND, kernels=2)
