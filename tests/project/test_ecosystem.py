"""docs/ecosystem.md is what the results say; the programs compile, are short and name packages that are pinned."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from ecosystem import __main__ as runner  # noqa: E402
from ecosystem import page, suites  # noqa: E402

PROGRAMS = runner.find_programs()
VERSIONS = runner.read_requirements()


def test_the_page_is_up_to_date() -> None:
    written = page.write_page(json.loads(runner.RESULTS.read_text()), json.loads(suites.COUNTS.read_text()))
    assert (ROOT / "docs" / "ecosystem.md").read_text() == written, "write it again: make docs"


def test_the_results_are_complete() -> None:
    results = json.loads(runner.RESULTS.read_text())
    assert results["machine"] and results["flambeau"]
    assert all(date.fromisoformat(row["date"]).year >= 2026 for row in results["rows"])
    assert [row["program"] for row in results["rows"]] == [
        str(p.relative_to(ROOT / "ecosystem/programs")) for p in PROGRAMS
    ]
    for row, path in zip(results["rows"], PROGRAMS, strict=True):
        assert row["options"] == runner.read_options(path)
        assert row["flambeau"]["races"] or not row["flambeau"]["passed"]


def test_folders_are_small() -> None:
    assert len(PROGRAMS) >= 40
    folders = [path.parent for path in PROGRAMS]
    assert max(map(folders.count, folders)) <= 25


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_compiles_and_checks_something(path: Path) -> None:
    text = path.read_text()
    compile(text, str(path), "exec")
    assert "assert " in text and "print(" in text.splitlines()[-1]
    assert 15 <= len(text.splitlines()) <= 90
    package = runner.find_package(path.stem, list(VERSIONS))
    assert path.stem != runner.normalize(package), "the script's folder would hide the package"


def test_the_requirements_lack_pytorch() -> None:
    assert {"torch", "triton", "torchvision"} & set(VERSIONS) == set()
    assert not [name for name in VERSIONS if name.startswith("nvidia")]


def test_an_unpinned_package_raises() -> None:
    with pytest.raises(ValueError, match="no package"):
        runner.find_package("unknown_job", ["torchinfo"])


@pytest.mark.parametrize(
    ("code", "passed", "error"),
    [
        ("print(1)", True, ""),
        ("raise SystemExit(3)", False, "status 3"),
        ("assert 1 == 2, 'wrong'", False, "AssertionError: wrong"),
    ],
)
def test_a_run_reports_what_the_program_did(code: str, passed: bool, error: str) -> None:
    run = runner.run_program([sys.executable, "-c", code], {}, 60)
    assert (run.passed, run.error) == (passed, error)


def test_the_verdict_covers_all_machines() -> None:
    free = {"certificate": {"race_free": True, "races": []}}
    withheld = {"certificate": {"race_free": False, "races": []}}
    racy = {"certificate": {"race_free": False, "races": [1, 2]}}
    verdicts = [runner.judge_races(machines) for machines in ([free], [free, withheld], [racy, free], [])]
    assert verdicts == ["none", "no certificate", "2 found", "no certificate"]
    report = {"machines": [free], "processes": [{"machines": [racy], "processes": []}]}
    assert runner.read_machines(report) == [free, racy]


def test_a_program_beyond_its_limit_fails() -> None:
    run = runner.run_program([sys.executable, "-c", "import threading; threading.Event().wait()"], {}, 0.2)
    assert not run.passed and run.error == "did not end within 0.2 s"


def test_the_command_refuses_unknown_options() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ecosystem", "--nothing"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2 and "unrecognized arguments" in done.stderr
