"""Findings as GitHub's workflow commands: `::error file=...,line=...::...` in a log puts them on the lines."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from flambeau.report.child_reports import FOLDER
from flambeau.report.document import Document

if TYPE_CHECKING:
    from flambeau.report.findings import Finding

_MOST = 10  # annotations of a step that GitHub shows


def wants_annotations() -> bool:
    """Return True within a workflow of GitHub; not in a process whose parent reports for it."""
    return os.environ.get("GITHUB_ACTIONS") == "true" and FOLDER not in os.environ


def source_root() -> Path:
    """Return the folder that file names are relative to: the repository of a workflow, else the working directory."""
    return Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd())


def write_annotations(document: Document, file: TextIO, root: Path) -> None:
    """Print one annotation for each finding."""
    findings = import_module("flambeau.report.findings").findings_of(document)  # few runs need it
    for finding in findings[:_MOST]:
        print(_annotation(finding, root.resolve()), file=file)
    if len(findings) > _MOST:
        print(f"::notice::Flambeau: {len(findings) - _MOST} findings more are in its report", file=file)
    file.flush()


def _annotation(finding: Finding, root: Path) -> str:
    properties = {"title": f"{finding.rule.id} {finding.rule.title}"}
    if finding.spot.file and not finding.spot.file.startswith("<"):
        properties = {"file": finding.spot.relative(root), "line": str(finding.spot.line), **properties}
    named = ",".join([f"{name}={_property(value)}" for name, value in properties.items()])
    other = finding.other_spot
    first = f" (first: {other.relative(root)}:{other.line})" if other.file else ""
    return f"::error {named}::{_data(finding.text + first)}"


def _data(text: str) -> str:
    plain = text.encode("utf-8", "backslashreplace").decode()
    return plain.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
