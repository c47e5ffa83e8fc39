"""`VirtualCommunicators`: collective operations of virtual GPUs, under NCCL's rules.

# Note [Meetings]
A member's part in a collective stands in its stream as two markers, an arrival and an end; what is between them
happens in a meeting, a command of its own that waits for the arrivals of all members and that each end waits for. So a
collective begins when the last member has come to it and ends for all at once, streams stay in order, and a schedule
chooses when a meeting happens as it chooses for any other command. Parts that are queued as one group share their
markers on each stream: none waits for another of the group, as between ncclGroupStart and ncclGroupEnd. Groups of one
member come one after the other, whatever streams they are given (NCCL orders the launches of a communicator).

The n-th collective of a member meets the n-th of the others; the n-th message to a peer meets the peer's n-th receipt
from it. That is known when the last one is queued, before anything runs: members that disagree are reported then, each
with its line. The communicator has failed; so have its members' devices, as by any error of a command.

How numbers are reduced is said in driver/meetings.py.

# Note [Members of other processes]
A process simulates the streams of its own members. Where others' members take part (`Outside`, served by whoever
started the ranks), a member's part is offered when its arrival is at the head of its stream, with its numbers and its
time; the meeting waits for the offers of all others as for one arrival more. They are asked for when nothing else can
run here, so the order of what runs here does not depend on which process is faster. Every process then reduces all
numbers itself, in the order of the ranks, and begins at the latest time: results and times are the same everywhere.
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
from flambeau.driver.api import Collective
from flambeau.driver.meetings import PAIRED, Course, Key, common_arguments, describe, duplicate, spans
from flambeau.driver.virtual.scheduling import scheduler
from flambeau.driver.virtual.scheduling.deadlock import asked_in_vain, deadlock, waiting
from flambeau.driver.virtual.scheduling.scheduler import (
    Command,
    DeviceState,
    Engine,
    Scheduler,
    SimulatedStream,
)

NOWHERE = 255  # the device index of what is of no device


class Offer(NamedTuple):
    """One place's part in a meeting, as it goes to other processes. `text` says who, where and what."""

    call: Collective
    text: str
    data: bytes
    ready_ns: int

    def __str__(self) -> str:
        return self.text


Outcome = tuple[bytes, Key, dict[int, Offer]]
"""A meeting, by its communicator and its number there, whose parts have all come: each place's."""
Meanwhile = Callable[[list[Outcome]], None]


class Outside(Protocol):
    """Where members of several processes meet: see Note [Members of other processes]. Calls raise DriverError with a
    report when a process has died, or when all wait in vain."""

    def join(
        self,
        unique: bytes,
        called: Sequence[int],
        members: Sequence[tuple[int, int]],
        site: str,
        meanwhile: Meanwhile,
    ) -> dict[int, int]:
        """Bring (rank, device) of a communicator's members. Waits until all have come: every rank's device.

        called: what reports call each rank. site: the program's line, and which of its groups it is for.

        `meanwhile` is told of meetings without which others do not come."""
        ...

    def offer(self, unique: bytes, key: Key, place: int, offer: Offer) -> None:
        """A part has arrived; `place` is its rank, of a message 0 for the sender and 1 for the receiver."""
        ...

    def wait(self, why: Callable[[], str]) -> list[Outcome]:
        """Nothing can run here: the next meetings whose parts are all offered. `why()` is told if there never are."""
        ...

    def look(self) -> list[Outcome]:
        """The same without waiting: those that are there."""
        ...

    def idle(self, other: Awaited) -> tuple[list[Outcome], bool]:
        """The host waits for something else: meetings without which others do not go on; whether `other` has come."""
        ...


