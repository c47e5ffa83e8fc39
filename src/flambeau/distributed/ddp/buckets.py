"""`Bucket`: gradients that are reduced together, as parts of one flat tensor. `assign` divides parameters into buckets.

`GradBucket` is the view of a bucket that communication hooks receive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.core.device import device
from flambeau.core.dtype import FLOATING, dtype, float64, int64
from flambeau.core.layout import contiguous_strides, is_dense
from flambeau.core.meta import Meta
from flambeau.runtime.streams.stream import Stream
from flambeau.tensor.functions import foreach_update
from flambeau.tensor.functions.creation import empty
from flambeau.tensor.tensor import make

_NO_LIMIT = 0  # the limit of an unlimited bucket, as PyTorch writes it


def assign(
    tensors: Sequence[Any],
    limits: Sequence[int],
    expect_sparse: Sequence[bool] = (),
    indices: Sequence[int] = (),
) -> tuple[list[list[int]], list[int]]:
    """Assign tensors to buckets of one dtype and device, each up to its limit of bytes.

    Args:
        limits: Limits of the first, second, ... bucket of each dtype and device; the last one holds for all others.
        expect_sparse: For each tensor, True if it gets a separate bucket.
        indices: Numbers of the tensors; buckets then keep the tensors' order. Without it, buckets are sorted by their
            first tensor.

    Returns:
        The indices in each bucket, and each bucket's limit.

    Raises:
        RuntimeError: If there are no tensors.
    """
    if not tensors:
        raise RuntimeError("Expected at least one tensor in `assign`: there is nothing to put in buckets")
    full: list[tuple[list[int], int]] = []
    filling: dict[tuple[dtype, device], _Filling] = {}
    for place, tensor in enumerate(tensors):
        index = indices[place] if indices else place
        if expect_sparse and expect_sparse[index]:
            full.append(([index], _NO_LIMIT))
            continue
        key = (tensor.meta.dtype, tensor.meta.device)
        current = filling.setdefault(key, _Filling())
        done = current.add(index, tensor.meta.nbytes, limits)
        if done is not None:
            full.append(done)
    full += [(f.indices, f.limit) for f in filling.values() if f.indices]
    if not indices:
        full.sort(key=lambda bucket: min(bucket[0]))
    return [bucket for bucket, _ in full], [limit for _, limit in full]


class _Filling:
    """A bucket that is not full yet. There is one for each dtype and device of the gradients.

    Attributes:
        indices: The gradients in it.
        nbytes: Their size.
        number: How many buckets of this dtype and device are full.
        limit: The size in bytes from which it is full.
    """

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.nbytes = self.number = self.limit = 0

    def add(self, index: int, nbytes: int, limits: Sequence[int]) -> tuple[list[int], int] | None:
        """Add a tensor. Returns the bucket and its limit if it is full now."""
        self.indices.append(index)
        self.nbytes += nbytes
        self.limit = limits[min(self.number, len(limits) - 1)]
        if self.nbytes < self.limit:
            return None
        done, self.indices, self.nbytes = self.indices, [], 0
        self.number += 1
        return done, self.limit


class Bucket:
    """The gradients of some parameters, stored one after the other in the tensor `flat`.

    Attributes:
        views: For each parameter, its part of `flat` with the parameter's shape and strides.
        pending: Number of gradients that are still missing in this backward.
        streams: Streams on which gradients were accumulated.
        outcome: The pending reduction.
    """

    outcome: Any

    def __init__(self, indices: Sequence[int], params: Sequence[Any], limit: int) -> None:
        self.indices, self.params, self.limit = list(indices), list(params), limit
        first = self.params[0].meta
        for p in self.params:
            if p.meta.device is not first.device:
                raise RuntimeError("All parameters in a bucket must be placed on the same device.")
            if p.meta.dtype is not first.dtype:
                raise RuntimeError("All parameters in a bucket must have the same dtype.")
        self.device, self.dtype = first.device, first.dtype
        self.numel = sum(p.meta.numel for p in self.params)
        self.use(self.new_flat())
        self.reset()

    def new_flat(self) -> Any:
        return empty(self.numel, dtype=self.dtype, device=self.device)

    def use(self, flat: Any) -> None:
        """Store the gradients in `flat` from now on."""
        self.flat, self.views = flat, self.views_of(flat)

    def views_of(self, flat: Any) -> list[Any]:
        """Return consecutive views of `flat` with the shapes and strides of the parameters."""
        views, offset = [], flat.storage_offset()
        for p in self.params:
            meta = p.meta
            dense = is_dense(meta.shape, meta.strides)
            strides = meta.strides if dense else contiguous_strides(meta.shape)
            views.append(flat.as_strided(meta.shape, strides, offset))
            offset += meta.numel
        return views

    def reset(self) -> None:
        """Wait for the gradients of another backward."""
        self.pending = len(self.params)
        self.streams: list[Stream] = []
        self.outcome = None

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize


def copy_all(targets: Sequence[Any], sources: Sequence[Any], scale: float | None = None) -> None:
    """Copy each source, times `scale` if there is one, into its target, in one launch if the dtypes allow it.

    Dtypes of eight bytes are copied as float64 bits, so that integer counters (in batch norms) share the launch.
    """
    if not targets:
        return
    kinds = {(t.meta.dtype, s.meta.dtype) for t, s in zip(targets, sources, strict=True)}
    if kinds == {(int64, int64)} and scale is None:
        targets, sources = [_as_floats(t) for t in targets], [_as_floats(s) for s in sources]
    elif len(kinds) > 1 or any(kind.category != FLOATING for kind in next(iter(kinds))):
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source if scale is None else source * scale)
        return
    foreach_update.copy(targets, sources, scale)


def _as_floats(x: Any) -> Any:
    """Return an eight-byte integer tensor's memory as floating-point numbers, for copies."""
    return _over(x, x.meta.with_(dtype=float64), x.ptr)


