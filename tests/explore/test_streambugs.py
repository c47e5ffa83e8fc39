"""The StreamBugs corpus: every bug is found in one run at seed 0, no fixed half alarms, the scorecard is up to date."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAIRS = sorted((ROOT / "streambugs" / "pairs").glob("*.py"))


@pytest.fixture(scope="module")
def page():
    command = [sys.executable, "-W", "error", "-m", "streambugs", "--page"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, cwd=ROOT, check=False,
        env={"PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_bug_is_found_and_no_fixed_half_alarms(page):
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| [")]
    assert len(rows) == len(PAIRS) >= 40
    assert [row[0] for row in rows if row[3] != "yes"] == []
    assert [row[0] for row in rows if row[6] != "certified |"] == []


def test_the_scorecard_is_what_a_run_gives(page):
    written = (ROOT / "docs" / "streambugs.md").read_text()
    assert written == page, "python -m streambugs --page > docs/streambugs.md"


@pytest.mark.parametrize("path", PAIRS, ids=lambda p: p.stem)
def test_a_pair_is_short_and_says_where_it_comes_from(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 30
    assert re.search(r"^Thread: https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+$", text, re.M)
    assert re.search(r"^Kind: \w", text, re.M)
    assert "import flambeau" not in text


def test_the_runner_fails_on_a_bug_that_is_not_found(tmp_path):
    code = (
        "import sys, pathlib, streambugs.__main__ as m\n"
        "m.PAIRS = pathlib.Path(sys.argv[1])\n"
        "sys.exit(m.main([]))"
    )
    text = PAIRS[0].read_text().replace("if fixed else", "if True else").replace("if fixed", "if True")
    (tmp_path / "mended.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "0 of 1 found" in done.stdout, done.stderr
