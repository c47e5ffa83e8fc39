"""Programs as users write them (tests/programs): what they print under Flambeau is what they print under PyTorch.

Each runs as its user would run it, on the CPU and on virtual GPUs; there, its run is race-free under every schedule and
gives all memory back. They draw their random numbers on the CPU and switch TF32 off, so that numbers agree to rounding.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli.cli_kit import environment, flambeau_run
from support import torch

PROGRAMS = sorted((Path(__file__).parents[2] / "programs").glob("*.py"))
MARK = "\f"
RUN_ALL = f"""
import runpy, sys, warnings
import torch
torch.set_num_threads(1)
warnings.simplefilter("ignore")
for path in sys.argv[1:]:
    sys.argv = [path, "cpu"]
    runpy.run_path(path, run_name="__main__")
    print({MARK!r}, end="", flush=True)
"""


@pytest.fixture(scope="module")
def theirs():
    """What each program prints under PyTorch, all run in one process: its import takes seconds."""
    assert torch.__version__
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, *map(str, PROGRAMS)],
        capture_output=True, text=True, timeout=120, env=environment(OMP_NUM_THREADS="1"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip(PROGRAMS, done.stdout.split(MARK), strict=False))


def words(printed):
    """Numbers and what stands between them, but for blanks, line breaks and the device, where tensors are printed."""
    return re.findall(r"[^\s,\[\]()=:]+|[\[\]()=:]", re.sub(r",\s*device='cuda:0'", "", printed))


def alike(ours, theirs):
    try:
        return math.isclose(float(ours), float(theirs), rel_tol=2e-4, abs_tol=2e-5) or ours == theirs
    except ValueError:
        return ours == theirs


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("program", PROGRAMS, ids=[path.stem for path in PROGRAMS])
def test_it_prints_what_pytorch_prints(program, device, theirs, tmp_path):
    done = flambeau_run(tmp_path, program, device)
    assert done.status == 0, done.err
    want, have = words(theirs[program]), words(done.out)
    assert len(want) > 100
    wrong = [
        (" ".join(want[max(i - 9, 0) : i + 2]), " ".join(have[max(i - 9, 0) : i + 2]))
        for i, pair in enumerate(zip(have, want, strict=False))
        if not alike(*pair)
    ]
    assert wrong == []
    assert len(have) == len(want)
    if device == "cuda":
        assert done.machine["devices"][0]["peak_allocated"] > 10_000
        assert [d["left_allocated"] for d in done.machine["devices"]] == [0, 0]
        assert done.certificate["race_free"] is True, done.certificate
