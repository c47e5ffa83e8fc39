"""`flambeau run -c CODE`, `flambeau run -`, and output into a pipe whose reader has ended, beside the interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cli_kit import environment

CODE = "import sys\nprint(sys.argv, __name__, repr(sys.path[0]), '__file__' in globals())\n"
FLAMBEAU = [sys.executable, "-m", "flambeau", "run", "--quiet"]


def call(command: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        env=environment(FLAMBEAU_VIRTUAL_DEVICES="1"),
        timeout=300,
    )


@pytest.mark.parametrize(("arguments", "text"), [(["-c", CODE, "one", "-x"], ""), (["-", "one", "-x"], CODE)])
def test_code_sees_what_the_interpreter_gives_it(arguments: list[str], text: str) -> None:
    wanted, found = call([sys.executable, *arguments], text), call([*FLAMBEAU, *arguments], text)
    assert (found.returncode, found.stdout) == (0, wanted.stdout), found.stderr


def test_a_race_in_code_is_reported_with_its_lines() -> None:
    code = (
        "import torch\n"
        "side, x = torch.cuda.Stream(), torch.ones(8, device='cuda')\n"
        "with torch.cuda.stream(side):\n"
        "    x.mul_(2)\n"
        "raise ValueError('the end')\n"
    )
    said = call([sys.executable, "-m", "flambeau", "run", "-"], code)
    assert said.returncode == 1
    assert "<stdin>:4" in said.stdout + said.stderr
    assert "x.mul_(2)" in said.stdout + said.stderr
    assert "raise ValueError('the end')" in said.stderr
