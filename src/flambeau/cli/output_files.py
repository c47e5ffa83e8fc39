"""The output files that several commands write: JSON, SARIF; and GitHub's annotations."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from flambeau.cli.environment import why_not_writable
from flambeau.report.document import Document, write_document
from flambeau.report.github_annotations import source_root, wants_annotations, write_annotations


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Add `--report` and `--sarif`."""
    parser.add_argument("--report", metavar="FILE", type=Path, help="write the report as JSON (docs/ci.md)")
    parser.add_argument(
        "--sarif",
        metavar="FILE",
        type=Path,
        help="write races and failures as SARIF, for GitHub code scanning",
    )


def why_no_outputs(options: argparse.Namespace, *others: Path | None) -> str:
    """Return the reason why a requested file cannot be written, checked before the program runs; empty if all can."""
    options.root, options.annotates = source_root(), wants_annotations()
    files = [file for file in (*others, options.report, options.sarif) if file is not None]
    for file in files:
        why = "it is asked for twice" if files.count(file) > 1 else why_not_writable(file)
        if why:
            return f"can't write {str(file)!r}: {why}"
    return ""


def write_outputs(options: argparse.Namespace, document: Document) -> tuple[list[Path], int]:
    """Write the requested files. Returns the files, and an exit status: 1 if one could not be written."""
    if options.annotates:
        write_annotations(document, sys.stderr, options.root)
    return write_files(
        options,
        [
            (options.report, partial(write_document, document)),
            (options.sarif, partial(_write_sarif, document, options.root)),
        ],
    )


def _write_sarif(document: Document, root: Path, file: Path) -> None:
    import_module("flambeau.report.sarif").write_sarif(document, file, root)  # few runs need it


def write_files(
    options: argparse.Namespace, writers: list[tuple[Path | None, Callable[[Path], None]]]
) -> tuple[list[Path], int]:
    """Write each file that is not None. Returns the written files, and status 1 if one could not be written."""
    written, status = [], 0
    for file, write in writers:
        if file is not None:
            try:
                write(file)
                written.append(file)
            except OSError as error:
                print(
                    f"flambeau {options.command}: can't write {str(file)!r}: {error.strerror}",
                    file=sys.stderr,
                )
                status = 1
    return written, status
