"""`Uses`: freed blocks that wait until the streams which used them are done with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from flambeau.runtime.context import Context

if TYPE_CHECKING:
    from flambeau.runtime.stream import Stream

T = TypeVar("T")


class _Wait(Generic[T]):
    """A block, the events that it waits for, and how many of these are not known to be done."""

    __slots__ = ("block", "events", "left")

    def __init__(self, block: T, left: int) -> None:
        self.block = block
        self.events: list[int] = []
        self.left = left


class Uses(Generic[T]):
    """One queue of (event, context, who waits) per stream, in the order of recording: only heads are asked.

    Not locked: its allocator sees to that. Events are kept and used again.
    """

    __slots__ = ("_over", "_queues", "_spare", "waiting")

    def __init__(self) -> None:
        self._queues: dict[int, deque[tuple[int, Context, _Wait[T]]]] = {}
        self._spare: dict[Context, list[int]] = {}
        self._over: list[_Wait[T]] = []
        self.waiting: dict[T, None] = {}

    def wait(self, block: T, streams: Iterable[Stream]) -> None:
        """Let `block` wait for the work that these streams have queued until now."""
        live = [stream for stream in streams if not stream.context.closed]
        wait = _Wait(block, len(live))
        self.waiting[block] = None  # forever, if recording fails: better a leak than reuse too early
        for stream in live:
            context = stream.context
            event = self._event(context)
            context.backing.event_record(event, stream.handle)
            wait.events.append(event)
            self._queues.setdefault(stream.handle, deque()).append((event, context, wait))
        if not live:
            self._over.append(wait)

    def done(self, *, block_host: bool = False) -> list[tuple[T, list[int]]]:
        """The blocks whose wait is over, no longer waiting, each with the events that it waited for.

        `block_host` waits on the host for all. The events are recorded anew by the next `wait`.
        """
        for handle, queue in list(self._queues.items()):
            while queue and _is_done(queue[0][0], queue[0][1], block_host):
                event, context, wait = queue.popleft()
                self._spare.setdefault(context, []).append(event)
                wait.left -= 1
                if not wait.left:
                    self._over.append(wait)
            if not queue:
                del self._queues[handle]
        over, self._over = self._over, []
        for wait in over:
            del self.waiting[wait.block]
        return [(wait.block, wait.events) for wait in over]

    def _event(self, context: Context) -> int:
        spare = self._spare.get(context)
        return spare.pop() if spare else context.backing.event_create(context.driver_index, timing=False)


def _is_done(event: int, context: Context, block_host: bool) -> bool:
    if context.closed:  # its work was finished then
        return True
    if block_host:
        context.backing.event_sync(event, internal=True)
        return True
    return context.backing.event_query(event, internal=True)
