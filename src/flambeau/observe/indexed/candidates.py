"""`Candidate`: two unordered accesses, one of which selects elements by indices. If both access one element, it is a
race.
"""

from __future__ import annotations

from dataclasses import dataclass

from flambeau.core.callsite import Site
from flambeau.observe.accesses import Cell, Command
from flambeau.observe.indexed.partial import PartialAccess
from flambeau.observe.race_builder import Launches


class Candidate:
    """Two unordered commands, with the detector's knowledge of them when the second was enqueued.

    `first` stands for all accesses of its agent to places of `old` from the one after number `above` up to `first`
    itself. Of the two sides at least one is partial.

    Attributes:
        old, before, last: The first access: its cell, READ or WRITE, the command.
        cell, kind, command: The second one.
        first, second: The partial accesses; None for a side that touches all of its cell.
        not_kept: What stands for accesses of the first agent whose places were not kept.
        doubtful: Numbers up to which host threads may have met unseen: see Note [Host threads].
    """

    __slots__ = (
        "above", "before", "born", "cell", "command", "doubtful", "first", "kind", "last", "launches", "not_kept",
        "old", "second", "site",
    )  # fmt: skip

    def __init__(
        self,
        old: Cell,
        before: str,
        last: Command,
        first: PartialAccess | None,
        cell: Cell,
        kind: str,
        command: Command,
        second: PartialAccess | None,
        above: int,
        doubtful: int,
    ) -> None:
        self.old, self.before, self.last, self.first = old, before, last, first
        self.cell, self.kind, self.command, self.second = cell, kind, command, second
        self.above, self.doubtful = above, doubtful
        self.born: int = cell.block.born
        self.site: Site | None = cell.block.site
        self.launches: Launches = (None, None)
        self.not_kept: list[PartialAccess] = []


@dataclass(slots=True)
class Circumstances:
    """The data that the report of a conflict needs and that the detector's present state lacks.

    Attributes:
        candidate: The candidate that was decided.
        launches: The graph launches that the two commands belong to.
        by_chance: True if host threads may have synchronized unseen, so that there is no race in this run.
        notes: Notes for the report: which access counts as touching more than it may.
        span: The addresses of the overlap; None if they are not known.
        late: True if the second command was enqueued before the decision.
    """

    candidate: Candidate
    launches: Launches
    by_chance: bool
    notes: tuple[str, ...]
    span: tuple[int, int] | None
    late: bool
