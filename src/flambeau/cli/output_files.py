"""The output that several commands write: JSON, SARIF, GitHub's annotations, and the diff of fixes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from flambeau.cli.environment import why_not_writable
from flambeau.cli.output.console import escape_unencodable
from flambeau.observe.reports import Edit
from flambeau.report.document import Document, races_of, write_document
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


def add_fixes(parser: argparse.ArgumentParser) -> None:
    """Add `--apply-fixes`."""
    parser.add_argument(
        "--apply-fixes",
        action="store_true",
        help="print the fixes of races as a diff over the program's own files, for `git apply`; edits nothing",
    )


def write_fixes(options: argparse.Namespace, document: Document, program: str) -> None:
    """Print the diff. If the program is not below the working directory, also print the folder in which it applies."""
    root = Path.cwd()
    if not options.module and not Path(program).resolve().is_relative_to(root):
        root = Path(program).resolve().parent
        print(f"flambeau {options.command}: the diff applies in {root}", file=sys.stderr)
    races = list(races_of(document))
    fix_diff = import_module("flambeau.report.fix_diff").fix_diff  # few runs need it
    diff = fix_diff([Edit(**edit) for race in races for edit in race["fix"]["edits"]], root)
    if races and not diff:
        print(f"flambeau {options.command}: no fix is a line of a file below {root}", file=sys.stderr)
    escape_unencodable(sys.stdout)
    sys.stdout.write(diff)
    sys.stdout.flush()


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
    """Write the requested files. Returns their paths, and an exit status: 1 if one could not be written."""
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
