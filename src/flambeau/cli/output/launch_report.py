"""The output of `flambeau launch` after a run: all ranks on one screen, from the report of each."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from flambeau.cli.output.console import Screen
from flambeau.cli.output.process_entries import write_processes
from flambeau.report.document import Document, head, machines_of

REPORT = "report.json"


def launch_document(folder: Path, first: int, partial: list[Document], status: int) -> Document:
    """Return the report of all ranks of this node.

    Args:
        folder: The folder of the attempts' folders, where each rank has written its own report at its end.
        first: The first rank of this node.
        partial: What processes reported while they ran, of all attempts: of ranks that were ended there is no more.
        status: The exit status of the launch.
    """
    attempts = sorted(folder.glob("attempt_*"), key=lambda path: int(path.name.rpartition("_")[2]))
    ranks = []
    for number, attempt in enumerate(attempts):
        last = attempt is attempts[-1]
        found = _ranks(attempt, number, first, partial)
        ranks += found if last else [{**rank, "attempt": number} for rank in found if _has_races(rank)]
    return {**head("launch", status), "ranks": ranks}


def _ranks(attempt: Path, number: int, first: int, partial: list[Document]) -> list[dict[str, Any]]:
    found = []
    for folder in sorted(attempt.iterdir(), key=lambda path: int(path.name)):
        local_rank = int(folder.name)
        report: Document | None = None
        with suppress(OSError, ValueError):  # the rank was ended before it wrote the file
            report = json.loads((folder / REPORT).read_text())
        mine = [p for p in partial if (p["rank"], p["attempt"]) == (first + local_rank, number)]
        if report is None:
            machines = [machine for process in mine for machine in process["machines"]]
            report = {"exit_status": None, "machines": machines, "processes": []}
        fields = {name: report[name] for name in ("exit_status", "machines", "processes")}
        found.append({"rank": first + local_rank, "local_rank": local_rank, **fields})
    return found


def _has_races(rank: dict[str, Any]) -> bool:
    return any(m["certificate"] and m["certificate"]["races"] for _, m in machines_of({"ranks": [rank]}))


def write_ranks(document: Document, file: TextIO, written: list[Path], failed: bool) -> None:
    """Print devices, times, memory and races of all ranks of this node."""
    screen = Screen(file)
    screen.title("flambeau launch")
    named = list(machines_of(document))
    if not named:
        screen.line("No rank used a CUDA device.")
    else:
        write_processes(named, screen, failed, "rank")
    for path in written:
        screen.entry("written", str(path))
    screen.end()
