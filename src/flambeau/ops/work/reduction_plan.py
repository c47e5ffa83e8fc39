"""The launch configuration of a reduction: which threads combine which elements."""

from __future__ import annotations

import math
from itertools import pairwise

from flambeau.core.frozen import Record
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Launch
from flambeau.ops.work.element_work import MULTIPROCESSORS, source_of

# Note [The plan of a reduction]
# Problem: The time and temporary memory of PyTorch's reductions depend on how they split rows among threads.
# Rule: aten/src/ATen/native/cuda/Reduce.cuh, `setReduceConfig`. A block has up to 512 threads, in x along the
# dimension with the smallest stride. Threads in x split the elements of a result if that dimension is reduced;
# otherwise each has its own results, up to four next to each other. Threads in y split the elements if each thread
# keeps 16 times as many elements as there are threads in y. If it keeps more than 256 even so, several blocks share
# a result: they write partial results to a buffer, and the last one combines them.
# Consequences: Few results from a dimension with large strides leave one block to combine many partial results.

_THREADS, _WARP, _SM_THREADS = 512, 32, 2048
_LEAST_VALUES, _MOST_VALUES = 16, 256  # elements of a thread
_VECTOR = 4  # elements of a load
_VECTOR_FROM = 128  # elements of a row from which loads are that wide


class ReductionPlan(Record):
    """The launch configuration of a reduction. See Note [The plan of a reduction].

    Attributes:
        width: Threads of a block in x.
        height: Threads of a block in y.
        vector: Neighbouring results of a thread.
        is_wide: True if a thread loads neighbouring elements of its row in wide loads.
        is_inner: True if the dimension with the smallest stride is reduced.
        has_parts: True if threads in y share a result.
        values: Elements of a thread.
        grid: Blocks with different results.
        parts: Blocks that share their results.
        results: Number of results.
        groups: Number of reduced dimensions after neighbouring ones are joined.
    """

    width: int
    height: int
    vector: int
    is_wide: bool
    is_inner: bool
    has_parts: bool
    values: int
    grid: int
    parts: int
    results: int
    groups: int

    @property
    def threads(self) -> int:
        """Return the number of threads of all blocks."""
        return self.width * self.height * self.grid * self.parts

    @property
    def partial_rows(self) -> int:
        """Return how many partial results a thread of the last block combines, one after the other."""
        return -(-self.parts // (self.width * self.height if self.is_inner else self.height))

    def buffers(self, nbytes: int) -> tuple[int, ...]:
        """Return the bytes of the buffer of partial results of `nbytes` each and of its counters."""
        if self.parts == 1:
            return ()
        each = 1 if self.is_inner else self.width * self.vector
        return (nbytes * self.results * self.parts * each, 4 * self.grid)


def reduced_dims(launch: Launch) -> tuple[int, ...]:
    """Return the dimensions that a reduction combines: those of its params, or all of one input."""
    source = source_of(launch)
    dims: tuple[int, ...] | None = getattr(launch.params[0] if launch.params else None, "dims", None)
    if dims is not None:
        return dims
    kept = launch.outputs[0].shape + (0,) * source.ndim
    return tuple([i for i, size in enumerate(source.shape) if size != kept[i]])


def plan_reduction(source: Meta, dims: tuple[int, ...]) -> ReductionPlan:
    """Return the plan of a reduction of some dimensions of a tensor with elements."""
    sizes = [
        (stride, size, i in dims)
        for i, (size, stride) in enumerate(zip(source.shape, source.strides, strict=True))
    ]
    sizes = [entry for entry in sizes if entry[1] > 1]
    length = math.prod([size for _, size, reduced in sizes if reduced])
    results = max(source.numel // length, 1)
    stride, _, is_inner = min(sizes, default=(1, 1, True))
    groups = _groups(sizes)
    is_wide, vector = False, 1
    across, along = (length, results) if is_inner else (results, length)
    if stride == 1 and is_inner and length >= _VECTOR_FROM and groups == 1:
        is_wide = True
        across //= _VECTOR
    elif stride == 1 and not is_inner:
        vector = _common_factor([_kept_run(sizes), *[s for s, _, _ in sizes if s != 1]])
        across //= vector
    most = _THREADS // vector
    across, along = (_power(min(value, most)) for value in (across, along))
    height = min(along, most // min(across, _WARP))
    width = min(across, most // height)
    values = -(-length // width) if is_inner else length
    has_parts = values >= min(height * _LEAST_VALUES, _MOST_VALUES)
    if has_parts:
        values = -(-values // height)
    step = (1 if is_inner else width) * (1 if has_parts else height)
    grid = -(-(results // vector) // step)
    parts = 1
    target = MULTIPROCESSORS * (_SM_THREADS // (width * height))
    if has_parts and values >= _MOST_VALUES and grid <= target:
        parts = max(min(-(-target // grid), -(-values // _LEAST_VALUES)), -(-values // _MOST_VALUES))
        values = -(-values // parts)
    return ReductionPlan(
        width, height, vector, is_wide, is_inner, has_parts, values, grid, parts, results, groups
    )


def _groups(sizes: list[tuple[int, int, bool]]) -> int:
    """Return the number of reduced dimensions after neighbouring ones are joined."""
    reduced = sorted((stride, size) for stride, size, is_reduced in sizes if is_reduced)
    return 1 + sum([before * size != stride for (before, size), (stride, _) in pairwise(reduced)])


def _kept_run(sizes: list[tuple[int, int, bool]]) -> int:
    """Return the length of the contiguous run of results at the smallest stride."""
    run = 1
    for stride, size, is_reduced in sorted(sizes):
        if stride != run or is_reduced:
            break
        run *= size
    return run


def _common_factor(counts: list[int]) -> int:
    """Return the greatest of 4, 2 and 1 that divides all counts."""
    return next(factor for factor in (4, 2, 1) if all(count % factor == 0 for count in counts))


def _power(value: int) -> int:
    """Return the greatest power of two up to a number, at least 1."""
    return 1 << max(value.bit_length() - 1, 0)
