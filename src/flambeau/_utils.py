"""torch._utils: many tensors as one row and back, which programs with collectives of their own import from here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flambeau.core.ipc.exception_wrapper import ExceptionWrapper
from flambeau.core.names import lacking
from flambeau.nn.parallel.coalescing import buckets, flattened, unflattened
from flambeau.tensor.tensor import Tensor

__all__ = ["ExceptionWrapper", "_flatten_dense_tensors", "_take_tensors", "_unflatten_dense_tensors"]

__getattr__ = lacking("torch._utils")


def _flatten_dense_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """One row of all elements, of the dtype that they have together. A single contiguous tensor is its own row."""
    row: Tensor = flattened(tensors)
    return row


def _unflatten_dense_tensors(flat: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Views of the row `flat` with the shapes of `tensors`, in their order. RuntimeError: it is too short."""
    return tuple(unflattened(flat[: sum(t.numel() for t in tensors)], tensors))


def _take_tensors(tensors: Sequence[Tensor], size_limit: int) -> Iterator[list[Tensor]]:
    """The tensors in lists of one kind of device and dtype, of at most `size_limit` bytes; a larger one has its own."""
    return buckets(tensors, size_limit)
