"""Collectives of virtual GPUs, under NCCL's rules.

# Note [Collective instances] A member's contribution is two markers in its stream, an arrival and an end.
The collective itself is a separate command, the instance, that waits for the arrivals of all members. Each
end waits for the instance. A collective therefore begins when the last member has arrived and ends for all
members at the same time. Streams stay in order, and the schedule chooses when an instance runs as for any
other command. Contributions of one group share their markers on each stream: none waits for another of the
group, as between ncclGroupStart and ncclGroupEnd. Groups of one member run one after the other on whatever
streams (NCCL orders the launches of a communicator).

The n-th collective of a member pairs with the n-th of the others; its n-th message to a peer pairs with the
peer's n-th receipt from it. All contributions are known when the last one is enqueued, before anything
runs. Mismatches are reported at that time, with every member's call site. The communicator has then failed,
and so have its members' devices, as after any error of a command.

driver/collective_rules.py defines how numbers are reduced.

# Note [Members of other processes] A process simulates its members' streams. The transport
`Outside`, which the starter of the ranks serves, connects members of other processes. When a contribution's
arrival is at the head of its stream, it is offered to them with its data and its time. The instance counts
the offers of all others as one more arrival. The process asks for offers when nothing else can run here, so
the order of local commands does not depend on which process is faster. Every process then reduces all data
itself, in the order of the ranks, and begins at the latest time. Results and times are therefore equal
everywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from flambeau.core.callsite import Site, caller, place
from flambeau.core.errors import DriverError
from flambeau.core.host.host_wait import Awaited
from flambeau.core.host.thread_liveness import alone
from flambeau.core.host.turn_scheduler import Seat, seat
from flambeau.driver.collective_rules import PAIRED, Course, Key, common_arguments, describe, duplicate, spans
from flambeau.driver.protocol import Collective
from flambeau.driver.virtual.scheduling import scheduler
from flambeau.driver.virtual.scheduling.deadlock import asked_in_vain, deadlock, waiting
from flambeau.driver.virtual.scheduling.scheduler import (
    Command,
    DeviceState,
    Engine,
    Scheduler,
    SimulatedStream,
)

NOWHERE = 255  # the device index of commands that belong to no device


class Offer(NamedTuple):
    """A contribution as it is sent to other processes. `text` describes the member, its call site and the
    call.
    """

    call: Collective
    text: str
    data: bytes
    ready_ns: int

    def __str__(self) -> str:
        return self.text


Outcome = tuple[bytes, Key, dict[int, Offer]]
"""A complete instance: its communicator, its key there, and the offer of each place."""
Meanwhile = Callable[[list[Outcome]], None]


class Outside(Protocol):
    """The transport to members in other processes; see Note [Members of other processes].

    Calls raise DriverError with a report when a process has died, or when all processes are deadlocked.
    """

    def join(
        self,
        unique: bytes,
        called: Sequence[int],
        members: Sequence[tuple[int, int]],
        site: str,
        meanwhile: Meanwhile,
    ) -> dict[int, int]:
        """Add members to a communicator, wait until all members have joined, and return rank -> device.

        Args:
            unique: The communicator's identity.
            called: The rank numbers that reports show.
            members: (rank, device) of the members that this process adds.
            site: The call site, and the purpose of the communicator.
            meanwhile: Callback for instances that must run before others can join.
        """
        ...

    def offer(self, unique: bytes, key: Key, place: int, offer: Offer) -> None:
        """Send a contribution whose stream has reached the collective to the other processes.

        `place` is the rank; for a message it is 0 for the sender and 1 for the receiver.
        """
        ...

    def wait(self, why: Callable[[], str]) -> list[Outcome]:
        """Wait for and return the next instances whose offers are complete.

        Called when nothing can run here. `why` describes what this process waits for, in case of a
        deadlock.
        """
        ...

    def look(self) -> list[Outcome]:
        """Return the instances whose offers are complete, without waiting."""
        ...

    def idle(self, other: Awaited) -> tuple[list[Outcome], bool]:
        """Report that the host waits for `other`. Return instances that others need meanwhile, and True if
        `other` arrived.
        """
        ...


class Contribution:
    """One member's contribution to a collective: its call and its call site.

    Attributes:
        rank: The member's number in the communicator.
        called: The program's own numbers of the ranks; empty if they are equal.
        call: The collective as the driver received it.
        stream: The stream in which the collective waits.
        site: The call site.
    """

    __slots__ = ("call", "called", "rank", "site", "stream")

    def __init__(
        self, rank: int, call: Collective, stream: SimulatedStream, site: Site, called: Sequence[int] = ()
    ) -> None:
        self.rank = rank
        self.called = called
        self.call = call
        self.stream = stream
        self.site = site

    def __str__(self) -> str:
        return f"{self.who} (cuda:{self.stream.index}) at {place(self.site)}: {self.asks}"

    @property
    def who(self) -> str:
        return f"rank {self.called[self.rank] if self.called else self.rank}"

    @property
    def asks(self) -> str:
        return describe(self.call, self.called)


class CollectiveInstance(Command):
    """One execution of a collective or of one message.

    Attributes:
        comm: The communicator.
        key: Sender, receiver (-1 for collectives) and sequence number.
        ranks: The ranks that take part; for a message, the sender first.
        parts: Position in `ranks` -> contribution queued so far.
        mine: Positions in `ranks` that this process has.
        arrived: The number of contributions whose stream has reached the collective.
    """

    __slots__ = ("arrived", "comm", "key", "mine", "parts", "ranks")

    def __init__(
        self, comm: VirtualCommunicator, stream: SimulatedStream, call: Collective, key: Key
    ) -> None:
        sender, receiver, number = key
        ranks = range(comm.size) if sender < 0 else (sender, receiver)
        nbytes = call.count * call.dtype.itemsize
        name = "send/recv" if call.kind in PAIRED else call.kind
        engine, latency, work = comm.route(name, nbytes, ranks)
        super().__init__(scheduler.EXCHANGE, name, stream, nbytes, engine, 1, latency, work, None, (), number)
        self.comm = comm
        self.key = key
        self.ranks: Sequence[int] = ranks
        self.mine = [place for place, rank in enumerate(ranks) if rank in comm.members]
        self.parts: dict[int, Contribution | Offer] = {}
        self.arrived = 0

    @property
    def arrivals(self) -> int:
        """Return how many arrivals to wait for: one for each rank of this process, one for all other processes."""
        return len(self.mine) + (len(self.mine) < len(self.ranks))

    @property
    def states(self) -> list[DeviceState]:
        """Return the devices of this process that take part."""
        return [self.comm.members[self.ranks[place]].state for place in self.mine]

    @property
    def theirs(self) -> dict[int, bytes]:
        """Return the data of members in other processes: position in `ranks` -> data."""
        return {place: part.data for place, part in self.parts.items() if isinstance(part, Offer)}

    @property
    def absent(self) -> str:
        """Return a text that names the members that have not arrived; "" if all have."""
        missing = [rank for place, rank in enumerate(self.ranks) if place not in self.parts]
        who = [*dict.fromkeys([self.comm.who(rank) for rank in missing])]
        if self.key[0] >= 0 and len(self.parts) == 1:
            return f"the {'recv' if self.parts.get(0) else 'send'} of {who[0]}, which has not arrived"
        if len(who) > 1 and not self.comm.members.keys() >= {
            *missing
        }:  # this process does not know which members of other processes are missing
            return f"{', '.join(who[:-1])} or {who[-1]}, of other processes"
        verb = "has" if len(who) == 1 else "have"
        return f"{' and '.join(who)}, which {verb} not arrived" if who else ""

    @property
    def calls(self) -> list[Collective]:
        """Return all members' calls, once all are known."""
        return [self.parts[place].call for place in range(len(self.ranks))]

    def accesses(self) -> Iterator[tuple[int, int, bool, bool]]:
        """Yield (address, bytes, is read, is written) for all contributions."""
        for slot in self.mine:
            written, read = spans(self.parts[slot].call, self.ranks[slot], self.comm.size)
            if written is not None:
                yield *written, False, True
            if read is not None:
                yield *read, True, False

    def __str__(self) -> str:
        what = self.name
        if self.key[0] >= 0:
            contributions = [
                f"{part.who}'s {part.asks}" for part in self.parts.values() if isinstance(part, Contribution)
            ]
            sender, receiver = map(self.comm.name, self.ranks)
            what = contributions[0] if len(contributions) == 1 else f"the message from {sender} to {receiver}"
        return f"{what}, call {self.key[2]} of {self.comm}"


