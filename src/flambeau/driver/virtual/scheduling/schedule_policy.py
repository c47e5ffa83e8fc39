"""A `SchedulePolicy` chooses which runnable command runs next and what a poll of the host returns.

`offer(command)` says that a command became runnable: it is at the head of its stream, its waits are over.
`take(now, question)` gives the next command to run. With `now=None` the host waits: None means that nothing is
runnable. Otherwise the host polls at simulated time `now`: None means that this poll has run enough, and then
`answer(question)` says how it ends: by the times that commands have (STOP), or as a host sees it that asks so late
that the work is done by then (LATE), or so early that it is not told of it (EARLY). A loop
of polls must end, so each policy runs in polls whatever became runnable `PATIENCE_NS` before.

Whatever a policy chooses, streams stay in order, waits hold and times are consistent. Nothing here reads
data, clocks or identities: the choices follow from the program and the seed alone.
"""

from __future__ import annotations

import base64
import random
import zlib
from bisect import insort
from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from flambeau.core.brief import brief
from flambeau.core.errors import DriverError

if TYPE_CHECKING:
    from flambeau.driver.virtual.scheduling.scheduler import Command, Engine, SimulatedStream

PATIENCE_NS = 100_000
_CHANGE_HORIZON = 1 << 14  # PCT's change points lie among this many choices, denser towards the first

Rank = tuple[int, int, int]
"""What decides which command an engine serves first: priority, time at which it became ready in ns, `seq`."""

STOP, LATE, EARLY = -1, -2, -3  # among choices: how a poll of the host ended


class PollQuestion(NamedTuple):
    """Whether a stream or a command is done; `internal`: the runtime asks, and no value depends on the answer."""

    target: SimulatedStream | Command
    internal: bool


class SchedulePolicy(Protocol):
    def offer(self, command: Command) -> None: ...
    def take(self, now: int | None, question: PollQuestion | None = None) -> Command | None: ...
    def answer(self, question: PollQuestion | None) -> int: ...

    @property
    def runnable(self) -> bool:
        """Whether any command is."""
        ...