class Contribution:
    """What one member brings to a collective: its call and its call site.

    Attributes:
        rank: The member's number in the communicator.
        called: The ranks under which the program knows the members; empty if they are equal.
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
        """The number of arrivals to wait for: one for each rank of this process, and one for all others together."""
        return len(self.mine) + (len(self.mine) < len(self.ranks))

    @property
    def states(self) -> list[DeviceState]:
        """The devices of this process that take part."""
        return [self.comm.members[self.ranks[place]].state for place in self.mine]

    @property
    def theirs(self) -> dict[int, bytes]:
        """What other processes' members gave."""
        return {place: part.data for place, part in self.parts.items() if isinstance(part, Offer)}

    @property
    def absent(self) -> str:
        """Who has not come yet, in words; "" if all have."""
        missing = [rank for place, rank in enumerate(self.ranks) if place not in self.parts]
        who = [*dict.fromkeys([self.comm.who(rank) for rank in missing])]
        if self.key[0] >= 0 and len(self.parts) == 1:
            return f"the {'recv' if self.parts.get(0) else 'send'} of {who[0]}, which has not come"
        if len(who) > 1 and not self.comm.members.keys() >= {
            *missing
        }:  # of other processes nobody knows here
            return f"{', '.join(who[:-1])} or {who[-1]}, of other processes"
        verb = "has" if len(who) == 1 else "have"
        return f"{' and '.join(who)}, which {verb} not come" if who else ""

    @property
    def calls(self) -> list[Collective]:
        """What all have asked for, once they have."""
        return [self.parts[place].call for place in range(len(self.ranks))]

    def accesses(self) -> Iterator[tuple[int, int, bool, bool]]:
        """Address, bytes, whether it reads and whether it writes them, of all parts."""
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
        self.last: Command | None = None  # the end of its last group
        self.open = True
        self.thread = threading.current_thread()  # who brought it: waits for it end if this one has


