"""The StreamBugs corpus: every bug is found in one run at seed 0, no fixed half alarms, the scorecard is up to date."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flambeau.observe.reports import Certificate

ROOT = Path(__file__).parents[2]
REPAIRED = r"`\w+`(, `\w+`)*: no race( \|)?"
PAIRS = sorted((ROOT / "streambugs" / "pairs").glob("*.py"))


CODE = """
import pathlib, sys, streambugs.__main__ as m
page = m.main(["--page"])
m.PAIRS = pathlib.Path(sys.argv[1])
print("statuses", page, m.main([]))
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Print the scorecard, and run a corpus whose one bug is no bug."""
    folder = tmp_path_factory.mktemp("pairs")
    text = PAIRS[1].read_text().replace("if fixed else", "if True else").replace("if fixed", "if True")
    (folder / "fixed.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE, str(folder)], capture_output=True, text=True, timeout=300, cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OPENBLAS_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def page(ran):
    return ran[: ran.rindex(" |\n") + 3]


def test_every_bug_is_found_and_no_fixed_half_alarms(ran, page):
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| [")]
    assert len(rows) == len(PAIRS) >= 82
    assert [row[0] for row in rows if row[3] == "named"] == [
        "| [accepted_tokens_read_early](../streambugs/pairs/accepted_tokens_read_early.py)"
    ]
    assert [row[0] for row in rows if row[3] not in ("yes", "named")] == []
    assert [row[0] for row in rows if row[3] == "yes" and not re.fullmatch(REPAIRED, row[7])] == []
    assert {row[6] for row in rows if not row[1].startswith("IPC ")} == {"certified"}
    shared = [row[6] for row in rows if row[1].startswith("IPC ")]  # the certificate is withheld by name
    assert len(shared) >= 2 and set(shared) == {"no race"}
    assert "\nstatuses 0 " in ran


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


def test_the_runner_fails_on_a_bug_that_is_not_found(ran):
    assert ran.endswith("0 of 1 found, 0 named, 0 false alarms\nstatuses 0 1\n")


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
    scores = [
        scorecard.Score(path.stem, "kind", "thread", 1, 0, certificate, True, "", True) for path in PAIRS[:3]
    ]
    page = scorecard.page(scores)
    assert "| PyTorch's CUDA sanitizer | 1 of 2 | 1 | 1.5 us | 1.5 us |" in page
    assert "| Flambeau | 1 of 2 | 0 | 1.5 us | 1.5 us |" in page
    rows = page.splitlines()[-3:]
    assert rows[0].endswith("| reported / silent | reported / certified |")
    assert rows[1].endswith("| silent / reported | not run / not run |")
    assert rows[2].endswith("| not run / not run | not run / not run |")
