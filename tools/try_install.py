"""Try Flambeau as a user without PyTorch, MPI and GPU does: `python tools/try_install.py [WHEEL or SDIST ...]`.

Each file is installed in an empty environment and tried there. Without files, the interpreter's own installation is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "ddp.py"
RACY = """
import torch
x, side = torch.zeros(8, device="cuda"), torch.cuda.Stream()
with torch.cuda.stream(side):
    x.add_(1)
"""


def main(files: list[str]) -> None:
    """Try each file, or this interpreter's installation.

    Raises:
        SystemExit: If a command ends with an unexpected status.
    """
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            home = Path(folder) / "environment"
            venv.create(home, with_pip=True, clear=True)
            python = home / "bin" / "python"
            run(
                folder,
                [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", Path(file).resolve()],
            )
            try_commands(folder, python)
            print(f"works: {file}")
        if not files:
            try_commands(folder, Path(sys.executable))


def try_commands(folder: str, python: Path) -> None:
    """Run the commands that need nothing but the installation."""
    command = [python, "-m", "flambeau"]
    run(folder, [*command, "doctor"])
    run(folder, [*command, "run", "--races", "error", "-c", RACY], status=3)
    run(folder, [*command, "launch", "--quiet", "--nproc-per-node", "2", EXAMPLE])


def run(folder: str, command: list[str | Path], status: int = 0) -> None:
    """Run a command outside of the checkout; its output is shown if its status is unexpected."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("FLAMBEAU_")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != status:
        sys.exit(f"{command}: status {done.returncode}, not {status}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main(sys.argv[1:])
