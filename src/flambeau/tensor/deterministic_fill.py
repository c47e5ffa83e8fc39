"""The contents of new memory under deterministic algorithms, as `torch.utils.deterministic` documents them.

Floating-point and complex numbers are NaN, others their dtype's largest value: `empty`, `empty_like`,
`empty_strided`, `empty_permuted`, `new_empty`, tensors made of sizes, and what `resize_` adds to a storage. A
program that reads such memory before it is written then gives the same wrong numbers each time.
"""

from __future__ import annotations

from typing import Any

from flambeau.core.dtype import BOOL, INTEGRAL, dtype
from flambeau.core.flags import flags
from flambeau.core.meta import Meta
from flambeau.core.typeinfo import iinfo
from flambeau.ops import copy as ops
from flambeau.tensor.call import call_into
from flambeau.tensor.storage import Storage
from flambeau.tensor.tensor import Tensor, make


def is_filled() -> bool:
    """Return True if new memory is filled."""
    return flags.deterministic and flags.fill_uninitialized


def filled_if_wanted(fresh: Tensor) -> Tensor:
    """Return a new or overwritten tensor. If the deterministic mode requires it, it is filled."""
    if is_filled() and fresh.meta.numel:
        _fill(fresh)
    return fresh


def fill_from(memory: Storage, begin: int, kind: dtype) -> None:
    """Fill a storage from a byte offset on, if the deterministic mode requires it."""
    first = -(-begin // kind.itemsize) * kind.itemsize
    count = (memory.nbytes - first) // kind.itemsize
    if is_filled() and count > 0:
        meta = Meta.contiguous_of((count,), kind, memory.device)
        _fill(make(meta, memory, memory.ptr + first))


def _fill(t: Tensor) -> None:
    """Fill a tensor without increasing its version."""
    version, meta = t.counter.version, t.meta
    call_into(ops.fill, (t,), (_number(meta.dtype),), (meta.dtype, meta.shape, meta.device))
    t.counter.version = version


def _number(kind: dtype) -> Any:
    if kind.category == BOOL:
        return True
    return iinfo(kind).max if kind.category == INTEGRAL else float("nan")
