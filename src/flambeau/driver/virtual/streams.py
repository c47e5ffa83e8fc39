"""The streams of a virtual machine, and the functions through which all commands enter them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.core.callsite import caller
from flambeau.core.errors import DriverError, NotSupportedError
from flambeau.driver.virtual.capture import UNSUPPORTED, Captures
from flambeau.driver.virtual.collectives.collectives import VirtualCommunicators
from flambeau.driver.virtual.scheduling.schedule_policy import PollQuestion
from flambeau.driver.virtual.scheduling.scheduler import USERS, Command, Engine, SimulatedStream
from flambeau.driver.virtual.simulated_machine import SimulatedMachine, check_error

RELATIVE = (1 << 48) - 1
"""A mask that removes the machine's generation from an address, for traces."""


class Queues:
    """The streams of a machine, by handle."""

    def __init__(self, machine: SimulatedMachine, captures: Captures, comms: VirtualCommunicators) -> None:
        self._machine, self._captures, self._comms = machine, captures, comms
        self.streams = {d.default.handle: d.default for d in machine.devices}

    def stream(self, handle: int) -> SimulatedStream:
        found = self.streams.get(handle)
        return found if found is not None else self._machine.unknown("stream", handle)

    def ready(self, handle: int) -> SimulatedStream:
        """Return a stream. Raises its device's sticky error if there is one."""
        found = self.stream(handle)
        check_error(found.device)
        return found

    def is_default(self, queue: SimulatedStream) -> bool:
        return queue is self._machine.devices[queue.index].default

    # -- commands -----------------------------------------------------------------------------------------
    def put(
        self, kind: int, name: str, stream: SimulatedStream, nbytes: int, engine: Engine | None, latency: int,
        work: int, effect: Callable[..., None] | None, args: tuple[Any, ...], origin: int = 0, sms: int = 1,
        waits: tuple[Command, ...] = (),
    ) -> Command:  # fmt: skip
        """Enqueue a new command. `Command` documents the arguments."""
        command = Command(
            kind, name, stream, nbytes, engine, sms, latency, work, effect, args, origin & RELATIVE, waits
        )
        self.enqueue(command)
        return command

    def mark(
        self, kind: int, name: str, stream: SimulatedStream, origin: int, waits: tuple[Command, ...] = ()
    ) -> Command:
        """Enqueue a record or a wait with its call site, which deadlock reports show."""
        marker = Command(kind, name, stream, 0, None, 1, 0, 0, None, (), origin, waits)
        marker.site = caller(2)
        self.enqueue(marker)
        return marker

    def enqueue(self, command: Command) -> None:
        """Enqueue a command, or record it if its stream is captured."""
        recorder = self._captures.of.get(command.stream)
        if recorder is None:
            self.run(command)
        else:
            recorder.add(command)

    def run(self, command: Command) -> None:
        """Enqueue a command that is not part of a capture."""
        core = self._machine.core
        core.enqueue(command)
        if core.host_memory_tracker is not None and command.kind in USERS:
            core.host_memory_tracker.on_queue(command)

    # -- streams ------------------------------------------------------------------------------------------
    def create_side(self, index: int, priority: int) -> SimulatedStream:
        """Create a stream of the program."""
        device = self._machine.device(index)
        device.sides += 1
        return self.create(index, priority, f"side stream {device.sides}")

    def create(self, index: int, priority: int, name: str = "") -> SimulatedStream:
        machine = self._machine
        device = machine.device(index)
        machine.core.now += machine.profile.costs.call_ns
        stream = SimulatedStream(next(machine.handles), device.state, max(min(priority, 0), -1), name)
        self.streams[stream.handle] = device.state.streams[stream.handle] = stream
        return stream

    def destroy(self, handle: int) -> None:
        gone = self.stream(handle)
        if gone in self._captures.of:
            raise DriverError(UNSUPPORTED)
        if self.is_default(gone):
            raise DriverError(f"stream_destroy: stream {handle} is the default stream of cuda:{gone.index}")
        del self.streams[handle]
        gone.gone = True
        if not gone.pending:
            del gone.device.streams[handle]

    def native(self, handle: int) -> int:
        return 0 if self.is_default(self.stream(handle)) else handle << 4

    def adopt(self, index: int, native: int) -> int:
        device = self._machine.device(index)
        if native in (0, 1):
            return device.default.handle
        found = self.streams.get(native >> 4)
        if found is None or native & 15 or found.index != index:
            raise NotSupportedError(
                f"cuda:{index} has no stream {native:#x}: its Stream is gone, or it is another library's, "
                "which virtual GPUs do not take over"
            )
        return found.handle

    def query(self, handle: int) -> bool:
        found = self.stream(handle)
        self._captures.refuse(found)
        core = self._machine.core
        core.now += self._machine.profile.costs.poll_ns
        done = core.poll(PollQuestion(found, internal=False))
        check_error(found.device)
        if not done:
            self._comms.linger(found)
        return done

    def sync(self, handle: int) -> None:
        found = self.stream(handle)
        self._captures.refuse(found)
        core = self._machine.core
        core.now += self._machine.profile.costs.sync_ns
        core.wait(found)
        check_error(found.device)
