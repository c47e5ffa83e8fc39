"""Stream captures of virtual GPUs: commands that are recorded instead of run, and calls that a capture
forbids.

# Note [Captures] The rules are CUDA's (Programming Guide, "Creating a Graph Using Stream Capture"). A
stream joins a capture when it waits for an event that was recorded in it. All its commands are recorded
until the capture ends on the stream where it began, which must have waited for them. Nothing runs
meanwhile. A host wait or poll is therefore refused, and invalidates the capture. Commands are checked when
they are recorded and, because memory may have been freed since, at each launch.

A launch costs the host one launch. The commands of the origin stream go to the stream that the graph is
launched on. The commands of each stream that joined go to an own stream of the graph. Their recorded waits
order them, so a schedule may run them in any order that real hardware may. Launches of one graph run one
after the other on whatever streams. Each command counts in its stream's launch queue, so the host waits
during the launch of a graph that is longer than the queue.
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
    """The commands recorded from one stream and from the streams that joined it.

    Attributes:
        origin: The stream on which the capture began.
        mode: "global", "thread_local" or "relaxed", as in CUDA.
        active: True until the capture ends.
    """

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
        """Return the captured streams; the first is the origin."""
        return list(self._tails)

    def join(self, stream: SimulatedStream) -> None:
        self._tails.setdefault(stream, None)

    def add(self, command: Command) -> None:
        """Record a command.

        Raises:
            DriverError: If the capture was invalidated.
        """
        if self._spoiled:
            raise DriverError(INVALIDATED)
        command.prior = self._tails[command.stream]
        self._tails[command.stream] = command
        self.commands.append(command)

    def forbids(self, target: SimulatedStream | DeviceState | None) -> bool:
        """Return True if this thread may not wait for a stream or device now. None stands for any other
        target.
        """
        if target in self._tails or any(stream.device is target for stream in self._tails):
            return True
        return self.mode == "global" or (self.mode == "thread_local" and self.thread == threading.get_ident())

    def spoil(self) -> None:
        """Invalidate the capture. Its end then raises and returns no graph."""
        self._spoiled = True

    def end(self) -> None:
        """Check that the recorded commands form a graph.

        Raises:
            DriverError: As `Driver.capture_end`.
        """
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
    """Yield a recorded command and all commands that happen before it."""
    found: set[Command] = set()
    left = [last]
    while left:
        command = left.pop()
        if command is not None and command not in found:
            found.add(command)
            yield command
            left += [command.prior, *command.waits]


class Captures:
    """The active captures of a machine.

    Attributes:
        of: Captured stream -> its capture.
    """

    __slots__ = ("of",)

    def __init__(self) -> None:
        self.of: dict[SimulatedStream, VirtualCapture] = {}

    def begin(self, queue: SimulatedStream, mode: str) -> None:
        self.of[queue] = VirtualCapture(queue, mode)

    def end(self, queue: SimulatedStream) -> VirtualCapture:
        """End and check the capture that began on a stream. It is over even if the check raises."""
        found = self.of.get(queue)
        if found is None or found.origin is not queue:
            raise DriverError(f"CUDA error: invalid argument: no capture began on stream {queue.handle}")
        for joined in found.streams:
            del self.of[joined]
        found.end()
        return found

    def join(self, queue: SimulatedStream, other: VirtualCapture | None, legacy: bool) -> None:
        """Let a stream join the capture `other` if it waits for an event that was recorded in one.

        `legacy` is True for a default stream, which cannot be captured.
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
        """Raise DriverError if a capture forbids that the host waits for or polls `target`."""
        if self.of:
            spoiled = [c for c in self.of.values() if c.forbids(target)]
            for found in spoiled:
                found.spoil()
            if spoiled:
                raise DriverError(UNSUPPORTED)

    def refuse_event(self, last: VirtualCapture | None) -> None:
        """Raise DriverError if a capture forbids that the host waits for or polls an event whose last record
        is `last`.
        """
        if last is not None:
            if last.active:
                last.spoil()
            raise DriverError(CAPTURED_EVENT)
        self.refuse(None)
