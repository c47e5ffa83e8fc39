"""`Uses`: freed blocks that wait until the streams which used them are done with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from flambeau.runtime.context import Context
from flambeau.runtime.streams.stream_order import Point
from flambeau.runtime.streams.wait_reason import because

if TYPE_CHECKING:
    from flambeau.runtime.streams.stream import Stream

T = TypeVar("T")


class Mark:
    """A driver's event, destroyed when nobody holds it any more. `point`: where it was recorded; None: nobody knows."""

    __slots__ = ("context", "handle", "point")

    def __init__(self, context: Context, handle: int) -> None:
        self.context = context
        self.handle = handle
        self.point: Point | None = None

    @property
    def key(self) -> int | Mark:
        """The same for marks of one stream, and no stream's handle."""
        return self if self.point is None else ~self.point[0]

    def is_before(self, other: Stream | Mark | None) -> bool:
        """Whether another mark of the same stream is a later one."""
        mine, theirs = self.point, other.point if isinstance(other, Mark) else None
        return mine is not None and theirs is not None and mine[1] < theirs[1]

    def __del__(self) -> None:
        if not self.context.closed:
            self.context.backing.event_destroy(self.handle)


class Wait(Generic[T]):
    """A block, the events that it waits for, and how many are not known to be done.

    `own` are those of the events that are recorded for this alone, `marks` keep the others alive.
    """

    __slots__ = ("block", "events", "left", "marks", "own")

    def __init__(self, block: T, left: int) -> None:
        self.block = block
        self.events: list[int] = []
        self.marks: list[Mark] = []
        self.own: list[tuple[Context, int]] = []
        self.left = left


class Uses(Generic[T]):
    """One queue of (event, context, who waits) per stream, in the order of recording: only heads are asked.

    Not locked: its allocator sees to that. Events are kept and used again. During a capture (of a CUDA graph) nothing
    is recorded for this and nobody is asked: what would wait is held until it has ended.
    """

    __slots__ = ("_held", "_over", "_queues", "_spare", "_tell", "waiting")

    def __init__(self, tell: Callable[[T, list[int]], None] | None = None) -> None:
        self._tell = tell  # whom to tell of a block that waits, and for which events
        self._queues: dict[int | Mark, deque[tuple[int, Context, Wait[T]]]] = {}
        self._spare: dict[Context, list[int]] = {}
        self._over: list[Wait[T]] = []
        self._held: list[tuple[T, list[Stream | Mark]]] = []
        self.waiting: dict[T, None] = {}

    def wait(self, block: T, uses: Iterable[Stream | Mark]) -> None:
        """Let `block` wait for the work that these streams have queued until now, and for these marks."""
        live = [use for use in uses if not use.context.closed]
        self.waiting[block] = None  # forever, if recording fails: better a leak than reuse too early
        if any(use.context.orders.capturing for use in live):
            self._held.append((block, live))
            return
        wait = Wait(block, len(live))
        for use in live:
            context = use.context
            if isinstance(use, Mark):
                key: int | Mark = use
                event = use.handle
                wait.marks.append(use)
            else:
                key, event = use.handle, self._event(context)
                with because(str, "memory: it was freed while this stream may use it"):
                    context.backing.event_record(event, use.handle)
                wait.own.append((context, event))
            wait.events.append(event)
            self._queues.setdefault(key, deque()).append((event, context, wait))
        if not live:
            self._over.append(wait)
        elif self._tell is not None:
            self._tell(block, wait.events)

    def done(self, *, block_host: bool = False) -> list[Wait[T]]:
        """The waits that are over: their blocks are no longer waiting.

        `block_host` waits on the host for all. The events are recorded anew by the next `wait`.
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
            ) in wait.own:  # not before: an observer looks up what all of its events were recorded for
                self._spare.setdefault(context, []).append(event)
        return over

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
