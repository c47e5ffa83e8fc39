"""Every row of the specification's groups that hold today has a test that bears its number.

A test bears a row in its name (`test_a09_none_and_negative_are_no_ops`, `test_a25_a27_...`, `test_a24_to_a28_...`) or
in the first line of its docstring, as the tests of the notes' programs do.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
LAST = {
    "a": 36,
    "b": 5,
    "c": 23,
    "d": 13,
    "e": 27,
    "f": 14,
    "g": 8,
    "h": 40,
    "i": 9,
    "j": 13,
    "k": 9,
    "l": 9,
    "m": 11,
    "n": 20,
    "o": 2,
    "p": 9,
    "q": 15,
    "r": 16,
}
LATER = {"q03"}  # ONNX
WORDS_ONLY = {"c22", "e26", "k08"}  # a link and a warning to readers


def rows_of(text: str) -> set[str]:
    """The rows that a name or a docstring bears; `a24_to_a28` and `A05-A08` bear all between."""
    text = text.lower()
    found = set(re.findall(r"(?<![a-z0-9])[a-z]\d\d(?![a-z0-9])", text.replace("_", " ")))
    for group, first, last in re.findall(r"([a-z])(\d\d)(?:-|_to_)\1(\d\d)", text):
        found |= {f"{group}{i:02}" for i in range(int(first), int(last) + 1)}
    return found


def borne() -> set[str]:
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found |= rows_of(node.name.removeprefix("test_"))
                found |= rows_of((ast.get_docstring(node) or "").split("\n")[0])
    return found


def test_every_row_has_a_test() -> None:
    wanted = {f"{group}{i:02}" for group, last in LAST.items() for i in range(1, last + 1)}
    assert sorted(wanted - LATER - WORDS_ONLY - borne()) == []


def test_names_are_read_right() -> None:
    assert rows_of("a24_to_a26_what") == {"a24", "a25", "a26"}
    assert rows_of("A05-A07, R01: the devices") == {"a05", "a06", "a07", "r01"}
    assert rows_of("c99standard_and_h100") == set()