class Member:
    """One rank of a communicator, on a device of this machine."""

    __slots__ = ("comm", "course", "handle", "last", "open", "rank", "state", "thread")

    def __init__(self, comm: VirtualCommunicator, rank: int, handle: int, state: DeviceState) -> None:
        self.comm = comm
        self.rank = rank
        self.handle = handle
        self.state = state
        self.course = Course(rank)
        self.last: Command | None = None  # the last command of its last group
        self.open = True
        # the thread that joined; a collective that waits for it fails if it has ended
        self.thread = threading.current_thread()


class VirtualCommunicator:
    """A communicator whose members have joined or are joining.

    Attributes:
        members: Rank -> member, for the members of this process.
        devices: Rank -> device, for all members.
        called: The program's own numbers of the ranks.
        purpose: The program's group that the communicator serves.
        failed: The report of its failure; None while it works.
    """

    def __init__(
        self, unique: bytes, number: int, size: int, route: Callable[..., tuple[Engine, int, int]]
    ) -> None:
        self.unique = unique
        self.number = number
        self.size = size
        self.members: dict[int, Member] = {}
        self.devices: dict[int, int] = {}
        self.called: Sequence[int] = ()
        self.purpose = ""
        self.failed: str | None = None
        self.meetings: dict[Key, CollectiveInstance] = {}  # key -> instance that lacks contributions
        self.state = DeviceState(NOWHERE)
        self._route = route

    def route(self, kind: str, nbytes: int, ranks: Sequence[int]) -> tuple[Engine, int, int]:
        return self._route(kind, nbytes, [self.devices[rank] for rank in ranks])

    @property
    def full(self) -> bool:
        return len(self.devices) == self.size

    def name(self, rank: int) -> str:
        return f"rank {self.called[rank] if self.called else rank}"

    def who(self, rank: int) -> str:
        name = self.name(rank)
        if rank not in self.devices:
            return name
        left = rank in self.members and not self.members[rank].open
        return f"{name} (cuda:{self.devices[rank]}{', left' if left else ''})"

    def __str__(self) -> str:
        of = f" ({self.purpose})" if self.purpose else ""
        return f"communicator {self.number} of {self.size} ranks{of}"


