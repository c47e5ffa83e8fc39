"""What the detector says: `Race`, the `Fix` that would end it, and the `Certificate`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from flambeau.core.callsite import Site, place, source


class RaceWarning(UserWarning):
    """A race that was collected, not raised."""


@dataclass(frozen=True, slots=True)
class RaceAccess:
    """One side of a race. `stream` is None where the host itself touched the memory.

    `handle` and `ordinal` name the command for a timeline: the stream's handle, and its how manieth command
    (copies, fills, launches, host functions) it is, from 1.
    """

    kind: str  # "reads", "writes", or "reads and writes"
    operator: str
    stream: str | None
    number: int  # of the command, counting all commands of the process in the order of their requests
    begin: int
    end: int
    shape: tuple[int, ...] | None
    dtype: str | None
    site: Site
    stream_site: Site | None = None  # where the stream was created
    handle: int = 0
    ordinal: int = 0
    launched: Site | None = (
        None  # of a graph's command: where the graph was launched; `site` is in its capture
    )
    name: str = ""  # the operator's public name
    when: str = ""  # "of a previous iteration"

    @property
    def place(self) -> str:
        return place(self.site)

    @property
    def where(self) -> str:
        """The place, and which use of several there it was."""
        return f"{self.place} {self.when}".rstrip()

    @property
    def issued(self) -> Site:
        """Where the program issued it: a graph's command with the whole graph."""
        return self.launched or self.site

    def __str__(self) -> str:
        launched = f" (launched at {place(self.launched)})" if self.launched else ""
        return f"{self.name or self.operator} on {self.stream or 'the host'} at {self.where}{launched}"


@dataclass(frozen=True, slots=True)
class Edit:
    """Text to insert into a file of the program, at a line (from 1) and a column (from 0)."""

    path: str
    line: int
    column: int
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """The smallest call that would order the two accesses, and where it goes.

    Attributes:
        call: "wait_stream", "record_stream", "synchronize" or "wait".
        where: Where `lines` go, as "Before program.py:7 insert"; a whole sentence if there are no lines.
        verified: The detector put the edge into its clocks and found the accesses ordered, and the lines run after
            each first access and before each second one, as far as the text of the program shows that.
        lines: Statements of Python in the program's own names; none where its source cannot be read.
        edits: The same as insertions into the program's files.
        hint: What else the reader should know.
    """

    call: str
    where: str
    verified: bool
    lines: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    hint: str = ""

    def merge(self, other: Fix) -> Fix:
        """Return the fix with the lines that another one adds at the same place."""
        added = tuple([line for line in other.lines if line not in self.lines])
        if not added or other.where != self.where or len(self.edits) != 1 or len(other.edits) != 1:
            return self
        mine, theirs = self.edits[0].text, other.edits[0].text
        text = mine + "".join([t for t in theirs.splitlines(keepends=True) if t not in mine])
        return replace(
            self,
            lines=self.lines + added,
            edits=(replace(self.edits[0], text=text),),
            verified=self.verified and other.verified,
        )

    @property
    def code(self) -> str:
        return "\n".join(self.lines)

    @property
    def text(self) -> str:
        """All of it in one paragraph."""
        code = "; ".join([line.strip() for line in self.lines]).replace(":; ", ": ")
        text = f"{self.where}: {code}" if code else self.where
        return f"{text}. {self.hint}" if self.hint else text


@dataclass(slots=True)
class Race:
    """Two accesses to the same bytes, at least one of them a write, that nothing orders.

    `second` was requested later. `reused` says that the first access belongs to an earlier life of the
    memory: it was freed, and handed out again or may be. `count` is how often this pair of lines raced.
    """

    first: RaceAccess
    second: RaceAccess
    device: str
    fix: Fix
    allocated: Site | None = None
    freed: Site | None = None
    reused: bool = False
    note: str = ""
    count: int = 1
    latest: int | None = None  # the number of the second command that raced last
    meeting: tuple[int, int] | None = None  # where they meet, if that is less than both may touch

    def also(self, before: str, kind: str, number: int | None) -> None:
        """The same two lines raced once more: `before` and `kind` say what they did with the memory."""
        self.first, self.second = _does(self.first, before), _does(self.second, kind)
        self.count += number is None or number != (self.latest or self.second.number)
        self.latest = number

    @property
    def range(self) -> tuple[int, int]:
        """The bytes that both may touch: the first ones, where the allocator may use these for the second."""
        if self.meeting is not None:
            return self.meeting
        begin, end = max(self.first.begin, self.second.begin), min(self.first.end, self.second.end)
        return (begin, end) if begin < end else (self.first.begin, self.first.end)

    def __str__(self) -> str:
        lines = [
            self.headline,
            *[f"    {side}" for side in _sides(self)],
            f"    {_memory(self)}",
        ]
        if self.note:
            lines.append(f"    {self.note}")
        lines.append(f"  Fix: {self.fix.text}")
        if self.count > 1:
            lines.append(f"  ({self.count} times)")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return import_module("flambeau.observe.reports_html").race_html(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    @property
    def headline(self) -> str:
        first, second = self.first, self.second
        if self.reused:
            freed = f" at {place(self.freed)}" if self.freed else ""
            return (
                f"{second} {second.kind} memory that may be what was freed{freed} while {first}, which {first.kind} "
                "it, may still run: record_stream missing."
            )
        return f"{second} {second.kind} bytes that {first} {first.kind}, and nothing orders them."


def _does(side: RaceAccess, kind: str) -> RaceAccess:
    return side if kind in side.kind else replace(side, kind="reads and writes")


def _sides(race: Race) -> list[str]:
    return [f"first:  {_side(race.first)}", f"second: {_side(race.second)}"]


def _side(side: RaceAccess) -> str:
    what = "bytes" if side.shape is None else f"{list(side.shape)} {side.dtype}"
    text = source(side.site)
    about = [f"stream created at {place(side.stream_site)}"] if side.stream_site else []
    about += [f"launched at {place(side.launched)}"] if side.launched else []
    details = f" ({', '.join(about)})" if about else ""
    description = f"{side.place}: {side.kind} {what} [{side.begin:#x}, {side.end:#x}){details}"
    return f"{description}  | {text}" if text else description


def _memory(race: Race) -> str:
    begin, end = race.range
    where = f", allocated at {place(race.allocated)}" if race.allocated else ""
    return f"memory: {end - begin} bytes at {begin:#x} of {race.device}{where}"


@dataclass(frozen=True, slots=True)
class Certificate:
    """Whether the program gives the same answer under every legal schedule. See docs/determinism.md.

    `assumptions` are what that rests on, each looked at while the program ran; `violated` those that did not
    hold; of these, `queries` only say that the program asked whether work is done. `race_free` is True if no race was
    found and nothing is violated.
    """

    assumptions: list[str]
    violated: list[str]
    races: list[Race] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)

    @property
    def race_free(self) -> bool:
        return not self.races and not self.violated

    def __str__(self) -> str:
        if self.races:
            n = len(self.races)
            head = f"{n} race{'s' if n > 1 else ''} found:"
            return "\n\n".join([head, *[f"{i}. {race}" for i, race in enumerate(self.races, 1)]])
        if self.violated:
            lines = ["No race in this run, but not certified for every schedule:"]
            return "\n".join([*lines, *[f"  - {text}" for text in self.violated]])
        lines = ["Race-free under every schedule, given that:", *[f"  - {text}" for text in self.assumptions]]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return import_module("flambeau.observe.reports_html").certificate_html(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))
