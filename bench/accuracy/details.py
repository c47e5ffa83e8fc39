"""Lists of the kernels that one call of a workload runs on a real GPU, and of the memory that it allocates.

The cost model describes PyTorch's kernels, so it is written from these lists: names, times and grids.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from bench.accuracy.kernels import Family, Params
from bench.accuracy.measure import float32_precision

_MOST = 60  # kernels, and allocations, of a call that are listed
_NAME = 200  # characters of a kernel's name that are kept


def details(t: Any, family: Family, params: Params) -> dict[str, Any]:
    """Return the kernels and allocations of a workload's call.

    Args:
        t: PyTorch.
        family: The workload's family.
        params: Its parameters.

    Returns:
        `kernels`: name, microseconds, blocks, threads of a block, and registers of a thread, for each kernel, copy and
        fill. `allocations`: bytes of each block in the order of allocation, negative where it is freed. `count`: the
        number of kernels, also of those that are not listed.
    """
    t.manual_seed(0)
    with float32_precision(t, params):
        call = family.build(t, params)
        for _ in range(3):
            call()
        t.cuda.synchronize()
        allocations = _allocations(t, call)
        kernels = _kernels(t, call)
    return {"kernels": kernels[:_MOST], "count": len(kernels), "allocations": allocations[:_MOST]}


def _allocations(t: Any, call: Any) -> list[int]:
    """Return the bytes of each block that a call allocates, and, as a negative number, of each one it frees."""
    t.cuda.memory._record_memory_history(max_entries=10_000, context=None)
    try:
        kept = call()
        events = t.cuda.memory._snapshot()["device_traces"][t.cuda.current_device()]
        del kept
    finally:
        t.cuda.memory._record_memory_history(enabled=None)
    signs = {"alloc": 1, "free_completed": -1}
    return [signs[event["action"]] * event["size"] for event in events if event["action"] in signs]


def _kernels(t: Any, call: Any) -> list[list[Any]]:
    """Return name, microseconds, blocks, threads and registers of each kernel, copy and fill of a call."""
    with t.profiler.profile(activities=[t.profiler.ProfilerActivity.CUDA]) as profiler:
        call()
        t.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    device = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    return [
        [
            e["name"][:_NAME], e["dur"], e["args"].get("grid"), e["args"].get("block"),
            e["args"].get("registers per thread"),
        ]
        for e in sorted(device, key=lambda e: float(e["ts"]))
    ]  # fmt: skip
