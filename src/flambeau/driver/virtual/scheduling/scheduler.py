"""The scheduler: a discrete-event simulation of commands, streams and engines.

A command becomes runnable when it is the first of its stream and its waits are over. It starts no earlier
than that, no earlier than the host enqueued it, and when its engine has room. Commands run lazily: when the
host waits, polls, or fills a queue. Laziness changes no time: under `Earliest` the heap holds the commands
that a device would have begun, and the host can only add commands that start later.

A command acts on memory when it starts, as one indivisible step. It counts as done from its end on. Markers
(records of events, waits, poison) need no engine and no choice: they happen as soon as they can.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Any, Protocol

from flambeau.core.callsite import Site, launched_at
from flambeau.core.errors import DriverError, HostMemoryError, RaceError
from flambeau.core.host.host_memory import is_shortage
from flambeau.driver.virtual.scheduling.deadlock import deadlock
from flambeau.driver.virtual.scheduling.interrupts import Interrupts
from flambeau.driver.virtual.scheduling.schedule_policy import EARLY, LATE, PollQuestion, SchedulePolicy

KINDS = (
    "kernel", "copy_in", "copy_out", "copy", "fill", "record", "wait", "host_call", "poison", "collective", "exchange",
)  # fmt: skip
KERNEL, COPY_IN, COPY_OUT, COPY, FILL, RECORD, WAIT, HOST_CALL, POISON, COLLECTIVE, EXCHANGE = range(
    len(KINDS)
)
USERS = (COPY_IN, COPY_OUT, HOST_CALL)  # kinds of commands that use host memory
_FLUSH = 1 << 14


@dataclass(frozen=True, slots=True)
class CommandRecord:
    """A command that has run, for observers. Times are in simulated ns; `waits` are the `seq` of other
    commands.
    """

    index: int
    stream: int
    kind: str
    name: str
    start_ns: int
    end_ns: int
    nbytes: int
    seq: int
    waits: tuple[int, ...]


class SimulatedStream:
    """A queue of commands of one device.

    Attributes:
        handle: The driver's handle.
        device: The device.
        end: Simulated time at which the last finished command ended.
        pending: The number of unfinished commands.
        gone: True if the stream was destroyed; it leaves its device with its last command.
        name: The name of a program's stream in reports, as the race detector numbers them.
        priority: The stream's priority.
        tail: The last command.
    """

    __slots__ = ("device", "end", "gone", "handle", "index", "name", "pending", "priority", "tail")

    def __init__(self, handle: int, device: DeviceState, priority: int, name: str = "") -> None:
        self.handle = handle
        self.device = device
        self.index = device.index
        self.priority = priority
        self.name = name
        self.pending = 0
        self.end = 0
        self.gone = False
        self.tail: Command | None = None

    @property
    def head(self) -> Command | None:
        """Return the first unfinished command."""
        return None if self.tail is None else self.tail.head

    def __str__(self) -> str:
        name = self.name or f"stream {self.handle}"
        return f"{name} of cuda:{self.index}"


class DeviceState:
    """The streams, pending work and error of one device.

    Attributes:
        streams: Handle -> stream, for streams that exist or have unfinished commands.
        pending: The number of unfinished commands.
        end: Simulated time at which the last finished command ended.
        error: The error that no call has raised yet, or the sticky error that each call raises; None if neither.
        was_reported: True if a call has raised the sticky error.
    """

    __slots__ = ("end", "error", "index", "pending", "streams", "was_reported")

    def __init__(self, index: int) -> None:
        self.index = index
        self.streams: dict[int, SimulatedStream] = {}
        self.pending = 0
        self.end = 0
        self.error: DriverError | None = None
        self.was_reported = False

    def heads(self) -> list[Command]:
        """Return the first command of each stream that has one."""
        return [s.tail.head for s in self.streams.values() if s.tail is not None]

    def drop_pending(self) -> None:
        """Let all unfinished commands finish without effect, because they may read results that are lost."""
        for command in self.heads():
            following: Command | None = command
            while following is not None:
                if following.effect is not None:
                    following.effect = _do_nothing
                following = following.successor

    @property
    def head(self) -> Command | None:
        """Return the first command of one of the streams."""
        return next(iter(self.heads()), None)

    def __str__(self) -> str:
        return f"device cuda:{self.index}"


class Engine(Protocol):
    """A part of the hardware that commands compete for. Its start times never decrease."""

    @property
    def parts(self) -> tuple[Engine, ...]:
        """Return the parts that have queues of commands; several engines may share a part."""
        ...

    def free_at(self, time: int, sms: int) -> int:
        """Return the first time from `time` on at which a command that needs `sms` multiprocessors can start."""
        ...

    def occupy(self, start: int, command: Command) -> int:
        """Start a command at a time that `free_at` returned; return its end."""
        ...


class Unlimited:
    """The engine of host functions, which serves all of them immediately."""

    parts = ()

    def free_at(self, time: int, sms: int) -> int:
        return time

    def occupy(self, start: int, command: Command) -> int:
        return start + command.latency + command.work


class TransferLane:
    """An engine that runs one command at a time: a copy engine or a link."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until = 0

    @property
    def parts(self) -> tuple[Engine, ...]:
        return (self,)

    def free_at(self, time: int, sms: int) -> int:
        return time if time > self.until else self.until

    def occupy(self, start: int, command: Command) -> int:
        self.until = start + command.latency + command.work
        return self.until