def parts_of(flat: Any, metas: Sequence[Meta]) -> list[Any]:
    """Return consecutive parts of a flat tensor with these shapes. They are for copies and have no autograd history."""
    parts, ptr = [], flat.ptr
    for meta in metas:
        dense = meta if meta.contiguous else meta.with_(strides=contiguous_strides(meta.shape))
        parts.append(_over(flat, dense, ptr))
        ptr += meta.nbytes
    return parts


def _over(x: Any, meta: Meta, ptr: int) -> Any:
    """Return a tensor over memory of another one. In-place changes increase the version count of both."""
    found = make(meta, x.memory, ptr)
    found.counter = x.counter
    return found


class GradBucket:
    """The view of a bucket that a communication hook receives: its index, the flat tensor, and its gradients."""

    def __init__(self, index: int, count: int, flat: Any, bucket: Bucket) -> None:
        self._index, self._count, self._flat, self._bucket = index, count, flat, bucket

    def index(self) -> int:
        """Return the bucket's position in the order of reductions."""
        return self._index

    def buffer(self) -> Any:
        """Return all gradients of the bucket as one flat tensor."""
        return self._flat

    def gradients(self) -> list[Any]:
        """Return the gradient of each parameter, as views of `buffer()`."""
        return self._bucket.views if self._flat is self._bucket.flat else self._bucket.views_of(self._flat)

    def is_last(self) -> bool:
        """Return True if the bucket is the last one to be reduced. It holds gradients of the first layers."""
        return self._index == self._count - 1

    def set_buffer(self, buffer: Any) -> None:
        """Replace the flat tensor that `buffer()` returns."""
        self._flat = buffer

    def parameters(self) -> list[Any]:
        """Return the parameters that the gradients are of."""
        return list(self._bucket.params)

    def __repr__(self) -> str:
        return f"dist.GradBucket(index={self._index}, size={self._bucket.numel})"


GradBucket.__module__ = "flambeau.distributed"
