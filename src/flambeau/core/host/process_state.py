"""`state_of`, `processor_seconds`, `children_of`: what the system reports about a process of this host."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_STATES = {"R": "runs", "D": "runs", "S": "sleeps", "T": "is stopped", "t": "is stopped", "Z": "has ended"}


def state_of(process: int) -> str:
    """Return what a process does: "runs", "sleeps", "is stopped" or "has ended"; "runs" if the system does not say."""
    with suppress(OSError):
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        return _STATES.get(state, "runs")
    return "runs"


def describe_processes(processes: Iterable[int]) -> str:
    """Return a text that names processes, with what each does."""
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