class Path:
    """Several lanes that a command occupies together, such as those of a copy between devices through the
    host.
    """

    __slots__ = ("parts",)

    def __init__(self, *lanes: TransferLane) -> None:
        self.parts = lanes

    def free_at(self, time: int, sms: int) -> int:
        return max([lane.free_at(time, sms) for lane in self.parts])

    def occupy(self, start: int, command: Command) -> int:
        return max([lane.occupy(start, command) for lane in self.parts])


class Processors:
    """The multiprocessors of a device.

    A command starts when half of the multiprocessors that it can use are free, and occupies the free ones. Its
    duration stretches in proportion, so a long kernel on one multiprocessor does not delay large ones.
    """

    __slots__ = ("_clock", "_free", "_running", "_total")

    def __init__(self, sms: int) -> None:
        self._total = sms
        self._free = sms
        self._clock = 0
        self._running: list[tuple[int, int]] = []  # (end, sms), a heap

    @property
    def parts(self) -> tuple[Engine, ...]:
        return (self,)

    def free_at(self, time: int, sms: int) -> int:
        if time < self._clock:
            time = self._clock
        free, needed = self._free, (sms + 1) >> 1
        if free >= needed:
            return time
        for end, held in sorted(self._running):
            free += held
            if free >= needed:
                return end if end > time else time
        raise AssertionError("a command wants more multiprocessors than there are")

    def occupy(self, start: int, command: Command) -> int:
        running = self._running
        while running and running[0][0] <= start:
            self._free += heappop(running)[1]
        self._clock = start
        wanted = command.sms
        granted = wanted if wanted <= self._free else self._free
        self._free -= granted
        work = command.work
        if granted != wanted:
            work = work * wanted // granted
        end = start + command.latency + work
        heappush(running, (end, granted))
        return end


UNLIMITED = Unlimited()


class Command:
    """One unit of work of a stream.

    Attributes:
        ready: The earliest start so far.
        blockers: The number of unfinished commands that it waits for.
        latency: Ns that no engine shortens.
        work: Ns on all the multiprocessors that it can use.
        origin: Distinguishes it from others in the trace: a code of its name, or a relative address.
        engine: The engine; None for a marker.
        seq: Its number, set by `Scheduler.enqueue`.
        start: The time at which it ran, set when it runs; `end` likewise.
        site: The call site, of commands that others may wait for, that may wait, or that may fail.
    """

    __slots__ = (
        "args", "blockers", "done", "effect", "end", "engine", "followers", "kind", "latency", "name",
        "nbytes", "origin", "prior", "ready", "seq", "site", "sms", "start", "stream", "successor", "waits", "work",
    )  # fmt: skip
    ready: int
    start: int
    end: int
    followers: list[Command] | None

    def __init__(
        self, kind: int, name: str, stream: SimulatedStream, nbytes: int, engine: Engine | None, sms: int,
        latency: int, work: int, effect: Callable[..., None] | None, args: tuple[Any, ...], origin: int = 0,
        waits: tuple[Command, ...] = (),
    ) -> None:  # fmt: skip
        self.kind = kind
        self.name = name
        self.stream = stream
        self.nbytes = nbytes
        self.engine: Any = engine
        self.sms = sms
        self.latency = latency
        self.work = work
        self.effect = effect
        self.args: Any = args
        self.origin = origin
        self.waits = waits
        self.seq = -1
        self.blockers = 0
        self.done = False
        self.site: Site | None = None
        self.prior: Command | None = None
        self.successor: Command | None = None
        self.followers = None

    @property
    def pending(self) -> int:
        """Return 1 until the command is done, like the count of a stream with this command alone."""
        return 0 if self.done else 1

    @property
    def absent(self) -> str:
        """Return a text that names the missing members of a collective; "" for other commands."""
        return ""

    @property
    def head(self) -> Command:
        """Return the first unfinished command of its queue."""
        command = self
        while command.prior is not None:
            command = command.prior
        return command

    def __str__(self) -> str:
        number = f"#{self.seq}" if self.seq >= 0 else "not enqueued yet,"
        return f"command {number} '{self.name}' of {self.stream}"

    @property
    def mark(self) -> int:
        """Return a byte computed from kind, size and origin, by which a replay notices a different program."""
        return (self.kind * 31 + self.nbytes * 7 + self.origin) % 251


