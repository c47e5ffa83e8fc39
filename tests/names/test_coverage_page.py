"""docs/coverage.md is what the list of names and Flambeau say; each note is of a name that is on it."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import flambeau as torch
from tools.pages import coverage_page

ROOT = Path(__file__).parents[2]
NAMES = (ROOT / "tests" / "goldens" / "cuda_names.txt").read_text().splitlines()
WRITE = "python -m tools.pages.coverage_page tests/goldens/cuda_names.txt > docs/coverage.md"


def test_the_committed_page_is_the_generated_one() -> None:
    with torch.virtual(devices=1):
        page = coverage_page.page(NAMES)
    assert (ROOT / "docs" / "coverage.md").read_text() == page, f"write it anew: {WRITE}"


def test_every_note_is_of_a_name_in_the_list() -> None:
    listed = {line.split()[1] for line in NAMES}
    assert sorted((coverage_page.DIFFERENCES | coverage_page.INSTEAD).keys() - listed) == []
    assert [n for n in coverage_page.DIFFERENCES if not coverage_page.has_name(n)] == []
    assert [n for n in coverage_page.INSTEAD if coverage_page.has_name(n)] == []


def test_names_of_1_8_are_all_there() -> None:
    absent = [name for name, old, _, state, _ in coverage_page.rows(NAMES) if old and state == "absent"]
    assert absent == []


def test_what_is_there_is_used_by_a_test() -> None:
    """No more than a first look: a name that no test's code uses, or asks for by its text, is surely not tested."""
    there = {name for name, _, _, state, _ in coverage_page.rows(NAMES) if state != "absent"}
    types = {name for name in there if name.endswith(("Storage", "Tensor"))}  # tested from tables
    used = names_in_tests() | {
        "current_blas_handle",
        "current_solver_handle",
    }  # put together there from a part
    assert sorted(n for n in there - types if n.rpartition(".")[2] not in used) == []


def names_in_tests() -> set[str]:
    """What tests ask for by a dot, as a text of its own, or import: not words of comments and docstrings."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path != Path(__file__):
            text = path.read_text()
            found |= set(re.findall(r"[.\"](\w+)", text))
            for line in re.findall(r"^from \S+ import ([^()]+?)$", text, re.MULTILINE):
                found |= set(re.findall(r"\w+", line))
    return found


@pytest.mark.parametrize("room", ["memory", "random", "graphs", "streams"])
def test_a_name_in_two_modules_is_one_thing(room: str) -> None:
    """So a test of the one is a test of the other."""
    inner = import_module(f"flambeau.cuda.{room}")
    shared = {name for name in inner.__all__ if hasattr(torch.cuda, name)}
    assert len(shared) >= 4
    assert [name for name in shared if getattr(torch.cuda, name) is not getattr(inner, name)] == []


def test_what_is_absent_raises_by_name_and_is_no_attribute() -> None:
    absent = [name for name, _, _, state, _ in coverage_page.rows(NAMES) if state == "absent"]
    assert absent
    for name in absent:
        module, _, last = name.rpartition(".")
        room = import_module(f"flambeau.{module}")
        with pytest.raises(
            AttributeError, match=rf"torch\.{module}' has no attribute '{last}': Flambeau lacks it"
        ):
            getattr(room, last)
        assert not hasattr(room, last)