class VirtualCommunicators:
    """All communicators of a machine. Its callers hold the machine's lock."""

    def __init__(
        self,
        core: Scheduler,
        changed: threading.Condition,
        handles: Iterator[int],
        route: Callable[..., tuple[Engine, int, int]],
    ) -> None:
        self._core = core
        self._changed = changed
        self._handles = handles
        self._route = route
        core.wait_for_progress = self.wait_for_progress
        self._vain = 0  # consecutive polls whose answer cannot change any more
        self._since = (0, 0)
        self.outside: Outside | None = None
        # (address, bytes) -> device memory as an array; set by the driver
        self.numbers: Callable[[int, int], Any] = lambda ptr, nbytes: b""
        self._by_id: dict[bytes, VirtualCommunicator] = {}  # communicators that lack members
        self._shared: dict[bytes, VirtualCommunicator] = {}  # communicators with members of other processes
        self._members: dict[int, Member] = {}
        self._made = 0
        self._news = 0  # number of changes that may let a blocked thread continue
        self._stuck: dict[threading.Thread, int] = {}  # blocked thread -> value of _news when it blocked

    def member(self, handle: int) -> Member:
        found = self._members.get(handle)
        if found is None:
            raise DriverError(
                f"CUDA error: invalid resource handle: {handle} is not a communicator of this machine, or destroyed"
            )
        return found

    # -- joining and leaving ----------------------------------------------------------------------------
    def create(
        self,
        unique: bytes,
        size: int,
        members: Sequence[tuple[int, int, DeviceState]],
        called: Sequence[int] = (),
        name: str = "",
    ) -> list[int]:
        """Join a communicator. Return (rank, handle, device) of the members of this call once all members have
        joined.
        """
        comm = self._by_id.get(unique)
        self._check_join(comm, size, members)
        if comm is None:
            self._made += 1
            comm = self._by_id[unique] = VirtualCommunicator(unique, self._made, size, self._route)
            comm.called, comm.purpose = called, name
        for rank, handle, state in members:
            comm.members[rank] = self._members[handle] = Member(comm, rank, handle, state)
            comm.devices[rank] = state.index
        if len(members) < size:
            self._core.before = self.before
        self._notify()
        try:
            self._join_others(comm, [(rank, state.index) for rank, _, state in members])
        except BaseException:
            for rank, handle, _ in members:
                del comm.members[rank], comm.devices[rank], self._members[handle]
            raise
        self._by_id.pop(unique, None)
        return [handle for _, handle, _ in members]

    def _join_others(self, comm: VirtualCommunicator, members: Sequence[tuple[int, int]]) -> None:
        """Wait until all members have joined, in this process and in others."""
        if self.outside is not None and len(members) < comm.size:
            self.go_on(None)
            called = comm.called or range(comm.size)
            site = f"{place(caller())} ({comm.purpose})" if comm.purpose else place(caller())
            comm.devices |= self.outside.join(comm.unique, called, members, site, self._go_on_with)
            self._shared[comm.unique] = comm
        else:
            self._wait(lambda: comm.full or comm.failed is not None, lambda: _not_joined(comm))
        if comm.failed is not None:
            raise DriverError(comm.failed)

    def _check_join(
        self, comm: VirtualCommunicator | None, size: int, members: Sequence[tuple[int, int, DeviceState]]
    ) -> None:
        ranks = [rank for rank, _, _ in members]
        devices = [state.index for _, _, state in members]
        if size < 1 or not members or len({*ranks}) < len(ranks) or not all(0 <= r < size for r in ranks):
            raise DriverError(f"comm_create: {size} members cannot have the ranks {ranks}")
        if comm is not None:
            if comm.failed is not None:
                raise DriverError(comm.failed)
            if comm.size != size:
                raise DriverError(
                    f"comm_create: ranks {ranks} say that there are {size} members, the others say {comm.size}"
                )
            taken = [rank for rank in ranks if rank in comm.members]
            if taken:
                raise DriverError(f"comm_create: rank {taken[0]} has joined already")
            devices += [member.state.index for member in comm.members.values()]
        for index in devices:
            if devices.count(index) > 1:
                if comm is not None:  # as in NCCL, the failure reaches all ranks
                    comm.failed = duplicate(index)
                    self._notify()
                raise DriverError(duplicate(index))

    def destroy(self, handle: int, abort: bool) -> None:
        """Leave a communicator. Collectives that other members enqueue later fail."""
        member = self.member(handle)
        if not abort and member.last is not None and member.comm.failed is None and not member.last.done:
            self._core.wait(member.last)
        member.open = False
        del self._members[handle]
        if abort and member.comm.meetings:
            self.fail(member.comm, f"{member.comm.who(member.rank)} aborted {member.comm}")

    def fail(self, comm: VirtualCommunicator, report: str) -> None:
        """Fail a communicator: set an error on each member's device and release what waits for a member."""
        if comm.failed is not None:
            return
        comm.failed = report
        error = DriverError(report)
        for member in comm.members.values():
            if member.state.error is None:
                member.state.error = error
        self._excuse_all(comm)
        self._notify()

    def _excuse_all(self, comm: VirtualCommunicator) -> None:
        """Cancel the contributions that the communicator's instances still wait for."""
        for meeting in comm.meetings.values():
            self._core.excuse(meeting, meeting.arrivals - meeting.arrived)
        comm.meetings = {}

    def abandon(self) -> None:
        """Fail all communicators, because the machine closes."""
        for comm in {member.comm: None for member in self._members.values()}:
            self._excuse_all(comm)

    # -- queueing ---------------------------------------------------------------------------------------
    def queue(
        self,
        parts: Sequence[tuple[Member, Collective, SimulatedStream]],
        effect: Callable[[CollectiveInstance], None],
        site: Site,
    ) -> None:
        """Enqueue contributions, which were checked one by one, as one group.

        Raises:
            DriverError: If members disagree.
        """
        groups: dict[SimulatedStream, list[tuple[Member, CollectiveInstance]]] = {}
        for member, call, stream in parts:
            meeting = self._join_meeting(
                member, Contribution(member.rank, call, stream, site, member.comm.called), effect
            )
            groups.setdefault(stream, []).append((member, meeting))
        arrivals = [self._arrive(stream, group, site) for stream, group in groups.items()]
        for (stream, group), arrival in zip(groups.items(), arrivals, strict=True):
            self._end(stream, arrival, group, site)
        self._notify()

    def _join_meeting(
        self, member: Member, part: Contribution, effect: Callable[[CollectiveInstance], None]
    ) -> CollectiveInstance:
        """Add a contribution to the instance that it belongs to, and return the instance."""
        comm, call = member.comm, part.call
        key = member.course.next_key(call)
        meeting = comm.meetings.get(key)
        if meeting is None:
            meeting = CollectiveInstance(comm, SimulatedStream(next(self._handles), comm.state, 0), call, key)
            meeting.effect, meeting.args, meeting.site = effect, (meeting,), part.site
            comm.meetings[key] = meeting
            self._core.announce(meeting, meeting.arrivals)
        meeting.parts[part.rank if key[0] < 0 else int(call.kind == "recv")] = part
        self._check(meeting)
        return meeting

    def _check(self, meeting: CollectiveInstance) -> None:
        """Compare the newest contribution of an instance with the others.

        Raises:
            DriverError: If they disagree.
        """
        why = _disagreement(meeting)
        if why is not None:
            self.fail(meeting.comm, why)
            raise DriverError(why)
        if len(meeting.parts) == len(meeting.ranks):
            del meeting.comm.meetings[meeting.key]

    def _arrive(
        self, stream: SimulatedStream, group: list[tuple[Member, CollectiveInstance]], site: Site
    ) -> Command:
        """Enqueue the marker of a stream's arrival at a group, after the last groups of the members."""
        before = dict.fromkeys([member.last for member, _ in group if member.last is not None])
        effect = self._offer if any(member.comm.unique in self._shared for member, _ in group) else None
        arrival = Command(scheduler.RECORD, "arrival", stream, 0, None, 1, 0, 0, effect, (), 0, tuple(before))
        arrival.args = (arrival, [meeting for _, meeting in group], stream)
        arrival.site = site
        for _, meeting in group:
            meeting.arrived += 1
        self._core.enqueue(arrival)
        for _, meeting in group:
            self._core.attend(meeting, arrival, meeting.arrived == len(meeting.ranks))
        return arrival

    def _end(
        self,
        stream: SimulatedStream,
        arrival: Command,
        group: list[tuple[Member, CollectiveInstance]],
        site: Site,
    ) -> None:
        """Enqueue the marker after which the stream continues."""
        meetings = tuple([meeting for _, meeting in group])
        name = " and ".join(dict.fromkeys([meeting.name for meeting in meetings]))
        nbytes = sum([meeting.nbytes for meeting in meetings])
        end = Command(
            scheduler.COLLECTIVE, name, stream, nbytes, None, 1, 0, 0, None, (arrival,), 0, meetings
        )
        end.site = site
        self._core.enqueue(end)
        for member, _ in group:
            member.last = end

    # -- members of other processes ---------------------------------------------------------------------
    def _offer(
        self, arrival: Command, meetings: Sequence[CollectiveInstance], stream: SimulatedStream
    ) -> None:
        """Send the contributions of a group to other processes, once the stream has reached it."""
        for meeting in meetings:
            for slot in meeting.mine:
                part = meeting.parts[slot]
                if self.outside is None or not isinstance(part, Contribution) or part.stream is not stream:
                    continue
                _, read = spans(part.call, part.rank, meeting.comm.size)
                data = b"" if read is None or not read[1] else bytes(self.numbers(*read))
                offer = Offer(part.call, str(part), data, arrival.end)
                self.outside.offer(meeting.comm.unique, meeting.key, slot, offer)

    def _take(self, outcomes: Sequence[Outcome]) -> None:
        """Add the contributions of other processes; each arrives once.

        Raises:
            DriverError: If members disagree.
        """
        failure: DriverError | None = None
        for unique, key, offers in outcomes:
            meeting = self._shared[unique].meetings.get(key)
            if meeting is None:  # its communicator has failed meanwhile
                continue
            for slot, offer in offers.items():
                if slot not in meeting.mine:
                    meeting.parts[slot] = offer
            try:
                self._check(meeting)
            except DriverError as error:
                failure = failure or error
            else:
                self._core.attend_at(meeting, max([offer.ready_ns for offer in offers.values()]))
        if failure is not None:
            raise failure

    def go_on(self, other: Awaited | None) -> None:
        """Let devices progress while the host waits for something that is not on them, as real devices would.

        Otherwise the process that the host waits for might wait for these devices. With `other`, the object that
        the host waits for, they progress until it has arrived. If the store does not know `other`, the other
        ranks are notified that this host waits.
        """
        if not self._shared:
            return
        self._core.run_all()
        if other is not None and self.outside is not None and (self._waits_for_others or other.words):
            come = False
            while not come:
                outcomes, come = self.outside.idle(other)
                self._go_on_with(outcomes)

    def ask_around(self) -> None:
        """Let devices progress while the host repeatedly polls something else, as a poll of a stream does."""
        if self._shared and self.outside is not None and self._waits_for_others:
            self._core.run_all()
            self._go_on_with(self.outside.look())

    @property
    def _waits_for_others(self) -> bool:
        return any(member.comm.meetings for member in self._members.values())

    def _go_on_with(self, outcomes: Sequence[Outcome]) -> None:
        self._take(outcomes)
        self._core.run_all()

    # -- waiting for others -----------------------------------------------------------------------------
    def before(self, target: SimulatedStream | DeviceState | Command) -> None:
        """Let other ranks run before the host waits, if they can.

        All commands that ranks issue before they wait are then enqueued before the schedule chooses, as if
        every rank had its own host.
        """
        mine = seat()
        if mine is not None:
            mine.wait(lambda: not target.pending, lambda: waiting(target), self._changed, lazy=True)

    def wait_for_progress(self, target: SimulatedStream | DeviceState | Command) -> bool:
        """Wait until another thread makes a command runnable. Return False if no thread can run."""
        if not self._waits_for_others:
            return False
        news = self._news
        if self.outside is not None and self._shared:
            self._take(self.outside.wait(lambda: _waits(target)))
        else:
            # this thread's call sites; a rank thread's seat has its own
            report = _waits(target) if seat() is None else ""
            self._wait(lambda: self._news != news, lambda: report or waiting(target))
        return True

    def linger(self, target: SimulatedStream | Command) -> None:
        """Let other threads run, because the program polls for work that may depend on them.

        Raises:
            DriverError: If the program has polled very often and no command can ever run.
        """
        if not self._waits_for_others:
            return
        mine = seat()
        if mine is not None:
            mine.pause(self._changed)
        elif self.outside is not None:
            self._take(self.outside.look())
            return
        elif not alone():  # a thread that the driver cannot see may still contribute
            return
        if target.pending and self._core.idle:  # otherwise the work only takes time
            self._count_vain(target, mine)

    def _count_vain(self, target: SimulatedStream | Command, mine: Seat | None) -> None:
        """Count a poll after which no command can run, although every other thread has had its turn."""
        since = self._core.next_seq, self._news
        self._vain = self._vain + 1 if self._since == since else 0
        self._since = since
        if self._vain >= _PATIENCE:
            self._vain = 0
            others = [str(s) for s in mine.baton.seats if s is not mine] if mine is not None else []
            raise DriverError(asked_in_vain(target, others))

    def _notify(self) -> None:
        self._news += 1
        self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool], what: Callable[[], str]) -> None:
        """Release the machine's lock until `ready()` is true.

        Raises:
            DriverError: If it can never become true.
        """
        mine = seat()
        if mine is not None:
            mine.wait(ready, what, self._changed)
            return
        me = threading.current_thread()
        try:
            while not ready():
                self._stuck[me] = self._news
                if self._hopeless():
                    raise DriverError(f"deadlock: {what()}")
                self._changed.wait(_LOOK_S)
        finally:
            self._stuck.pop(me, None)

    def _hopeless(self) -> bool:
        """Return True if every thread that could make a missing contribution is blocked or has ended."""
        threads = {member.thread for member in self._members.values()}
        if any(not member.comm.full for member in self._members.values()):
            threads.update(threading.enumerate())
        return not any(thread.is_alive() and self._stuck.get(thread) != self._news for thread in threads)


