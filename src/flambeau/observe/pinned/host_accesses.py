"""Accesses of the host to memory that commands use. The race detector compares both."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from flambeau.core.callsite import Site, caller, place
from flambeau.observe.accesses import Cell, Command, Operation
from flambeau.observe.layout_overlap import Extent, overlap, span_of
from flambeau.observe.pinned.lines import view_name
from flambeau.observe.pinned.pinned_accesses import Export, PinnedUse, Window
from flambeau.observe.race_builder import READ, WRITE, access_of, line_at, shape_of, synchronize_fix
from flambeau.observe.reporting.fixes import Proposer
from flambeau.observe.reporting.operator_names import public_name, repetition
from flambeau.observe.reporting.program_names import event_after
from flambeau.observe.reports import Race, RaceAccess

if TYPE_CHECKING:
    from flambeau.observe.detector import Detector


class HostAccesses:
    """The accesses of the host that one detector checks, protected by its lock.

    Attributes:
        cells: Shadow cells of host memory that commands use and that the host has not waited for; values are None.
            While it is empty, accesses of the host need no check.
    """

    __slots__ = ("_detector", "cells")

    def __init__(self, detector: Detector) -> None:
        self.cells: dict[Cell, None] = {}
        self._detector = detector

    def add_command(self, use: PinnedUse, stream: int) -> None:
        """Watch the host's accesses to the pinned memory that the last checked command uses."""
        for cell in self._detector.shadow.overlapping(use.ptr, use.ptr + use.nbytes):
            self.cells[cell] = None
        cell = self._detector.shadow.cells[use.ptr, use.nbytes]
        last = cell.write if use.kind is WRITE else cell.read
        if last is None:
            assert cell.reads is not None
            last = cell.reads[self._detector.agents[stream]]
        self._detector.pinned.on_command(use, last)

    def pending(self, ptr: int, nbytes: int) -> Iterator[tuple[Cell, str, Command]]:
        """Yield the commands that use this host memory and that the host has not waited for."""
        for cell in list(self.cells):
            if cell.start < ptr + nbytes and ptr < cell.end:
                accesses = [(READ, read) for read in cell.all_reads()]
                accesses += [(WRITE, cell.write)] if cell.write is not None else []
                for kind, last in accesses:
                    if self._detector.known.get(last[0], 0) < last[1] and last[1] >= cell.block.born:
                        yield cell, kind, last

    def on_write(self, keys: Sequence[tuple[int, Extent]]) -> None:
        """Record a write of the host that was checked already."""
        for ptr, extent in keys:
            if self._detector.pinned.contains(ptr):
                with self._detector.lock:
                    self._detector.pinned.on_host_write(ptr, extent)

    def on_export(self, ptr: int, nbytes: int, what: str, view: object) -> None:
        """Record that another object has access to host memory while `view` lives, or forever if `view` is None."""
        if self._detector.pinned.contains(ptr):
            with self._detector.lock:
                if threading.get_ident() != self._detector.running:
                    self._detector.enter()
                self._detector.pinned.on_export(ptr, nbytes, what, view)

    def check(self, ptr: int, extent: Extent, kind: str, what: Operation) -> None:
        """Check an access of the host to host memory.

        Raises:
            RaceError: In mode "error", if the access races.
        """
        for cell in list(self.cells):
            if not overlap(ptr, extent, cell.start, cell.extent):
                continue
            for last in list(cell.all_reads()) if kind is WRITE else ():
                self._check_command(cell, READ, last, ptr, extent, kind, what)
            if cell.write is not None:
                self._check_command(cell, WRITE, cell.write, ptr, extent, kind, what)

    def _check_command(
        self, cell: Cell, before: str, last: Command, ptr: int, extent: Extent, kind: str, what: Operation
    ) -> None:
        if self._detector.known.get(last[0], 0) >= last[1]:
            return
        if self._detector.several and self._detector.everyone.get(last[0], 0) >= last[1]:
            if last[1] >= cell.block.born:
                self._detector.met_by_chance(last, caller(2))
            return
        if last[1] < cell.block.born and cell.polled.get(last[0], 0) >= last[1]:
            self._detector.findings.reuses_polled += 1
            return
        site = caller(2)
        key = (*line_at((last[3], last[4])), *line_at(site), last[0].device)
        if self._detector.findings.is_known(key, before, kind, None):
            return
        launch = self._detector.graphs.launch_of(last)
        first = access_of(cell.start, cell.extent, before, last, launch)
        shape, dtype = shape_of(extent, kind, what)
        second = RaceAccess(
            kind, what[0], None, self._detector.number, ptr, ptr + span_of(extent), shape, dtype, site
        )
        second = replace(second, name=public_name(what[0], site))
        first = replace(first, when=repetition(first.issued, site))
        proposer = Proposer(self._detector.select, site)
        is_event = event_after(last[:2], self._detector.events) if launch is None else None
        fix = synchronize_fix(first, second.place, last, launch, self._detector.known, proposer, is_event)
        self._detector.findings.report(key, Race(first, second, "pinned host memory", fix, cell.block.site))

    def report_change(self, low: int, high: int, window: Window, site: Site | None) -> None:
        """Report that the host wrote through a view, which nothing observes, into memory that a command still used.

        The bytes had changed when the host reached `site`. See Note [Unseen accesses].
        """
        view = window.life.exported
        assert view is not None and view.site is not None
        until = "the end" if site is None else "this line"
        second = self._unseen(WRITE, f"a write through a view, before {until},", low, high, site or view.site)
        note = (
            f"note:   the bytes changed after {place(window.site)}, and no operator of the program's wrote them: "
            f"{view_name(view.what, view.site)} shows the memory."
        )
        when = "the host writes there, which it did afterwards"
        self._report_unseen(window, second, when + (f" and before {second.place}" if site else ""), note)

    def report_look(self, window: Window, view: Export) -> None:
        """Report a race with a view that the program created and dropped before it waited for the command that writes
        its memory.

        Nothing observes the view's reads.
        """
        assert view.site is not None
        second = self._unseen(READ, f"a read through {view.what}", view.start, view.end, view.site)
        self._report_unseen(window, second, second.place)

    def _unseen(self, kind: str, what: str, start: int, end: int, site: Site) -> RaceAccess:
        return RaceAccess(kind, what, None, self._detector.number, start, end, None, None, site)

    def _report_unseen(self, window: Window, second: RaceAccess, when: str, note: str = "") -> None:
        last = window.command
        if self._detector.several and self._detector.everyone.get(last[0], 0) >= last[1]:
            self._detector.met_by_chance(last, second.site)
            return
        key = (*line_at(window.site), *line_at(second.site), last[0].device, second.operator)
        if self._detector.findings.is_known(key, window.kind, second.kind, None):
            return
        launch = self._detector.graphs.launch_of(last)
        first = access_of(window.start, window.end - window.start, window.kind, last, launch)
        fix = synchronize_fix(first, when, last, launch, self._detector.known, None)
        race = Race(first, second, "pinned host memory", fix, window.life.block.site, note=note)
        self._detector.findings.report(key, race, late=True)

    def forget(self, ptr: int, nbytes: int) -> None:
        """Drop memory that was returned to the driver, after a wait for all its uses."""
        for cell in self._detector.shadow.overlapping(ptr, ptr + nbytes):
            self.cells.pop(cell, None)

    def settle(self) -> None:
        """Stop watching host memory if the host has waited for all its commands."""
        for cell in list(self.cells):
            if all(self._detector.all_know(a[0], a[1]) for a in cell.accesses()):
                del self.cells[cell]
                self._detector.shadow.drop(cell)
