"""docs/performance.md is what the result files say, and each result can be reproduced."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

import pytest

from tools.pages import performance_page

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "bench" / "results"
WRITE = "python -m tools.pages.performance_page bench/results > docs/performance.md"


def test_the_page_is_up_to_date() -> None:
    page = performance_page.write_page(performance_page.read_results(FOLDER))
    assert (ROOT / "docs" / "performance.md").read_text() == page, f"write it again: {WRITE}"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_a_result_is_complete(path: Path) -> None:
    result = json.loads(path.read_text())
    assert result["section"] in performance_page.SECTIONS
    assert result["machine"] and result["software"] and result["what"] and result["title"]
    assert date.fromisoformat(result["date"]).year >= 2026
    width = len(result["columns"])
    assert len(result["formats"]) == width and result["rows"]
    assert {len(row) for row in result["rows"]} == {width}
    assert re.search(r"\b\d\d:\d\d\b", path.read_text()) is None, "a clock time"
    scripts = re.findall(r"\S+\.py", result["command"])
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


def test_places_in_a_section_are_unique() -> None:
    places = [(result["section"], result["order"]) for result in performance_page.read_results(FOLDER)]
    assert places == sorted(set(places), key=places.index)
