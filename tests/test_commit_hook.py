"""The commit-msg hook accepts good subjects and refuses others, also when git runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest

HOOK = Path(__file__).parents[1] / ".githooks" / "commit-msg"
find_fault = run_path(str(HOOK))["find_fault"]

GOOD = [
    "runtime: coalesce free blocks before a driver call",
    "streambugs, testing: check that the proposed lines remove the races",
    "driver/virtual: pass the host's limit to the budget",
    "docs: rename `room` to package\n\nThe body says why.",
    "tests: seed every hunt\n# a comment of git's template",
    "Merge branch 'main' into topic",
    'Revert "ops: add a derivative"',
    f"core: add {'x' * 61}",
]
BAD = {
    "Coalesce free blocks": "area: verb",
    "runtime: Coalesce free blocks": "area: verb",
    "runtime:coalesce free blocks": "area: verb",
    "": "area: verb",
    f"core: add {'x' * 63}": "73 characters",
    "runtime: coalesced free blocks": "imperative",
    "runtime: coalescing free blocks": "imperative",
    "runtime: coalesces free blocks": "imperative",
    "runtime: coalesce free blocks.": "period",
    "runtime: coalesce free blocks\nin each pool": "empty line",
}


@pytest.mark.parametrize("message", GOOD)
def test_good_subjects_pass(message: str) -> None:
    assert find_fault(message) is None


@pytest.mark.parametrize("message", BAD)
def test_bad_subjects_are_refused(message: str) -> None:
    assert BAD[message] in find_fault(message)


def test_git_runs_the_hook(tmp_path: Path) -> None:
    identity = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = os.environ | identity | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    git("init", "-q")
    git("config", "core.hooksPath", str(HOOK.parent))
    refused = git("commit", "--allow-empty", "-m", "Added a thing")
    assert refused.returncode == 1 and "CONTRIBUTING.md" in refused.stderr
    taken = git("commit", "--allow-empty", "-m", "core: add a thing")
    assert taken.returncode == 0, taken.stderr
