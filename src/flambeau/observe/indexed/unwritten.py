"""Reads of memory that nothing has written since it was allocated, byte by byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flambeau.core.callsite import Site, place
from flambeau.observe.accesses import NOWHERE, Cell, Command
from flambeau.observe.indexed.partial import Array, PartialAccess
from flambeau.observe.indexed.place_map import NotKnown, PlaceMap
from flambeau.observe.layout_overlap import Extent, covers, touched_bytes
from flambeau.observe.race_findings import Findings

if TYPE_CHECKING:
    from flambeau.observe.indexed.deferred import Deferred

Wholes = list[tuple[int, Extent]]
"""Addresses and layouts that commands have written as a whole."""


class PendingRead:
    """A read of memory that was partly written through indices which are not known yet.

    Attributes:
        changed: True if the command writes the whole cell as well as reading it.
        wholes: The parts that were written as a whole before it.
        places: The map of the elements that indices selected.
        waits: The number of accesses that must run before it can be decided.
    """

    __slots__ = ("cell", "changed", "command", "places", "site", "waits", "wholes")

    def __init__(self, cell: Cell, command: Command, changed: bool, wholes: Wholes, places: PlaceMap) -> None:
        self.cell, self.command, self.changed = cell, command, changed
        self.wholes, self.places, self.site = wholes, places, cell.block.site
        self.waits = 0


class UnwrittenReads:
    """The checks for reads of memory that was never written. They report to `findings`."""

    def __init__(self, findings: Findings, deferred: Deferred) -> None:
        self._findings, self._deferred = findings, deferred

    def read(self, cell: Cell, command: Command, changed: bool) -> None:
        """Check a command's read of a cell that no single command has written in the present lifetime of its
        memory.

        Args:
            changed: True if the command writes there as well; which parts is not known.
        """
        block = cell.block
        if cell.checked == block.born or not self.is_checked(cell):
            return
        cell.checked = block.born
        wholes = self.wholes(cell)
        if any(covers(start, extent, cell.start, cell.extent) for start, extent in wholes):
            return  # the usual case: one command wrote all of it
        places = block.places
        if places is not None and places.born == block.born and places.defines:
            self._deferred.ask(PendingRead(cell, command, changed, wholes, places))
        elif _is_unwritten(cell, wholes, None):
            self._report(command, block.site, changed)

    def note(self, access: PartialAccess) -> None:
        """Record a partial access, if some of its memory was not written as a whole."""
        cell = access.cell
        if self.is_written(cell):
            return
        access.defines = access.is_awaited = access.writes
        if access.operand.reads and not access.operand.touches.rewrites:
            if access.entire:
                self.read(cell, access.command, access.writes)
            else:
                access.asks, access.is_awaited = self.wholes(cell), True

    def is_checked(self, cell: Cell) -> bool:
        """Return False for memory that the host or another process may write, or whose allocation is not known."""
        block = cell.block
        return not (self._findings.shares_memory or block is NOWHERE or block.host or cell.start == cell.end)

    def wholes(self, cell: Cell) -> Wholes:
        """Return the parts of a cell and its neighbours that commands have written as a whole."""
        return [(c.start, c.extent) for c in (cell, *cell.neighbours) if c.is_written]

    def is_written(self, cell: Cell) -> bool:
        """Return True if the whole cell has been written, not counting elements that indices select."""
        if cell.is_written or not self.is_checked(cell):
            return True
        return any(covers(start, extent, cell.start, cell.extent) for start, extent in self.wholes(cell))

    # -- where indices name places ------------------------------------------------------------------------------
    def answer(self, question: PendingRead) -> None:
        """Decide a pending read, after the accesses that it waited for have run."""
        if _is_unwritten(question.cell, question.wholes, question.places):
            self._report(question.command, question.site, question.changed)

    def places_read(self, access: PartialAccess, wholes: Wholes) -> None:
        """Check a read of selected elements. Of their memory only `wholes` was written as a whole."""
        places = access.map
        places.draw()
        if access.indices is None:
            unwritten = _is_unwritten(access.cell, wholes, places)
        else:
            try:
                unwritten = _is_place_unwritten(access, wholes)
            except (NotKnown, MemoryError):
                unwritten = True
        if unwritten:
            self._report(access.command, access.site, False)

    def not_known(self, access: PartialAccess) -> None:
        """Treat the whole cell as written, because a command writes elements that will stay unknown."""
        access.cell.assumed = access.born
        at = place((access.command[3], access.command[4]))
        made = _describe_allocation(access.site)
        self._findings.unwritten(
            (access.command[3], access.command[4]),
            f"{access.command[2][0]} at {at} writes the places that its indices name, of memory{made} that was never "
            f"written as a whole: which these are is not known ({access.why})",
        )

    def open_questions(self) -> list[str]:
        """Describe the reads that cannot be decided because commands have not run."""
        return [
            f"{q.command[2][0]} at {place((q.command[3], q.command[4]))} reads memory{_describe_allocation(q.site)} of "
            "which places that indices name are written by commands that have not run yet"
            for q in self._deferred.asked
        ]

    def _report(self, command: Command, allocated: Site | None, changed: bool) -> None:
        at = place((command[3], command[4]))
        made = _describe_allocation(allocated)
        does, what = ("changes", "what it does not overwrite") if changed else ("reads", "its result")
        self._findings.unwritten(
            (command[3], command[4]),
            f"{command[2][0]} at {at} {does} memory{made} that was never written: {what} is undefined",
        )


def _describe_allocation(site: Site | None) -> str:
    return f", allocated at {place(site)}," if site else ""


def _is_unwritten(cell: Cell, wholes: Wholes, places: PlaceMap | None) -> bool:
    """Return True if some byte of a cell was never written.

    Args:
        cell: The cell.
        wholes: Writes of whole layouts.
        places: Bytes that were written through indices; None if there are none.
    """
    touched = touched_bytes(cell.start, cell.end, wholes)
    wanted = touched_bytes(cell.start, cell.end, [(cell.start, cell.extent)])
    if places is not None:
        places.draw()
    if touched is None or wanted is None:  # too large for a bitmap
        return not wholes and (places is None or not places.all_defined(cell.start, cell.extent))
    missing = (wanted == 1) & (touched == 0)
    if places is not None and missing.any():
        missing &= ~places.defined_bytes(cell.start, cell.end)
    return bool(missing.any())


def _is_place_unwritten(access: PartialAccess, wholes: Wholes) -> bool:
    """Return True if a byte of an access's elements was written neither as a whole nor through indices."""
    places = access.map
    missing = places.undefined_of(access)
    units = np.flatnonzero(missing)
    if not units.size:
        return False
    unit, start = places.unit, places.start
    begin = start + int(units[0]) * unit
    end = min(start + (int(units[-1]) + 1) * unit, places.end)
    touched = touched_bytes(begin, end, wholes)
    if touched is None:
        return not wholes
    here: Array = np.repeat(missing[int(units[0]) : int(units[-1]) + 1], unit)[: end - begin]
    return bool((here & (touched == 0)).any())
