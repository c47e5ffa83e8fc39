"""`Notebook`: the IPython extension: races at the end of each cell, cells as call sites, short tracebacks.

It is installed when Flambeau is imported under IPython, or by `%load_ext flambeau`; see docs/notebooks.md.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from flambeau.core.callsite import enter_shell, is_package, leave_shell
from flambeau.core.errors import RaceError
from flambeau.observe.reports import Certificate, Race
from flambeau.observe.reports_html import races_html
from flambeau.report.machine_page import RecentTimeline, machine_page
from flambeau.report.recorder import MachineReport, machine_report
from flambeau.runtime import system
from flambeau.runtime.devices.machine import Machine

# packages whose frames lie between a cell and the function that shows its result
_SHELLS = ("IPython", "ipykernel", "decorator")


def install(shell: Any = None) -> None:
    """Install the extension in an IPython shell, by default the running one. Idempotent.

    Does nothing if IPython is imported but runs no shell.
    """
    if shell is None:
        shell = getattr(sys.modules["IPython"], "get_ipython", lambda: None)()
    if shell is not None and _find_installed(shell) is None:
        Notebook(shell).install()


def uninstall(shell: Any) -> None:
    """Take Flambeau out of an IPython shell again."""
    notebook = _find_installed(shell)
    if notebook is not None:
        notebook.uninstall()


def _find_installed(shell: Any) -> Notebook | None:
    owners = [getattr(call, "__self__", None) for call in shell.events.callbacks["post_run_cell"]]
    return next((owner for owner in owners if isinstance(owner, Notebook)), None)


class Notebook:
    """An IPython shell with Flambeau's hooks. It watches every machine (`system.watch`)."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self._machines: WeakKeyDictionary[Machine, _Watched] = WeakKeyDictionary()
        self._late: list[Race] = []  # races of machines that were closed in the present cell
        self._show = shell.showtraceback

    def install(self) -> None:
        files = [module.__file__ for name in _SHELLS if (module := sys.modules.get(name)) and module.__file__]
        enter_shell(
            [f"{os.path.dirname(f)}{os.sep}" if f.endswith("__init__.py") else f for f in files],
            self._cell_name,
        )
        self.shell.events.register("post_run_cell", self.end_cell)
        self.shell.showtraceback = self._show_traceback
        system.watch(self)

    def uninstall(self) -> None:
        system.unwatch(self)
        self.shell.showtraceback = self._show
        self.shell.events.unregister("post_run_cell", self.end_cell)
        leave_shell()

    def _cell_name(self, file: str) -> str | None:
        """Return `In [3]` for the source file of a cell; None for any other."""
        named = self.shell.compile.format_code_name(file)
        return None if named is None else named[1].replace("In[", "In [")

    # -- machines -------------------------------------------------------------------------------------
    def before_open(self, machine: Machine) -> None:
        pass

    def after_open(self, machine: Machine) -> None:
        watched = self._machines[machine] = _Watched()
        if machine.settings.driver == "virtual":
            bare: Any = machine.bare
            watched.timeline, outer = RecentTimeline(), bare.on_command
            bare.on_command = partial(_both, watched.timeline.add, outer) if outer else watched.timeline.add
        machine.page = partial(_page, watched, machine)

    def before_close(self, machine: Machine) -> None:
        watched = self._machines.get(machine)
        if watched is not None:
            watched.closed = machine_report(machine)  # also marks the detector's races as reported
            self._late += watched.new_races(machine)

    # -- the end of a cell ----------------------------------------------------------------------------
    def end_cell(self, result: Any) -> None:
        """Show the races that the cell has added, except those of a RaceError, which its traceback shows."""
        races, self._late = self._late, []
        for machine, watched in list(self._machines.items()):
            if watched.closed is None:
                races += watched.new_races(machine)
        if races and not isinstance(getattr(result, "error_in_exec", None), RaceError):
            display: Any = sys.modules["IPython"].display.display
            display(CellRaces(races))

    # -- tracebacks -----------------------------------------------------------------------------------
    def _show_traceback(self, exc_tuple: Any = None, *args: Any, **options: Any) -> None:
        """Show a traceback without Flambeau's own frames; `%xmode Verbose` shows them."""
        kind, error, trace = sys.exc_info() if exc_tuple is None else exc_tuple
        if error is None or self.shell.InteractiveTB.mode == "Verbose":
            self._show(exc_tuple, *args, **options)
            return
        chain = [each for each in _chain(error) if each is not error]
        whole = [each.__traceback__ for each in chain]
        for each in chain:
            each.__traceback__ = program_frames(each.__traceback__)
        try:
            self._show((kind, error, program_frames(trace)), *args, **options)
        finally:
            sys.last_traceback = trace  # which debuggers look at
            for each, before in zip(chain, whole, strict=True):
                each.__traceback__ = before


def program_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without Flambeau's frames, or the traceback itself where it has no others."""
    levels = []
    level = trace
    while level is not None:
        if not is_package(level.tb_frame.f_code):
            levels.append(level)
        level = level.tb_next
    if not levels:
        return trace
    found: TracebackType | None = None
    for level in reversed(levels):
        found = TracebackType(found, level.tb_frame, level.tb_lasti, level.tb_lineno)
    return found


def _chain(error: BaseException | None) -> list[BaseException]:
    """Return an exception with its causes and contexts."""
    found: list[BaseException] = []
    todo = [error]
    while todo:
        one = todo.pop()
        if one is not None and not any(one is each for each in found):
            found.append(one)
            todo += [one.__cause__, one.__context__]
    return found


class CellRaces:
    """The races that a cell has added, as text and as HTML."""

    def __init__(self, races: list[Race]) -> None:
        self.races = races

    def __repr__(self) -> str:
        return str(Certificate([], [], self.races))

    def _repr_html_(self) -> str:
        return races_html(self.races)


class _Watched:
    """The recorded state of a machine.

    Attributes:
        timeline: Its latest commands; None on real GPUs.
        closed: Its report when it was closed.
        shown: Number of its races that were shown.
    """

    def __init__(self) -> None:
        self.timeline: RecentTimeline | None = None
        self.closed: MachineReport | None = None
        self.shown = 0

    def new_races(self, machine: Machine) -> list[Race]:
        detector = getattr(machine.driver, "detector", None)
        if detector is None:
            return []
        found: list[Race] = detector.races[self.shown :]
        self.shown += len(found)
        detector.findings.mark_shown()
        return found


def _page(watched: _Watched, machine: Machine) -> str:
    report = watched.closed or machine_report(machine)
    return machine_page(report, watched.timeline, watched.closed is not None)


def _both(first: Any, second: Any, record: Any) -> None:
    first(record)
    second(record)
