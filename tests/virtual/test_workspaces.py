"""Memory that PyTorch's kernels take while they run: peaks equal those of an H100 in these families."""

import json
import statistics
from pathlib import Path

import pytest

import flambeau as torch
from bench.accuracy.__main__ import FAMILIES, simulate

FOLDER = Path(__file__).parents[2] / "bench/results/accuracy"
KINDS = {
    "reduction": ("var", "argmax"),
    "attention, gradient": ("",),
    "rows": ("layer_norm",),
    "image": ("group_norm",),
    "loss": ("nll", "cross_entropy"),
    "other": ("adam",),
}


@pytest.mark.parametrize(("family", "ops"), KINDS.items(), ids=KINDS)
def test_peaks_are_those_of_an_h100(family, ops):
    rows = [
        row
        for file in ("h100.json", "h100_seed_27.json")
        for row in json.loads((FOLDER / file).read_text())["workloads"]
        if row["family"] == family and row["params"].get("op", "") in ops and "peak" in row
    ]
    differing = [
        row["params"]
        for row in rows
        if simulate(FAMILIES[family], row["params"], "h100")["peak"] != row["peak"]
    ]
    assert len(rows) > 4
    assert differing == []


def test_recurrent_networks_take_the_memory_and_the_time_of_cudnn():
    rows = [
        row
        for seed in (29, 30, 31)
        for row in json.loads((FOLDER / f"h200_seed_{seed}.json").read_text())["workloads"]
        if row["family"] == "recurrent" and not row["params"]["net"].endswith("Cell") and "peak" in row
    ]
    found = [simulate(FAMILIES["recurrent"], row["params"], "h200") for row in rows]
    peaks = [abs(x["peak"] / row["peak"] - 1) for x, row in zip(found, rows, strict=True)]
    times = [x["ns"] / row["ns"] for x, row in zip(found, rows, strict=True)]
    assert len(rows) > 40
    assert statistics.median(peaks) < 0.01 and max(peaks) < 0.3
    assert statistics.median(abs(time - 1) for time in times) < 0.2 and all(0.4 < time < 2 for time in times)


def test_nothing_stays_allocated_and_the_cpu_allocates_nothing():
    with torch.virtual(devices=1, profile="h100"):
        x = torch.randn(64, 32, device="cuda")
        layer = torch.nn.functional.layer_norm
        before = torch.cuda.memory_allocated()
        out = layer(x, (32,))
        assert torch.cuda.memory_allocated() - before == out.nbytes
        assert torch.cuda.max_memory_allocated() - before == out.nbytes + 2 * 512
        assert torch.equal(out.cpu(), layer(x.cpu(), (32,)))
        torch.cuda.reset_peak_memory_stats()
        layer(x.cpu(), (32,))
        assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
