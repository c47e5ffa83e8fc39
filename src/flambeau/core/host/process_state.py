"""`state_of`, `processor_seconds`, `children_of`, `IdleProcesses`: what the system reports about processes here."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_IDLE_S = 0.5  # processor time between two looks below which a process has not worked
_STATES = {"R": "runs", "D": "runs", "S": "sleeps", "T": "is stopped", "t": "is stopped", "Z": "has ended"}


def state_of(process: int) -> str:
    """Return what a process does: "runs", "sleeps", "is stopped" or "has ended"; "runs" if the system does not say."""
    with suppress(OSError):
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        return _STATES.get(state, "runs")
    return "runs"


def describe_processes(processes: Iterable[int]) -> str:
    """Return a text that names processes and the state of each."""
    return ", ".join([f"process {process} ({state_of(process)})" for process in processes])


def processor_seconds(process: int, root: Path = Path("/proc")) -> float:
    """Return the processor time that a process and its children (data loaders) have used.

    Infinity means that one of them is running now, or that the time cannot be read.
    """
    try:
        fields = (root / str(process) / "stat").read_text().rpartition(")")[2].split()
        if fields[0] in ("R", "D"):  # the process is ready to run
            return math.inf
        mine = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return math.inf
    return mine + sum([processor_seconds(child, root) for child in children_of(process, root)])


def children_of(process: int, root: Path = Path("/proc")) -> list[int]:
    """Return the processes that a process has started and that have not ended, if the system reports them."""
    found: list[int] = []
    for thread in (root / str(process) / "task").glob("*/children"):  # not all systems have this file
        with suppress(OSError, ValueError):
            found += map(int, thread.read_text().split())
    return found


class IdleProcesses:
    """The processes that do not work, found by looks at their processor time some seconds apart."""

    def __init__(self) -> None:
        self._used: dict[int, float] = {}  # process -> its processor time at the last look
        self._looks: dict[int, int] = {}  # process -> the number of looks since it worked

    def look(self, processes: Iterable[int]) -> None:
        """Compare the processor time of running processes with that of the last call."""
        used = {process: processor_seconds(process) for process in processes}
        self._looks = {
            process: self._looks.get(process, 0) + 1
            if 0 <= now - self._used.get(process, math.inf) < _IDLE_S
            else 0
            for process, now in used.items()
        }
        self._used = used

    def of_looks(self, least: int) -> list[int]:
        """Return the processes that had not worked at each of the last `least` looks."""
        return [process for process, looks in self._looks.items() if looks >= least]
