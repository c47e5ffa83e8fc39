"""examples/ddp.py: ranks that are threads, and ranks that `flambeau launch` starts."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.cli_kit import EXAMPLES

import flambeau


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "torch", None)  # ours, where PyTorch lies beside
    spec = importlib.util.spec_from_file_location("ddp_example", EXAMPLES / "ddp.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.torch is flambeau
    return module


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_it_learns_and_ranks_agree_to_the_bit(example: Any, ranks: int) -> None:
    results = example.on_threads(ranks)
    losses, parameters = results[0]
    assert losses[-1] < 0.2 * losses[0]
    assert all(other == (losses, parameters) for other in results)


def test_it_runs_under_flambeau_launch(tmp_path: Path) -> None:
    environment = {**os.environ, "DDP_FOLDER": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "flambeau", "launch", "--driver", "virtual", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(EXAMPLES / "ddp.py")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(x) for x in re.findall(r"epoch \d: loss ([\d.]+) on 2 ranks", done.stdout)]
    assert len(losses) == 6 and losses[-1] < 0.2 * losses[0]
    assert (tmp_path / "model.pt").exists()
