"""`Policy`: which of the runnable commands runs next. A policy is two methods and a property.

`offer(command)` says that a command became runnable: it is at the head of its stream, its waits are over.
`take(now)` gives the next command to run. With `now=None` the host waits: None means that nothing is
runnable. Otherwise the host polls at simulated time `now`: None means that this poll has run enough. A loop
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
from heapq import heappop, heappush, heapreplace
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from flambeau.core.errors import DriverError

if TYPE_CHECKING:
    from flambeau.driver.virtual.scheduler import Command

PATIENCE_NS = 100_000
_CHANGE_HORIZON = 1 << 14  # PCT's change points lie among this many choices, denser towards the first


class Policy(Protocol):
    def offer(self, command: Command) -> None: ...
    def take(self, now: int | None) -> Command | None: ...

    @property
    def runnable(self) -> bool:
        """Whether any command is."""
        ...


class Earliest:
    """What the modelled device would do: the command that can start first; ties by priority, then age."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Command]] = []

    @property
    def runnable(self) -> bool:
        return bool(self._heap)

    def offer(self, command: Command) -> None:
        heappush(self._heap, (command.ready, command.stream.priority, command.seq, command))

    def take(self, now: int | None) -> Command | None:
        heap = self._heap
        while heap:
            time, priority, seq, command = heap[0]
            if now is not None and time > now:
                return None
            start = command.engine.free_at(time, command.sms)
            if start == time:
                heappop(heap)
                return command
            heapreplace(heap, (start, priority, seq, command))  # its engine is busy: look again then
        return None


class Choice:
    """Base of the policies that choose freely.

    How far the device has come when the host polls is free, too: each poll runs one command, and draws how likely it
    is to run one more: k more or more with a chance of 1 / (k + 1), so now and then all.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._runnable: list[Command] = []  # by age
        self._polls = random.Random(
            f"polls of {seed}"
        )  # apart: what a wait chooses does not depend on polls before
        self._eager: float | None = None  # within a poll: how likely it runs one more

    @property
    def runnable(self) -> bool:
        return bool(self._runnable)

    def offer(self, command: Command) -> None:
        insort(self._runnable, command, key=_seq)

    def take(self, now: int | None) -> Command | None:
        runnable = self._runnable
        if now is None:
            return runnable.pop(self.choose(runnable)) if runnable else None
        overdue = [c for c in runnable if c.ready <= now - PATIENCE_NS]
        if overdue:
            command = min(overdue, key=_ready)
            runnable.remove(command)
            return command
        first, eager = self._eager is None, self._polls.random() if self._eager is None else self._eager
        more = bool(runnable) and (first or self._polls.random() < eager)
        self._eager = eager if more else None
        return runnable.pop(self.choose(runnable)) if more else None

    def choose(self, runnable: list[Command]) -> int:
        """The place of the next command in a list that is not empty."""
        raise NotImplementedError


class Random(Choice):
    """Any runnable command, each as likely: in the end every legal order occurs."""

    def choose(self, runnable: list[Command]) -> int:
        return self._random.randrange(len(runnable)) if len(runnable) > 1 else 0


class Adversarial(Choice):
    """Starves one stream as long as another can run, and lets the youngest work of the others go first.

    Whenever nothing but the victim is left, it gives in and looks for another victim.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._victim: int | None = None

    def choose(self, runnable: list[Command]) -> int:
        if len(runnable) == 1:
            if runnable[0].stream.handle == self._victim:
                self._victim = None
            return 0
        if self._victim is None:
            self._victim = self._random.choice(runnable).stream.handle
        others = [i for i, c in enumerate(runnable) if c.stream.handle != self._victim]
        return others[-1] if self._random.random() < 0.75 else self._random.choice(others)


