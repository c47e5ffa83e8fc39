"""`Screen`: the text output of commands, with labels next to the texts."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable, Sequence
from io import TextIOWrapper
from textwrap import wrap
from typing import TextIO

from flambeau.core.status_line import columns_of, is_terminal

WIDTH, NARROWEST = 100, 40  # columns of reports, and of those on a narrow terminal
PIPE_STATUS = 141  # exit status of a command whose pipe has no reader: as shells show one that SIGPIPE ended
MARGIN = 11  # width of the label column
_INNER = 20  # width of the label column of entries within an entry
BOLD, DIM, RED, GREEN, YELLOW = "1", "2", "1;31", "1;32", "1;33"


def has_colours(file: TextIO) -> bool:
    """Return True if output to `file` has colours. NO_COLOR, FORCE_COLOR, then TERM decide, as in Python."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (file.isatty() and os.environ.get("TERM") != "dumb")


def escape_unencodable(file: TextIO | None) -> None:
    """Make `file` write characters that its encoding lacks as escapes, like Python's stderr."""
    if isinstance(file, TextIOWrapper):
        file.reconfigure(errors="backslashreplace")


def is_lost(file: TextIO | None) -> bool:
    """Return True if an open file is a pipe without a reader, or cannot take the text that it holds."""
    if file is None or file.closed:
        return False
    poll = select.poll()
    poll.register(file, 0)  # only errors and hang-ups
    try:
        file.flush()
    except OSError:
        return True
    return bool(poll.poll(0))


def _rule_of(file: TextIO) -> str:
    """Return the character of horizontal lines: ASCII if the encoding of `file` has no other."""
    try:
        "─".encode(getattr(file, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return "-"
    return "─"


class Screen:
    """Lines of at most WIDTH columns, or as wide as a narrower terminal, with labels on their left."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._colours = has_colours(file)
        self._rule = _rule_of(file)
        self._width = max(min(WIDTH, columns_of(file)), NARROWEST) if is_terminal(file) else WIDTH

    def title(self, text: str) -> None:
        self.line(f"{self._rule * 2} {text} ".ljust(self._width, self._rule), DIM)

    def end(self) -> None:
        self.line(self._rule * self._width, DIM)

    def line(self, text: str = "", style: str = "") -> None:
        print(f"\x1b[{style}m{text}\x1b[0m" if style and self._colours else text, file=self._file)

    def entry(self, label: str, text: str, style: str = "", margin: int = MARGIN) -> None:
        """Print a label and its text, wrapped at `margin`."""
        lines = wrap(text, self._width - margin, break_long_words=False, break_on_hyphens=False) or [""]
        for i, part in enumerate(lines):
            self.line((label if i == 0 else "").ljust(margin) + part, style)

    def items(self, texts: Iterable[str]) -> None:
        """Print a list below an entry."""
        for text in texts:
            self.entry(" " * MARGIN + "-", text, margin=MARGIN + 2)

    def detail(self, label: str, text: str, style: str = "") -> None:
        """Print an entry within an entry."""
        self.entry(" " * MARGIN + label, text, style, _INNER)

    def code(self, text: str) -> None:
        """Print a line of the program, cut if it is too long for a report, even if a terminal breaks it."""
        room = WIDTH - _INNER - 2
        self.line(" " * (_INNER + 2) + (text if len(text) <= room else f"{text[: room - 3]}..."), BOLD)


def error_text(error: Sequence[float]) -> str:
    """Return the error to expect of a simulated time, from its median and its 90th percentile."""
    median, tenth = error
    return f"Expected error: {median:.0%} in the median, at most {tenth:.0%} in 9 of 10 cases (measured on an H100)."


def time_text(ns: int) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= size:
            return f"{ns / size:.3f} {unit}"
    return f"{ns} ns"
