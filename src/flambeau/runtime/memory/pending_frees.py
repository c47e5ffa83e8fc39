"""Freed blocks whose reuse must wait until other streams have finished with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from flambeau.runtime.device_context import Context
from flambeau.runtime.streams.stream_order import RecordedTime
from flambeau.runtime.streams.wait_reason import wait_reason

if TYPE_CHECKING:
    from flambeau.runtime.streams.accelerator_stream import Stream

T = TypeVar("T")


class UseEvent:
    """A driver event that marks the end of a recorded use. It is destroyed with its last reference.

    Attributes:
        context: The device context of the event.
        handle: The driver's handle.
        point: The recorded time; None if unknown.
    """

    __slots__ = ("context", "handle", "point")

    def __init__(self, context: Context, handle: int) -> None:
        self.context = context
        self.handle = handle
        self.point: RecordedTime | None = None

    @property
    def key(self) -> int | UseEvent:
        """Return a key that is equal for events of one stream and differs from all stream handles."""
        return self if self.point is None else ~self.point[0]

    def is_before(self, other: Stream | UseEvent | None) -> bool:
        """Return True if `other` was recorded later on the same stream."""
        mine, theirs = self.point, other.point if isinstance(other, UseEvent) else None
        return mine is not None and theirs is not None and mine[1] < theirs[1]

    def __del__(self) -> None:
        if not self.context.closed:
            self.context.backing.event_destroy(self.handle)


class PendingFree(Generic[T]):
    """A freed block and the events that its reuse waits for.

    Attributes:
        block: The block.
        events: Handles of all events.
        marks: The events that the caller recorded; held so that they are not destroyed.
        own: (context, handle) of the events recorded for this block only.
        left: The number of events not known to be complete.
    """

    __slots__ = ("block", "events", "left", "marks", "own")

    def __init__(self, block: T, left: int) -> None:
        self.block = block
        self.events: list[int] = []
        self.marks: list[UseEvent] = []
        self.own: list[tuple[Context, int]] = []
        self.left = left


class PendingFrees(Generic[T]):
    """The pending frees of one allocator. Not locked: the allocator's lock protects it.

    There is one queue of (event, context, pending free) per stream, in the order of recording, and only heads are
    polled. Events are reused. During a CUDA graph capture nothing is recorded or polled: pending frees are held
    until it ends.

    Attributes:
        waiting: The blocks with pending frees, in order; values are None.
    """

    __slots__ = ("_held", "_on_wait", "_over", "_queues", "_spare", "waiting")

    def __init__(self, on_wait: Callable[[T, list[int]], None] | None = None) -> None:
        self._on_wait = on_wait  # called with a waiting block and its events
        self._queues: dict[int | UseEvent, deque[tuple[int, Context, PendingFree[T]]]] = {}
        self._spare: dict[Context, list[int]] = {}
        self._over: list[PendingFree[T]] = []
        self._held: list[tuple[T, list[Stream | UseEvent]]] = []
        self.waiting: dict[T, None] = {}

    def wait(self, block: T, uses: Iterable[Stream | UseEvent]) -> None:
        """Defer the reuse of `block` until the work queued so far on these streams, and these events, are complete."""
        live = [use for use in uses if not use.context.closed]
        self.waiting[block] = None  # forever, if recording fails: better a leak than reuse too early
        if any(use.context.orders.capturing for use in live):
            self._held.append((block, live))
            return
        wait = PendingFree(block, len(live))
        for use in live:
            context = use.context
            if isinstance(use, UseEvent):
                key: int | UseEvent = use
                event = use.handle
                wait.marks.append(use)
            else:
                key, event = use.handle, self._event(context)
                with wait_reason(str, "memory: it was freed while this stream may use it"):
                    context.backing.event_record(event, use.handle)
                wait.own.append((context, event))
            wait.events.append(event)
            self._queues.setdefault(key, deque()).append((event, context, wait))
        if not live:
            self._over.append(wait)
        elif self._on_wait is not None:
            self._on_wait(block, wait.events)

    def done(self, *, block_host: bool = False) -> list[PendingFree[T]]:
        """Remove and return the completed pending frees.

        Args:
            block_host: True to block the host until all are complete.
        """
        held, self._held = self._held, []
        for block, uses in held:
            self.wait(block, uses)
        for key, queue in list(self._queues.items()):
            if queue[0][1].orders.capturing:
                continue
            while queue and _is_done(queue[0][0], queue[0][1], block_host):
                wait = queue.popleft()[2]
                wait.left -= 1
                if not wait.left:
                    self._over.append(wait)
            if not queue:
                del self._queues[key]
        over, self._over = self._over, []
        for wait in over:
            del self.waiting[wait.block]
            for (
                context,
                event,
            ) in wait.own:  # not earlier: an observer looks up what all of its events were recorded for
                self._spare.setdefault(context, []).append(event)
        return over

    def _event(self, context: Context) -> int:
        spare = self._spare.get(context)
        return spare.pop() if spare else context.backing.event_create(context.driver_index, timing=False)


def _is_done(event: int, context: Context, block_host: bool) -> bool:
    if context.closed:  # closing the context waited for the work
        return True
    if block_host:
        context.backing.event_sync(event, internal=True)
        return True
    return context.backing.event_query(event, internal=True)
