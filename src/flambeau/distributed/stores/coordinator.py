"""`Coordinator`: the coordinator, which pairs the contributions of virtual GPUs in separate processes.

Each process simulates its own devices (Note [Members of other processes] in
driver/virtual/collectives/collectives.py). The coordinator stores contributions until all have arrived, and then
answers the waiting processes. The answers do not depend on which process is faster:

# Note [Answers to waiting ranks]
A rank that can run no more commands asks for collective instances. It is answered when all instances that it has joined
are complete. If some can only be completed by its own later calls, it is answered when every rank waits (for an
instance, in a poll, in the store) or has ended: then the complete instances are reported, to the lowest rank first.
Ranks that create a communicator or wait in the store or in MPI are answered after that, because their devices progress
without the host. The coordinator cannot see the progress of MPI: ranks that wait there are asked to check again, all
together, until all have checked several times without success. A rank receives instances in the order in which it
joined them. If no instance is complete, a rank that polls is answered that nothing has happened yet. If no rank polls,
it is a deadlock, which each rank receives with every rank's call site.

A rank may wait for something that the coordinator cannot see (a file, a socket, another thread). If the running ranks
have used no processor time for seconds, ranks that poll or have a complete instance are answered anyway. Only such
programs depend on the machine's speed.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from flambeau.core.host.process_state import processor_seconds
from flambeau.core.ipc.codec import Either, fits
from flambeau.driver.collective_rules import duplicate

Answer = list[Any]
Place = tuple[bytes, tuple[int, ...]]  # a collective instance: the communicator's id and the instance's key
# seconds without working processes before a wait is answered; the same after the first answer
_PATIENCE_S, _HURRY_S = 10.0, 0.5
_LONGEST_S = 120.0  # the longest time in seconds that a rank is kept waiting while others work
_WORKS = 0.1  # the share of a core below which a process does not work
_ASK_BACK: Answer = ["why", "why"]
_MORE = 1 << 8  # processes beyond the ranks, such as their children
_MEMBERS = 1 << 12  # members of one communicator
_SURE = 3  # fruitless polls of all ranks inside MPI, with no other request between them


class Participant:
    """One process and its pending request.

    Attributes:
        request: A pair of kind and text: "join" with the communicator, "wait" or "look" with the text of the wait, or
            "idle" with the text of another host wait. A text may be "" at first; the coordinator requests it before it
            reports a deadlock.
    """

    def __init__(self, rank: int, process: int) -> None:
        self.rank = rank
        self.process = process
        self.ended = False
        self.request: tuple[str, Any] | None = None
        self.number = 0  # number of the request
        self.alone = True  # True if no other thread of the process could continue
        self.requested_at = 0.0
        self.busy_at = 0.0  # time at which other ranks were last seen to work
        self.used = 0.0  # processor seconds at the last check
        self.idles = False  # True if it was answered while its host was idle and continues with the instances
        self.site = ""  # where the program last joined a communicator
        self.looks = 0  # fruitless polls inside MPI since the last other request
        self.came = 0  # number of instances it has joined
        self.hoped = (0, 0)  # processes that had ended, and `came`, when none of its instances was hopeless
        self.pending: dict[Place, int] = {}  # instance that it waits for -> its number
        # number -> result of a complete instance that was not sent to it yet
        self.outcomes: dict[int, Any] = {}
        self._reserved: dict[tuple[int, int], int] = {}  # (device, number) -> bytes of the allocation
        self._allocated: Counter[int] = Counter()  # device -> bytes

    def allocated_bytes(self, device: int) -> int:
        """Return the bytes of a device that the process has allocated."""
        return self._allocated[device]

    def reserve(self, device: int, number: int, nbytes: int) -> None:
        """Record that allocation `number` of a device has `nbytes` bytes; 0 after it was freed."""
        self._allocated[device] += nbytes - self._reserved.pop((device, number), 0)
        if nbytes:
            self._reserved[device, number] = nbytes

    def end(self) -> None:
        """Record that the process has ended, so that it holds nothing."""
        self.ended, self.request = True, None
        self._reserved.clear()
        self._allocated.clear()

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.process})"


class Circle:
    """One communicator.

    Attributes:
        owners: Rank -> process and device.
        called: Rank -> the rank's name in reports.
    """

    def __init__(self, called: list[int]) -> None:
        self.size = len(called)
        self.called = called
        self.owners: dict[int, Participant] = {}
        self.devices: dict[int, int] = {}
        self.meetings: dict[tuple[int, ...], dict[int, list[Any]]] = {}
        self.failed = ""  # why the communicator cannot be created; empty if it can

    @property
    def full(self) -> bool:
        return len(self.owners) == self.size

    def expects(self, participant: Participant, key: tuple[int, int, int], slot: int) -> bool:
        """Return True if the participant still has to contribute this part of an instance."""
        if not self.full or (key[0] >= 0 and not (key[0] < self.size and 0 <= key[1] < self.size)):
            return False
        ranks = self.ranks(key)
        brought = self.meetings.get(key, {})
        return 0 <= slot < len(ranks) and slot not in brought and self.owners[ranks[slot]] is participant

    def ranks(self, key: tuple[int, ...]) -> list[int]:
        """Return the ranks that contribute to a collective instance: all, or the two of a message."""
        return list(range(self.size)) if key[0] < 0 else [key[0], key[1]]

    def late(self, key: tuple[int, ...]) -> list[int]:
        """Return the ranks that have not contributed to an instance."""
        parts = self.meetings.get(key, {})
        return [rank for slot, rank in enumerate(self.ranks(key)) if slot not in parts]


# the schema of a collective: see `Exchange.offer`
_PART = [str, int, str, Either(str, [str]), int, str, bytes, int]
REQUESTS: dict[str, list[Any]] = {  # the schema of each request's arguments (`wire.fits`)
    "hello": [int], "offer": [bytes, [int, int, int], int, _PART], "join": [bytes, (int,), ([int, int],), str],
    "wait": [str, bool], "look": [bool], "idle": [str], "awake": [], "reserve": [int, int, int, int],
    "release": [int, int], "held": [int],
}  # fmt: skip


class Coordinator:
    """The coordinator of `size` processes. Only one thread may call it."""

    def __init__(
        self,
        size: int,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[int], float] | None = None,
    ) -> None:
        self.size = size
        self._clock = clock
        self._used = used or processor_seconds
        self._deadlock_delay = _PATIENCE_S
        self.participants: dict[int, Participant] = {}  # process -> participant
        self._circles: dict[bytes, Circle] = {}
        self._ends = 0  # number of ends of processes

    # -- what processes say ---------------------------------------------------------------------------------
    def ask(self, process: int, number: int, operation: str, args: list[Any]) -> Answer | None:
        """Return the answer to a request; None if `settle` will answer it.

        Raises:
            ValueError: If no rank of this process requested it.
        """
        if not fits(args, REQUESTS.get(operation, False)):
            raise ValueError(f"a request {operation[:40]!r} with arguments of other types")
        if operation == "hello":
            if process not in self.participants and len(self.participants) >= self.size + _MORE:
                raise ValueError(f"more than {self.size + _MORE} processes with virtual GPUs")
            self.participants[process] = Participant(args[0], process)
            return [number, "ok", None]
        if process not in self.participants:
            raise ValueError(f"a request {operation!r} of a process that has not registered as a rank")
        mine = self.participants[process]
        handlers: dict[str, Callable[..., Answer]] = {
            "offer": self._offer, "join": self._join, "wait": self._wait, "look": self._look, "idle": self._idle,
            "awake": self._awake, "reserve": self._reserve, "release": self._release, "held": self._others_bytes,
        }  # fmt: skip
        mine.number, mine.request = number, None  # a new request replaces one that was given up
        mine.idles = False
        if operation != "idle":
            self._reset_looks()
        value = handlers[operation](mine, *args)
        return None if mine.request is not None else [number, *value]

    def _reset_looks(self) -> None:
        for participant in self.participants.values():
            participant.looks = 0

    def remove_process(self, process: int, rank: int = -1) -> None:
        """Record that a process has ended, which may not have sent anything yet."""
        self._reset_looks()
        if process not in self.participants:
            if rank < 0:
                return
            self.participants[process] = Participant(rank, process)
        mine = self.participants[process]
        mine.end()
        self._ends += 1

    def _join(
        self, mine: Participant, unique: bytes, called: list[int], members: list[list[int]], site: str
    ) -> Answer:
        if len(called) > _MEMBERS:
            raise ValueError(f"a communicator of {len(called):,} members; at most {_MEMBERS:,} are allowed")
        if not called or any(not 0 <= rank < len(called) or device < 0 for rank, device in members):
            raise ValueError("members that the communicator does not have")
        circle = self._circles.setdefault(unique, Circle(called))
        if why := _cannot_join(circle, len(called), members):
            return ["error", why]
        for rank, device in members:
            circle.owners[rank], circle.devices[rank] = mine, device
        mine.site = site
        self._begin(mine, "join", unique, True)
        return []

    def _offer(self, mine: Participant, unique: bytes, key: list[int], slot: int, offer: list[Any]) -> Answer:
        circle, name = self._circles.get(unique), (key[0], key[1], key[2])
        if circle is None or not circle.expects(mine, name, slot):
            raise ValueError(f"a contribution to a collective whose members do not include rank {mine.rank}")
        parts = circle.meetings.setdefault(name, {})
        parts[slot] = offer
        mine.came += 1
        mine.pending[unique, name] = mine.came
        if not circle.late(name):
            del circle.meetings[name]
            self._complete(circle, unique, name, parts)
        return ["ok", None]

    def _complete(
        self, circle: Circle, unique: bytes, key: tuple[int, ...], parts: dict[int, list[Any]]
    ) -> None:
        """Prepare the answers for a complete instance: each process receives the contributions of the others."""
        owners = [circle.owners[rank] for rank in circle.ranks(key)]
        for owner in dict.fromkeys(owners):
            number = owner.pending.pop((unique, key))
            if owners == [owner] * len(owners):  # a rank's message to itself needs no answer
                continue
            contributions = [
                [
                    slot,
                    parts[slot] if owners[slot] is not owner else [*parts[slot][:-2], b"", parts[slot][-1]],
                ]
                for slot in range(len(owners))
            ]
            owner.outcomes[number] = [unique, list(key), contributions]

    def _wait(self, mine: Participant, why: str, alone: bool) -> Answer:
        self._begin(mine, "wait", why, alone)
        return []

    def _look(self, mine: Participant, alone: bool) -> Answer:
        self._begin(mine, "look", "polls", alone)
        return []

    def _idle(self, mine: Participant, words: str) -> Answer:
        self._begin(mine, "idle", words, True)
        return []

    def _awake(self, mine: Participant) -> Answer:
        """Answer that the process is not idle any more: this request replaced the former one."""
        return ["ok", None]

    def _begin(self, mine: Participant, kind: str, what: Any, alone: bool) -> None:
        mine.request, mine.alone, mine.requested_at = (kind, what), alone, self._clock()
        mine.busy_at = mine.requested_at

    def _reserve(self, mine: Participant, device: int, key: int, nbytes: int, capacity: int) -> Answer:
        """Reserve bytes of a device that several processes share."""
        held = sum(p.allocated_bytes(device) for p in self.participants.values())
        if held + nbytes > capacity:
            return ["full", self._others_bytes(mine, device)[1]]
        mine.reserve(device, key, nbytes)
        return ["ok", None]

    def _others_bytes(self, mine: Participant, device: int) -> Answer:
        """Return the other processes' bytes on a device, as [process, bytes]."""
        others = [p for p in self.participants.values() if p is not mine]
        return ["ok", [[p.process, p.allocated_bytes(device)] for p in others if p.allocated_bytes(device)]]

    def _release(self, mine: Participant, device: int, key: int) -> Answer:
        mine.reserve(device, key, 0)
        return ["ok", None]

    def waits(self) -> dict[int, tuple[str, object]]:
        """Return a text of each process's wait, with a value that differs between its waits."""
        waiting = [p for p in self._waiting() if p.request and p.request[0] != "idle"]
        return {p.process: (_words_of(p), p.requested_at) for p in waiting}

    # -- answers to waits -----------------------------------------------------------------------------------
    def settle(self, elsewhere: Mapping[int, object]) -> list[tuple[int, Answer]]:
        """Return (process, answer) for each wait that has ended. `elsewhere` describes the waits of processes in the
        store.
        """
        answers: list[tuple[int, Answer]] = []
        while True:
            answered = self._ready() or self._stuck(elsewhere)
            if not answered:
                return answers
            for mine, answer in answered:
                answers.append((mine.process, [mine.number, *answer]))
                mine.looks += answer is _ASK_BACK
                mine.idles = mine.request == ("idle", "") and answer[0] == "ok"
                mine.request = None

    @property
    def deadline(self) -> float | None:
        """Return when the next patient wait becomes too long, on the monotonic clock."""
        times = [p.busy_at + self._deadlock_delay for p in self._waiting() if _impatient(p)]
        return min(times, default=None)

    def _waiting(self) -> list[Participant]:
        found = [p for p in self.participants.values() if p.request is not None]
        return sorted(found, key=lambda p: p.rank)

    def _ready(self) -> list[tuple[Participant, Answer]]:
        """Return the processes whose wait has ended regardless of other processes."""
        found: list[tuple[Participant, Answer]] = []
        for mine in self._waiting():
            kind, what = mine.request  # type: ignore[misc]
            if kind == "join":
                circle = self._circles[what]
                if circle.failed:
                    found.append((mine, ["error", circle.failed]))
                    continue
                if circle.full:
                    found.append((mine, ["ok", [sorted(map(list, circle.devices.items())), []]]))
                    continue
            elif kind == "idle":
                pass
            elif not mine.pending and (mine.outcomes or kind == "look"):
                found.append((mine, _news(mine)))
                continue
            elif not mine.outcomes and (why := self._hopeless(mine)):
                found.append((mine, ["error", why] if what else _ASK_BACK))
                continue
            if _impatient(mine) and self._waits_long_enough(mine):
                found.append((mine, _news(mine)))
        return found

    def _waits_long_enough(self, mine: Participant) -> bool:
        """Return True if no running process could still contribute, so every one of them must be waiting unobserved."""
        now = self._clock()
        elapsed = now - mine.busy_at
        if elapsed < self._deadlock_delay:
            return False
        mine.busy_at, works = now, False
        for other in self.participants.values():
            if not other.ended and other.request is None:
                used = self._used(other.process)
                works = works or used == math.inf or used - other.used > _WORKS * elapsed
                other.used = 0.0 if used == math.inf else used
        if works and now - mine.requested_at < _LONGEST_S:
            return False
        self._deadlock_delay = _HURRY_S
        return True

    def _stuck(self, elsewhere: Mapping[int, object]) -> list[tuple[Participant, Answer]]:
        """Return the processes to answer when every rank waits. See Note [Answers to waiting ranks]."""
        alive = [p for p in self.participants.values() if not p.ended]
        waiting = self._waiting()
        blocked = [p for p in alive if _is_blocked(p, elsewhere)]
        if not waiting or len(self.participants) < self.size or len(blocked) < len(alive):
            return []
        if unsure := _unsure(waiting):
            return [(mine, _ASK_BACK) for mine in unsure]
        for mine in waiting:
            if mine.outcomes:
                return [(mine, _news(mine))]
        for mine in waiting:
            if mine.request[0] == "look":  # type: ignore[index]
                return [(mine, _news(mine))]
        silent = [mine for mine in waiting if mine.request == ("wait", "")]
        if silent:  # the text costs time, so it is requested only from silent processes
            return [(mine, _ASK_BACK) for mine in silent]
        report = "\n  ".join(["deadlock: no rank can go on", *self._lines(elsewhere)])
        for mine in waiting:
            self._give_up_joining(mine)
        return [(mine, ["error", report]) for mine in waiting]

    def _give_up_joining(self, mine: Participant) -> None:
        """Remove a process from the communicator that it waits to join, so that later ranks do not wait for it."""
        kind, what = mine.request  # type: ignore[misc]
        if kind == "join":
            circle = self._circles[what]
            for rank in [rank for rank, owner in circle.owners.items() if owner is mine]:
                del circle.owners[rank], circle.devices[rank]

    def _hopeless(self, mine: Participant) -> str:
        """Return why an instance that a rank waits for will never be complete; "" if it may."""
        state = (self._ends, mine.came)
        if mine.hoped == state:
            return ""
        for unique, key in mine.pending:
            circle = self._circles[unique]
            ended_ranks = [rank for rank in circle.late(key) if circle.owners[rank].ended]
            if ended_ranks:
                owner = circle.owners[ended_ranks[0]]
                kind, what = mine.request  # type: ignore[misc]
                text = f"{owner} has ended and will never reach call {key[2]}, where this rank waits"
                return f"{text}\n  {what}" if kind == "wait" else text
        mine.hoped = state
        return ""

    def _lines(self, elsewhere: Mapping[int, object]) -> list[str]:
        return [
            f"{mine}: {self._line(mine, elsewhere)}"
            for mine in sorted(self.participants.values(), key=lambda p: p.rank)
        ]

    def _line(self, mine: Participant, elsewhere: Mapping[int, object]) -> str:
        if mine.ended:
            return "has ended"
        if mine.request is None or mine.request == ("idle", ""):
            return f"waits for {elsewhere[mine.process]}"
        kind, what = mine.request
        if kind != "join":
            return str(what)
        circle = self._circles[what]
        missing = [number for rank, number in enumerate(circle.called) if rank not in circle.owners]
        who = f"{_ranks(missing)} {'has' if len(missing) == 1 else 'have'}"
        return f"makes the communicator of {_ranks(circle.called)} at {mine.site}, which {who} not joined"


