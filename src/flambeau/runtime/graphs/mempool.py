"""`MemPool`: memory that a program keeps apart, on whichever devices it uses it."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flambeau.core.public_names import not_copied
from flambeau.runtime import current
from flambeau.runtime.device_context import Context
from flambeau.runtime.hooks import launch_deferral
from flambeau.runtime.memory.allocator import CachingAllocator
from flambeau.runtime.memory.private_pool import NOBODY, PoolId, PrivatePool, as_id
from flambeau.runtime.memory.resources import Resource, as_resource
from flambeau.runtime.memory_reports.snapshot import snapshot

_numbers = itertools.count(1)
_alive: weakref.WeakValueDictionary[PoolId, MemPool] = weakref.WeakValueDictionary()


class MemPool:
    """A separate memory pool: allocations inside `use_mem_pool` use only its segments.

    Its segments are released when the MemPool is deleted and they are free; `empty_cache` does not release them
    earlier.

    Args:
        allocator: A resource (see `flambeau.runtime.memory.resources`) that allocates its segments; None: the device's.
        use_on_oom: Let other allocations of the same stream use its free blocks when memory is exhausted.
        no_split: Make each block a separate segment.

    Raises:
        TypeError: If `allocator` is not a resource.
    """

    if not TYPE_CHECKING:  # type checkers use the base class `object`
        __reduce_ex__ = not_copied

    def __init__(
        self, allocator: Resource | None = None, use_on_oom: bool = False, no_split: bool = False
    ) -> None:
        source = None if allocator is None else as_resource(allocator)
        self._id = new_id()
        _alive[self._id] = self
        self._source = source
        self._use_on_oom = bool(use_on_oom)
        self._no_split = bool(no_split)
        self._uses = 1
        self._parts: dict[Context, PrivatePool] = {}

    @property
    def id(self) -> PoolId:
        """Return the id by which snapshots and `memory_stats` name the pool."""
        return self._id

    @property
    def allocator(self) -> Resource | None:
        """Return the resource that allocates the pool's segments; None for the device's memory."""
        return self._source

    def use_count(self) -> int:
        """Return 1 plus the number of `use_mem_pool` blocks that are open on the pool."""
        return self._uses

    def part_of(self, context: Context) -> PrivatePool:
        """Return the pool's part on one device."""
        part = self._parts.get(context)
        if part is None:
            part = PrivatePool(self._id, self._source, self._use_on_oom, self._no_split)
            self._parts[context] = part
        return part

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """Return the pool's segments with their blocks, on all devices. See `torch.cuda.memory_snapshot`."""
        found: list[Any] = [context.allocator for context in self._parts if not context.closed]
        segments: list[dict[str, Any]] = snapshot(found, self._id, include_traces)["segments"]
        return segments

    def __del__(self) -> None:
        for context in getattr(self, "_parts", ()):
            allocator = context.allocator
            if isinstance(allocator, CachingAllocator):
                allocator.release_private(self._id)


def new_id() -> PoolId:
    """Return an id that no pool has yet."""
    return 0, next(_numbers)


def pool_of(given: PoolId | None) -> MemPool:
    """Return the MemPool with an id that a program passes: an existing one, or a new one. None and NOBODY give a new
    one.

    Raises:
        TypeError: If it is not a pair of ints.
        ValueError: If no pool has such numbers.
    """
    id = NOBODY if given is None else as_id(given)
    if id == NOBODY:
        return MemPool()
    found = _alive.get(id)
    if found is None:
        found = MemPool()
        found._id = id
        _alive[id] = found
    return found


@contextmanager
def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    """Serve this thread's allocations on a device (default: the current one) from `pool`.

    Other threads are not affected, even if they are started inside.

    Raises:
        RuntimeError: If there is no such device.
    """
    index = current.local.device if device is None else current.index_of(device, optional=True)
    context = current.context_at(index)
    allocator: Any = context.allocator
    launch_deferral.settle("a memory pool is entered")
    before = allocator.route(pool.part_of(context))
    pool._uses += 1
    try:
        try:
            yield
        finally:
            launch_deferral.settle("a memory pool is left")
    finally:
        pool._uses -= 1
        if not context.closed:
            allocator.route(before)
