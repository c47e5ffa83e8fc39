"""The report as JSON: the format of `--report FILE`, from which other formats are generated."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from flambeau import version
from flambeau.core.files import replace_file
from flambeau.report.child_reports import name_of
from flambeau.report.recorder import ProcessRecorder, machine_fields

SCHEMA_VERSION = 1

Document = dict[str, Any]
"""A report as `schema.json` describes it."""


def run_document(recorder: ProcessRecorder, processes: list[Document], status: int) -> Document:
    """Return the report of a program: its machines, and the processes that it started."""
    machines = [machine_fields(machine) for machine in recorder.machines]
    return {**head("run", status), "machines": machines, "processes": processes}


def head(kind: str, status: int) -> Document:
    """Return the first fields of every report."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "flambeau": version.flambeau,
        "arguments": sys.orig_argv,
        "exit_status": status,
    }


def write_document(document: Document, path: Path) -> None:
    """Write a report as JSON."""
    replace_file(path, json.dumps(document, indent=1) + "\n")


def machines_of(document: Document) -> Iterator[tuple[str, Document]]:
    """Yield each machine of a report with the process that it belongs to: "" for the program's own."""
    for machine in document.get("machines", ()):
        yield "", machine
    for test in document.get("tests", ()):
        yield from ((test["test"], machine) for machine in test["machines"])
        yield from _machines(test["processes"])
    for rank in document.get("ranks", ()):
        yield from ((f"rank {rank['rank']}", machine) for machine in rank["machines"])
        yield from _machines(rank["processes"])
    yield from _machines(document.get("processes", ()))


def _machines(processes: Iterable[Document]) -> Iterator[tuple[str, Document]]:
    for process in processes:
        yield from ((name_of(process), machine) for machine in process["machines"])


def races_of(document: Document) -> Iterator[Document]:
    """Yield each race of a report, with the name of its process as "process"."""
    for name, machine in machines_of(document):
        if machine["certificate"] is not None:
            yield from ({**race, "process": name} for race in machine["certificate"]["races"])
    yield from ({**race, "process": ""} for race in document.get("exploration", {}).get("races", ()))


def has_failed(document: Document) -> bool:
    """Return True if races counted as errors on a machine that had races, even if the program caught the error."""
    return any(
        machine["races"] == "error" and machine["certificate"] and machine["certificate"]["races"]
        for _, machine in machines_of(document)
    )