def _words_of(participant: Participant) -> str:
    kind, what = participant.request or ("", "")
    if kind == "join":
        return f"the members of the communicator that it makes at {participant.site}"
    return str(what) or "collectives of its virtual GPUs"


def _ranks(numbers: list[int]) -> str:
    return f"rank{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def _news(mine: Participant) -> Answer:
    news, mine.outcomes = mine.outcomes, {}
    messages = [news[number] for number in sorted(news)]
    return ["ok", [None, messages] if mine.request and mine.request[0] == "join" else messages]


def _is_blocked(mine: Participant, elsewhere: Mapping[int, object]) -> bool:
    """Return True if a process does nothing until others act."""
    if mine.process in elsewhere:
        goes_on = mine.outcomes or mine.idles  # or it will request them soon
        return mine.request is not None or not goes_on
    return mine.request is not None and mine.request != ("idle", "") and mine.alone


def _unsure(waiting: list[Participant]) -> list[Participant]:
    """Return the processes inside MPI that must poll once more before a deadlock is reported."""
    found = [mine for mine in waiting if mine.request[0] == "idle" and mine.request[1]]  # type: ignore[index]
    fewest = min([mine.looks for mine in found], default=_SURE)
    return [mine for mine in found if mine.looks == fewest < _SURE]


def _impatient(mine: Participant) -> bool:
    """Return True if a wait is answered after a time limit in any case."""
    return mine.request is not None and (mine.request[0] == "look" or bool(mine.outcomes))


def _cannot_join(circle: Circle, size: int, members: list[list[int]]) -> str:
    """Return why these members cannot join a communicator, "" if they can. As in NCCL, two may not share a device."""
    if circle.size != size:
        return f"comm_create: some ranks say that there are {circle.size} members, others say {size}"
    taken = {*circle.devices.values()}
    for rank, device in members:
        if rank in circle.owners:
            return f"comm_create: rank {rank} has joined already"
        if device in taken:
            circle.failed = f"{duplicate(device)}, and virtual GPUs of several nodes do not meet"
    return circle.failed