class Earliest:
    """Runs next what the modelled device would start next.

    Among commands that wait for an engine the device serves the highest priority, then the one that became ready first,
    then the oldest. A command does not overtake another that waits for its engine, even if it needs less of it.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, Rank, Command]] = []  # by the time at which to look at the command next
        self._queues: dict[
            Engine, list[tuple[Rank, Command]]
        ] = {}  # heaps: the commands that wait for an engine

    @property
    def runnable(self) -> bool:
        return bool(self._heap)

    def offer(self, command: Command) -> None:
        ready = command.ready
        heappush(self._heap, (ready, (command.stream.priority, ready, command.seq), command))

    def answer(self, question: PollQuestion | None) -> int:
        return STOP

    def take(self, now: int | None, question: PollQuestion | None = None) -> Command | None:
        heap = self._heap
        while heap:
            time, rank, command = heap[0]
            if now is not None and time > now:
                return None
            heappop(heap)
            start = command.engine.free_at(time, command.sms)
            if not self._queues:
                if start == time:
                    return command
            elif start == time and self._is_first(rank, command):
                self._leave(rank, command, time)
                return command
            self._wait(start, rank, command)
        return None

    def _is_first(self, rank: Rank, command: Command) -> bool:
        queues = self._queues
        return all(part not in queues or rank <= queues[part][0][0] for part in command.engine.parts)

    def _wait(self, start: int, rank: Rank, command: Command) -> None:
        """Keep a command in the queues of its engine until the engine may have room, at `start`.

        Only a command that is the first of all its queues stays in the heap.
        """
        first = self._is_first(rank, command)
        for part in command.engine.parts:
            queue = self._queues.setdefault(part, [])
            if not queue or queue[0][0] != rank:
                if queue and rank < queue[0][0]:
                    self._withdraw(queue[0][1])
                heappush(queue, (rank, command))
        if first:
            heappush(self._heap, (start, rank, command))

    def _withdraw(self, command: Command) -> None:
        self._heap[:] = [entry for entry in self._heap if entry[2] is not command]
        heapify(self._heap)

    def _leave(self, rank: Rank, command: Command, time: int) -> None:
        """Take a command that starts out of its queues, and look at those behind it again."""
        behind: dict[int, tuple[Rank, Command]] = {}
        for part in command.engine.parts:
            queue = self._queues.get(part)
            if queue is not None and queue[0][0] == rank:
                heappop(queue)
                if queue:
                    behind[queue[0][1].seq] = queue[0]
                else:
                    del self._queues[part]
        for after, follower in behind.values():
            if self._is_first(after, follower):
                heappush(self._heap, (time, after, follower))


class Choice:
    """Base of the policies that choose freely: they keep the runnable commands as their choice wants them.

    How far the device has come when the host polls is free, too: each poll runs one command, and draws how likely it
    is to run one more: k more or more with a chance of 1 / (k + 1), so now and then all. And a host may ask late, when
    what it asks after is done: how often it does is drawn once a run, so that in some runs it nearly always does.
    """

    def __init__(self, seed: int, polls: str = "") -> None:
        """polls: what the answers of polls are drawn from, if not from the seed alone."""
        self._random = random.Random(seed)
        # Apart: what a wait chooses does not depend on polls before. And of each policy its own: else of all policies
        # of one seed either each is late or none.
        self._polls = random.Random(f"polls of {type(self).__name__} {polls or seed}")
        self._lateness = self._polls.random()
        self._eager: float | None = None  # within a poll: how likely it runs one more
        self._late = False  # within a poll: whether it goes on until what it asks after is done

    @property
    def runnable(self) -> bool:
        return bool(self._waiting())

    def take(self, now: int | None, question: PollQuestion | None = None) -> Command | None:
        if now is None:
            return self._next()
        overdue = [c for c in self._waiting() if c.ready <= now - PATIENCE_NS]
        if overdue:
            command = min(overdue, key=_ready)
            self._withdraw(command)
            return command
        if self._eager is None:
            self._eager, self._late = self._polls.random(), self._polls.random() < self._lateness
            more = True
        elif self._late and question is not None:
            more = question.target.pending > 0
        else:
            more = self._polls.random() < self._eager
        return self._next() if more else None

    def answer(self, question: PollQuestion | None) -> int:
        self._eager = None
        return LATE if self._late and question is not None and not question.target.pending else STOP

    def offer(self, command: Command) -> None:
        raise NotImplementedError

    def _next(self) -> Command | None:
        """Take the command that runs next; None if there is none."""
        raise NotImplementedError

    def _waiting(self) -> list[Command]:
        """All that can run."""
        raise NotImplementedError

    def _withdraw(self, command: Command) -> None:
        """Take this one."""
        raise NotImplementedError


class Random(Choice):
    """Any runnable command, each as likely: in the end every legal order occurs."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._ages: list[Command] = []  # by age

    def offer(self, command: Command) -> None:
        insort(self._ages, command, key=_seq)

    def _next(self) -> Command | None:
        ages = self._ages
        if len(ages) > 1:
            return ages.pop(self._random.randrange(len(ages)))
        return ages.pop() if ages else None

    def _waiting(self) -> list[Command]:
        return self._ages

    def _withdraw(self, command: Command) -> None:
        self._ages.remove(command)


