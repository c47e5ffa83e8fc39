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


UNENDED = """
import torch
torch.cuda.nvtx.range_push("whole")
with torch.cuda.nvtx.range("epoch"):
    with torch.cuda.nvtx.range("before"):
        pass
    x = torch.ones(1000, device="cuda")
    with torch.cuda.nvtx.range("sum"):
        x.sum().item()
torch.cuda.nvtx.range_start("never ended")
torch.cuda.nvtx.range_push("last")
x.add_(1)
"""


def test_ranges_that_began_before_the_first_device_or_never_end_are_in_the_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    done = flambeau_run(tmp_path, "--devices", 1, "--trace", trace, program(tmp_path, UNENDED))
    assert done.status == 0, done.err
    events = json.loads(trace.read_text())["traceEvents"]
    mine = {(e["name"], e["ph"]): e for e in events if e.get("cat") == "range"}
    assert set(mine) == {
        ("whole", "X"), ("epoch", "X"), ("sum", "X"), ("last", "X"), ("never ended", "b"), ("never ended", "e")
    }  # fmt: skip
    begin = {name: e["ts"] for (name, phase), e in mine.items() if phase != "e"}
    end = {name: e["ts"] + e.get("dur", 0) for (name, phase), e in mine.items() if phase != "b"}
    assert begin["whole"] == begin["epoch"] == 0 < begin["sum"] < end["sum"] <= end["epoch"] <= begin["last"]
    assert begin["last"] < end["last"] == end["whole"] == end["never ended"]


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
