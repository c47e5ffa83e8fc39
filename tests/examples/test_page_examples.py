"""Examples of the pages that import Flambeau run as they stand."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
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
    namespace = {"__name__": page}
    exec(compile(example, f"{page}.md", "exec"), namespace)
    namespace.clear()  # the example's tensors end with it
    gc.collect()


def test_a_notebook_names_flambeau_torch() -> None:
    text = (ROOT / "docs" / "notebooks.md").read_text("utf-8")
    (block,) = [
        block
        for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)
        if "sys.modules" in block
    ]
    print_names = "print(nn.Linear is flambeau.nn.Linear, DataLoader is flambeau.utils.data.DataLoader)"
    command = [sys.executable, "-c", f"{block}\n{print_names}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True True\n"


def test_most_pages_have_an_example() -> None:
    assert len({page for page, _ in EXAMPLES}) >= 12
