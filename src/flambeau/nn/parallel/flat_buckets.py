"""Coalescing: many small tensors of one dtype are copied to one flat tensor, a bucket, and split afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flambeau.core.dtype import dtype
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.tensor import Tensor


def buckets(tensors: Sequence[Tensor], nbytes: int) -> Iterator[list[Tensor]]:
    """Yield lists of tensors of one device and dtype with at most `nbytes` bytes, in order; a larger tensor is
    alone.
    """
    if nbytes <= 0:
        raise ValueError(f"buffer_size must be positive, got {nbytes}")
    open_: dict[tuple[str, dtype], list[Tensor]] = {}
    for t in tensors:
        bucket = open_.setdefault(kind := (t.device.type, t.dtype), [])
        if bucket and _nbytes([*bucket, t]) > nbytes:
            yield bucket
            bucket = open_[kind] = []
        bucket.append(t)
    yield from open_.values()


def _nbytes(tensors: Sequence[Tensor]) -> int:
    return sum(t.meta.nbytes for t in tensors)


def flatten_bucket(bucket: Sequence[Tensor]) -> Any:
    """Return all elements as one flat tensor. For a single contiguous tensor it is a view."""
    rows: list[Any] = [t.reshape(-1) for t in bucket]  # type: ignore[attr-defined]
    return rows[0] if len(rows) == 1 else functions["cat"](rows)


def unflatten_bucket(flat: Any, like: Sequence[Tensor]) -> list[Any]:
    """Return views of a row with the shapes of `like`, in their order."""
    parts = flat.split([t.numel() for t in like])
    return [part.view(t.shape) for part, t in zip(parts, like, strict=True)]


def in_order(found: Sequence[Any], order: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[Any]:
    """Return the elements of `found`, whose keys are `order`, reordered to the keys `wanted`."""
    places: dict[int, list[Any]] = {}
    for one, key in zip(found, order, strict=True):
        places.setdefault(id(key), []).append(one)
    return [places[id(t)].pop(0) for t in wanted]
