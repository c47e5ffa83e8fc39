"""What a program says with torch.cuda.nvtx is in its trace."""

from __future__ import annotations

import json
from pathlib import Path

from cli_kit import flambeau_run, program

PROGRAM = """
import torch
x = torch.ones(1000, device="cuda")
with torch.cuda.nvtx.range("sum"):
    x.sum().item()
    torch.cuda.nvtx.mark("summed")
handle = torch.cuda.nvtx.range_start("long")
x.add_(1)
torch.cuda.nvtx.range_end(handle)
"""


def test_ranges_are_in_the_trace_of_a_virtual_machine(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    done = flambeau_run(tmp_path, "--devices", 1, "--trace", trace, program(tmp_path, PROGRAM))
    assert done.status == 0, done.err
    events = json.loads(trace.read_text())["traceEvents"]
    mine = {(e["name"], e["ph"]): e for e in events if e.get("cat") in ("range", "mark")}
    assert {e["pid"] for e in mine.values()} == {-1}
    assert set(mine) == {("sum", "X"), ("summed", "i"), ("long", "b"), ("long", "e")}
    (kernel,) = [e for e in events if e["ph"] == "X" and e["pid"] == 0 and e["name"] == "sum"]
    whole = mine["sum", "X"]
    assert whole["ts"] < kernel["ts"] and kernel["ts"] + kernel["dur"] <= whole["ts"] + whole["dur"]
    assert whole["ts"] <= mine["summed", "i"]["ts"] <= mine["long", "b"]["ts"] < mine["long", "e"]["ts"]
