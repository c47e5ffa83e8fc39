"""Reports of PyTorch's CUDA sanitizer and of Flambeau on the StreamBugs corpus, on an NVIDIA GPU.

    python bench/streambugs_gpu.py [--jobs 8] [pair ...] > streambugs/gpu.json

Each half of each pair runs in a separate process, under PyTorch with its sanitizer on, and under Flambeau over the
real driver with races on. Prints JSON, for two columns of the scorecard (`python -m streambugs --page`): "reported",
"silent", "certified", "needs 2 GPUs", or how it failed; and the microseconds that `a + b` takes the host.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAIRS = ROOT / "streambugs" / "pairs"
TOOLS = ("sanitizer", "flambeau")
TOO_FEW = ("invalid device ordinal", "Invalid device id", "Invalid peer device id")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=4, help="processes at a time")
    parser.add_argument("pairs", nargs="*", help="names of pairs; all of them by default")
    options = parser.parse_args()
    names = options.pairs or sorted(path.stem for path in PAIRS.glob("*.py"))
    runs = [(tool, name, half) for name in names for half in ("buggy", "fixed") for tool in TOOLS]
    with ThreadPoolExecutor(options.jobs) as pool:
        answers = dict(zip(runs, pool.map(lambda run: child("half", *run), runs), strict=True))
    found: dict[str, Any] = {
        **child("machine"),
        "cost": {tool: child("cost", tool) for tool in (*TOOLS, *PLAIN)},
    }
    for tool in TOOLS:
        found[tool] = {
            name: {h: answers[tool, name, h]["said"] for h in ("buggy", "fixed")} for name in names
        }
    json.dump(found, sys.stdout, indent=1)
    print()


def child(*arguments: str) -> Any:
    """Run this file in another process and return the JSON that it prints."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1"}
    environment |= {
        "FLAMBEAU_DRIVER": "cuda",
        "FLAMBEAU_RACES": "off" if arguments[-1] == "flambeau_off" else "warn",
    }
    command = [sys.executable, __file__, "--child", *arguments]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return {"said": "failed: no end within a minute"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"said": f"failed: {(done.stderr.splitlines() or ['it printed nothing'])[-1][:200]}"}
    return json.loads(lines[-1])


# -- in a child ---------------------------------------------------------------------------------------------------


def half(tool: str, name: str, which: str) -> dict[str, Any]:
    """Run one half of a pair under one tool."""
    report = _sanitizer() if tool == "sanitizer" else _flambeau()
    import torch

    try:
        runpy.run_path(str(PAIRS / f"{name}.py"))["program"](which == "fixed")
        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)
    except Exception as error:
        if type(error).__name__ == "CUDASanitizerErrors":
            return {"said": "reported"}
        few = any(text in str(error) for text in TOO_FEW)
        return {"said": "needs 2 GPUs" if few else f"failed: {type(error).__name__}: {str(error)[:200]}"}
    return {"said": report()}


def _sanitizer() -> Callable[[], str]:
    import torch.cuda._sanitizer

    torch.cuda._sanitizer.enable_cuda_sanitizer()
    return lambda: "silent"  # it raises where it reports


def _flambeau() -> Callable[[], str]:
    from flambeau.cli import import_hook
    from flambeau.runtime import system

    import_hook.install()

    def report() -> str:
        certificate = system.accelerator().detector.certificate()  # type: ignore[attr-defined]
        return "reported" if certificate.races else "certified" if certificate.race_free else "silent"

    return report


def cost(tool: str) -> dict[str, Any]:
    """Microseconds of the host for `a + b`."""
    if tool == "sanitizer":
        _sanitizer()
    elif tool.startswith("flambeau"):
        _flambeau()
    import torch

    a, b = torch.ones(1024, device="cuda"), torch.ones(1024, device="cuda")
    best = float("inf")
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            a + b
        best = min(best, (time.perf_counter() - start) / 200 * 1e6)
    return {"us": round(best, 2)}


def machine() -> dict[str, Any]:
    import torch

    return {
        "gpu": torch.cuda.get_device_name(),
        "gpus": torch.cuda.device_count(),
        "torch": torch.__version__,
    }


PLAIN = ("torch_off", "flambeau_off")

if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps({"half": half, "cost": cost, "machine": machine}[sys.argv[2]](*sys.argv[3:])))
    else:
        main()
