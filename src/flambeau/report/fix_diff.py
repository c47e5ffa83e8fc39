"""`fix_diff`: fixes of races as one unified diff over the program's files. The function edits no file."""

from __future__ import annotations

import difflib
import io
import tokenize
from collections.abc import Iterable
from pathlib import Path

from flambeau.observe.reports import Edit

_NO_NEWLINE = "\\ No newline at end of file\n"


def fix_diff(edits: Iterable[Edit], root: Path) -> str:
    """Return a diff for `git apply` or `patch -p1` in the folder `root`; "" if there is nothing to insert.

    Fixes of files outside of `root`, and of code that is in no file, are left out.
    """
    by_path: dict[Path, dict[Edit, None]] = {}
    for edit in edits:
        by_path.setdefault(Path(edit.path).resolve(), {})[edit] = None
    root = root.resolve()
    files = [path for path in sorted(by_path) if path.is_relative_to(root) and path.is_file()]
    return "".join([_file_diff(path, path.relative_to(root).as_posix(), by_path[path]) for path in files])


def _file_diff(path: Path, name: str, edits: Iterable[Edit]) -> str:
    data = path.read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    before = io.StringIO(data.decode(encoding), newline="").readlines()  # with the ends of lines as they are
    lines = difflib.unified_diff(before, apply_edits(before, edits), f"a/{name}", f"b/{name}")
    return "".join([line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}" for line in lines])


def apply_edits(lines: list[str], edits: Iterable[Edit]) -> list[str]:
    """Return the lines with the text of all edits inserted. Equal insertions at one position are made once."""
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    inserted: dict[tuple[int, int], dict[str, None]] = {}
    for edit in edits:
        inserted.setdefault((edit.line - 1, edit.column), {})[edit.text.replace("\n", end)] = None
    text = list(lines)
    for (line, column), parts in sorted(inserted.items(), reverse=True):
        added = "".join(parts)
        if line < len(text):
            text[line] = text[line][:column] + added + text[line][column:]
        else:
            text[-1] += added if text[-1].endswith("\n") else end + added
    return io.StringIO("".join(text), newline="").readlines()
