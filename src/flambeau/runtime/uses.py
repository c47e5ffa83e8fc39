"""`Uses`: freed blocks that wait until the streams which used them are done with them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from flambeau.driver.api import Driver

if TYPE_CHECKING:
    from flambeau.runtime.stream import Stream

T = TypeVar("T")


class _Wait(Generic[T]):
    """A block and how many of its events are not known to be done."""

    __slots__ = ("block", "left")

    def __init__(self, block: T) -> None:
        self.block = block
        self.left = 0


class Uses(Generic[T]):
    """One queue of (event, block) per stream, in the order of recording: only heads need to be asked.

    Not locked: its allocator sees to that. Events are kept and used again.
    """

    __slots__ = ("_driver", "_queues", "_spare", "waiting")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._queues: dict[int, deque[tuple[int, int, _Wait[T]]]] = {}  # (event, device, who waits)
        self._spare: dict[int, list[int]] = {}  # by device
        self.waiting: dict[T, None] = {}

    def wait(self, block: T, streams: list[Stream]) -> None:
        """Let `block` wait for the work that these streams have queued until now."""
        wait = _Wait(block)
        for stream in streams:
            index = stream.context.driver_index
            event = self._event(index)
            self._driver.event_record(event, stream.handle)
            self._queues.setdefault(stream.handle, deque()).append((event, index, wait))
            wait.left += 1
        self.waiting[block] = None

    def done(self, *, block_host: bool = False) -> list[T]:
        """The blocks whose wait is over, no longer waiting; `block_host` waits on the host for all."""
        over: list[T] = []
        for handle, queue in list(self._queues.items()):
            while queue:
                event, index, wait = queue[0]
                if block_host:
                    self._driver.event_sync(event)
                elif not self._driver.event_query(event, internal=True):
                    break
                queue.popleft()
                self._spare.setdefault(index, []).append(event)
                wait.left -= 1
                if not wait.left:
                    del self.waiting[wait.block]
                    over.append(wait.block)
            if not queue:
                del self._queues[handle]
        return over

    def _event(self, index: int) -> int:
        spare = self._spare.get(index)
        return spare.pop() if spare else self._driver.event_create(index, timing=False)
