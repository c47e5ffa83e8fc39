"""The tutorial and the how-to guides do as they stand what they show: files, programs, commands and their output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
GUIDES = sorted([ROOT / "docs" / "tutorial.md", *(ROOT / "docs").glob("howto-*.md")])
FENCE = re.compile(
    r'(<!-- not run: .+ -->\n)?^```(\w*)(?: title="([^"]+)")?(?: replace="(\w+)")?\n(.*?)^```$', re.M | re.S
)
PROGRAM = "import torch\nprint(torch.ones(3, device='cuda').sum().item())\n"


class Block(NamedTuple):
    """One fenced block of a guide, in the order of the regular expression's groups."""

    not_run: str
    language: str
    file: str
    function: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text())]


def write(block: Block, folder: Path) -> None:
    """Write a block to its file, or over the last function of that file, which it replaces."""
    target = folder / block.file
    target.parent.mkdir(parents=True, exist_ok=True)
    before = ""
    if block.function:
        before, found, _ = target.read_text().partition(f"    def {block.function}(")
        assert found, f"{block.file} has no {block.function}"
    target.write_text(before + block.text)


def environment() -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("FLAMBEAU_", "PYTEST_"))
    }
    return kept | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100", "NO_COLOR": "1"}


def check(command: str, expected: str, folder: Path) -> None:
    """Run a command; its lines are those expected, in which a line `...` stands for any number of lines."""
    program, *arguments = command.split()
    if program == "pytest":  # the plugin is there once: where Flambeau is installed, its entry point names it
        arguments = ["-p", "no:cacheprovider", "-p", "no:flambeau", "-p", "flambeau.cli.plugin", *arguments]
    whole = [sys.executable, "-m", program, *arguments]
    done = subprocess.run(whole, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [r"(?:.*\n)*?" if line == "..." else line_pattern(line) for line in expected.splitlines()]
    assert re.fullmatch("".join(lines), done.stdout + done.stderr), done.stdout + done.stderr


def line_pattern(line: str) -> str:
    return ".*".join(map(re.escape, line.split("..."))) + "\n"


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_does_what_it_shows(page: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    for number, block in enumerate(blocks(page)):
        if block.file:
            write(block, tmp_path)
        elif block.language == "python":
            script = tmp_path / f"block_{number}.py"
            script.write_text(block.text)
            done = subprocess.run(
                [sys.executable, script],
                cwd=tmp_path,
                env=environment(),
                capture_output=True,
                text=True,
                timeout=300,
            )
            assert done.returncode == 0, done.stderr
        elif block.language == "console":
            for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, flags=re.M):
                check(command, expected, tmp_path)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_each_block_runs_or_says_why_not(page: Path) -> None:
    assert page.read_text().count("```") == 2 * len(blocks(page))
    for block in blocks(page):
        assert block.language in ("python", "console", "yaml") or (
            block.language == "sh" and block.not_run
        ), block


def test_the_tutorials_test_finds_the_race(tmp_path: Path) -> None:
    """As section 5 says: without the call of `wait_stream`, the test fails and its report names both lines."""
    for block in blocks(ROOT / "docs" / "tutorial.md"):
        if block.file:
            write(block, tmp_path)
    loader = tmp_path / "loader.py"
    loader.write_text(loader.read_text().replace("            compute.wait_stream(self.copies)\n", ""))
    with pytest.raises(AssertionError, match=r"Nothing orders these two uses|nothing orders them"):
        check("pytest -q --virtual-gpus=2 --gpu-schedules=20", "...\n", tmp_path)
