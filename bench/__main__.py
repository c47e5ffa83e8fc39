"""Entry point of all benchmarks: list them, run some, and keep what they measured as data.

    python -m bench                              # lists the benchmarks
    python -m bench overhead imports             # runs two of them
    python -m bench training -- --driver null    # passes the arguments after `--` to the benchmark

Each run writes `bench/results/runs/NAME.json` with the machine, the date, the software and the command. Its rows are
the lines that the benchmark printed, each with the numbers in it.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
RUNS = FOLDER / "results" / "runs"
PACKAGES = ("flambeau", "numpy", "torch", "cupy", "cuda-bindings")
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def find_benchmarks() -> dict[str, str]:
    """Return the first line of the docstring of each program in this folder, by name."""
    texts = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.py")) if path.stem != "__main__"}
    return {
        name: (ast.get_docstring(ast.parse(text)) or "").splitlines()[0]
        for name, text in texts.items()
        if 'if __name__ == "__main__":' in text  # the others are imported by these
    }


def describe_machine() -> str:
    """Return the processor, the number of cores and the GPUs."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (match := re.search(r"^model name\s*: (.*)$", cpuinfo.read_text(), re.M)):
        processor = match[1]
    gpus: list[str] = []
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        gpus = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return f"{os.cpu_count()} cores of {processor}, {', '.join(gpus) or 'no GPU'}"


def describe_software() -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def rows_of(output: str) -> list[dict[str, Any]]:
    """Return the lines of an output that contain numbers, with the numbers."""
    rows = [
        {"text": line.strip(), "values": [float(text.replace(",", "")) for text in NUMBER.findall(line)]}
        for line in output.splitlines()
    ]
    return [row for row in rows if row["values"]]


def run_benchmark(name: str, arguments: Sequence[str]) -> int:
    """Run one benchmark, print what it prints, and write its result file; return its exit status."""
    command = [f"bench/{name}.py", *arguments]
    paths = [str(FOLDER.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    lines = []
    with subprocess.Popen(
        [sys.executable, *command], cwd=FOLDER.parent, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    status = process.returncode
    if status == 0:
        result = {
            "benchmark": name,
            "command": " ".join(["python", *command]),
            "machine": describe_machine(),
            "date": datetime.date.today().isoformat(),
            "software": describe_software(),
            "rows": rows_of("".join(lines)),
        }
        RUNS.mkdir(parents=True, exist_ok=True)
        path = RUNS / f"{name}.json"
        path.write_text(json.dumps(result, indent=2) + "\n")
        print(f"written    {path.relative_to(FOLDER.parent)}")
    return status


def main(command: Sequence[str]) -> int:
    """List the benchmarks, or run those that are named; return 1 if one fails."""
    names = list(command)
    arguments: list[str] = []
    if "--" in names:
        at = names.index("--")
        names, arguments = names[:at], names[at + 1 :]
    benchmarks = find_benchmarks()
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a benchmark; without one, list them all")
    names = parser.parse_args(names).names
    if unknown := sorted(set(names) - set(benchmarks)):
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(benchmarks)}")
    if not names:
        width = max(map(len, benchmarks))
        print("\n".join(f"{name:{width}}  {what}" for name, what in benchmarks.items()))
        return 0
    statuses = [run_benchmark(name, arguments) for name in names]
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
