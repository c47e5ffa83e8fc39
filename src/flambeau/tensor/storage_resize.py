"""The resizing of storages, and `holders`: the tensors that cache a storage's address and must follow it.

# Note [Storages made smaller]
Problem: `untyped_storage().resize_(4)` under a larger tensor leaves it beyond its memory. Whatever reads, writes or
launches with it must raise, a launch must not pay for the check, and the tensor is whole again if the storage grows.
Rule: such a tensor gets a `ShortMeta`, which has the same fields and is a key of no cache. So each call misses its plan
and takes the slow path, which calls `require_backed`; copies between devices and exports to other libraries call it,
too. A view of all of the tensor is short as well, and any other view is checked as a new one.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from flambeau.core.device import CPU
from flambeau.core.meta import Meta, ShortMeta
from flambeau.runtime import current
from flambeau.runtime.hooks import launch_deferral
from flambeau.tensor.autograd.saved import SavedTensor
from flambeau.tensor.storage import ForeignStorage, PinnedStorage, Storage
from flambeau.tensor.tensor import Tensor


def holders(row: Tensor) -> tuple[Sequence[Tensor | SavedTensor], bool]:
    """Return all tensors that cache the address of a tensor's storage, and whether other objects refer to the
    storage.
    """
    launch_deferral.settle("a storage is resized")
    if sys.getrefcount(row.memory) == 2 + (row.counter is row.memory):
        return [row], False
    frozen = gc.get_freeze_count()  # the collector finds no referrers among frozen objects
    if frozen:
        gc.unfreeze()
    # Without a local variable: a closure that held one would be a referrer too.
    referrers = gc.get_referrers(row.memory)
    if frozen:
        gc.collect()
        gc.freeze()
    found = [x for x in referrers if isinstance(x, Tensor | SavedTensor)]
    return [x for x in found if x.memory is row.memory], len(found) < len(referrers)


_CONTENTS = ("ptr", "nbytes", "block", "stream")
_PINNED = ("ptr", "nbytes", "_pinned", "_allocator")


def resize_storage(t: Tensor, nbytes: int) -> None:
    """Resize a tensor's storage. All tensors over it follow; added bytes are uninitialized.

    Raises:
        RuntimeError: If the memory is another library's or process'.
    """
    looking, _ = holders(t)
    storage = t.memory
    if storage.device is CPU and nbytes <= storage.nbytes:
        storage.nbytes = nbytes  # the memory stays: arrays of other libraries may be over it
        _mark_short(looking, storage)
        return
    other = copy_resized(storage, nbytes)
    shift = other.ptr - storage.ptr
    for name in _PINNED if isinstance(storage, PinnedStorage) else _CONTENTS:
        mine, its = getattr(storage, name), getattr(other, name)
        setattr(storage, name, its)
        setattr(other, name, mine)  # and gives it back at its end
    for each in looking:
        each.ptr += shift
    _mark_short(looking, storage)


def _mark_short(looking: Sequence[Tensor | SavedTensor], storage: Storage) -> None:
    """Exchange the metas of tensors that now reach beyond a storage, and of those that no longer do."""
    for each in looking:
        meta = each.meta
        if meta.short is (each.ptr - storage.ptr + meta.span <= storage.nbytes or not meta.numel):
            each.meta = (
                Meta.of(meta.shape, meta.strides, meta.dtype, meta.device) if meta.short else ShortMeta(meta)
            )


def copy_resized(old: Storage, nbytes: int) -> Storage:
    """Return a storage of another size that begins with the bytes of `old`; additional elements are uninitialized."""
    if isinstance(old, ForeignStorage):
        raise RuntimeError("Trying to resize storage that is not resizable")
    context, stream = old.context, current.local.streams[old.context.index]
    if old.pinned:
        new: Storage = PinnedStorage(nbytes)
    else:
        block = context.allocator.allocate(nbytes, stream)
        new = Storage(block.ptr, nbytes, context, block)
    kept = min(old.nbytes, nbytes)
    if kept:
        old.used_on(stream.handle)
        context.driver.copy(new.ptr, old.ptr, kept, stream.handle)
        stream.queue.busy = True
    return new
