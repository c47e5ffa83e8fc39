"""PowerSGD: gradients sent as products of two narrow matrices (Vogels, Karimireddy, Jaggi, 2019).

# Note [PowerSGD]
A gradient M of n rows and m columns is approximated by P Qt, where P has n rows, Q has m rows, and both have few
columns. One power iteration starts from the previous Q: orthogonalize Q; compute P = M Q, sum it over the ranks and
orthogonalize it; compute Q = Mt P and average it over the ranks. Each rank adds the approximation's error to its next
gradient (error feedback). Vectors, and matrices that would not shrink enough, are averaged without compression.

On a GPU all of this runs on a separate stream, concurrently with backward. The hook returns a future that completes
with it. Each rank issues the same collectives in the same order.
"""

# ruff: noqa: N802, N803, N999  names as PyTorch writes them

from __future__ import annotations

import math
from collections.abc import Callable
from logging import getLogger
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.ddp.buckets import GradBucket, copy_all
from flambeau.distributed.ddp.comm_hooks import mean
from flambeau.distributed.ddp.replicas import reduce_in_place
from flambeau.distributed.future import Future
from flambeau.distributed.world import world
from flambeau.runtime import current
from flambeau.runtime.generator import Generator
from flambeau.runtime.streams.stream import Stream
from flambeau.runtime.streams.wait_reason import wait_reason
from flambeau.tensor.functions.creation import empty, zeros
from flambeau.tensor.functions.joining import stack
from flambeau.tensor.functions.linalg import linalg_qr
from flambeau.tensor.functions.matmul import bmm
from flambeau.tensor.functions.random import randn

__all__ = ["PowerSGDState", "batched_powerSGD_hook", "powerSGD_hook"]

explain_absent_names(globals(), "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook")

_logger = getLogger(__name__)


