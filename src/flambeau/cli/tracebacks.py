"""Tracebacks of programs: Flambeau's own frames are left out, in this process and in its children."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from types import TracebackType

FULL = "FLAMBEAU_FULL_TRACEBACK"
"""The environment variable with which `--full-traceback` reaches child processes."""

_RUNNERS = ("<frozen runpy>", "<frozen importlib.util>")
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_HANDOVERS = os.path.join(_PACKAGE, "observe", "handovers", "")


def shorten_tracebacks() -> None:
    """Leave Flambeau's frames out of the interpreter's tracebacks, unless the program or the environment objects."""
    if sys.excepthook is sys.__excepthook__ and not os.environ.get(FULL):
        sys.excepthook = _write


def _write(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(traceback_of(False, kind, error, trace))


def traceback_of(
    full: bool, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> str:
    """Return a traceback as the interpreter writes it; without Flambeau's frames unless `full`."""
    shown = traceback.TracebackException(kind, error, trace)
    if not full:
        _cut(shown)
    return "".join(shown.format())


def _cut(shown: traceback.TracebackException | None) -> None:
    """Keep only the program's frames in a traceback, without this command's frames before and the package's after
    them.
    """
    if shown is None:
        return
    frames = shown.stack
    frames[:] = [
        frame for frame in frames if not frame.filename.startswith(_HANDOVERS)
    ]  # frames between those of the program
    while frames and frames[-1].filename.startswith(_PACKAGE):
        del frames[-1]
    while frames and (frames[0].filename.startswith(_PACKAGE) or frames[0].filename in _RUNNERS):
        del frames[0]
    _cut(shown.__cause__)
    _cut(shown.__context__)
    # an exception that was caught within the package
    while shown.__context__ is not None and not shown.__context__.stack:
        shown.__context__ = shown.__context__.__context__
    if shown.__cause__ is not None and not shown.__cause__.stack and str(shown.__cause__) == str(shown):
        shown.__cause__ = None  # the cause repeats the message
