"""bench/accuracy: the workloads in the result files are those that the seed draws, and a virtual GPU runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.accuracy.__main__ import FAMILIES, draw_workloads, simulate

FOLDER = Path(__file__).parents[2] / "bench" / "results" / "accuracy"
RESULTS = [path for path in sorted(FOLDER.glob("*.json")) if not path.stem.endswith("_simulated")]
SMALL = {
    "unary": {"op": "gelu", "numel": 1 << 20, "dtype": "bfloat16"},
    "copy": {"op": "to host, pinned", "nbytes": 1 << 20},
    "graph": {"nodes": 5, "numel": 1 << 10},
    "overlap": {"first": "pointwise", "second": "to device", "size": 1 << 20, "times": 1},
}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_file_holds_the_workloads_of_its_seed(path: Path) -> None:
    data = json.loads(path.read_text())
    measured = {row["family"] for row in data["workloads"]}
    drawn = [
        (family.name, params, held)
        for family, params, held in draw_workloads(data["seed"])
        if family.name in measured
    ]
    assert [(row["family"], row["params"], row["held"]) for row in data["workloads"]] == drawn


@pytest.mark.parametrize("name", SMALL)
def test_a_virtual_gpu_runs_a_workload_of_each_kind(name: str) -> None:
    found = simulate(FAMILIES[name], SMALL[name], "h100")
    assert found["ns"] > 0
    assert found["peak"] == (2 << 20 if name == "unary" else 0)