class PowerSGDState:
    """The state of PowerSGD between iterations.

    Args:
        process_group: The group to average over; None for all ranks.
        matrix_approximation_rank: Number of columns of P and Q.
        start_powerSGD_iter: First compressed iteration; earlier ones average without compression. At least 2 with error
            feedback or a warm start, because buckets change after the first backward.
        min_compression_rate: Least ratio of sizes at which a matrix is compressed.
        use_error_feedback: Add the approximation's error to the next gradient.
        warm_start: Start from the previous Q instead of a random one.
        orthogonalization_epsilon: Added to norms; must be above 0 if columns may be zero.
        random_seed: Seed of the first Q, equal on all ranks.
        batch_tensors_with_same_shape: Multiply matrices of equal shapes in one launch.

    Raises:
        ValueError: If `start_powerSGD_iter` is too small.
    """

    def __init__(
        self,
        process_group: Any,
        matrix_approximation_rank: int = 1,
        start_powerSGD_iter: int = 1000,
        min_compression_rate: float = 2,
        use_error_feedback: bool = True,
        warm_start: bool = True,
        orthogonalization_epsilon: float = 0,
        random_seed: int = 0,
        compression_stats_logging_frequency: int = 10000,
        batch_tensors_with_same_shape: bool = False,
    ) -> None:
        if (use_error_feedback or warm_start) and start_powerSGD_iter <= 1:
            raise ValueError(
                "Expect `start_powerSGD_iter` > 1 if `use_error_feedback` or `warm_start` is enabled, because "
                "PowerSGD can only be applied after the first two iterations in DDP."
            )
        import numpy as np

        self.process_group = process_group
        self.matrix_approximation_rank = matrix_approximation_rank
        self.start_powerSGD_iter = start_powerSGD_iter
        self.min_compression_rate = min_compression_rate
        self.use_error_feedback = use_error_feedback
        self.warm_start = warm_start
        self.orthogonalization_epsilon = orthogonalization_epsilon
        self.rng = np.random.RandomState(random_seed)
        self.batch_tensors_with_same_shape = batch_tensors_with_same_shape
        self.error_dict: dict[int, Any] = {}  # bucket -> the error of the compressed gradients
        self.p_memory_dict: dict[int, Any] = {}  # bucket -> all matrices P in one tensor
        self.q_memory_dict: dict[int, Any] = {}
        self.iter = 0
        self.total_numel_before_compression = 0
        self.total_numel_after_compression = 0
        self.compression_stats_logging_frequency = max(1, compression_stats_logging_frequency)
        self.next_stats_report = 0
        self._streams: dict[int, Stream] = {}

    def __getstate__(self) -> dict[str, Any]:
        _logger.warning("NOTE: Process group is not serializable and excluded from a saved state.")
        return {
            name: value for name, value in self.__dict__.items() if name not in ("process_group", "_streams")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        _logger.warning(
            "NOTE: Process group will be set to a default group (i.e. the world size). If a different group is "
            "desired, please set `self.process_group` after PowerSGD state is loaded."
        )
        self.process_group = world().require_default()
        self.__dict__.update(state)
        self._streams = {}

    def maybe_increase_iter(self, bucket: GradBucket) -> None:
        """Increase the number of iterations if the bucket is the last one of its iteration."""
        if bucket.is_last():
            self.iter += 1
        if self.iter == self.start_powerSGD_iter:
            _logger.info("Start to apply PowerSGD after %s iterations.", self.iter)

    def compression_stats(self) -> tuple[float, int, int]:
        """Return (rate, numbers before compression, numbers after it), of all iterations."""
        before, after = self.total_numel_before_compression, self.total_numel_after_compression
        return (before / after if after > 0 else 0), before, after

    def count(self, bucket: GradBucket, before: int, after: int) -> None:
        """Count the numbers before and after a bucket's compression, and log the rate from time to time."""
        self.total_numel_before_compression += before
        self.total_numel_after_compression += after
        if bucket.is_last() and self.iter >= self.next_stats_report:
            _logger.info(
                "Compression stats: iter %s, total before compression %s, total after compression %s, rate %s",
                self.iter, before, after, self.compression_stats()[0],
            )  # fmt: skip
            self.next_stats_report = self.iter + self.compression_stats_logging_frequency

    def stream(self, index: int) -> Stream:
        """Return the stream of a device on which this runs."""
        found = self._streams.get(index)
        if found is None or found.context.closed:
            found = self._streams[index] = Stream(index)
        return found


def powerSGD_hook(state: PowerSGDState, bucket: GradBucket) -> Future:
    """Compress each gradient that is a matrix: see Note [PowerSGD]."""
    return _from_start(state, bucket, _compress)


def batched_powerSGD_hook(state: PowerSGDState, bucket: GradBucket) -> Future:
    """Compress a bucket as one square matrix, which is faster and much less exact."""
    return _from_start(state, bucket, _compress_square)


def _from_start(state: PowerSGDState, bucket: GradBucket, work: Callable[..., None]) -> Future:
    group = world().require_default() if state.process_group is None else state.process_group
    flat = bucket.buffer()
    if state.iter < state.start_powerSGD_iter:
        state.maybe_increase_iter(bucket)
        return mean(group, flat)
    index = flat.device.index
    if index is None:
        work(state, bucket, group)
        future = Future()
    else:
        stream = state.stream(index)
        with wait_reason(str, "PowerSGD: its stream comes after the bucket's gradients"):
            stream.wait_stream(current.stream_at(index))
        with stream:
            work(state, bucket, group)
        future = Future(stream=stream)
    state.maybe_increase_iter(bucket)
    future.set_result(flat)
    return future


def _compress(state: PowerSGDState, bucket: GradBucket, group: Any) -> None:
    """Replace the bucket's gradients by the averages of their products."""
    flat, index = bucket.buffer(), bucket.index()
    wanted = _with_error(state, index, flat)
    matrices, others = _split_by_compression(state, bucket)
    batches = _batches(matrices, state.batch_tensors_with_same_shape)
    columns = [min(*batch[0].shape, state.matrix_approximation_rank) for batch in batches]
    stacked = [stack(batch) if len(batch) > 1 else batch[0].unsqueeze(0) for batch in batches]
    fresh = not state.warm_start or index not in state.p_memory_dict
    if fresh:
        sizes = [
            sum(x.shape[0] * x.shape[side] * c for x, c in zip(stacked, columns, strict=True))
            for side in (1, 2)
        ]
        state.p_memory_dict[index], state.q_memory_dict[index] = (
            empty(size, dtype=flat.dtype, device=flat.device) for size in sizes
        )
    ps = _parts(
        state.p_memory_dict[index], [(*x.shape[:2], c) for x, c in zip(stacked, columns, strict=True)]
    )
    qs = _parts(
        state.q_memory_dict[index],
        [(x.shape[0], x.shape[2], c) for x, c in zip(stacked, columns, strict=True)],
    )
    if fresh:
        _randomize(state, qs)
    _average_as_they_are(group, others, flat)
    for x, p, q in zip(stacked, ps, qs, strict=True):
        _orthogonalize(q, state.orthogonalization_epsilon)
        bmm(x, q, out=p)
    reduce_in_place(group, state.p_memory_dict[index])
    for x, p, q in zip(stacked, ps, qs, strict=True):
        _orthogonalize(p, state.orthogonalization_epsilon)
        bmm(x.transpose(1, 2), p, out=q)
    reduce_in_place(group, state.q_memory_dict[index])
    state.q_memory_dict[index].div_(group.size())
    for batch, p, q in zip(batches, ps, qs, strict=True):
        for matrix, product in zip(batch, bmm(p, q.transpose(1, 2)), strict=True):
            matrix.copy_(product)
    _end(state, index, wanted, flat)


def _with_error(state: PowerSGDState, index: int, flat: Any) -> Any:
    """Add the error of the previous approximation to the gradients in `flat`.

    Returns:
        A copy of the gradients if their error is needed later, else None.
    """
    if not state.use_error_feedback:
        return None
    if index in state.error_dict:
        flat.add_(state.error_dict[index])
    else:
        state.error_dict[index] = zeros(flat.shape[0], dtype=flat.dtype, device=flat.device)
    return flat.detach().clone()


def _end(state: PowerSGDState, index: int, wanted: Any, flat: Any) -> None:
    if wanted is not None:
        state.error_dict[index] = wanted - flat
    if not state.warm_start:
        state.p_memory_dict.clear()
        state.q_memory_dict.clear()


def _split_by_compression(state: PowerSGDState, bucket: GradBucket) -> tuple[list[Any], list[Any]]:
    """Return (matrices to compress, gradients to average without compression)."""
    matrices, others = [], []
    before = after = 0
    for gradient in bucket.gradients():
        matrix = gradient.view(gradient.shape[0], -1) if gradient.dim() else gradient.view(1, 1)
        n, m = matrix.shape
        small = (n + m) * min(n, m, state.matrix_approximation_rank)
        before += n * m
        if small * state.min_compression_rate < n * m:
            matrices.append(matrix)
            after += small
        else:
            others.append(gradient)
            after += n * m
    state.count(bucket, before, after)
    return matrices, others


def _batches(matrices: list[Any], together: bool) -> list[list[Any]]:
    """Group matrices of equal shapes into batches if `together`, else return each as its own batch."""
    if not together:
        return [[matrix] for matrix in matrices]
    by_shape: dict[tuple[int, ...], list[Any]] = {}
    for matrix in matrices:
        by_shape.setdefault(tuple(matrix.shape), []).append(matrix)
    return list(by_shape.values())


def _parts(memory: Any, shapes: list[tuple[int, ...]]) -> list[Any]:
    """Return a flat tensor as tensors of these shapes."""
    sizes = [math.prod(shape) for shape in shapes]
    return (
        [part.view(shape) for part, shape in zip(memory.split(sizes), shapes, strict=True)] if shapes else []
    )


def _randomize(state: PowerSGDState, qs: list[Any]) -> None:
    """Fill matrices with PyTorch's random numbers, equal on all ranks, without the program's generators."""
    generator = Generator().manual_seed(int(state.rng.randint(1_000_000_000)))
    for q in qs:
        q.copy_(randn(*q.shape, dtype=q.dtype, generator=generator))


def _average_as_they_are(group: Any, gradients: list[Any], flat: Any) -> None:
    """Average the uncompressed gradients in one message, which is sent even if it is empty, because other ranks expect
    it.
    """
    together = empty(sum(gradient.numel() for gradient in gradients), dtype=flat.dtype, device=flat.device)
    parts = _parts(together, [tuple(gradient.shape) for gradient in gradients])
    copy_all(parts, gradients)
    reduce_in_place(group, together)
    together.div_(group.size())
    copy_all(gradients, parts)


def _compress_square(state: PowerSGDState, bucket: GradBucket, group: Any) -> None:
    """Replace the bucket's gradients by the average of one low-rank product."""
    flat, index = bucket.buffer(), bucket.index()
    length = flat.shape[0]
    side = math.ceil(math.sqrt(length))
    state.count(bucket, length, side * state.matrix_approximation_rank * 2)
    padded = zeros(side * side, dtype=flat.dtype, device=flat.device)
    padded[:length] = flat
    wanted = _with_error(state, index, padded)
    matrix = padded.view(1, side, side)
    shape = (1, side, state.matrix_approximation_rank)
    if not state.warm_start or index not in state.p_memory_dict:
        state.p_memory_dict[index], state.q_memory_dict[index] = (
            empty(shape, dtype=flat.dtype, device=flat.device) for _ in range(2)
        )
        _randomize(state, [state.q_memory_dict[index]])
    p, q = state.p_memory_dict[index], state.q_memory_dict[index]
    _orthogonalize(q)
    bmm(matrix, q, out=p)
    reduce_in_place(group, p)
    _orthogonalize(p)
    bmm(matrix.transpose(1, 2), p, out=q)
    reduce_in_place(group, q)
    q.div_(group.size())
    matrix.copy_(bmm(p, q.transpose(1, 2)))
    flat.copy_(padded[:length])
    _end(state, index, wanted, padded)


def _orthogonalize(matrices: Any, epsilon: float = 0) -> None:
    """Make the columns of each matrix orthogonal and of length 1, in place."""
    columns = matrices.shape[2]
    if columns > 2 and matrices.dtype.itemsize > 2:
        matrices.copy_(linalg_qr(matrices)[0])
        return
    for i in range(columns):
        column = matrices[:, :, i : i + 1]
        column.div_(column.norm(dim=1, keepdim=True) + epsilon)
        if i + 1 < columns:
            rest = matrices[:, :, i + 1 :]
            rest.sub_((column * rest).sum(dim=1, keepdim=True) * column)
