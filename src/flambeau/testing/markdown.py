"""Lines of generated pages."""

from __future__ import annotations

COLUMNS = 100


def wrap(text: str, indent: str = "") -> str:
    """Return a text as lines of at most `COLUMNS` columns that break at spaces.

    Args:
        text: One paragraph or list item, on any number of lines.
        indent: What the lines after the first begin with.
    """
    lines = [""]
    for word in text.split():
        if lines[-1].strip() and len(lines[-1]) + 1 + len(word) > COLUMNS:
            lines.append(indent)
        lines[-1] += f" {word}" if lines[-1].strip() else word
    return "\n".join(lines)
