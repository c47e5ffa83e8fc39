"""Wraps the lines of generated pages."""

from __future__ import annotations

COLUMNS = 100


def wrap(text: str, indent: str = "") -> str:
    """Split a text at spaces into lines of at most `COLUMNS` columns.

    Args:
        text: One paragraph or list item, on any number of lines.
        indent: Indentation of the lines after the first.
    """
    lines = [""]
    for word in text.split():
        if lines[-1].strip() and len(lines[-1]) + 1 + len(word) > COLUMNS:
            lines.append(indent)
        lines[-1] += f" {word}" if lines[-1].strip() else word
    return "\n".join(lines)
