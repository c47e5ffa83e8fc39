"""`brief`: the text of a value from a file in error messages."""

from __future__ import annotations

from typing import Any

_MOST = 60  # letters of a text, bits of an int / 4
_ITEMS = 4
_DEPTH = 2


def brief(value: Any, depth: int = _DEPTH) -> str:
    """Return a short text for a value, in bounded time for any value.

    `repr` of nested tuples with shared parts can take exponential time, and that of other objects runs their code.
    """
    kind = type(value)
    if kind in (bool, float, complex, type(None), type(...)):
        return repr(value)
    if kind is int:
        bits = value.bit_length()
        return repr(value) if bits <= 4 * _MOST else f"an int of {bits} bits"
    if kind in (str, bytes, bytearray):
        return repr(value) if len(value) <= _MOST else f"{value[:_MOST]!r}..."
    if kind in (tuple, list):
        opening, closing = "()" if kind is tuple else "[]"
        if not depth:
            return f"{opening}...{closing}"
        shown = [brief(one, depth - 1) for one in value[:_ITEMS]]
        more = ["..."] if len(value) > _ITEMS else []
        comma = "," if kind is tuple and len(value) == 1 else ""
        return f"{opening}{', '.join(shown + more)}{comma}{closing}"
    name = getattr(value, "__qualname__", None) if isinstance(value, type) or callable(value) else None
    if isinstance(name, str):
        return f"{brief_text(getattr(value, '__module__', ''))}.{brief_text(name)}"
    return f"<{kind.__name__}>"


def brief_text(text: object) -> str:
    """Return a text, cut where it is long, without quotes, and with control characters escaped.

    A stranger's text could otherwise write commands of a terminal, or lines that a log takes for others.
    """
    text = str(text) if isinstance(text, str) else type(text).__name__
    shown = text if len(text) <= 2 * _MOST else f"{text[: 2 * _MOST]}..."
    return shown if shown.isprintable() else repr(shown)[1:-1]
