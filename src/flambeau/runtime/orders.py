"""`Orders`: which stream's work comes after which other's, by the waits that the program recorded.

# Note [Ticks]
Every mark in a stream's queue (a recorded event, a wait on the host) takes the next tick of one counter. A stream
that waits for a mark knows the marked stream up to that tick, and all that the marked stream knew then. What a
stream was given before tick t of its own is done before anything that a stream is given which knows it up to t.

A tick is taken before the driver records: then whatever is freed at an earlier tick had been used, on its stream,
before the mark. Nothing is ever asked of the device, so the answers repeat from run to run; a wait that is not seen
here loses an opportunity, and nothing else. During a capture none is seen: what is only recorded orders nothing yet.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

Point = tuple[int, int, Mapping[int, int]]
"""A mark: the stream's handle, its tick, what the stream knew of others."""

NEVER = 1 << 62
"""As a tick: later than whatever is waited for."""

_NOTHING: Mapping[int, int] = {}


class Orders:
    """The order of the streams of one machine. `now` is the last tick taken, `capturing` counts captures underway."""

    __slots__ = ("_devices", "_host", "_known", "_lock", "capturing", "now")

    def __init__(self) -> None:
        self.now = 0
        self.capturing = 0
        self._known: dict[int, Mapping[int, int]] = {}  # by stream: up to which tick it knows others
        self._host: Mapping[int, int] = _NOTHING
        self._devices: dict[int, int] = {}  # by index: up to which tick its work is known to be done
        self._lock = threading.RLock()  # a finalizer may come in the middle, and wait for something itself

    def mark(self, stream: int) -> Point:
        """Call it before the driver records an event on the stream, or waits for it on the host."""
        with self._lock:
            self.now += 1
            return stream, self.now, self._known.get(stream, _NOTHING)

    def wait(self, stream: int, point: Point) -> None:
        """All that the stream is given from now on comes after the point."""
        if self.capturing or self._known.get(stream, _NOTHING).get(point[0], 0) >= point[1]:
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
