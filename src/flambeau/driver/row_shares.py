"""The division of rows among threads that hold their elements in registers."""

from __future__ import annotations

from flambeau.core.meta import Meta
from flambeau.driver.protocol import Launch, Routine

_MOST_THREADS = 1024
_HELD = 128  # the maximum number of bytes that a thread holds in registers
_ACCESS = 16  # bytes of the widest memory access


def share_row(length: int, vector: int) -> tuple[int, int]:
    """Return how many threads share a row of adjacent elements, and how many vectors each of them holds."""
    vectors = -(-length // vector)
    threads = min(1 << max(-(-vectors // 4) - 1, 0).bit_length(), _MOST_THREADS)
    return threads, -(-vectors // threads)


def is_held(elements: int, itemsize: int, arrays: int) -> bool:
    """Return True if a thread can hold `arrays` numbers of `itemsize` bytes for each of its elements."""
    return elements * itemsize * arrays <= _HELD


def vector_of(itemsize: int) -> int:
    """Return the number of elements of one memory access."""
    return _ACCESS // itemsize


def can_fuse_held_rows(launch: Launch) -> bool:
    """Return True for a softmax, a normalization or a gradient of softmax whose threads hold contiguous rows."""
    out, form = launch.outputs[0], launch.kernel.cuda
    if not isinstance(form, Routine) or form.row_dims is None or not out.ndim:
        return False
    held = [x for x in launch.inputs if isinstance(x, Meta) and x.shape == out.shape]
    if form.row_dims(launch) != (out.ndim - 1,) or not all(x.plain for x in (out, *held)):
        return False
    itemsize = max(out.itemsize, held[0].itemsize)
    return _holds_dense_rows(out.shape[-1], itemsize, max(out.itemsize, 4), len(held))


def _holds_dense_rows(length: int, itemsize: int, number: int, arrays: int) -> bool:
    """Return True if threads can hold the rows of contiguous operands.

    Args:
        length: Elements of a row.
        itemsize: Bytes of an element of the widest operand.
        number: Bytes of the number that is computed of an element.
        arrays: Number of values that are held for each element.
    """
    vector = vector_of(itemsize)
    while length % vector:
        vector //= 2
    _, vectors = share_row(length, vector)
    return is_held(vectors * vector, number, arrays)
