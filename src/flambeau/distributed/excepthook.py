"""`report_by_rank`: prefix an uncaught exception's lines with the rank, and record it for the launcher.

Ranks share a terminal. Like PyTorch, this prints "[rank1]: " before each line of an uncaught exception after
init_process_group. It also writes the error file that `elastic`'s `record` writes, for programs without `record`.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from flambeau.core.files import replace_file

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


class RankHook:
    """A `sys.excepthook` that replaces the previous one and calls it. `then` is called after the output."""

    def __init__(self, rank: int, before: Hook, then: Callable[[], None]) -> None:
        self.rank = rank
        self.before = before
        self.then = then

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with redirect_stderr(io.StringIO()) as shown:
            self.before(kind, error, trace)
        text = shown.getvalue()
        note(error, text)
        # one write call, because other ranks write to the same console
        sys.stderr.write(by_rank(self.rank, text))
        sys.stderr.flush()
        self.then()


def report_by_rank(rank: int, then: Callable[[], None]) -> None:
    """Attribute uncaught exceptions to this rank from now on; `then` is called after one was printed."""
    now = sys.excepthook
    sys.excepthook = RankHook(rank, now.before if isinstance(now, RankHook) else now, then)


def by_rank(rank: int, text: str) -> str:
    """Return a text whose lines begin with the rank."""
    return "\n".join([f"[rank{rank}]: {line}" if line else "" for line in text.split("\n")])


def note(error: BaseException, traceback: str) -> None:
    """Record an error for the launcher, if there is a launcher and the program has not used `record`."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if path and not isinstance(error, KeyboardInterrupt) and not os.path.exists(path):
        with suppress(OSError):
            write_error(path, error, traceback)


def write_error(path: str, error: BaseException, traceback: str) -> None:
    """Write an exception as `record` does, in PyTorch's form. The file's modification time is the time of the error, to
    the nanosecond.
    """
    now = time.time_ns()
    report = {
        "message": {
            "message": f"{type(error).__name__}: {error}",
            "extraInfo": {"py_callstack": traceback, "timestamp": str(now // 10**9)},
        }
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(report), durable=False)
    os.utime(path, ns=(now, now))