_PATIENCE = 20_000  # consecutive polls without any progress
_LOOK_S = 0.2  # between checks whether other threads have ended


def _waits(target: SimulatedStream | DeviceState | Command) -> str:
    """Describe the object that the host waits for, and what that object waits for."""
    return deadlock(target).removeprefix("deadlock: ")


def _not_joined(comm: VirtualCommunicator) -> str:
    missing = [comm.name(rank) for rank in range(comm.size) if rank not in comm.members]
    return f"comm_create of {comm} waits for {', '.join(missing)} to join"


def _disagreement(meeting: CollectiveInstance) -> str | None:
    """Describe how the contributions differ in arguments that must be equal; None if they do not."""
    first, *others = meeting.parts.values()
    if all(common_arguments(first.call) == common_arguments(other.call) for other in others):
        return None
    lines = [str(meeting.parts[place]) for place in sorted(meeting.parts)]
    comm = meeting.comm
    if first.call.kind not in PAIRED:
        which = f"call {meeting.key[2]}"
    else:
        sender, receiver = map(comm.name, meeting.ranks)
        which = f"message {meeting.key[2]} from {sender} to {receiver}"
    head = f"collective mismatch: {which} of {comm} is not the same for all"
    return "\n  ".join([head, *lines, "all members must give the same calls in the same order"])
