"""Examples of the pages that import Flambeau run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [
    (page.stem, block)
    for page in PAGES
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.M | re.S)
    if block.startswith(("import flambeau", "from flambeau")) and "\nimport flambeau" in f"\n{block}"
]


@pytest.mark.parametrize(("page", "example"), EXAMPLES, ids=[page for page, _ in EXAMPLES])
def test_an_example_runs(page: str, example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLAMBEAU_VIRTUAL_DEVICES", "2")
    exec(compile(example, f"{page}.md", "exec"), {"__name__": page})


def test_most_pages_have_an_example() -> None:
    assert len({page for page, _ in EXAMPLES}) >= 12