def arrival(stream: SimulatedStream, end: int) -> Command:
    """Return a finished command that ended at `end`. It stands for another process's record that `stream` waits for."""
    command = Command(RECORD, "record of another process", stream, 0, None, 1, 0, 0, None, ())
    command.done, command.start, command.end = True, end, end
    return command


class RequestLog(Protocol):
    """A subscriber that records the program's requests in their order."""

    def on_poll(self, question: PollQuestion | None, done: bool) -> None: ...
    def on_enqueue(self, command: Command) -> None: ...
    def on_wait(self, target: SimulatedStream | DeviceState | Command) -> None: ...
    def switch_host(self, before: int, after: int) -> None: ...
    def join_hosts(self) -> None: ...


class HostMemoryTracker(Protocol):
    """A subscriber that follows the commands that use host memory."""

    def on_queue(self, command: Command) -> None: ...
    def on_finish(self, command: Command) -> None: ...


class Scheduler:
    """A scheduler that runs commands in simulated time, and owns the trace and the choices of a run."""

    def __init__(
        self, policy: SchedulePolicy, queue: int, leave: Callable[[object], None] = lambda what: None
    ) -> None:
        """Create a scheduler.

        Args:
            policy: Chooses the next command.
            queue: The number of commands that a stream may hold.
            leave: Drops references that a finished command held, see driver_lock.py.
        """
        self.now = 0  # simulated time of the host
        self.waited = 0  # ns of `now` in which the host waited for commands
        self.busy: dict[str, int] = {}  # name of commands -> ns of all of them
        self.next_seq = 0  # the `seq` of the next command
        self.on_command: Callable[[CommandRecord], None] | None = None
        self.running: Command | None = None
        self.host_memory_tracker: HostMemoryTracker | None = None
        self.request_log: RequestLog | None = None
        # called by `step` if no command can run
        self.wait_for_progress: Callable[[SimulatedStream | DeviceState | Command], bool] = lambda target: (
            False
        )
        self.before: Callable[[SimulatedStream | DeviceState | Command], None] | None = None
        self._policy = policy
        self._queue = queue
        self._leave = leave
        self._later: list[Callable[[], None]] = []
        self._choices = array("q")
        self._trace = array("Q")
        self._hash = hashlib.blake2b(digest_size=16)

    # -- the host's side --------------------------------------------------------------------------------
    def enqueue(self, command: Command) -> None:
        """Append a command to its stream."""
        if self.running is not None:  # a destructor that runs inside a kernel's body
            self.defer(partial(self.enqueue, command))
            return
        stream = command.stream
        self._link(command, stream)
        if stream.pending > self._queue:  # a full queue: the host waits until its oldest command is done
            self._wait(stream, self._queue)

    def announce(self, command: Command, arrivals: int) -> None:
        """Register a command that belongs to no stream and runs after `arrivals` markers. `attend` adds the markers.

        The command gets its number with the last marker, so a replay numbers such commands in that order.
        """
        command.ready = 0
        command.blockers = arrivals
        command.stream.pending += 1
        command.stream.device.pending += 1

    def attend(self, command: Command, marker: Command, last: bool) -> None:
        """Add a marker that an announced command waits for. `last` is True if it is the last one."""
        command.waits += (marker,)
        if last:
            self._number(command)
            if self.request_log is not None:
                self.request_log.on_enqueue(command)
        if marker.done:
            self._unblock(command, marker.end, [])
        elif marker.followers is None:
            marker.followers = [command]
        else:
            marker.followers.append(command)

    def attend_at(self, command: Command, time: int) -> None:
        """Count an arrival of members in other processes, at a given time, at a registered command."""
        self._number(command)
        self._unblock(command, time, [])

    def excuse(self, command: Command, arrivals: int) -> None:
        """Stop waiting for `arrivals` markers of a registered command that will never be enqueued."""
        self._number(command)
        for _ in range(arrivals):
            self._unblock(command, 0, [])

    def _number(self, command: Command) -> None:
        if command.seq < 0:
            command.seq = self.next_seq
            self.next_seq += 1

    def defer(self, call: Callable[[], None]) -> None:
        """Call a function after the command that is running."""
        self._later.append(call)

    def _link(self, command: Command, stream: SimulatedStream) -> None:
        command.seq = self.next_seq
        self.next_seq += 1
        if self.request_log is not None:
            self.request_log.on_enqueue(command)
        tail = stream.tail
        stream.tail = command
        stream.pending += 1
        stream.device.pending += 1
        command.ready = self.now if self.now > stream.end else stream.end
        command.prior = tail
        if tail is not None:
            command.blockers = 1
            tail.successor = command
        for awaited in command.waits:
            # created before the check: no garbage collection may run between check and append
            alone = [command]
            if awaited.done:
                command.ready = max(command.ready, awaited.end)
            else:
                command.blockers += 1
                if awaited.followers is None:
                    awaited.followers = alone
                else:
                    awaited.followers.append(command)
        if not command.blockers:
            if command.engine is None:
                self._finish(command)
            else:
                self._policy.offer(command)

    def wait(self, target: SimulatedStream | DeviceState | Command) -> None:
        """Make the host wait until a stream, device or command has no pending command.

        KeyboardInterrupt is raised between two commands; the rest stays queued.
        """
        if self.request_log is not None:
            self.request_log.on_wait(target)
        self._wait(target, 0)

    def run_ahead(self, command: Command) -> None:
        """Run commands until this one has finished, without advancing the host's time: another process needs its
        effect.
        """
        if self.running is not None:
            self.defer(partial(self.run_ahead, command))
            return
        now, waited = self.now, self.waited
        self.wait(command)
        self.now, self.waited = now, waited

    def _wait(self, target: SimulatedStream | DeviceState | Command, left: int) -> None:
        """Make the host wait until at most `left` commands are pending."""
        going = True
        while going and target.pending > left:
            with Interrupts() as interrupts:
                while going and target.pending > left and not interrupts.pending:
                    going = self.step(target, left > 0)
        if target.end > self.now:
            self.waited += target.end - self.now
            self.now = target.end

    def run_all(self) -> None:
        """Run all commands that can run, without a host wait, because the host is about to wait for something else."""
        if self.running is not None:
            return
        with Interrupts() as interrupts:
            while not interrupts.pending and (command := self._policy.take(None)) is not None:
                self._run(command)

    def poll(self, question: PollQuestion | None) -> bool:
        """Run the commands that the policy chooses in a poll. Return True if the polled work is done, or for None."""
        if self.running is not None:
            return self._is_over(question)
        policy = self._policy
        with Interrupts() as interrupts:
            while not interrupts.pending and (command := policy.take(self.now, question)) is not None:
                self._run(command)
            answer = policy.answer(question)
            self._choices.append(answer)
        if answer == LATE and question is not None:
            self.now = max(self.now, question.target.end)
        done = answer != EARLY and self._is_over(question)
        if self.request_log is not None:
            self.request_log.on_poll(question, done)
        return done

    def _is_over(self, question: PollQuestion | None) -> bool:
        return question is None or (not question.target.pending and question.target.end <= self.now)

    @property
    def idle(self) -> bool:
        """Return True if no command is runnable, and none will be before the host enqueues more."""
        return not self._policy.runnable

    # -- the device's side ------------------------------------------------------------------------------
    def step(self, target: SimulatedStream | DeviceState | Command, full: bool = False) -> bool:
        """Run one command, or wait until another thread makes one runnable.

        `before` runs first. The queue of a stream may grow beyond its limit if a rank that has not joined a
        collective needs this thread's lock to join.

        Args:
            target: What the host waits for.
            full: True if the host waits only because a queue is full.

        Returns:
            False if no command can run and `full` is set.

        Raises:
            DriverError: If no command can ever run although the host waits for `target`.
        """
        if self.running is not None:
            raise DriverError(
                f"CUDA error: operation not permitted: the host waits inside '{self.running.name}', which a "
                "stream runs; host functions and kernel bodies must make no driver call"
            )
        if self.before is not None and not full:
            self.before(target)
            if not target.pending:
                return True
        command = self._policy.take(None)
        if command is not None:
            self._run(command)
        elif full:
            return False
        elif not self.wait_for_progress(target):
            raise DriverError(deadlock(target))
        return True

    def _run(self, command: Command) -> None:
        start = command.engine.free_at(command.ready, command.sms)
        command.start = start
        command.end = end = command.engine.occupy(start, command)
        self.busy[command.name] = self.busy.get(command.name, 0) + end - start
        self._choices.append(command.seq << 8 | command.mark)
        self.running = command
        try:
            if command.stream.device.error is None:
                command.effect(*command.args)  # type: ignore[misc]
        except RaceError:  # raised in a host function; the device itself has no error
            raise
        except Exception as error:  # kept until the host synchronizes, as a device keeps it
            command.stream.device.error = _device_error(command, error)
        finally:
            self.running = None
            self._finish(command)
            while self._later:
                self._later.pop(0)()

    def _finish(self, first: Command) -> None:
        """Mark a command as done, and run every marker that becomes runnable by it."""
        done = [first]
        for command in done:  # the list grows when markers become runnable
            stream, device = command.stream, command.stream.device
            if command.engine is None:
                command.start = command.end = command.ready
                if command.kind == COLLECTIVE:  # the time of a collective begins when its stream arrives
                    command.start = command.args[0].end
                if command.effect is not None and device.error is None:
                    command.effect(*command.args)
            end = command.end
            command.done = True
            stream.pending -= 1
            device.pending -= 1
            stream.end = end
            if end > device.end:
                device.end = end
            self._note(command)
            successor, followers = command.successor, command.followers
            if successor is None:
                stream.tail = None
                if stream.gone:
                    del device.streams[stream.handle]
            else:
                successor.prior = None
                self._unblock(successor, end, done)
            if followers is not None:
                for follower in followers:
                    self._unblock(follower, end, done)
            if command.effect is not None and command.kind != KERNEL:  # kernels keep no memory alive
                if self.host_memory_tracker is not None and command.kind in USERS:
                    self.host_memory_tracker.on_finish(command)
                self._leave((command.effect, command.args))
            command.effect = command.args = command.successor = command.followers = None
            command.waits = ()

    def _unblock(self, command: Command, time: int, done: list[Command]) -> None:
        if time > command.ready:
            command.ready = time
        command.blockers -= 1
        if not command.blockers:
            if command.engine is None:
                done.append(command)
            else:
                self._policy.offer(command)

    # -- what is known afterwards -----------------------------------------------------------------------
    def _note(self, command: Command) -> None:
        stream = command.stream
        self._trace.extend(
            (
                command.kind << 48 | stream.index << 40 | stream.handle,
                command.origin,
                command.nbytes,
                command.start,
                command.end,
            )
        )
        if len(self._trace) > _FLUSH:
            self._flush()
        if (
            self.on_command is not None and command.kind != EXCHANGE
            # A collective belongs to no stream; its ends are notified instead.
        ):
            self.on_command(_record(command))

    def _flush(self) -> None:
        self._hash.update(self._trace.tobytes())
        del self._trace[:]

    def trace_hash(self) -> str:
        self._flush()
        return self._hash.hexdigest()

    @property
    def choices(self) -> array[int]:
        return self._choices


