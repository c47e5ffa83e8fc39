"""`flambeau trace` on a real GPU: times by events, copies and kernels in their order, waits, memory, graphs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from gpu_kit import alone, needs_gpu

pytestmark = needs_gpu

PROGRAM = """
import torch
side = torch.cuda.Stream()
page = torch.ones(1 << 24).pin_memory()
x = torch.ones(1 << 24, device="cuda")
with torch.cuda.nvtx.range("work"):
    with torch.cuda.stream(side):
        y = page.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    y.record_stream(torch.cuda.current_stream())
    z = (x + y).sum()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    x.mul_(2)
for _ in range(3):
    graph.replay()
print(z.item(), x[0].item())
"""


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("trace")
    script, output = folder / "program.py", folder / "run.json"
    script.write_text(PROGRAM)
    command = [sys.executable, "-m", "flambeau", "trace", "--driver", "cuda", "-o", str(output), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(2.0 * (1 << 24)), "8.0"]
    page = folder / "run.html"
    command[command.index(str(output))] = str(page)
    assert subprocess.run(command, capture_output=True, timeout=300).returncode == 0
    assert '"simulated":false' in page.read_text()
    found: list[dict[str, Any]] = json.loads(output.read_text())["traceEvents"]
    return found


def ran(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [e for e in events if e["ph"] == "X" and e["pid"] == 0 and e["name"] == name]


def test_work_is_timed_and_in_its_order(events: list[dict[str, Any]]) -> None:
    (copy,), (add,), (sum_,) = (ran(events, name) for name in ("copy to the device", "add", "sum"))
    assert copy["args"]["bytes"] == 1 << 26 and copy["dur"] > 500  # 64 MiB take longer than at 128 GB/s
    assert 20 < add["dur"] < 5000 and copy["ts"] + copy["dur"] <= add["ts"] + 10
    assert add["ts"] + add["dur"] <= sum_["ts"] + 1
    assert len(ran(events, "graph")) == 3 and all(e["dur"] > 0 for e in ran(events, "graph"))
    assert add["args"]["line"].endswith("program.py:11")


@alone  # other processes' work comes between
def test_the_stream_stands_still_until_the_copy_has_ended(events: list[dict[str, Any]]) -> None:
    (copy,) = ran(events, "copy to the device")
    waits = [e for e in ran(events, "wait") if e["args"]["line"].endswith("program.py:9")]
    assert len(waits) == 1 and waits[0]["dur"] > 0
    assert waits[0]["ts"] + waits[0]["dur"] == pytest.approx(copy["ts"] + copy["dur"], abs=100)
    assert [e["args"]["line"] for e in events if e["ph"] == "s" and e["cat"] == "wait"]


def test_calls_ranges_and_memory(events: list[dict[str, Any]]) -> None:
    calls = [e for e in events if e["ph"] == "X" and e["pid"] == -1 and e["cat"] == "call"]
    assert {"add", "sum", "graph", "copy to the device"} <= {e["name"] for e in calls}
    (work,) = [e for e in events if e["ph"] == "X" and e["cat"] == "range" and e["name"] == "work"]
    (add,) = [e for e in calls if e["name"] == "add"]
    assert work["ts"] <= add["ts"] and add["ts"] + add["dur"] <= work["ts"] + work["dur"]
    counters = [e for e in events if e["ph"] == "C" and e["pid"] == 0 and e["name"] == "memory allocated"]
    used = [e["args"]["bytes"] for e in counters]
    assert max(used) >= 3 << 26 and min(used) >= 0