class Pct(Choice):
    """Probabilistic concurrency testing (Burckhardt and others, 2010) over streams.

    Streams get random priorities and the highest runs; at `depth - 1` random choices the stream that would
    run becomes the lowest. A bug that needs `depth` ordering constraints is found with a known probability.
    """

    def __init__(self, seed: int, depth: int) -> None:
        super().__init__(seed)
        self._rank: dict[int, float] = {}  # by stream; the lowest number runs first
        self._step = 0
        self._changes = {int(_CHANGE_HORIZON ** self._random.random()) for _ in range(depth - 1)}

    def choose(self, runnable: list[Command]) -> int:
        if len(runnable) == 1:
            return 0
        for command in runnable:
            if command.stream.handle not in self._rank:
                self._rank[command.stream.handle] = self._random.random()
        self._step += 1
        if self._step in self._changes:
            self._rank[runnable[self._first(runnable)].stream.handle] = 1.0 + self._step
        return self._first(runnable)

    def _first(self, runnable: list[Command]) -> int:
        ranks = [self._rank[command.stream.handle] for command in runnable]
        return ranks.index(min(ranks))


class Replay:
    """Runs commands in the order of a token; after its end, the oldest runnable command first.

    Raises DriverError where the program is not the one that the token was taken from.
    """

    def __init__(self, choices: list[int]) -> None:
        self._choices = choices
        self._at = 0
        self._runnable: dict[int, Command] = {}

    @property
    def runnable(self) -> bool:
        return bool(self._runnable)

    def offer(self, command: Command) -> None:
        self._runnable[command.seq] = command

    def take(self, now: int | None) -> Command | None:
        if self._at >= len(self._choices):
            return self._runnable.pop(min(self._runnable)) if self._runnable else None
        choice = self._choices[self._at]
        if choice == STOP and now is not None:
            self._at += 1
            return None
        seq, mark = divmod(choice, 256)
        command = self._runnable.get(seq) if choice != STOP else None
        if command is None:
            have = ", ".join(f"#{c.seq} {c.name}" for c in self._runnable.values()) or "none"
            wanted = "the end of a poll" if choice == STOP else f"command #{seq}"
            raise self._refusal(f"the token runs {wanted} here, but the runnable commands are: {have}")
        if command.mark != mark:
            raise self._refusal(
                f"command #{seq} is '{command.name}' of {command.nbytes} bytes here, not the recorded one"
            )
        self._at += 1
        del self._runnable[seq]
        return command

    @property
    def unplayed(self) -> str:
        """Why the program is not the token's, if it has ended before the token; else empty."""
        return str(self._refusal("the program has ended")) if self._at < len(self._choices) else ""

    def _refusal(self, why: str) -> DriverError:
        return DriverError(
            "replay: this program is not the one that the token was recorded from, or another version of it or of "
            f"Flambeau. At choice {self._at + 1} of {len(self._choices)}, {why}"
        )


class Follow(Replay):
    """Like `Replay`, but from where the program leaves the token the oldest runnable command goes first.

    What a program does may depend on a race: in another order it gives other commands.
    """

    def take(self, now: int | None) -> Command | None:
        try:
            return super().take(now)
        except DriverError:
            self._at = len(self._choices)
            return super().take(now)


STOP = -1  # among choices: a poll of the host ended here

_seq = attrgetter("seq")
_ready = attrgetter("ready", "seq")


def open_policy(schedule: str) -> Policy:
    """The policy that a schedule string names.

    `earliest`, `random:SEED`, `adversarial:SEED`, `pct:SEED:DEPTH`, `replay:TOKEN`, or for explorers
    `follow:TOKEN`. Raises ValueError.
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
            return Pct(_number(seed), _number(depth, least=1))
        if kind == "replay":
            return Replay(read_token(rest))
        if kind == "follow":
            return Follow(read_token(rest))
    except ValueError as error:
        raise ValueError(f"schedule {schedule!r}: {error}") from None
    raise ValueError(
        f"schedule {schedule!r} is none of earliest, random:SEED, adversarial:SEED, pct:SEED:DEPTH, "
        "replay:TOKEN"
    )


def _number(text: str, least: int = 0) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise ValueError(f"{text!r} is not an integer of at least {least}")
    return int(text)


# -- tokens: choices as differences, variable-length bytes, compressed ----------------------------------


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
        data = zlib.decompress(raw[4:])
    except (ValueError, zlib.error) as error:
        raise ValueError(f"the token is damaged: {error}") from None
    choices, value, shift, last = [], 0, 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            last += value >> 1 if not value & 1 else -(value + 1 >> 1)
            choices.append(last)
            value = shift = 0
    return choices
