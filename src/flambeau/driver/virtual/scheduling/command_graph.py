"""`CommandGraph`: the commands of one run and what orders them. It finds other legal orders without running
kernels.

A step is a command, or a wait of the host: commands after a wait happen after what was waited for. The
host's waits for a full launch queue belong to the machine and not to the schedule; they are added here and
not recorded. An order is legal if it respects each step's `needs`. A replay makes the program run in that
order.

A poll of the host is a step as well (`GraphStep.poll`). One that returned True happens after the work in
question. A graph therefore stands for the runs whose polls return equal answers, in whatever order. Other
answers are another graph; `testing/answers.py` says which answers are possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from heapq import heapify, heappop, heappush
from typing import Any, Protocol
from zlib import crc32

from flambeau.core.callsite import Site, caller
from flambeau.core.host_arrays import compact_copy
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Touches
from flambeau.driver.virtual.scheduling import scheduler
from flambeau.driver.virtual.scheduling.schedule_policy import (
    EARLY,
    LATE,
    STOP,
    PollQuestion,
    open_policy,
    read_token,
    write_token,
)
from flambeau.driver.virtual.scheduling.scheduler import Command, DeviceState, SimulatedStream

Access = tuple[int, "Meta | int", bool, bool]
"""Address, layout (a number of bytes, or a tensor's meta), whether it is read, whether it is written."""


class _StreamLike(Protocol):
    """The attributes of a stream that policies use."""

    handle: int
    priority: int


@dataclass(frozen=True, slots=True)
class Poll:
    """A poll of the host: a question whether the first `count` commands of a stream are done, and the answer.

    Attributes:
        what: The stream or command in question.
        host: The host's step before the poll; -1 for none.
        internal: True if the runtime polled.
    """

    stream: int
    count: int
    what: str
    done: bool
    internal: bool
    host: int
    site: Site

    @property
    def choice(self) -> int:
        """Return the poll's entry in a token."""
        return STOP if self.stream < 0 else LATE if self.done else EARLY


class NamedPlaces:
    """The operand of a recorded kernel of which indices select the elements.

    Attributes:
        position: The operand's position among the accesses of its step.
        indices: Copies of the index operands; None until the kernel has run, and if they are too large to
            keep.
        digest: A checksum of the indices; 0 until the kernel has run.
    """

    __slots__ = ("digest", "indices", "meta", "position", "ptr", "touches")

    def __init__(self, position: int, ptr: int, meta: Meta, touches: Touches) -> None:
        self.position, self.ptr, self.meta, self.touches = position, ptr, meta, touches
        self.indices: list[Any] | None = None
        self.digest = 0


class GraphStep:
    """A command, or with `seq` -1 a wait or poll of the host. `place` is its number in its stream, from 0."""

    __slots__ = (
        "accesses",
        "at",
        "followers",
        "kind",
        "mark",
        "name",
        "named",
        "needs",
        "place",
        "poll",
        "ready",
        "seq",
        "site",
        "stream",
    )

    def __init__(
        self, at: int, seq: int, kind: int, name: str, stream: _StreamLike | None, needs: list[int]
    ) -> None:
        self.at = at
        self.seq = seq
        self.kind = kind
        self.name = name
        self.stream = stream
        self.needs = needs
        self.place = -1
        self.mark = 0
        self.ready = 0  # policies compare this time in polls, which a graph does not contain
        self.poll: Poll | None = None
        self.site: Site | None = None  # the call site
        self.accesses: tuple[Access, ...] = ()
        self.named: NamedPlaces | None = None
        self.followers: list[int] = []

    @property
    def free(self) -> bool:
        """Return True if a policy chooses when the step happens. Markers and waits happen as soon as they can."""
        return self.seq >= 0 and self.kind in _WORK


_COPIED = 1 << 28  # bytes of indices that a graph keeps
_WORK = frozenset(
    {
        scheduler.KERNEL,
        scheduler.COPY_IN,
        scheduler.COPY_OUT,
        scheduler.COPY,
        scheduler.FILL,
        scheduler.HOST_CALL,
        scheduler.EXCHANGE,
    }
)


class CommandGraph:
    """The commands of one run. `VirtualDriver.record` fills it while the program runs."""

    def __init__(self, queue: int, runs_bodies: bool) -> None:
        self.steps: list[GraphStep] = []
        self.polls: list[GraphStep] = []
        self.turns = False  # True if ranks that are threads took turns
        self._queue = queue
        self._runs_bodies = runs_bodies
        self._copied = 0  # bytes of indices
        self._at: dict[int, int] = {}  # `seq` of a command -> its step
        self._of: dict[int, list[int]] = {}  # handle of a stream -> its steps
        self._device: dict[int, list[int]] = {}  # device -> handles of its streams
        self._host = -1  # the host's last wait
        self._caught: dict[int, int] = {}  # stream -> host wait that its last command happens after
        # rank -> its last waits, for ranks that take turns
        self._hosts: dict[int, tuple[int, dict[int, int]]] = {}
        self._at_start: tuple[int, dict[int, int]] = (-1, {})
        # collective instance that lacks contributions -> steps that wait for it
        self._late: dict[Command, list[int]] = {}
        self._known: dict[int, int] = {}  # stream -> number of commands that the host has waited for

    # -- recording --------------------------------------------------------------------------------------
    def on_enqueue(self, command: Command) -> None:
        """Add a command that was appended to its stream."""
        stream = command.stream
        queue = self._of.get(stream.handle)
        if queue is None:
            queue = self._of[stream.handle] = []
            self._device.setdefault(stream.index, []).append(stream.handle)
        needs = queue[-1:]
        if self._host > self._caught.get(stream.handle, -1):
            needs.append(self._host)
            self._caught[stream.handle] = self._host
        needs += [self._at[awaited.seq] for awaited in command.waits if awaited.seq in self._at]
        step = self._add(command.seq, command.kind, command.name, stream, needs)
        for awaited in command.waits:
            if awaited.seq not in self._at:
                self._late.setdefault(awaited, []).append(step.at)
        for later in self._late.pop(command, ()):
            self.steps[later].needs.append(step.at)
            step.followers.append(later)
        step.site = command.site or caller(2)
        step.place = len(queue)
        step.mark = command.mark
        step.accesses, step.named = _accesses(command), _named_places(command)
        if step.named is not None:
            step.accesses = self._watch(command, step.named, step.accesses)
        queue.append(step.at)
        self._at[command.seq] = step.at
        if len(queue) > self._queue:
            self._wait_for({stream.handle: len(queue) - self._queue})

    def _watch(
        self, command: Command, named: NamedPlaces, accesses: tuple[Access, ...]
    ) -> tuple[Access, ...]:
        """Record the indices of a kernel when it runs. Return its accesses, including the selected operand."""
        run, touches, exe = command.effect, named.touches, command.args[0]
        assert run is not None
        outputs, inputs = len(exe.launch.outputs), exe.launch.inputs
        operands = [outputs + sum([isinstance(x, Meta) for x in inputs[:i]]) for i in touches.indices]

        def note_and_run(exe: Any, ptrs: Any, scalars: Any) -> None:
            arrays = [exe.windows[i][ptrs[i]] for i in operands]
            named.digest = reduce(lambda value, array: crc32(array.tobytes(), value), arrays, 1)
            self._copied += sum([array.nbytes for array in arrays])
            if self._copied <= _COPIED:
                named.indices = [compact_copy(array) for array in arrays]
            run(exe, ptrs, scalars)

        if self._runs_bodies:
            command.effect = note_and_run
        ptr, meta, _, _ = accesses[named.position]
        own = (ptr, meta, touches.reads or not touches.target, touches.target)
        rest = list(accesses)
        rest[named.position] = own
        if touches.target:  # in place: the first input is the same operand
            rest.remove((ptr, meta, True, False))
        return tuple(rest)

    def on_wait(self, target: SimulatedStream | DeviceState | Command) -> None:
        """Add a host wait for a stream, a device or one command."""
        if isinstance(target, DeviceState):
            self._wait_for({handle: len(self._of[handle]) for handle in self._device.get(target.index, ())})
        else:
            self._wait_for(self._count_commands(target))

    def on_poll(self, question: PollQuestion | None, done: bool) -> None:
        """Add a poll of a stream or command with its answer."""
        counts = {} if question is None else self._count_commands(question.target)
        stream, count = next(iter(counts.items()), (-1, 0))
        internal = question is None or question.internal
        poll = Poll(stream, count, str(question and question.target), done, internal, self._host, caller(3))
        step = self._add_host("the host asks", self._newly_done(counts) if done else [])
        step.poll = poll
        self.polls.append(step)

    def _count_commands(self, target: SimulatedStream | Command) -> dict[int, int]:
        """Return stream -> number of commands that `target` stands for."""
        if isinstance(target, SimulatedStream):
            return {target.handle: len(self._of.get(target.handle, ()))}
        at = self._at.get(target.seq)
        return {} if at is None else {target.stream.handle: self.steps[at].place + 1}

    def _wait_for(self, counts: dict[int, int]) -> None:
        """Add a wait of the host for the first commands of each stream."""
        needs = self._newly_done(counts)
        if needs:
            self._add_host("the host waits", needs)

    def _newly_done(self, counts: dict[int, int]) -> list[int]:
        """Count the first commands of each stream as done. Returns the last command of each that was not known to be
        done.
        """
        new = {handle: n for handle, n in counts.items() if n > self._known.get(handle, 0)}
        self._known.update(new)
        return [self._of[handle][n - 1] for handle, n in new.items()]

    def _add_host(self, name: str, needs: list[int]) -> GraphStep:
        step = self._add(-1, scheduler.WAIT, name, None, [*needs, self._host] if self._host >= 0 else needs)
        self._host = step.at
        return step

    def _add(self, seq: int, kind: int, name: str, stream: _StreamLike | None, needs: list[int]) -> GraphStep:
        step = GraphStep(len(self.steps), seq, kind, name, stream, needs)
        for need in needs:
            self.steps[need].followers.append(step.at)
        self.steps.append(step)
        return step

    def switch_host(self, before: int, after: int) -> None:
        """Switch to the host of another rank. A wait of one rank does not order another rank's commands."""
        self.turns = True
        if not self._hosts:
            self._at_start = (self._host, self._known)
        self._hosts[before] = (self._host, self._known)
        host, known = self._hosts.get(after, self._at_start)
        self._host, self._known = host, dict(known)

    def join_hosts(self) -> None:
        """Let the next commands be those of the host that started the ranks, after all ranks have ended."""
        for host, known in self._hosts.values():
            self._known = {h: max(n, self._known.get(h, 0)) for h, n in {**self._known, **known}.items()}
            if host != self._host and host >= 0:
                needs = [host] if self._host < 0 else [host, self._host]
                self._host = self._add(-1, scheduler.WAIT, "the ranks end", None, needs).at
        self._hosts = {}

    # -- orders -----------------------------------------------------------------------------------------
    def in_order(self) -> Iterator[GraphStep]:
        """Yield all steps in the order of the program's requests; a step follows the steps that it depends on."""
        left = [len(step.needs) for step in self.steps]
        heap = [step.at for step in self.steps if not step.needs]
        while heap:
            step = self.steps[heappop(heap)]
            yield step
            for at in step.followers:
                left[at] -= 1
                if not left[at]:
                    heappush(heap, at)

    def order(self, schedule: str) -> list[GraphStep]:
        """Return the commands in the order in which a policy would run them; `schedule` is as in
        `VirtualDriver`.

        Raises:
            ValueError: If the schedule depends on times (`earliest`).
        """
        if schedule.startswith("earliest"):
            raise ValueError(
                "schedule 'earliest' follows simulated times, which an order of commands does not have"
            )
        policy: Any = open_policy(schedule)
        steps, offer, take = self.steps, policy.offer, policy.take
        left = [len(step.needs) for step in steps]
        found: list[GraphStep] = []
        happened = [step for step in steps if not step.needs]
        while True:
            while happened:
                step = happened.pop()
                if step.free:
                    offer(step)
                    continue
                for at in step.followers:
                    left[at] -= 1
                    if not left[at]:
                        happened.append(steps[at])
            step = take(None)
            if step is None:
                return found
            found.append(step)
            for at in step.followers:
                left[at] -= 1
                if not left[at]:
                    happened.append(steps[at])

    def oldest(self, forced: Iterable[tuple[int, int]] = ()) -> list[GraphStep] | None:
        """Return the order that runs the oldest command first, subject to the pairs (first, second) in
        `forced`.

        None if no legal order satisfies all pairs.
        """
        steps = self.steps
        left = [len(step.needs) for step in steps]
        after: dict[int, list[int]] = {}
        for first, second in forced:
            after.setdefault(first, []).append(second)
            left[second] += 1
        heap = [(steps[at].free, at) for at, count in enumerate(left) if not count]
        heapify(heap)
        found: list[GraphStep] = []
        passed = 0
        while heap:
            free, at = heappop(heap)
            passed += 1
            if free:
                found.append(steps[at])
            for follower in (*steps[at].followers, *after.get(at, ())):
                left[follower] -= 1
                if not left[follower]:
                    heappush(heap, (steps[follower].free, follower))
        return found if passed == len(steps) else None

    def steps_of_token(self, token: str) -> list[GraphStep]:
        """Return the order of steps that a token encodes."""
        return [self.steps[self._at[choice >> 8]] for choice in read_token(token) if choice >= 0]

    def cut(self, token: str, count: int) -> str:
        """Return a token of the first `count` choices, polls included. A replay then runs the oldest command first."""
        return write_token(read_token(token)[:count])

    def choices(self, token: str) -> int:
        """Return the number of choices in a token."""
        return len(read_token(token))

    def token(self, order: list[GraphStep]) -> str:
        """Return the shortest token that replays an order and the recorded answers.

        After its end a replay runs the oldest command first.
        """
        steps = self.steps
        left = [len(step.needs) for step in steps]
        heap = [(step.free, step.at) for step in steps if not step.needs]
        heapify(heap)
        gone: set[int] = set()
        choices: list[int] = []
        needed = self._settle(left, heap, gone, choices)
        for chosen in order:
            choices.append(chosen.seq << 8 | chosen.mark)
            if heap[0][1] != chosen.at:
                needed = len(choices)
            gone.add(chosen.at)
            self._follow(chosen.at, left, heap)
            needed = max(needed, self._settle(left, heap, gone, choices))
        return write_token(choices[:needed])

    def _settle(
        self, left: list[int], heap: list[tuple[bool, int]], gone: set[int], choices: list[int]
    ) -> int:
        """Run all steps that need no choice except the host's answers. Returns the number of choices up to the last
        one.
        """
        needed = 0
        while heap and (not heap[0][0] or heap[0][1] in gone):
            free, at = heappop(heap)
            if free:
                continue
            poll = self.steps[at].poll
            if poll is not None:
                choices.append(poll.choice)
                needed = len(choices)
            self._follow(at, left, heap)
        return needed

    def _follow(self, at: int, left: list[int], heap: list[tuple[bool, int]]) -> None:
        for follower in self.steps[at].followers:
            left[follower] -= 1
            if not left[follower]:
                heappush(heap, (self.steps[follower].free, follower))


def _named_places(command: Command) -> NamedPlaces | None:
    """Return the operand whose elements are selected by indices, if the kernel has one and works in place."""
    if command.kind != scheduler.KERNEL:
        return None
    exe, ptrs, _ = command.args
    launch = exe.launch
    touches, outputs = launch.kernel.touches(launch), len(launch.outputs)
    if touches is None or touches.rewrites or not all(meta.span for meta in launch.operands):
        return None
    if not touches.target:
        return NamedPlaces(outputs, ptrs[outputs], launch.inputs[0], touches)
    if ptrs[0] != ptrs[outputs] or launch.outputs[0] is not launch.inputs[0]:
        return None
    return NamedPlaces(0, ptrs[0], launch.outputs[0], touches)


def _accesses(command: Command) -> tuple[Access, ...]:
    """Return the memory that a command touches, except pageable host memory, which was staged."""
    kind, args = command.kind, command.args
    if kind == scheduler.KERNEL:
        exe, ptrs, _ = args
        launch = exe.launch
        outputs = len(launch.outputs)
        return tuple(
            [
                (ptr, meta, place >= outputs or launch.updates, place < outputs)
                for place, (ptr, meta) in enumerate(zip(ptrs, launch.operands, strict=True))
                if meta.span
            ]
        )
    if kind == scheduler.COPY_IN:
        _, target, source = args
        wrote = (target, source.nbytes, False, True)
        return (wrote, (source.ptr, source.nbytes, True, False)) if source.pinned else (wrote,)
    if kind == scheduler.COPY_OUT:
        target, _, source = args
        return (target.ptr, target.nbytes, False, True), (source, target.nbytes, True, False)
    if kind == scheduler.COPY:
        _, target, _, source, nbytes = args
        return (target, nbytes, False, True), (source, nbytes, True, False)
    if kind == scheduler.FILL:
        _, target, _, nbytes = args
        return ((target, nbytes, False, True),)
    if kind == scheduler.EXCHANGE:
        return tuple(args[0].accesses())
    return ()
