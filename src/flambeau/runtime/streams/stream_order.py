"""Vector clocks of streams: which work of one stream happens before the next command of another.

# Note [Ticks]
Each recorded event and each host wait takes the next tick of one counter, its logical time. A stream that waits for
a recorded time is ordered after that stream up to its tick, and after all that stream was ordered after then. Work
enqueued before tick t of its stream finishes before any work of a stream that is ordered after it up to t.

The tick is taken before the driver records the event. So a block freed at an earlier tick was last used, on its
stream, before the event. The device is never polled, so the answers repeat from run to run. A wait that is not seen
here costs an opportunity for reuse and nothing else. During a capture no wait counts, because captured waits order
nothing yet.

A name is rebound after the last use of its tensor: `x = ...` in a loop over streams frees the x of the last
iteration after the next stream has waited. So a free counts as earlier than its stream's last recorded time, or as
at its last wait if that is later, provided the stream got no work since. Each launch sets `StreamActivity.busy`
once the driver has it, while the caller still holds the tensors; set earlier, another thread's record could run in
between.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from weakref import WeakValueDictionary

from flambeau.core.vector_clock import join_clock, without_threads

RecordedTime = tuple[int, int, Mapping[int, int]]
"""A mark: the stream's handle, its tick, what the stream knew of others."""

NEVER = 1 << 62
"""As a tick: later than whatever is waited for."""

_NOTHING: Mapping[int, int] = {}


class StreamActivity:
    """The recent activity of one stream.

    Attributes:
        busy: True if work was enqueued since the stream's last recorded time.
        since: Logical time before the last recorded time or, if later, of the stream's last wait.
        stream: The stream's handle.
    """

    __slots__ = ("__weakref__", "busy", "since", "stream")

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.busy = True  # work was enqueued since the last recorded time
        self.since = 0

    def time_of_free(self, now: int, before: int) -> int:
        """Return the logical time of the last use of a block by this stream, if the block is freed at time `now`.

        Without work since the stream's last recorded time, this is earlier than `now`. `before` is the time that was
        returned when the block was freed last.
        """
        return now if self.busy else max(before, self.since)


class StreamClocks:
    """The vector clocks of all streams of one machine.

    Attributes:
        now: The last tick taken.
        capturing: The number of captures under way.
    """

    __slots__ = ("_clocks", "_devices", "_host", "_lock", "_queues", "capturing", "now")

    def __init__(self) -> None:
        self.now = 0
        self.capturing = 0
        # stream handle -> other stream -> logical time up to which its work happens before
        self._clocks: dict[int, Mapping[int, int]] = {}
        self._host: Mapping[int, int] = _NOTHING
        # device index -> logical time up to which its work is known to be done
        self._devices: dict[int, int] = {}
        # stream handle -> activity
        self._queues: WeakValueDictionary[int, StreamActivity] = WeakValueDictionary()
        self._lock = threading.RLock()  # reentrant, because a finalizer may interrupt a call and wait itself

    def queue(self, stream: int) -> StreamActivity:
        """Return the activity of a stream. One object exists while a Stream or memory of the stream does."""
        with self._lock:
            return self._queues.setdefault(stream, StreamActivity(stream))

    def mark(self, queue: StreamActivity) -> RecordedTime:
        """Return a new logical time for an event record or a host wait on the stream. Call this before the driver does
        it.
        """
        with self._lock:
            if not self.capturing:
                queue.since, queue.busy = self.now, False
            self.now += 1
            return queue.stream, self.now, self._clocks.get(queue.stream, _NOTHING)

    def wait(self, queue: StreamActivity, point: RecordedTime | None) -> None:
        """Order all later work of the stream after a recorded time; None if that time is unknown."""
        queue.since, stream = self.now, queue.stream
        if point is None or self.capturing or self._clocks.get(stream, _NOTHING).get(point[0], 0) >= point[1]:
            return
        with self._lock:
            self._clocks[stream] = join_clock(self._clocks.get(stream, _NOTHING), point)

    def host_wait(self, point: RecordedTime) -> None:
        """Order all later work of every stream after a recorded time, for which the host has waited."""
        with self._lock:
            self._host = join_clock(self._host, point)

    def device_mark(self) -> int:
        """Return a new logical time for a device synchronization. Call this before the driver waits."""
        with self._lock:
            self.now += 1
            return self.now

    def device_wait(self, index: int, tick: int) -> None:
        """Order all later work after all work that was enqueued on the device before the logical time `tick`."""
        self._devices[index] = max(self._devices.get(index, 0), tick)

    def awaited_time(self, by: int, stream: int, index: int) -> int:
        """Return the logical time up to which `stream`, of device `index`, happens before the next work of stream
        `by`.
        """
        return max(
            self._clocks.get(by, _NOTHING).get(stream, 0),
            self._host.get(stream, 0),
            self._devices.get(index, 0),
        )

    def forget(self, stream: int) -> None:
        """Remove a destroyed stream from all clocks."""
        with self._lock:
            self._clocks.pop(stream, None)
            self._host = without_threads(self._host, {stream})
            for other, known in self._clocks.items():
                self._clocks[other] = without_threads(known, {stream})
