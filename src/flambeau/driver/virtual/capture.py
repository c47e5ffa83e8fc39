"""`Capture`: commands that are recorded instead of run. `Recorded`: the graph that they become.

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flambeau.core.errors import DriverError
from flambeau.driver.virtual import scheduler
from flambeau.driver.virtual.scheduler import KINDS, Command, DeviceState, Stream

MODES = ("global", "thread_local", "relaxed")
_MARKERS = (scheduler.RECORD, scheduler.WAIT, scheduler.POISON)

UNSUPPORTED = "CUDA error: operation not permitted when stream is capturing"
INVALIDATED = "CUDA error: operation failed due to a previous error during capture"
UNJOINED = "CUDA error: capturing stream has unjoined work"
ISOLATION = "CUDA error: dependency created on uncaptured work in another stream"
MERGE = "CUDA error: operation would result in a merge of two independent capture sequences"
IMPLICIT = "CUDA error: operation would make the legacy stream depend on a capturing blocking stream"
CAPTURED_EVENT = "CUDA error: operation not permitted on an event last recorded in a capturing stream"


class Capture:
    """What is recorded from one stream and from those that joined it. `active` until it ends."""

    def __init__(self, origin: Stream, mode: str) -> None:
        self.origin = origin
        self.mode = mode
        self.thread = threading.get_ident()
        self.active = True
        self.commands: list[Command] = []
        self._spoiled = False
        self._tails: dict[Stream, Command | None] = {origin: None}

    @property
    def streams(self) -> list[Stream]:
        """The streams that it records, the first of which is where it began."""
        return list(self._tails)

    def join(self, stream: Stream) -> None:
        self._tails.setdefault(stream, None)

    def add(self, command: Command) -> None:
        """Record a command. DriverError: the capture was spoiled."""
        if self._spoiled:
            raise DriverError(INVALIDATED)
        command.prior = self._tails[command.stream]
        self._tails[command.stream] = command
        self.commands.append(command)

    def forbids(self, target: Stream | DeviceState | None) -> bool:
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


class Recorded:
    """A graph: commands to be given again. `lanes`: a stream of its own for each that joined, by the recorded one.

    `last` is the marker that ends its last launch.
    """

    __slots__ = ("_places", "commands", "index", "lanes", "last", "origin")

    def __init__(self, capture: Capture, lanes: dict[Stream, Stream]) -> None:
        self.origin = capture.origin
        self.index = capture.origin.index
        self.commands = capture.commands
        self.lanes = lanes
        self.last: Command | None = None
        self._places = {command: place for place, command in enumerate(self.commands)}
        for command in self.commands:
            command.prior = None

    def copies(self, queue: Stream, seeds: Sequence[tuple[int, int]]) -> Iterator[Command]:
        """Its commands once more, for a launch on `queue`, each after those that it waits for."""
        made: list[Command] = []
        for command in self.commands:
            stream = queue if command.stream is self.origin else self.lanes[command.stream]
            copy = Command(
                command.kind, command.name, stream, command.nbytes, command.engine, command.sms, command.latency,
                command.work, command.effect, _seeded(command, seeds), command.origin,
                tuple([made[self._places[awaited]] for awaited in command.waits]),
            )  # fmt: skip
            copy.site = command.site
            made.append(copy)
            yield copy

    def dump(self, path: str) -> None:
        """Write it as a Graphviz file."""
        lines = ["digraph graph {"]
        tails: dict[Stream, int] = {}
        for place, command in enumerate(self.commands):
            lines.append(
                f'  n{place} [label="{KINDS[command.kind]} {command.name}\\n{command.nbytes} bytes"];'
            )
            before = [self._places[awaited] for awaited in command.waits]
            if command.stream in tails:
                before.insert(0, tails[command.stream])
            lines += [f"  n{earlier} -> n{place};" for earlier in before]
            tails[command.stream] = place
        Path(path).write_text("\n".join([*lines, "}", ""]))


def _seeded(command: Command, seeds: Sequence[tuple[int, int]]) -> tuple[Any, ...]:
    """A command's arguments with the seed and the offset of this launch."""
    if command.kind != scheduler.KERNEL or not command.args[0].launch.kernel.draws:
        return tuple(command.args)
    exe, ptrs, (number, offset, *others) = command.args
    seed, base = seeds[number]
    return exe, ptrs, (seed, base + offset, *others)
