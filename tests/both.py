"""Run one program by PyTorch's CPU build and by `flambeau run`, and compare what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import flambeau


def run_both(folder: Path, text: str, lines: int, *options: str) -> None:
    """Assert that a program prints equal lines under PyTorch and under Flambeau.

    Args:
        folder: Where the program is written.
        text: The program.
        lines: The number of lines that it prints at least.
        options: Options of `flambeau run`.
    """
    program = folder / "program.py"
    program.write_text(text)
    expected = run(folder, str(program))
    assert len(expected) >= lines, len(expected)
    ours = run(folder, "-m", "flambeau", "run", "--races", "off", *options, str(program))
    assert ours == expected


def run(folder: Path, *command: str) -> list[str]:
    """Return the lines that a Python program prints."""
    env = os.environ | {"PYTHONPATH": str(Path(flambeau.__file__).parents[1])}
    done = subprocess.run([sys.executable, *command], env=env, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
