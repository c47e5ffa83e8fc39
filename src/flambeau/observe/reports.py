"""The reports of the race detector: `Race`, the `Fix` that orders its accesses, and the `Certificate`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from flambeau.core.callsite import Site, place, source


class RaceWarning(UserWarning):
    """A warning of a race that is collected and not raised."""


@dataclass(frozen=True, slots=True)
class RaceAccess:
    """One side of a race.

    Attributes:
        stream: The stream's name; None if the host itself touched the memory.
        handle: The stream's handle, for a timeline.
        ordinal: The command's number, from 1, among the copies, fills, launches and host functions of its
            stream.
    """

    kind: str  # "reads", "writes", or "reads and writes"
    operator: str
    stream: str | None
    number: int  # the command's number in the order of all requests of the process
    begin: int
    end: int
    shape: tuple[int, ...] | None
    dtype: str | None
    site: Site
    stream_site: Site | None = None  # where the stream was created
    handle: int = 0
    ordinal: int = 0
    # where the graph of the command was launched; `site` is then in its capture
    launched: Site | None = None
    name: str = ""  # the operator's public name
    when: str = ""  # "of a previous iteration"

    @property
    def place(self) -> str:
        return place(self.site)

    @property
    def where(self) -> str:
        """Return the call site, and which of several uses there it was."""
        return f"{self.place} {self.when}".rstrip()

    @property
    def issued(self) -> Site:
        """Return the call site; for a command of a graph, that of the graph's launch."""
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
    """The smallest call that orders the two accesses of a race, and the place to insert it.

    Attributes:
        call: "wait_stream", "record_stream", "synchronize" or "wait".
        where: The place for `lines`, as "Before program.py:7 insert"; a whole sentence if there are no
            lines.
        verified: True if the detector found the accesses ordered with this edge added to its clocks, and
            the program's text shows that the lines run after each first access and before each second one.
        lines: Python statements in the program's own names; empty if its source cannot be read.
        edits: The lines as insertions into the program's files.
        hint: Further advice.
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
        """Return the fix as one paragraph."""
        code = "; ".join([line.strip() for line in self.lines]).replace(":; ", ": ")
        text = f"{self.where}: {code}" if code else self.where
        return f"{text}. {self.hint}" if self.hint else text


@dataclass(slots=True)
class Race:
    """Two accesses to the same bytes, at least one of them a write, that nothing orders.

    Attributes:
        first: The access that was requested first.
        second: The access that was requested later.
        reused: True if the first access belongs to an earlier lifetime of the memory, which was reused or
            may be.
        count: The number of races of these two call sites.
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
    latest: int | None = None  # the number of the second command of the latest race
    meeting: tuple[int, int] | None = None  # the shared bytes, if they are fewer than both may touch

    def also(self, before: str, kind: str, number: int | None) -> None:
        """Count another race of the same call sites; `before` and `kind` are its accesses."""
        self.first, self.second = _does(self.first, before), _does(self.second, kind)
        self.count += number is None or number != (self.latest or self.second.number)
        self.latest = number

    @property
    def range(self) -> tuple[int, int]:
        """Return the bytes that both may touch. For memory that may be reused, the bytes of the first access."""
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
    text = source(race.allocated) if race.allocated else ""
    return f"memory: {end - begin} bytes at {begin:#x} of {race.device}{where}{f'  | {text}' if text else ''}"


@dataclass(frozen=True, slots=True)
class Certificate:
    """The verdict on a run: whether the program computes the same result under every legal schedule.

    See docs/determinism.md.

    Attributes:
        races: The races found.
        assumptions: The conditions that the verdict rests on; the detector checked each while the program
            ran.
        violated: The conditions that did not hold.
        queries: Those of `violated` that say only that the program polled for the completion of work.
        unordered: Those of `violated` that say only that nothing orders calls of several host threads.
        race_free: True if there is no race and `violated` is empty.
    """

    assumptions: list[str]
    violated: list[str]
    races: list[Race] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    unordered: list[str] = field(default_factory=list)

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