class Adversarial(Choice):
    """Starves one stream as long as another can run, and lets the youngest work of the others go first.

    Whenever nothing but the victim is left, it gives in and looks for another victim.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._others: list[Command] = []  # by age
        self._victim: int | None = None
        self._starved: Command | None = None  # the victim's: a stream has one that can run

    def offer(self, command: Command) -> None:
        if command.stream.handle == self._victim:
            self._starved = command
        else:
            insort(self._others, command, key=_seq)

    def _next(self) -> Command | None:
        others = self._others
        if not others:
            command, self._starved = self._starved, None
            self._victim = None if command is not None else self._victim
            return command
        if self._starved is None and len(others) == 1:
            return others.pop()
        if self._victim is None:
            self._starved = others.pop(self._random.randrange(len(others)))
            self._victim = self._starved.stream.handle
        return others.pop(-1 if self._random.random() < 0.75 else self._random.randrange(len(others)))

    def _waiting(self) -> list[Command]:
        return self._others if self._starved is None else [*self._others, self._starved]

    def _withdraw(self, command: Command) -> None:
        if command is self._starved:
            self._starved = None
        else:
            self._others.remove(command)


class Pct(Choice):
    """Probabilistic concurrency testing (Burckhardt and others, 2010) over streams.

    Streams get random priorities and the highest runs; at `depth - 1` random choices the stream that would
    run becomes the lowest. A bug that needs `depth` ordering constraints is found with a known probability.
    """

    def __init__(self, seed: int, depth: int) -> None:
        super().__init__(seed, f"{seed} {depth}")
        self._seed = seed
        self._rank: dict[int, float] = {}  # by stream; the lowest number runs first
        self._heap: list[tuple[float, int, Command]] = []
        self._step = 0
        self._changes = {int(_CHANGE_HORIZON ** self._random.random()) for _ in range(depth - 1)}

    def offer(self, command: Command) -> None:
        handle = command.stream.handle
        rank = self._rank.get(handle)
        if rank is None:  # of the stream alone: it does not matter which came first
            rank = self._rank[handle] = random.Random(f"{self._seed} {handle}").random()
        heappush(self._heap, (rank, command.seq, command))

    def _next(self) -> Command | None:
        heap = self._heap
        if len(heap) > 1:
            self._step += 1
            if self._step in self._changes:
                _, seq, command = heap[0]
                rank = self._rank[command.stream.handle] = 1.0 + self._step
                heapreplace(heap, (rank, seq, command))
        return heappop(heap)[2] if heap else None

    def _waiting(self) -> list[Command]:
        return [command for _, _, command in self._heap]

    def _withdraw(self, command: Command) -> None:
        self._heap = [entry for entry in self._heap if entry[2] is not command]
        heapify(self._heap)


class Oldest:
    """Base of the policies that run the oldest runnable command first, unless they know better."""

    def __init__(self) -> None:
        self._runnable: dict[int, Command] = {}
        self._ages: list[int] = []  # a heap of them, and of some that have run since

    @property
    def runnable(self) -> bool:
        return bool(self._runnable)

    def offer(self, command: Command) -> None:
        self._runnable[command.seq] = command
        heappush(self._ages, command.seq)

    def _oldest(self) -> Command | None:
        while self._ages:
            command = self._runnable.pop(heappop(self._ages), None)
            if command is not None:
                return command
        return None


class ScriptedAnswers(Oldest):
    """Tells the program that work is done or not as a text of y and n says, question by question; past its end yes.

    For explorers. The runtime's own questions are none of the text's: they end by the times.
    """

    def __init__(self, answers: str) -> None:
        super().__init__()
        self._answers = answers
        self._at = 0

    def take(self, now: int | None, question: PollQuestion | None = None) -> Command | None:
        wanted = now is None or (self._answers_yes(question) and question.target.pending)  # type: ignore[union-attr]
        return self._oldest() if wanted else None

    def answer(self, question: PollQuestion | None) -> int:
        if question is None or question.internal:
            return STOP
        yes = self._answers_yes(question)
        self._at += 1
        if yes:
            return STOP if question.target.pending else LATE
        return EARLY

    def _answers_yes(self, question: PollQuestion | None) -> bool:
        return (
            question is not None and not question.internal and self._answers[self._at : self._at + 1] != "n"
        )


class ReplayPolicy(Oldest):
    """Runs commands in the order of a token; after its end, the oldest runnable command first.

    Raises DriverError where the program is not the one that the token was taken from.
    """

    def __init__(self, choices: list[int]) -> None:
        super().__init__()
        self._choices = choices
        self._at = 0

    def take(self, now: int | None, question: PollQuestion | None = None) -> Command | None:
        if self._at >= len(self._choices):
            return self._oldest()
        choice = self._choices[self._at]
        if choice < 0 and now is not None:
            return None
        seq, mark = divmod(choice, 256)
        command = self._runnable.get(seq) if choice >= 0 else None
        if command is None:
            have = ", ".join(f"#{c.seq} {c.name}" for c in self._runnable.values()) or "none"
            wanted = f"command #{seq}" if choice >= 0 else "the end of a poll"
            raise self._refusal(f"the token runs {wanted} here, but the runnable commands are: {have}")
        if command.mark != mark:
            raise self._refusal(
                f"command #{seq} is '{command.name}' of {command.nbytes} bytes here, not the recorded one"
            )
        self._at += 1
        del self._runnable[seq]
        return command

    def answer(self, question: PollQuestion | None) -> int:
        if self._at >= len(self._choices):
            return STOP
        choice = self._choices[self._at]
        if choice >= 0:  # the user has interrupted the poll
            return STOP
        if choice == LATE and (question is None or question.target.pending):
            raise self._refusal(
                "the token tells the host that work is done, which is not what the host asks after"
            )
        self._at += 1
        return choice

    @property
    def explain_unplayed(self) -> str:
        """Why the program is not the token's, if it has ended before the token; else empty."""
        return str(self._refusal("the program has ended")) if self._at < len(self._choices) else ""

    def _refusal(self, why: str) -> DriverError:
        return DriverError(
            "replay: this program is not the one that the token was recorded from, or another version of it or of "
            f"Flambeau. At choice {self._at + 1} of {len(self._choices)}, {why}"
        )