class VirtualCommunicator:
    """Members that were brought together. `failed` is the report of what went wrong.

    `members` are those of this process, `devices` all ranks' devices, `called` what the program calls the ranks,
    `purpose` which of its groups it is for.
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
        self.meetings: dict[Key, CollectiveInstance] = {}  # those that somebody is missing from
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
    """All communicators of a machine. Its calls are those of `driver.api`; whoever calls holds the machine's lock."""

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
        self._vain = 0  # questions in a row to which the answer cannot change
        self._since = (0, 0)
        self.outside: Outside | None = None
        self.numbers: Callable[[int, int], Any] = lambda ptr, nbytes: (
            b""
        )  # device memory as bytes; the driver's
        self._by_id: dict[bytes, VirtualCommunicator] = {}  # those that somebody is missing from
        self._shared: dict[bytes, VirtualCommunicator] = {}  # those with members of other processes
        self._members: dict[int, Member] = {}
        self._made = 0
        self._news = 0  # counts what may let somebody go on
        self._stuck: dict[threading.Thread, int] = {}  # who waits in vain, since which news

    def member(self, handle: int) -> Member:
        found = self._members.get(handle)
        if found is None:
            raise DriverError(
                f"CUDA error: invalid resource handle: {handle} is no communicator of this machine, or destroyed"
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
        """Join: (rank, handle, device) of each member that comes now. Waits for the others."""
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
        """Wait until all members have joined, here or elsewhere."""
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
                if comm is not None:  # as NCCL's, all of its ranks hear of it
                    comm.failed = duplicate(index)
                    self._notify()
                raise DriverError(duplicate(index))

    def destroy(self, handle: int, abort: bool) -> None:
        """Leave. What others still queue for this member fails."""
        member = self.member(handle)
        if not abort and member.last is not None and member.comm.failed is None and not member.last.done:
            self._core.wait(member.last)
        member.open = False
        del self._members[handle]
        if abort and member.comm.meetings:
            self.fail(member.comm, f"{member.comm.who(member.rank)} aborted {member.comm}")

    def fail(self, comm: VirtualCommunicator, report: str) -> None:
        """Nothing of it will run any more: each member's device has an error, what waits for somebody is let go."""
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
        """Nobody comes to its meetings any more."""
        for meeting in comm.meetings.values():
            self._core.excuse(meeting, meeting.arrivals - meeting.arrived)
        comm.meetings = {}

    def abandon(self) -> None:
        """The machine closes: nobody comes any more."""
        for comm in {member.comm: None for member in self._members.values()}:
            self._excuse_all(comm)

    # -- queueing ---------------------------------------------------------------------------------------
    def queue(
        self,
        parts: Sequence[tuple[Member, Collective, SimulatedStream]],
        effect: Callable[[CollectiveInstance], None],
        site: Site,
    ) -> None:
        """Queue parts as one group. They were checked one by one; DriverError: members disagree."""
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
        """The meeting that a part belongs to, with the part in it."""
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
        """Another part has come. DriverError: it disagrees with the others."""
        why = _disagreement(meeting)
        if why is not None:
            self.fail(meeting.comm, why)
            raise DriverError(why)
        if len(meeting.parts) == len(meeting.ranks):
            del meeting.comm.meetings[meeting.key]

    def _arrive(
        self, stream: SimulatedStream, group: list[tuple[Member, CollectiveInstance]], site: Site
    ) -> Command:
        """The marker by which members come to meetings, after their last groups."""
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
        """The marker that a stream goes on from."""
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
        """What stands before a group is done: let other processes have its parts."""
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
        """Parts of other processes have come, each time for the only time. DriverError: some disagree."""
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
        """The host is about to wait for what is not of its devices: they do what they can, as real ones would.

        Else whoever lets it go on might wait for them. With `other`, which tells of it, they do so until it has come;
        where the store does not know what it is, the others are told that this host waits, whatever its devices do.
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
        """The host asks whether something else is over, again and again: it is told what a poll would be told."""
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
        """The host is about to run commands because it waits: other ranks go on first, if they can.

        So all that ranks can give before they wait is there when a schedule chooses what runs, as it is where each has
        a host of its own.
        """
        mine = seat()
        if mine is not None:
            mine.wait(lambda: not target.pending, lambda: waiting(target), self._changed, lazy=True)

    def wait_for_progress(self, target: SimulatedStream | DeviceState | Command) -> bool:
        """No command can run: wait until another thread has done something about it. False: it is nobody's turn."""
        if not self._waits_for_others:
            return False
        news = self._news
        if self.outside is not None and self._shared:
            self._take(self.outside.wait(lambda: _waits(target)))
        else:
            report = _waits(target) if seat() is None else ""  # of this thread's lines; a seat knows its own
            self._wait(lambda: self._news != news, lambda: report or waiting(target))
        return True

    def linger(self, target: SimulatedStream | Command) -> None:
        """The program polls, and what it asks after is not done: let others go on, who may have to come first.

        DriverError: it has asked all too often, and nothing can ever happen.
        """
        if not self._waits_for_others:
            return
        mine = seat()
        if mine is not None:
            mine.pause(self._changed)
        elif self.outside is not None:
            self._take(self.outside.look())
            return
        elif not alone():  # who does something that is not seen may still come
            return
        if target.pending and self._core.idle:  # else it is a question of time
            self._count_vain(target, mine)

    def _count_vain(self, target: SimulatedStream | Command, mine: Seat | None) -> None:
        """No command can run, and all who could bring one had their turn since the last question."""
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
        """Give up the machine's lock until `ready()`. DriverError: there is no hope."""
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
        """Whether every thread that could bring a member's next part, or a member, waits in vain or has ended."""
        threads = {member.thread for member in self._members.values()}
        if any(not member.comm.full for member in self._members.values()):
            threads.update(threading.enumerate())
        return not any(thread.is_alive() and self._stuck.get(thread) != self._news for thread in threads)


_PATIENCE = 20_000  # questions of a program in a row while nothing at all happens
_LOOK_S = 0.2  # between looks at whether the others' threads have ended


def _waits(target: SimulatedStream | DeviceState | Command) -> str:
    """What the host waits for, and what that waits for."""
    return deadlock(target).removeprefix("deadlock: ")


def _not_joined(comm: VirtualCommunicator) -> str:
    missing = [comm.name(rank) for rank in range(comm.size) if rank not in comm.members]
    return f"comm_create of {comm} waits for {', '.join(missing)} to join"


def _disagreement(meeting: CollectiveInstance) -> str | None:
    """How its parts differ in what they must agree on."""
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
