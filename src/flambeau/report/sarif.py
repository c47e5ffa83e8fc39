"""Findings as SARIF 2.1.0, which GitHub code scanning and editors show on the lines."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flambeau import version
from flambeau.core.files import replace_file
from flambeau.report.document import Document, machines_of
from flambeau.report.findings import RULES, Finding, Spot, findings_of

_ROOT = "SRCROOT"


def write_sarif(document: Document, path: Path, root: Path) -> None:
    """Write the findings of a report. Files below `root` are named relative to it."""
    replace_file(path, json.dumps(sarif_log(document, root), indent=1) + "\n")


def sarif_log(document: Document, root: Path) -> dict[str, Any]:
    """Return the SARIF log of a report."""
    notes = dict.fromkeys(
        [
            text
            for _, machine in machines_of(document)
            if machine["certificate"] and not machine["certificate"]["races"]
            for text in machine["certificate"]["violated"]
        ]
    )
    invocation = {
        "executionSuccessful": document["exit_status"] == 0,
        "exitCode": document["exit_status"],
        "toolExecutionNotifications": [
            {"level": "note", "message": {"text": f"Not certified for every schedule: {text}"}}
            for text in notes
        ],
    }
    driver = {
        "name": "Flambeau",
        "version": version.flambeau,
        "rules": [
            {
                "id": rule.id,
                "name": rule.name,
                "shortDescription": {"text": f"{rule.title}."},
                "fullDescription": {"text": f"{rule.title}. {rule.help}"},
                "help": {"text": rule.help},
                "defaultConfiguration": {"level": "error"},
                "properties": {"tags": ["concurrency", "correctness"]},
            }
            for rule in RULES
        ],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "originalUriBaseIds": {_ROOT: {"uri": f"{root.resolve().as_uri().rstrip('/')}/"}},
        "columnKind": "unicodeCodePoints",
        "results": _results(findings_of(document), root.resolve()),
    }
    return {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}


def _results(findings: Sequence[Finding], root: Path) -> list[dict[str, Any]]:
    return [_result(finding, root) for finding in findings]


def _result(finding: Finding, root: Path) -> dict[str, Any]:
    link = f"[{_escape_brackets(finding.other)}](1)" if finding.other else ""
    text = (
        f"{_escape_brackets(finding.before)}{link}{_escape_brackets(finding.after + finding.where)} "
        f"Fix: {_escape_brackets(finding.fix)}"
    )
    result: dict[str, Any] = {
        "ruleId": finding.rule.id,
        "ruleIndex": RULES.index(finding.rule),
        "level": "error",
        "message": {"text": text},
        "locations": [_location(finding.spot, root)] if finding.spot.file else [],
        "occurrenceCount": finding.count,
        "partialFingerprints": {"flambeauLines/v1": _fingerprint(finding, root)},
    }
    if finding.other:
        other = _location(finding.other_spot, root) | {
            "id": 1,
            "message": {"text": f"First: {finding.other}"},
        }
        result["relatedLocations"] = [other]
    if finding.edits:
        result["fixes"] = [_fix(finding, root)]
    return result


def _location(spot: Spot, root: Path) -> dict[str, Any]:
    if spot.file.startswith("<"):  # not a file, but an executed string or a notebook cell
        return {"logicalLocations": [{"fullyQualifiedName": f"{spot.file}:{spot.line}"}]}
    region: dict[str, Any] = {"startLine": max(spot.line, 1)}
    if spot.source:
        region["snippet"] = {"text": spot.source}
    return {"physicalLocation": {"artifactLocation": _artifact(spot.file, root), "region": region}}


def _artifact(file: str, root: Path) -> dict[str, str]:
    """Return a file as a URI, relative to the root if it lies below it."""
    relative = Spot(file, 0).relative(root)
    if os.path.isabs(relative):
        return {"uri": f"file://{_quote_path(relative)}"}
    return {"uri": _quote_path(relative), "uriBaseId": _ROOT}


def _quote_path(path: str) -> str:
    return quote(os.fsencode(path))


def _fix(finding: Finding, root: Path) -> dict[str, Any]:
    """Return the proposed lines as insertions; columns count from 1 here."""
    changes: dict[str, list[dict[str, Any]]] = {}
    for edit in finding.edits:
        at, column = edit["line"], edit["column"] + 1
        region = {"startLine": at, "startColumn": column, "endLine": at, "endColumn": column}
        changes.setdefault(edit["path"], []).append(
            {"deletedRegion": region, "insertedContent": {"text": edit["text"]}}
        )
    return {
        "description": {"text": finding.fix},
        "artifactChanges": [
            {"artifactLocation": _artifact(os.path.abspath(path), root), "replacements": replacements}
            for path, replacements in changes.items()
        ],
    }


def _fingerprint(finding: Finding, root: Path) -> str:
    """Return a hash of the rule, the files, and the text of both lines. It does not change when lines move."""
    spots = [(spot.relative(root), spot.source) for spot in (finding.spot, finding.other_spot)]
    text = repr((finding.rule.id, spots, finding.before if not finding.spot.file else ""))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _escape_brackets(text: str) -> str:
    """Return a text in which brackets are no links. Lone surrogates, of odd file names, are no Unicode."""
    plain = text.encode("utf-8", "backslashreplace").decode()
    return plain.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
