"""Callbacks for allocations and frees, which profilers use. Owner of the subscribers.

With a subscriber, allocators and plans of calls use functions that notify it (Note [The plan cache]). Without
one, an allocation costs nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from flambeau.core.flags import flags
from flambeau.runtime.device_context import AllocatedBlock, Context
from flambeau.runtime.hooks.subscribers import Subscribers

if TYPE_CHECKING:
    from flambeau.runtime.streams.accelerator_stream import Stream


class MemorySubscriber(Protocol):
    """A subscriber to memory events, called in the requesting thread. A destructor may call `on_free` at any time."""

    def on_allocate(self, context: Context, block: AllocatedBlock, nbytes: int, to_launch: bool, /) -> None:
        """Handle a request of `nbytes` > 0. With `to_launch`, this thread's next launch writes the block."""

    def on_free(self, context: Context, block: AllocatedBlock, /) -> None:
        """Handle the free of a block of more than 0 bytes."""


_subscribers: Subscribers[MemorySubscriber] = Subscribers()
_notifying: dict[Any, _NotifyingAllocator] = {}  # by allocator


def subscribe(subscriber: MemorySubscriber, contexts: Sequence[Context]) -> None:
    """Notify `subscriber` of each allocation and free in these contexts, from now on."""
    _subscribers.add(subscriber)
    for context in contexts:
        allocator = context.allocator
        if allocator not in _notifying:
            _notifying[allocator] = _NotifyingAllocator(context, allocator)
    flags.memory_subscribed = True


def unsubscribe(subscriber: MemorySubscriber) -> None:
    """Stop notifying `subscriber`. After the last one has left, allocators use their own functions again."""
    _subscribers.remove(subscriber)
    if _subscribers.members:
        return
    flags.memory_subscribed = False
    while _notifying:
        _notifying.popitem()[1].end()


class _NotifyingAllocator:
    """An allocator whose functions notify subscribers, until `end` restores its own."""

    def __init__(self, context: Context, allocator: Any) -> None:
        self._allocator = allocator
        self._kept = allocator.allocate, allocator.allocate_output
        allocator.allocate, allocator.allocate_output = [
            _allocating(context, way, to_launch)
            for way, to_launch in zip(self._kept, (False, True), strict=True)
        ]
        allocator.wrap_free(partial(_freeing, context))

    def end(self) -> None:
        self._allocator.wrap_free(None)
        self._allocator.allocate, self._allocator.allocate_output = self._kept


def _allocating(
    context: Context, allocate: Callable[[int, Stream], AllocatedBlock], to_launch: bool
) -> Callable[[int, Stream], AllocatedBlock]:
    """Return an allocation function that notifies subscribers. Plans keep it, so it looks up subscribers at each
    call.
    """

    def allocate_and_notify(nbytes: int, stream: Stream) -> AllocatedBlock:
        block = allocate(nbytes, stream)
        if nbytes:
            for subscriber in _subscribers.members:
                subscriber.on_allocate(context, block, nbytes, to_launch)
        return block

    return allocate_and_notify


def _freeing(context: Context, free: Callable[[AllocatedBlock], None]) -> Callable[[AllocatedBlock], None]:
    def notify_and_free(block: AllocatedBlock) -> None:
        if block.size:
            for subscriber in _subscribers.members:
                subscriber.on_free(context, block)
        free(block)

    return notify_and_free
