"""`Orders`: which stream's work comes after which other's, by the waits that the program recorded.

# Note [Ticks]
Every mark in a stream's queue (a recorded event, a wait on the host) takes the next tick of one counter. A stream
that waits for a mark knows the marked stream up to that tick, and all that the marked stream knew then. What a
stream was given before tick t of its own is done before anything that a stream is given which knows it up to t.

A tick is taken before the driver records: then whatever is freed at an earlier tick had been used, on its stream,
before the mark. Nothing is ever asked of the device, so the answers repeat from run to run; a wait that is not seen
here loses an opportunity, and nothing else. During a capture none is seen: what is only recorded orders nothing yet.

Names are bound anew later than their tensors were last used: `x = ...` in a loop over streams frees the x of the last
turn after the next stream has waited for it. So what is freed counts as freed before its stream's last mark, or at its
last wait if that came later, where the stream was given no work since. Each launch says so (`Queue.busy`), once the
driver has it, while whoever launches still holds the tensors: said before, another thread's mark might come in between.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from weakref import WeakValueDictionary

Point = tuple[int, int, Mapping[int, int]]
"""A mark: the stream's handle, its tick, what the stream knew of others."""

NEVER = 1 << 62
"""As a tick: later than whatever is waited for."""

_NOTHING: Mapping[int, int] = {}


class Queue:
    """What is known of one stream: `busy`, whether it was given work since its last mark, and `since`, the tick before
    that or, if that came later, of its last wait.
    """

    __slots__ = ("__weakref__", "busy", "since", "stream")

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.busy = True  # nobody has marked it yet
        self.since = 0

    def freed(self, now: int, before: int) -> int:
        """The tick that a block counts as freed at which is freed now, and was at `before` until it was handed out."""
        return now if self.busy else max(before, self.since)


class Orders:
    """The order of the streams of one machine. `now` is the last tick taken, `capturing` counts captures underway."""

    __slots__ = ("_devices", "_host", "_known", "_lock", "_queues", "capturing", "now")

    def __init__(self) -> None:
        self.now = 0
        self.capturing = 0
        self._known: dict[int, Mapping[int, int]] = {}  # by stream: up to which tick it knows others
        self._host: Mapping[int, int] = _NOTHING
        self._devices: dict[int, int] = {}  # by index: up to which tick its work is known to be done
        self._queues: WeakValueDictionary[int, Queue] = WeakValueDictionary()  # by stream
        self._lock = threading.RLock()  # a finalizer may come in the middle, and wait for something itself

    def queue(self, stream: int) -> Queue:
        """The one object about a stream by its handle, while a Stream or memory of it is there."""
        with self._lock:
            return self._queues.setdefault(stream, Queue(stream))

    def mark(self, queue: Queue) -> Point:
        """Call it before the driver records an event on the stream, or waits for it on the host."""
        with self._lock:
            if not self.capturing:
                queue.since, queue.busy = self.now, False
            self.now += 1
            return queue.stream, self.now, self._known.get(queue.stream, _NOTHING)

    def wait(self, queue: Queue, point: Point | None) -> None:
        """All that the stream is given from now on comes after the point; None: after one that is not known."""
        queue.since, stream = self.now, queue.stream
        if point is None or self.capturing or self._known.get(stream, _NOTHING).get(point[0], 0) >= point[1]:
            return
        with self._lock:
            self._known[stream] = _joined(self._known.get(stream, _NOTHING), point)

    def host_wait(self, point: Point) -> None:
        """All that any stream is given from now on comes after the point: the host has waited for it."""
        with self._lock:
            self._host = _joined(self._host, point)

    def device_mark(self) -> int:
        """Call it before the driver waits for all work of a device."""
        with self._lock:
            self.now += 1
            return self.now

    def device_wait(self, index: int, tick: int) -> None:
        """The host has waited for all that the device was given before the tick."""
        self._devices[index] = max(self._devices.get(index, 0), tick)

    def known(self, by: int, stream: int, index: int) -> int:
        """Up to which tick `stream`, of device `index`, is done before what `by` is given from now on."""
        return max(
            self._known.get(by, _NOTHING).get(stream, 0),
            self._host.get(stream, 0),
            self._devices.get(index, 0),
        )

    def forget(self, stream: int) -> None:
        """The stream is no more."""
        with self._lock:
            self._known.pop(stream, None)
            self._host = _without(self._host, stream)
            for other, known in self._known.items():
                self._known[other] = _without(known, stream)


def _joined(known: Mapping[int, int], point: Point) -> Mapping[int, int]:
    stream, tick, theirs = point
    if known.get(stream, 0) >= tick:
        return known
    joined = dict(known)
    for other, time in theirs.items():
        if joined.get(other, 0) < time:
            joined[other] = time
    joined[stream] = tick
    return joined


def _without(known: Mapping[int, int], stream: int) -> Mapping[int, int]:
    return {other: tick for other, tick in known.items() if other != stream} if stream in known else known
