"""docs/coverage.md is what the list of names and Flambeau say; each note is of a name that is on it."""

from __future__ import annotations

from pathlib import Path

import flambeau as torch
from flambeau.testing import coverage_page

ROOT = Path(__file__).parents[2]
NAMES = (ROOT / "tests" / "goldens" / "cuda_names.txt").read_text().splitlines()
WRITE = "python -m flambeau.testing.coverage_page tests/goldens/cuda_names.txt > docs/coverage.md"
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__))


def test_the_committed_page_is_the_generated_one() -> None:
    with torch.virtual(devices=1):
        page = coverage_page.page(NAMES)
    assert (ROOT / "docs" / "coverage.md").read_text() == page, f"write it anew: {WRITE}"


def test_every_note_is_of_a_name_in_the_list() -> None:
    listed = {line.split()[1] for line in NAMES}
    assert sorted((coverage_page.DIFFERENCES | coverage_page.INSTEAD).keys() - listed) == []
    assert [n for n in coverage_page.DIFFERENCES if not coverage_page.found(n)] == []
    assert [n for n in coverage_page.INSTEAD if coverage_page.found(n)] == []


def test_names_of_1_8_are_all_there() -> None:
    absent = [name for name, old, _, state, _ in coverage_page.rows(NAMES) if old and state == "absent"]
    assert absent == []


def test_what_is_there_is_named_by_a_test() -> None:
    """No more than a first look: a name that no test says is surely not tested."""
    there = {name for name, _, _, state, _ in coverage_page.rows(NAMES) if state != "absent"}
    types = {name for name in there if name.endswith(("Storage", "Tensor"))}  # tested from tables
    assert sorted(n for n in there - types if n.rpartition(".")[2] not in TESTS) == []
