"""`VirtualCapture`: commands that are recorded instead of run. `Captures`: those underway, and what they forbid.

# Note [Captures]
The rules are CUDA's (Programming Guide, "Creating a Graph Using Stream Capture"). A stream joins a capture when it
waits for an event that was recorded in it; all that it is given from then on is recorded, until the capture ends on
the stream where it began, which must have waited for all that the others were given. Nothing runs meanwhile, so
whoever asks what has been done, or waits for it, is refused, and the capture is spoiled. Commands are checked when
they are recorded and, since memory may have been given back in between, at each launch.

A launch costs the host one launch. The origin's commands go to the stream that it is launched on, those of each
stream that joined to a lane of the graph's own; their waits order them as they were recorded, so a schedule may run
them in any order that real hardware may. Launches of one graph come one after the other, on whatever streams. Each
command counts in its stream's launch queue, so the host waits amid a launch of more commands than a queue holds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from flambeau.core.errors import DriverError
from flambeau.driver.virtual.scheduling import scheduler
from flambeau.driver.virtual.scheduling.scheduler import Command, DeviceState, SimulatedStream

MODES = ("global", "thread_local", "relaxed")
_MARKERS = (scheduler.RECORD, scheduler.WAIT, scheduler.POISON)

UNSUPPORTED = "CUDA error: operation not permitted when stream is capturing"
INVALIDATED = "CUDA error: operation failed due to a previous error during capture"
UNJOINED = "CUDA error: capturing stream has unjoined work"
ISOLATION = "CUDA error: dependency created on uncaptured work in another stream"
MERGE = "CUDA error: operation would result in a merge of two independent capture sequences"
IMPLICIT = "CUDA error: operation would make the legacy stream depend on a capturing blocking stream"
CAPTURED_EVENT = "CUDA error: operation not permitted on an event last recorded in a capturing stream"


class VirtualCapture:
    """What is recorded from one stream and from those that joined it. `active` until it ends."""

    def __init__(self, origin: SimulatedStream, mode: str) -> None:
        self.origin = origin
        self.mode = mode
        self.thread = threading.get_ident()
        self.active = True
        self.commands: list[Command] = []
        self._spoiled = False
        self._tails: dict[SimulatedStream, Command | None] = {origin: None}

    @property
    def streams(self) -> list[SimulatedStream]:
        """The streams that it records, the first of which is where it began."""
        return list(self._tails)

    def join(self, stream: SimulatedStream) -> None:
        self._tails.setdefault(stream, None)

    def add(self, command: Command) -> None:
        """Record a command. DriverError: the capture was spoiled."""
        if self._spoiled:
            raise DriverError(INVALIDATED)
        command.prior = self._tails[command.stream]
        self._tails[command.stream] = command
        self.commands.append(command)

    def forbids(self, target: SimulatedStream | DeviceState | None) -> bool:
        """Whether this thread may not wait for a stream or device now; None: for something else."""
        if target in self._tails or any(stream.device is target for stream in self._tails):
            return True
        return self.mode == "global" or (self.mode == "thread_local" and self.thread == threading.get_ident())

    def spoil(self) -> None:
        """An error in it: it will give no graph."""
        self._spoiled = True

    def end(self) -> None:
        """Check that it became a graph. DriverError: see `Driver.capture_end`."""
        self.active = False
        if self._spoiled:
            raise DriverError(INVALIDATED)
        reached = set(_before(self._tails[self.origin]))
        for command in self.commands:
            if command.kind not in _MARKERS and command not in reached:
                raise DriverError(
                    f"{UNJOINED}: '{command.name}' on stream {command.stream.handle} of cuda:{command.stream.index}; "
                    "the stream where the capture began must wait for it"
                )


def _before(last: Command | None) -> Iterator[Command]:
    """A recorded command and all that it comes after."""
    found: set[Command] = set()
    left = [last]
    while left:
        command = left.pop()
        if command is not None and command not in found:
            found.add(command)
            yield command
            left += [command.prior, *command.waits]


class Captures:
    """The captures underway. `of`: by the streams that they record."""

    __slots__ = ("of",)

    def __init__(self) -> None:
        self.of: dict[SimulatedStream, VirtualCapture] = {}

    def begin(self, queue: SimulatedStream, mode: str) -> None:
        self.of[queue] = VirtualCapture(queue, mode)

    def end(self, queue: SimulatedStream) -> VirtualCapture:
        """The one that began on a stream; it is checked, and over even if it is wrong."""
        found = self.of.get(queue)
        if found is None or found.origin is not queue:
            raise DriverError(f"CUDA error: invalid argument: no capture began on stream {queue.handle}")
        for joined in found.streams:
            del self.of[joined]
        found.end()
        return found

    def join(self, queue: SimulatedStream, other: VirtualCapture | None, legacy: bool) -> None:
        """A stream is about to wait for an event that was recorded in `other`, or in none: it may join the capture.

        legacy: it is a default stream, which no capture takes.
        """
        mine = self.of.get(queue)
        if other is not None and not other.active:
            raise DriverError(CAPTURED_EVENT)
        if mine is other:
            return
        if mine is not None:
            mine.spoil()
            raise DriverError(ISOLATION if other is None else MERGE)
        assert other is not None
        if legacy:
            other.spoil()
            raise DriverError(IMPLICIT)
        other.join(queue)
        self.of[queue] = other

    def refuse(self, target: SimulatedStream | DeviceState | None) -> None:
        """The host is about to wait for something, or to ask after it: not during a capture that forbids it."""
        if self.of:
            spoiled = [c for c in self.of.values() if c.forbids(target)]
            for found in spoiled:
                found.spoil()
            if spoiled:
                raise DriverError(UNSUPPORTED)

    def refuse_event(self, last: VirtualCapture | None) -> None:
        """The same of an event, last recorded in a capture or in none."""
        if last is not None:
            if last.active:
                last.spoil()
            raise DriverError(CAPTURED_EVENT)
        self.refuse(None)
