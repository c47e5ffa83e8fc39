"""The work of kernels that combine elements of rows: reductions, softmax, norms, scans, sorts, losses."""

from __future__ import annotations

from collections.abc import Callable

from flambeau.core.meta import Meta
from flambeau.driver.api import Launch, Work, distinct_bytes, stream_work
from flambeau.ops.work.element_work import CYCLES_OF_A_MICROSECOND, MULTIPROCESSORS, pass_over


def _source(launch: Launch) -> Meta:
    source = launch.inputs[0]
    assert isinstance(source, Meta)
    return source


def _rows_and_columns(launch: Launch) -> tuple[int, int]:
    source = _source(launch)
    columns = source.shape[-1] if source.ndim else 1
    return source.numel // max(columns, 1), columns


def _waves(rows: int, together: int) -> int:
    """Return how often the device is filled if each multiprocessor processes `together` rows at a time."""
    return max(-(-rows // (MULTIPROCESSORS * together)), 1)


def _row_wise(launch: Launch, microseconds: float, passes: float = 1.0, kernels: int = 1) -> Work:
    """Return the work of kernels whose threads share the elements of the input."""
    return pass_over(launch, _source(launch).numel, microseconds, 0.0, passes, kernels)


def _at_least(launch: Launch, latency: float, microseconds: float, instructions: float = 0.0) -> Work:
    """Return the work of one pass over the operands, with a minimum duration after the latency."""
    count = _source(launch).numel
    streamed = launch.nbytes / 3.0e6  # microseconds at an H100's rate
    return pass_over(launch, count, latency + max(microseconds - streamed, 0.0), instructions * max(count, 1))


# -- reductions -------------------------------------------------------------------------------------------------------

_TOGETHER = 264  # results from which no row is split among blocks


def reduction(instructions: int = 12, moments: bool = False) -> Callable[[Launch], Work]:
    """Return the work of a reduction. Long rows of few results are split among blocks, whose results are then
    combined.

    Args:
        instructions: Instructions for each element.
        moments: The blocks hold a mean and a sum of squares, which take longer to combine.
    """

    def work(launch: Launch) -> Work:
        source = _source(launch)
        results = max(launch.outputs[0].numel, 1)
        count = source.numel
        length = count // results
        each = instructions
        if source.itemsize < 4:
            each = round(1.45 * each) + 3  # includes conversions
        parts = max(length // 2048, 1)
        threads = results * min(parts, _TOGETHER) * 256 if length > 256 else count // 4
        microseconds = 1.1 + (0.9 if moments else 0.0)
        if parts > 1 and results < _TOGETHER:
            microseconds += 2.6 + (2.5 if moments else 0.0)
        return Work(
            float(distinct_bytes(source)), launch.nbytes, max(min(threads, count), 1), float(each * count),
            microseconds * CYCLES_OF_A_MICROSECOND,
        )  # fmt: skip

    return work


def logarithm_of_sum(launch: Launch) -> Work:
    """Return the work of `logsumexp`, whose maximum, exponentials, sum and logarithm are separate kernels."""
    return _row_wise(launch, 4.5, passes=6.0, kernels=9)


# -- rows -------------------------------------------------------------------------------------------------------------


def softmax(launch: Launch) -> Work:
    """Return the work of softmax along the last dimension: a warp per short row, a block per long one."""
    rows, columns = _rows_and_columns(launch)
    count = rows * columns
    if columns <= 1024:
        return pass_over(launch, count // 8, 0.4, 30.0 * count)
    nbytes = columns * _source(launch).itemsize
    passes = 2 if nbytes < 200e3 else 4
    microseconds = _waves(rows, 2) * nbytes * passes / 65e3 * (1.0 if rows >= MULTIPROCESSORS else 0.6)
    return _at_least(launch, 0.9, microseconds, 30.0)


def softmax_gradient(launch: Launch) -> Work:
    """Return the work of the gradient of softmax."""
    _, columns = _rows_and_columns(launch)
    return _row_wise(launch, 0.5 if columns <= 1024 and _source(launch).itemsize >= 4 else 2.5)


def norm_of_rows(launch: Launch) -> Work:
    """Return the work of `layer_norm` and `rms_norm`: vectors of four, or two slow kernels for other lengths."""
    rows, columns = _rows_and_columns(launch)
    if columns % 4 == 0:
        one = columns / 512 * 0.56  # a block alone waits for the memory in each of its steps
        return _at_least(launch, 0.8, max(_waves(rows, 8) * (0.6 + columns / 512 * 0.06), one))
    slow = _waves(rows, 16) * (9.3 + columns / 512 * 0.5)
    return _at_least(launch, 5.0, slow).with_(kernels=2)


def norm_of_groups(launch: Launch) -> Work:
    """Return the work of `group_norm`: a block per group, then the elements."""
    groups = launch.params[0] * _source(launch).shape[0]
    length = _source(launch).numel / max(groups, 1)
    slow = _waves(groups, 2) * length * (0.72e-3 if groups < _TOGETHER else 0.5e-3)
    return _at_least(launch, 1.5, slow).with_(kernels=3)


def norm_of_batch(launch: Launch) -> Work:
    """Return the work of batch normalization in training: a block per channel finds the moments, then the elements."""
    source = _source(launch)
    channels = source.shape[1] if source.ndim > 1 else 1
    length = source.numel / max(channels, 1)
    waves = _waves(channels, 1) if channels < 4 * MULTIPROCESSORS else channels / MULTIPROCESSORS
    return _at_least(launch, 1.5 if length >= 2000 else 0.0, waves * length * 0.55e-3)


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


def _scan_microseconds(launch: Launch, start: float, threads: float, blocks: float) -> float:
    """Return the time of all chunks. See Note [The time of a scan].

    Args:
        start: Microseconds of a chunk with the fewest threads.
        threads: Additional microseconds for each doubling of a row's threads.
        blocks: Additional microseconds for each further block of a multiprocessor.
    """
    rows, columns = _rows_and_columns(launch)
    halves = _THREADS_LOG + (columns - 1).bit_length() - (rows - 1).bit_length()
    log = _THREADS_LOG if halves < 0 else min(max(halves // 2, _LEAST_LOG), _THREADS_LOG)
    chunks = -(-columns // (2 << log))
    count = -(-rows // (1 << (_THREADS_LOG - log)))
    together = min(-(-count // MULTIPROCESSORS), _BLOCKS)
    waves = max(count / (MULTIPROCESSORS * together), 1.0)
    return waves * chunks * (start + threads * (log - _LEAST_LOG) + blocks * (together - 1))


def scan(launch: Launch) -> Work:
    """Return the work of a scan along the last dimension that finds indices, too."""
    if not _source(launch).numel:
        return stream_work(launch)
    return _at_least(launch, 0.1, _scan_microseconds(launch, 1.65, 0.2, 0.9))


def cumulative_sum(launch: Launch) -> Work:
    """Return the work of `cumsum`; a single row is scanned by all multiprocessors."""
    rows, _ = _rows_and_columns(launch)
    if not _source(launch).numel:
        return stream_work(launch)
    if rows == 1:
        return _row_wise(launch, 2.5, passes=1.5)
    return _at_least(launch, 0.1, _scan_microseconds(launch, 0.8, 0.1, 0.6))


# -- sorts ------------------------------------------------------------------------------------------------------------


def sort(launch: Launch) -> Work:
    """Return the work of a sort of rows: within a warp, within a block, or by passes over all digits."""
    rows, columns = _rows_and_columns(launch)
    if columns <= 32:
        microseconds = 10.4 + rows * columns / 12e3
    elif columns <= 4096:
        microseconds = 21.0 + _waves(rows, 1) * columns * 1.6e-3
    else:
        microseconds = 43.0 + rows * columns / 11.5e3
    return Work(0.0, launch.nbytes, max(rows * columns, 1), 0.0, microseconds * CYCLES_OF_A_MICROSECOND)


def top(launch: Launch) -> Work:
    """Return the work of `topk`: radix selection with one block per row, then a sort of the selected elements."""
    rows, columns = _rows_and_columns(launch)
    return _at_least(launch, 9.0, _waves(rows, 2) * (columns * 2.6e-3 + 1.5))


def rank(launch: Launch) -> Work:
    """Return the work of medians and quantiles: radix selection by a block per row."""
    rows, columns = _rows_and_columns(launch)
    return _at_least(launch, 2.5, _waves(rows, 2) * max(columns * 3.4e-3, 0.8))


def kth_value(launch: Launch) -> Work:
    """Return the work of `kthvalue`: radix selection as of `rank`, and a search of the value's index."""
    rows, columns = _rows_and_columns(launch)
    each = columns * (0.9e-3 if columns < 1024 else 1.6e-3)
    return _at_least(launch, 3.2, _waves(rows, 4) * each + rows * 0.9e-3)


# -- losses -----------------------------------------------------------------------------------------------------------


def labelled_loss(launch: Launch) -> Work:
    """Return the work of `nll_loss`: one block gathers the scores of all labels."""
    labels = next((x for x in launch.inputs[1:] if isinstance(x, Meta)), launch.outputs[0])
    count = max(labels.numel, 1)
    slow = min(count / 1024, 8.0) * 4.0 * (1.0 if 512 < count < 4096 else 0.4)
    nbytes = 40.0 * count  # a sector for each score
    return Work(nbytes, nbytes, count, 0.0, (0.9 + slow) * CYCLES_OF_A_MICROSECOND)


def labelled_loss_gradient(launch: Launch) -> Work:
    """Return the work of the gradient of `nll_loss`: zeros, then an element of each row."""
    found = stream_work(launch)
    nbytes = float(distinct_bytes(launch.outputs[0]))
    return found.with_(nbytes=nbytes, resident=nbytes, cycles=0.8 * CYCLES_OF_A_MICROSECOND, kernels=2)
