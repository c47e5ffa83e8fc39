"""Helpers of the operators that read and write by indices: `indexing`, `scattering` and `masks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flambeau.core.device import CPU
from flambeau.core.dtype import dtype, int32, int64
from flambeau.core.layout import dense_strides, numel
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Launch
from flambeau.ops.op import Operand

Array = np.ndarray[Any, Any]
Params = tuple[Any, ...]
INDEX_TYPES = (int64, int32)


_MOST_DIMS = 32  # the limit of NumPy's iterators over indices; with more some crash the process


def indexes(host: Callable[[Launch], Body]) -> Callable[[Launch], Body]:
    """Return a reference implementation that indexes arrays, and refuses more dimensions than NumPy supports."""

    def check_dims(launch: Launch) -> Body:
        most = max(meta.ndim for meta in launch.operands)
        if most > _MOST_DIMS:
            raise RuntimeError(
                f"{launch.kernel.name}: only tensors with up to {_MOST_DIMS} dims are supported, but got {most}: "
                "NumPy, with which reference implementations compute, indexes no more. Merge dimensions with flatten() "
                "or reshape()"
            )
        return host(launch)

    return check_dims


def by_value(x: Operand, like: Meta) -> Meta | dtype:
    """Return an operand that is passed by value if it is a Python scalar, or a 0-dim CPU tensor next to CUDA
    tensors.
    """
    if isinstance(x, Meta) and not (x.ndim == 0 and x.device is CPU):
        return x
    return like.dtype


def tensor_at(launch: Launch, position: int) -> Meta:
    """Return the meta of an input that is a tensor."""
    meta = launch.inputs[position]
    assert isinstance(meta, Meta)
    return meta


def meta_of_copy(meta: Meta) -> Meta:
    """Return the layout of a copy in which elements are changed. It keeps the order of the tensor's dimensions."""
    return meta.with_(strides=dense_strides(meta.shape, meta.strides))


def contiguous(meta: Meta) -> Meta:
    """Return the layout of a copy in which elements are changed, for operators whose copy PyTorch makes contiguous."""
    return Meta.contiguous_of(meta.shape, meta.dtype, meta.device)


def start_from(out: Array, x: Array) -> None:
    """Copy the input that the operator changes to the output. Do nothing if the operator works in place."""
    if not np.may_share_memory(out, x):
        np.copyto(out, x)


def fit(launch: Launch, out: Array, found: Array, rest: int = 0) -> None:
    """Store results in `out`, shortened or extended to the number of results that the host read when it created `out`.

    If another stream changes the input in between there may be more results, which are dropped, or fewer, which are
    extended by `rest`. That is a race, which the detector reports; this function only stays inside the memory.

    Raises:
        RuntimeError: On the CPU, which has no streams.
    """
    as_counted(launch, len(found) == len(out))
    count = min(len(found), len(out))
    out[:count], out[count:] = found[:count], rest


def as_counted(launch: Launch, holds: bool) -> None:
    """Raise RuntimeError on the CPU if an input no longer has the number of elements that the host read."""
    if not holds and launch.outputs[0].device is CPU:
        raise RuntimeError(
            f"{launch.kernel.name}: the input is not what was counted before: it was changed meanwhile"
        )


def in_range(index: Array, size: int, dim: int) -> Array:
    """Return the indices after checking that they are in [0, size). Raises RuntimeError for one out of range."""
    places = index.astype(np.intp, copy=False)
    if places.size and (places.min() < 0 or places.max() >= size):
        bad = (places < 0) | (places >= size)
        raise RuntimeError(f"index {places[bad][0]} is out of bounds for dimension {dim} with size {size}")
    return places


def refuse_empty(x: Meta, dim: int, index: Meta, error: type[Exception] = RuntimeError) -> None:
    """Raise `error` for indices into a dimension of size 0: nothing is launched that would find them wrong."""
    if index.numel and x.ndim and x.shape[dim] == 0:
        raise error(f"index is out of bounds for dimension {dim} with size 0")


def sample_indices(low: int, high: int, *shape: int) -> Array:
    """Return indices for samples: deterministic, with repetitions."""
    return (low + np.arange(numel(shape)) * 7 % (high - low)).reshape(shape).astype(np.int64)


def zeros_of(grad: Any, metas: Sequence[Any]) -> Any:
    """Return zeros in the layout of the indexed tensor, in which its gradient is built."""
    return grad.new_zeros(metas[0].shape)
