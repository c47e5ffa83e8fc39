"""The events of a virtual machine: positions in streams that the host and other streams wait for."""

from __future__ import annotations

from flambeau.core.errors import TIMED_INTERPROCESS, DriverError, NotReadyError
from flambeau.driver.virtual.capture import Captures, VirtualCapture
from flambeau.driver.virtual.collectives.collectives import VirtualCommunicators
from flambeau.driver.virtual.memory import virtual_ipc
from flambeau.driver.virtual.memory.shared_events import EventCells, SharedEvent
from flambeau.driver.virtual.scheduling import scheduler
from flambeau.driver.virtual.scheduling.schedule_policy import PollQuestion
from flambeau.driver.virtual.scheduling.scheduler import Command
from flambeau.driver.virtual.simulated_machine import SimulatedMachine, check_error
from flambeau.driver.virtual.streams import RELATIVE, Queues


class Event:
    """An event of a device.

    Attributes:
        record: The marker command of its last record.
        capture: The capture that contains the last record, if there is one.
        shared: The event's cell in shared memory, if it was exported or is another process's.
    """

    __slots__ = ("capture", "index", "interprocess", "record", "shared", "timing")

    def __init__(self, index: int, timing: bool, interprocess: bool) -> None:
        self.index = index
        self.timing = timing
        self.interprocess = interprocess
        self.record: Command | None = None
        self.capture: VirtualCapture | None = None
        self.shared: SharedEvent | None = None


class Events:
    """The events of a machine, by handle."""

    def __init__(
        self, machine: SimulatedMachine, queues: Queues, captures: Captures, comms: VirtualCommunicators
    ) -> None:
        self._machine, self._queues, self._captures, self._comms = machine, queues, captures, comms
        self._core, self._costs = machine.core, machine.profile.costs
        self._events: dict[int, Event] = {}
        self._cells = EventCells()

    def clear(self) -> None:
        self._events.clear()
        self._cells.clear()

    def _event(self, handle: int) -> Event:
        found = self._events.get(handle)
        return found if found is not None else self._machine.unknown("event", handle)

    def create(self, index: int, timing: bool, interprocess: bool) -> int:
        self._machine.device(index)
        if timing and interprocess:
            raise DriverError(TIMED_INTERPROCESS)
        handle = next(self._machine.handles)
        self._events[handle] = Event(index, timing, interprocess)
        self._core.now += self._costs.call_ns
        return handle

    def destroy(self, handle: int) -> None:
        shared = self._event(handle).shared
        if shared is not None:
            self._cells.give_back(shared)
        del self._events[handle]

    # -- on streams ---------------------------------------------------------------------------------------
    def record(self, handle: int, stream: int) -> None:
        found, queue = self._event(handle), self._queues.stream(stream)
        if found.index != queue.index:
            raise DriverError(
                f"event_record: event {handle} belongs to cuda:{found.index}, stream {stream} to "
                f"cuda:{queue.index}; they must be of one device"
            )
        self._core.now += self._costs.call_ns
        found.record = self._queues.mark(scheduler.RECORD, "record", queue, handle)
        found.capture = self._captures.of.get(queue)
        if found.interprocess and found.capture is None:
            self._core.run_ahead(found.record)
            if found.shared is not None:
                self._publish(found)

    def wait(self, stream: int, handle: int) -> None:
        """Make a stream wait for an event."""
        queue, found = self._queues.stream(stream), self._event(handle)
        awaited, shared = found.record, found.shared
        if shared is not None and shared.is_foreign:
            awaited = scheduler.arrival(queue, shared.due(self._core.now))
        self._core.now += self._costs.call_ns
        if awaited is not None:
            if self._captures.of or found.capture is not None:
                self._captures.join(queue, found.capture, self._queues.is_default(queue))
            self._queues.mark(scheduler.WAIT, "wait", queue, awaited.seq & RELATIVE, (awaited,))

    # -- on the host --------------------------------------------------------------------------------------
    def query(self, handle: int, internal: bool) -> bool:
        found = self._event(handle)
        self._captures.refuse_event(found.capture)
        core, record, shared = self._core, found.record, found.shared
        core.now += self._costs.poll_ns
        if shared is not None:
            if shared.is_foreign:
                record = None
            elif record is not None and shared.is_complete:  # another process's host has waited for it
                core.now = max(core.now, record.end)
        done = core.poll(None if record is None else PollQuestion(record, internal))
        check_error(self._machine.devices[found.index].state)
        if record is not None and not done:
            self._comms.linger(record)
        if shared is not None:
            done = done and (not shared.is_foreign or shared.due(core.now) <= core.now)
            if done:
                shared.complete()
        return done

    def sync(self, handle: int) -> None:
        found = self._event(handle)
        self._captures.refuse_event(found.capture)
        self._core.now += self._costs.sync_ns
        shared = found.shared
        if shared is not None and shared.is_foreign:
            self._core.now = max(self._core.now, shared.due(self._core.now))
        elif found.record is not None:
            self._core.wait(found.record)
        if shared is not None:
            shared.complete()
        check_error(self._machine.devices[found.index].state)

    def elapsed_ns(self, start: int, end: int) -> int:
        first, last = self._event(start), self._event(end)
        if first.index != last.index:
            raise DriverError(
                f"event_elapsed_ns: the events belong to cuda:{first.index} and cuda:{last.index}; "
                "time is measured on one device"
            )
        self._captures.refuse_event(first.capture)
        self._captures.refuse_event(last.capture)
        self._core.poll(None)
        times = [self._time_of(event, found) for event, found in ((start, first), (end, last))]
        return times[1] - times[0]

    def _time_of(self, handle: int, event: Event) -> int:
        if not event.timing:
            raise DriverError(f"event_elapsed_ns: event {handle} was created without timing")
        if event.record is None:
            raise DriverError(f"event_elapsed_ns: event {handle} was never recorded")
        if not event.record.done or event.record.end > self._core.now:
            raise NotReadyError(
                f"event_elapsed_ns: event {handle} is not complete; synchronize with it first"
            )
        return event.record.end

    # -- of other processes: see Note [Events of other processes] in virtual_ipc.py -------------------------------
    def export(self, handle: int) -> bytes:
        """Return an IPC handle of an event."""
        found = self._event(handle)
        if not found.interprocess:
            raise DriverError(
                f"CUDA error: invalid argument: ipc_event: event {handle} was not created interprocess"
            )
        if found.shared is None:
            found.shared = self._cells.take()
            if found.record is not None:
                self._publish(found)
        door = self._cells.door_of(found.shared)
        if door is None:
            raise DriverError(
                f"CUDA error: invalid resource handle: event {handle} is another process's; that process exports it"
            )
        uuid = self._machine.shared_pages(self._machine.devices[found.index]).uuid
        return virtual_ipc.event_handle(door, uuid, found.shared.number)

    def _publish(self, event: Event) -> None:
        """Publish the event's last record to other processes, after its commands have run."""
        assert event.shared is not None
        assert event.record is not None
        event.shared.publish(max(0, event.record.end - self._core.now))

    def open(self, index: int, handle: bytes) -> int:
        """Create an event that stands for an event of another process."""
        uuid = self._machine.shared_pages(self._machine.device(index)).uuid
        door, number = virtual_ipc.parse_event(handle, uuid)
        try:
            cell = self._cells.open(door, number)
        except ProcessLookupError as error:
            raise DriverError(f"CUDA error: invalid resource handle: {error}") from None
        opened = self.create(index, timing=False, interprocess=True)
        cell.due(self._core.now)  # the remaining time of its record counts from here
        self._events[opened].shared = cell
        return opened