class Follow(ReplayPolicy):
    """Like `ReplayPolicy`, but from where the program leaves the token the oldest runnable command goes first.

    What a program does may depend on a race: in another order it gives other commands.
    """

    def take(self, now: int | None, question: PollQuestion | None = None) -> Command | None:
        try:
            return super().take(now, question)
        except DriverError:
            self._at = len(self._choices)
            return super().take(now, question)

    def answer(self, question: PollQuestion | None) -> int:
        try:
            return super().answer(question)
        except DriverError:
            self._at = len(self._choices)
            return STOP


_seq = attrgetter("seq")
_ready = attrgetter("ready", "seq")


def open_policy(schedule: str) -> SchedulePolicy:
    """The policy that a schedule string names.

    `earliest`, `random:SEED`, `adversarial:SEED`, `pct:SEED:DEPTH`, `replay:TOKEN`, or for explorers
    `follow:TOKEN` and `answers:` with a y or n for each question. Raises ValueError.
    """
    kind, _, rest = schedule.partition(":") if isinstance(schedule, str) else ("", "", "")
    try:
        if kind == "earliest" and not rest:
            return Earliest()
        if kind == "random":
            return Random(_number(rest))
        if kind == "adversarial":
            return Adversarial(_number(rest))
        if kind == "pct":
            seed, _, depth = rest.partition(":")
            return Pct(_number(seed), _number(depth, least=1, most=_CHANGE_HORIZON))
        if kind == "replay":
            return ReplayPolicy(read_token(rest))
        if kind == "follow":
            return Follow(read_token(rest))
        if kind == "answers" and not rest.strip("yn"):
            return ScriptedAnswers(rest)
    except ValueError as error:
        raise ValueError(f"schedule {brief(schedule)}: {error}") from None
    raise ValueError(
        f"schedule {brief(schedule)} is none of earliest, random:SEED, adversarial:SEED, pct:SEED:DEPTH, "
        "replay:TOKEN"
    )


def _number(text: str, least: int = 0, most: int = (1 << 64) - 1) -> int:
    if not text:
        raise ValueError("a number is missing, as in random:7, adversarial:7 or pct:7:2")
    digits = text.isascii() and text.isdigit()
    if not digits or int(text[:21]) < least:
        raise ValueError(f"{text[:40]!r} is not an integer of at least {least}")
    if int(text[:21]) > most:
        raise ValueError(f"{text[:40]!r} is more than {most}")
    return int(text)


# -- tokens: choices as differences, variable-length bytes, compressed ----------------------------------


_LONGEST_TOKEN = 1 << 24  # bytes of choices, which a short text may unpack to


def write_token(choices: Iterable[int]) -> str:
    """Choices as text that `replay:` takes."""
    data, last = bytearray(), 0
    for choice in choices:
        step = choice - last
        value = step << 1 if step >= 0 else (-step << 1) - 1
        last = choice
        while value > 127:
            data.append(value & 127 | 128)
            value >>= 7
        data.append(value)
    packed = zlib.compress(bytes(data), 9)
    raw = zlib.crc32(packed).to_bytes(4, "big") + packed
    return "1" + base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def read_token(token: str) -> list[int]:
    """The choices of a token. Raises ValueError where it is no token, or was cut."""
    if token[:1] != "1":
        raise ValueError("the token is of no version that this Flambeau knows")
    try:
        raw = base64.urlsafe_b64decode(token[1:] + "=" * (-len(token[1:]) % 4))
        if zlib.crc32(raw[4:]).to_bytes(4, "big") != raw[:4]:
            raise ValueError("its checksum is wrong")
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(raw[4:], _LONGEST_TOKEN)
        if not unpacker.eof:
            raise ValueError(f"it ends early, or has more than {_LONGEST_TOKEN} bytes of choices")
    except (ValueError, zlib.error) as error:
        raise ValueError(f"the token is damaged: {error}") from None
    choices, value, shift, last = [], 0, 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if shift > 70:
            raise ValueError("the token is damaged: a choice has more than 64 bits")
        if byte < 128:
            last += value >> 1 if not value & 1 else -(value + 1 >> 1)
            choices.append(last)
            value = shift = 0
    return choices
