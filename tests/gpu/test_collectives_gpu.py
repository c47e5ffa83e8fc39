"""Collectives over NCCL against NumPy: one process per real GPU; on a machine with one the world has one rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_kit import alone, needs_gpu

import flambeau

TESTS = Path(__file__).parents[1] / "distributed"
PROGRAM = """
import os, sys
import torch
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
import test_collectives_by_numpy as tests
everybody = list(range(int(os.environ["WORLD_SIZE"])))
tests.program("nccl", [None, everybody[::-1], everybody[:1]], sys.argv[1].split(","))
print("well")
"""
NAMES = ("uint8,int32,int64", "float16,bfloat16,float32,float64", "bool", "complex64")


@needs_gpu
@alone
@pytest.mark.parametrize("names", NAMES)
def test_every_collective(names, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    count = flambeau.cuda.device_count()
    command = [
        sys.executable,
        "-m",
        "flambeau",
        "launch",
        "--nproc-per-node",
        str(count),
        str(program),
        names,
    ]
    path = os.pathsep.join([str(TESTS), str(TESTS.parents[1] / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.count("well") == count, done.stdout + done.stderr
