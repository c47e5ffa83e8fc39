"""Storages of another size, and `holders`: who looks at a storage by address, and is told when its memory moves."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from flambeau.core.device import CPU
from flambeau.runtime import current
from flambeau.tensor.saved import Saved
from flambeau.tensor.storage import ForeignStorage, PinnedStorage, Storage
from flambeau.tensor.tensor import Tensor


def holders(row: Tensor) -> tuple[Sequence[Tensor | Saved], bool]:
    """All that look at a tensor's storage by address, and whether others refer to it."""
    if sys.getrefcount(row.memory) == 2 + (row.counter is row.memory):
        return [row], False
    frozen = gc.get_freeze_count()  # of these the collector tells nothing
    if frozen:
        gc.unfreeze()
    referrers = gc.get_referrers(row.memory)  # in no variable of ours: a closure's would be one of them
    if frozen:
        gc.collect()
        gc.freeze()
    found = [x for x in referrers if isinstance(x, Tensor | Saved)]
    return [x for x in found if x.memory is row.memory], len(found) < len(referrers)


_CONTENTS = ("ptr", "nbytes", "block", "stream")
_PINNED = ("ptr", "nbytes", "_pinned", "_allocator")


def resize_storage(t: Tensor, nbytes: int) -> None:
    """Give a tensor's storage another size. All that look at it follow; what is more is uninitialized.

    Raises RuntimeError: the memory is another library's or process'.
    """
    if t.memory.device is CPU and nbytes <= t.memory.nbytes:
        t.memory.nbytes = nbytes  # what it gives up stays: tensors that reach beyond read no freed memory
        return
    looking, _ = holders(t)
    storage = t.memory
    other = resized(storage, nbytes)
    shift = other.ptr - storage.ptr
    for name in _PINNED if isinstance(storage, PinnedStorage) else _CONTENTS:
        mine, its = getattr(storage, name), getattr(other, name)
        setattr(storage, name, its)
        setattr(other, name, mine)  # and gives it back at its end
    for each in looking:
        each.ptr += shift


def resized(old: Storage, nbytes: int) -> Storage:
    """A storage of another size that begins with the bytes of `old`; what is more is uninitialized."""
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
