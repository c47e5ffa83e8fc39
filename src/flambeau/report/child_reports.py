"""`ProcessReport`: the report of a child process, kept in a file for the command that started it.

# Note [Reports of child processes]
Problem: programs start processes in many ways (multiprocessing, subprocess, launchers), and a process may end at any
time without a word: by `os._exit`, by a signal.
Rule: `flambeau run` and `flambeau launch` name a folder in the environment. Each process below that uses a machine has
a file there, written when a machine starts, when races are found and when a machine closes.
Why: what stands in the file at any time is true. A process that ends in an orderly way has closed its machines;
"finished" says so. One that was killed has left its races until then.
Consequences: a command that is itself such a process has a file in the outer folder, and its own children have theirs
in a folder of its number next to that file.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
from contextlib import suppress
from multiprocessing import parent_process, util
from pathlib import Path
from typing import Any

from flambeau.core.files import replace_file
from flambeau.observe.reports import Certificate
from flambeau.report.recorder import MachineReport, ProcessRecorder, machine_fields
from flambeau.runtime import system
from flambeau.runtime.devices.machine import Machine

FOLDER = "FLAMBEAU_REPORT_FOLDER"
_UNFINISHED = "the process had not ended, or was killed, when its report was written"


class ProcessReport:
    """The observer of this process's machines, which keeps the process's report file up to date."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._recorder = ProcessRecorder()
        self._open: list[Machine] = []
        self._next = 1  # after so many races the file is written

    def after_fork(self) -> None:
        """Start an empty report in a forked child, which has none of the parent's machines."""
        self._begin()

    def before_open(self, machine: Machine) -> None:
        pass

    def after_open(self, machine: Machine) -> None:
        self._open.append(machine)
        detector = getattr(machine.driver, "detector", None)
        if detector is not None:
            detector.findings.on_race = self._on_race
        _close_at_end_of_child()
        self._write()

    def before_close(self, machine: Machine) -> None:
        self._recorder.before_close(machine)
        with suppress(ValueError):  # it was opened before this process was forked
            self._open.remove(machine)
        self._write()

    def _on_race(self, count: int) -> None:
        """Write the report each time the number of races has doubled; writing all races each time would be slow."""
        if count >= self._next:
            self._next = 2 * count
            self._write()

    def _write(self) -> None:
        # the folder was removed: the command that asked for the report has ended
        with self._lock, suppress(OSError):
            machines = [*self._recorder.machines, *map(_report_open_machine, self._open)]
            fields = {
                **_identity(),
                "finished": not self._open,
                "machines": [machine_fields(machine) for machine in machines],
            }
            replace_file(self._folder / f"{os.getpid()}.json", json.dumps(fields), durable=False)


def join_reports() -> None:
    """Report from this process and its forks to the folder that the environment names."""
    report = ProcessReport(Path(os.environ[FOLDER]))
    system.watch(report)
    os.register_at_fork(after_in_child=report.after_fork)


class ChildReports:
    """The folder in which the children of this process report, from `open` until `close`.

    In a child process, the folder lies inside the one to which the child itself reports. Only one is open at a time.
    """

    _current: ChildReports | None = None
    _follows_forks = False

    def __init__(self) -> None:
        self._outer = outer = os.environ.get(FOLDER)
        self.folder = Path(
            tempfile.mkdtemp(prefix="flambeau-reports-") if outer is None else f"{outer}/{os.getpid()}"
        )
        self._forks: ProcessReport | None = None  # in a forked child

    def open(self) -> None:
        """Name the folder in the environment."""
        self.folder.mkdir(parents=True, exist_ok=True)
        os.environ[FOLDER] = str(self.folder)
        ChildReports._current = self
        if not ChildReports._follows_forks:
            ChildReports._follows_forks = True
            os.register_at_fork(after_in_child=ChildReports._after_fork)

    @staticmethod
    def _after_fork() -> None:
        reports = ChildReports._current
        if reports is None:
            return
        if reports._forks is None:
            reports._forks = ProcessReport(reports.folder)
            system.watch(reports._forks)
        else:
            reports._forks.after_fork()

    def read(self) -> list[dict[str, Any]]:
        """Return the reports of all processes below this one, ranks first, each once."""
        found: dict[int, dict[str, Any]] = {}
        for path in self.folder.rglob("*.json"):
            with suppress(OSError, ValueError):  # its process has just ended
                report = json.loads(path.read_text())
                found[report["pid"]] = report
        for report in found.values():
            parent = found.get(report["parent"])
            if parent is not None and parent["rank"] == report["rank"]:
                report["rank"] = None  # a child of the rank inherits the rank's environment
        return sorted(
            found.values(), key=lambda report: (report["rank"] is None, report["rank"], report["pid"])
        )

    def close(self) -> None:
        """Remove the folder; within a child that reports itself, leave it to the outer process."""
        ChildReports._current = None
        if self._outer is None:
            os.environ.pop(FOLDER, None)
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            os.environ[FOLDER] = self._outer


def name_of(report: dict[str, Any]) -> str:
    """Return the name of a process in reports: `rank 1`, or `process 4711 (worker.py)`."""
    if report["rank"] is not None:
        return f"rank {report['rank']}"
    program = Path(report["argv"][0]).name if report["argv"] and report["argv"][0] else ""
    named = f" ({program})" if program not in ("", "-c", "-m") else ""
    return f"process {report['pid']}{named}"


def _identity() -> dict[str, Any]:
    rank, local_rank, attempt = [
        int(text) if text.isdecimal() else None
        for text in (
            os.environ.get(name, "") for name in ("RANK", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT")
        )
    ]
    return {
        "pid": os.getpid(), "parent": os.getppid(), "argv": sys.argv,
        "rank": rank, "local_rank": local_rank, "attempt": attempt,
    }  # fmt: skip


def _report_open_machine(machine: Machine) -> MachineReport:
    """Return a machine that is in use: its races so far, and no certificate."""
    detector = getattr(machine.driver, "detector", None)
    races = None if detector is None else list(detector.races)
    virtual = machine.settings.driver == "virtual"
    return MachineReport(
        driver=machine.settings.driver,
        profile=machine.settings.profile if virtual else None,
        schedule=machine.settings.schedule if virtual else None,
        races=machine.settings.races,
        devices=[], time_ns=None, host_wait_ns=None, time_error=None,
        rounds_to_tf32=any(context.rounds_to_tf32 for context in machine.contexts), trace_hash=None, token=None,
        unplayed="", certificate=None if races is None else Certificate([], [_UNFINISHED], races),
    )  # fmt: skip


def _close_at_end_of_child() -> None:
    """Register the closing of machines in forked children of multiprocessing, which do not run `atexit` functions."""
    if parent_process() is not None:
        util.Finalize(None, system.close_quietly, exitpriority=-1000)
