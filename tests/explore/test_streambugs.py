"""The StreamBugs corpus: every bug is found in one run at seed 0, no fixed half alarms, the scorecard is up to date."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flambeau.observe.reports import Certificate

ROOT = Path(__file__).parents[2]
PAIRS = sorted((ROOT / "streambugs" / "pairs").glob("*.py"))


@pytest.fixture(scope="module")
def page():
    command = [sys.executable, "-W", "error", "-m", "streambugs", "--page"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=ROOT, check=False,
        env={"PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_bug_is_found_and_no_fixed_half_alarms(page):
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| [")]
    assert len(rows) == len(PAIRS) >= 40
    assert [row[0] for row in rows if row[3] != "yes"] == []
    assert {row[6] for row in rows if not row[1].startswith("IPC ")} == {"certified"}
    shared = [row[6] for row in rows if row[1].startswith("IPC ")]  # the certificate is withheld by name
    assert len(shared) >= 2 and set(shared) == {"no race"}


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
    (tmp_path / "fixed.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=300, cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "0 of 1 found" in done.stdout, done.stderr


def test_what_a_gpu_said_gets_columns(monkeypatch, tmp_path):
    import streambugs.__main__ as scorecard

    half = {"buggy": "reported", "fixed": "silent"}
    answers = {
        "gpu": "GPU", "gpus": 2, "torch": "2.11",
        "cost": {tool: {"us": 1.5} for tool in ("sanitizer", "flambeau", "torch_off", "flambeau_off")},
        "sanitizer": {PAIRS[0].stem: half, PAIRS[1].stem: {"buggy": "silent", "fixed": "reported"}},
        "flambeau": {PAIRS[0].stem: {**half, "fixed": "certified"}},
    }  # fmt: skip
    monkeypatch.setattr(scorecard, "ANSWERS", tmp_path / "gpu.json")
    scorecard.ANSWERS.write_text(json.dumps(answers))
    certificate = Certificate([], [])
    scores = [scorecard.Score(path.stem, "kind", "thread", 1, 0, certificate, True) for path in PAIRS[:3]]
    page = scorecard.page(scores)
    assert "reports 1 of 2 bugs and alarms on\n1 fixed programs; Flambeau reports 1 and alarms on 0." in page
    rows = page.splitlines()[-3:]
    assert rows[0].endswith("| reported / silent | reported / certified |")
    assert rows[1].endswith("| silent / reported | not run / not run |")
    assert rows[2].endswith("| not run / not run | not run / not run |")
