"""A `SchedulePolicy` chooses which runnable command runs next and what a poll of the host returns.

`offer(command)` adds a command that became runnable: it is the first of its stream, and its waits are over.
`take(now, question)` returns the next command to run. `now=None` means that the host waits; the result is
None if nothing is runnable. Otherwise the host polls at simulated time `now`. None then means that this
poll runs no more commands, and `answer(question)` decides its result: STOP follows simulated times; LATE
means that the host polls so late that the work is done; EARLY means that it polls so early that the result
is False. A polling loop must end, so each policy runs in polls every command that became runnable
`PATIENCE_NS` before.

Under every policy streams stay in order, waits hold and times are consistent. Policies read no data, clock
or identity: the choices follow from the program and the seed alone.
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
"""The order in which an engine serves commands: priority, time in ns at which the command became ready, `seq`.
"""

STOP, LATE, EARLY = -1, -2, -3  # results of polls, in lists of choices


class PollQuestion(NamedTuple):
    """A poll of a stream or a command. `internal` is True if the runtime polls and no value depends on the
    result.
    """

    target: SimulatedStream | Command
    internal: bool


class SchedulePolicy(Protocol):
    def offer(self, command: Command) -> None: ...
    def take(self, now: int | None, question: PollQuestion | None = None) -> Command | None: ...
    def answer(self, question: PollQuestion | None) -> int: ...

    @property
    def runnable(self) -> bool:
        """Return True if any command can run."""
        ...


class Earliest:
    """The policy that runs the command that the modelled device would start next.

    An engine serves the highest priority first, then the command that became ready first, then the oldest.
    A command does not overtake another that waits for its engine, even if it needs less of the engine.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, Rank, Command]] = []  # (time of the next check, rank, command)
        # engine part -> heap of the commands that wait for it
        self._queues: dict[Engine, list[tuple[Rank, Command]]] = {}

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

        Only the first command of all its queues stays in the heap.
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
        """Remove a command that starts from its engine's queues. Commands behind it are checked again."""
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
    """The base class of policies that choose freely among the runnable commands.

    The progress of the device at a poll is chosen as well. Each poll runs one command, and draws the
    probability of running one more: it runs k or more with probability 1 / (k + 1), hence occasionally all.
    A host may also poll late, when the work in question is done. The frequency of late polls is drawn once
    per run; in some runs nearly all are late.
    """

    def __init__(self, seed: int, polls: str = "") -> None:
        """Seed the policy. `polls` seeds the results of polls; if it is None, `seed` does."""
        self._random = random.Random(seed)
        # Answers to polls have a separate generator, so that they do not change the choices of waits. Its seed
        # depends on the policy: otherwise all policies of one seed would answer late, or none.
        self._polls = random.Random(f"polls of {type(self).__name__} {polls or seed}")
        self._lateness = self._polls.random()
        self._eager: float | None = None  # during a poll: the probability of running one more command
        self._late = False  # during a poll: True if it runs until the work in question is done

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
        """Remove and return the command that runs next; None if there is none."""
        raise NotImplementedError

    def _waiting(self) -> list[Command]:
        """Return all runnable commands."""
        raise NotImplementedError

    def _withdraw(self, command: Command) -> None:
        """Remove a command that is about to run."""
        raise NotImplementedError


class Random(Choice):
    """The policy that chooses uniformly among runnable commands. Every legal order can occur."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._ages: list[Command] = []  # runnable commands, oldest first

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
    """The policy that starves one stream while another can run, and runs the youngest command of the others
    first.

    When only the starved stream is left, the policy runs it and chooses another one to starve.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._others: list[Command] = []  # runnable commands of the other streams, oldest first
        self._victim: int | None = None
        self._starved: Command | None = None  # the runnable command of the starved stream

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

    Streams get random priorities and the highest one runs. At `depth - 1` random choices the stream that
    would run becomes the lowest. A bug that needs `depth` ordering constraints is found with a known
    probability.
    """

    def __init__(self, seed: int, depth: int) -> None:
        super().__init__(seed, f"{seed} {depth}")
        self._seed = seed
        self._rank: dict[int, float] = {}  # stream -> rank; the lowest number runs first
        self._heap: list[tuple[float, int, Command]] = []
        self._step = 0
        self._changes = {int(_CHANGE_HORIZON ** self._random.random()) for _ in range(depth - 1)}

    def offer(self, command: Command) -> None:
        handle = command.stream.handle
        rank = self._rank.get(handle)
        if rank is None:  # depends on the stream alone, not on the order of first commands
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
    """The base class of policies that run the oldest runnable command unless a subclass chooses otherwise."""

    def __init__(self) -> None:
        self._runnable: dict[int, Command] = {}
        self._ages: list[int] = []  # a heap of sequence numbers, some of which have run since

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
    """A policy that answers the program's polls by a text of y and n, one letter per poll, then with yes.

    Explorers use it. Polls of the runtime consume no letter: simulated times decide them.
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
    """A policy that runs commands in the order of a token, and after its end the oldest runnable command
    first.

    It raises DriverError if the program differs from the one that the token is from.
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
        if choice >= 0:  # the user interrupted the poll
            return STOP
        if choice == LATE and (question is None or question.target.pending):
            raise self._refusal(
                "the token answers a query whether work is done, which the program does not make here"
            )
        self._at += 1
        return choice

    @property
    def explain_unplayed(self) -> str:
        """Return why the program differs from the token's if it ended before the token did; else ""."""
        return str(self._refusal("the program has ended")) if self._at < len(self._choices) else ""

    def _refusal(self, why: str) -> DriverError:
        return DriverError(
            "replay: this program is not the one that the token was recorded from, or another version of it or of "
            f"Flambeau. At choice {self._at + 1} of {len(self._choices)}, {why}"
        )


class Follow(ReplayPolicy):
    """A replay that no longer follows its token once the program deviates from it.

    From then on the oldest runnable command runs first. A program whose commands depend on the outcome of a race
    deviates if the token has another order of the race.
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
    """Return the policy that a schedule string names.

    The strings are `earliest`, `random:SEED`, `adversarial:SEED`, `pct:SEED:DEPTH`, `replay:TOKEN`, and for
    explorers `follow:TOKEN` and `answers:` with a y or n for each poll.

    Raises:
        ValueError: If the string is none of these.
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
        f"schedule {brief(schedule)} is not one of earliest, random:SEED, adversarial:SEED, pct:SEED:DEPTH, "
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
    """Return choices as a token for `replay:`."""
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
    """Return the choices of a token.

    Raises:
        ValueError: If the text is not a token, or was truncated.
    """
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
