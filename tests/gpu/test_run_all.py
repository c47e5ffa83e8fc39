"""What run_all.py makes of a part: its line, the names of what failed, the limit. The parts themselves need a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PROGRAM = """
import sys
from run_all import Outcome, _run
command = [sys.executable, "-c", "print('FAILED tests/a.py::b - wrong'); print('== 1 failed, 2 passed in 3.45s ==')"]
failed = Outcome("tests", seconds=4, kernels=7)
_run(command, None, failed)
broken, endless = Outcome("examples"), Outcome("pair")
_run([sys.executable, "-c", "raise SystemExit(3)"], 600, broken)
_run([sys.executable, "-c", "import signal; signal.pause()"], 0, endless)
print(failed, broken, endless, sep="\\n")
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FLAMBEAU_")}
    return subprocess.run(
        [sys.executable, *command], env=environment | {"CUDA_VISIBLE_DEVICES": ""}, cwd=HERE, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def test_a_line_for_each_part_and_names_of_what_failed() -> None:
    done = run("-c", PROGRAM)
    assert done.stdout.splitlines()[-5:] == [  # what an interrupted process says comes before
        "tests      FAILED       4 s      7 compiled  1 failed, 2 passed in 3.45s",
        "    tests/a.py::b - wrong",
        "examples   FAILED       0 s      0 compiled  ",
        "    -c raise SystemExit(3): exit status 3",
        "pair       cut off      0 s      0 compiled  cut off at the limit",
    ], done.stderr


def test_without_a_gpu_it_says_so() -> None:
    done = run("run_all.py", "pair")
    assert (done.returncode, done.stdout.startswith("no GPU here, nothing was run: ")) == (2, True), (
        done.stderr
    )
