"""Several processes train one network in shared memory: PyTorch's Hogwild, under `flambeau run`."""

from __future__ import annotations

import re

import pytest
from cli.cli_kit import EXAMPLES, flambeau_run

pytest.importorskip("sklearn", reason="scikit-learn is not installed: it ships the digits")


def test_processes_train_one_network(tmp_path):
    """By fork here, as PyTorch's page has it; tests/multiprocessing has it by spawn."""
    done = flambeau_run(tmp_path, EXAMPLES / "hogwild.py", "--start-method", "fork", "--epochs", "4")
    assert done.status == 0, done.err
    assert {int(rank) for rank in re.findall(r"process (\d), epoch 3: ", done.out)} == {0, 1}
    (percent,) = re.findall(r"297 unseen digits recognized: ([\d.]+)%\n", done.out)
    assert float(percent) > 75
    assert "Traceback" not in done.err