def _do_nothing(*args: object) -> None:
    pass


def _record(command: Command) -> CommandRecord:
    stream = command.stream
    return CommandRecord(
        stream.index, stream.handle, KINDS[command.kind], command.name, command.start, command.end,
        command.nbytes, command.seq, tuple([c.seq for c in command.waits]),
    )  # fmt: skip


def _device_error(command: Command, error: Exception) -> DriverError:
    if isinstance(error, HostMemoryError):  # address space, which is reserved at its first use
        return error.with_traceback(None)
    what = f"{type(error).__name__}: {error}".rstrip(".")
    if is_shortage(error):  # not an error of the program
        wrapped: DriverError = HostMemoryError(
            f"cuda:{command.stream.index}: the host had no memory to compute '{command.name}' ({what}). This is a "
            f"limit of the host, not of the simulated GPU.{launched_at(command.site)} The results are lost, and so are "
            "those of all work that was enqueued before this error is raised; later work runs. Fix: simulate without "
            "data (virtual(data=False) or FLAMBEAU_VIRTUAL_DATA=0), take a smaller problem or a larger host."
        )
        wrapped.__cause__ = error.with_traceback(None)
        return wrapped
    wrapped = DriverError(
        f"CUDA error: device-side assert triggered: '{command.name}' on cuda:{command.stream.index} (stream "
        f"{command.stream.handle}) failed with {what}.{launched_at(command.site)} The error was seen at a "
        "synchronization, and stays: no later work of this device runs."
    )
    # The traceback is dropped: it would keep the frames, and hence the tensors, of an unrelated caller
    # alive.
    wrapped.__cause__ = error.with_traceback(None)
    return wrapped
