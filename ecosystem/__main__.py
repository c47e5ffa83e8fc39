"""Runs one program of each public package on Flambeau and prints a table of results.

    make ecosystem                                        # builds .venv-ecosystem without PyTorch and runs all
    python -m ecosystem --python .venv-ecosystem/bin/python --only gpytorch
    python -m ecosystem --reference PYTHON                # also runs each program on PyTorch's CPU build

Each program runs in its own process, on Flambeau's virtual GPUs and, given an interpreter that has PyTorch and the
packages, on that. A complete run writes ecosystem/results.json, from which `make docs` writes docs/ecosystem.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.json"
VERSION = "import torch, platform; print(torch.__version__, platform.python_version())"
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",  # a download would hide a missing file
    "PYTHONFAULTHANDLER": "1",
}
FLAMBEAU = ("-m", "flambeau", "run", "--driver", "virtual", "--quiet", "--full-traceback")


@dataclass(frozen=True)
class Run:
    """The outcome of one program under one interpreter.

    Attributes:
        passed: True if the program ended with status 0.
        seconds: Wall time of the process.
        error: Last line of the error, empty if the program passed.
        traceback: Last lines of the standard error stream, empty if the program passed.
    """

    passed: bool
    seconds: float
    error: str = ""
    traceback: str = ""


@dataclass(frozen=True)
class Row:
    """The results of one program.

    Attributes:
        program: Path of the program below ecosystem/programs.
        package: Name of the package on the Python Package Index.
        version: Version that requirements.txt pins.
        flambeau: Result on Flambeau.
        reference: Result on PyTorch, None if it was not run.
    """

    program: str
    package: str
    version: str
    flambeau: Run
    reference: Run | None


def read_requirements() -> dict[str, str]:
    """Return the pinned packages: name -> version."""
    lines = (FOLDER / "requirements.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def find_package(stem: str, packages: Sequence[str]) -> str:
    """Return the package that a program's name begins with, the longest if several match.

    Args:
        stem: The program's name, such as "transformers_gpt2".
        packages: Names on the Python Package Index.

    Raises:
        ValueError: If requirements.txt pins no such package.
    """
    matches = [package for package in packages if f"{stem}_".startswith(f"{normalize(package)}_")]
    if not matches:
        raise ValueError(
            f"{stem}.py: no package of ecosystem/requirements.txt has a name that this name begins with"
        )
    return max(matches, key=len)


def normalize(package: str) -> str:
    """Return a package's name as a Python identifier in lower case."""
    return re.sub(r"[-_.]+", "_", package).lower()


def find_programs(only: Sequence[str] = ()) -> list[Path]:
    """Return the programs in order, those whose name contains one of `only` if any are given."""
    programs = sorted((FOLDER / "programs").glob("*/*.py"))
    return [path for path in programs if not only or any(normalize(name) in path.stem for name in only)]


def run_program(command: Sequence[str], environment: dict[str, str], limit: float) -> Run:
    """Run one program and return its result.

    Args:
        command: Command line.
        environment: Variables in addition to this process's own.
        limit: Time limit in seconds, after which the program is ended and counts as failed.
    """
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command, env=os.environ | ENVIRONMENT | environment, capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return Run(False, limit, f"did not end within {limit:g} s")
    seconds = round(time.perf_counter() - start, 2)
    if done.returncode == 0:
        return Run(True, seconds)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return Run(False, seconds, find_error(lines) or f"status {done.returncode}", "\n".join(lines[-14:]))


def find_error(lines: Sequence[str]) -> str:
    """Return the line of a traceback that names the exception, or the last line."""
    heads = [
        line
        for line in lines
        if re.match(r"[\w.]+(Error|Exception|Interrupt|NotImplemented\w*|Warning)\b", line)
    ]
    return (heads or list(lines[-1:]) or [""])[-1][:300]


def describe_machine() -> str:
    """Return the processor and the system."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = re.findall(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores, {platform.system()}"


def ask_version(command: Sequence[str]) -> list[str]:
    """Return the versions of `torch` and Python under an interpreter."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | ENVIRONMENT)
    return done.stdout.split()


def write_results(rows: Sequence[Row], options: argparse.Namespace) -> None:
    """Write ecosystem/results.json."""
    flambeau, python = ask_version([options.python, *FLAMBEAU, str(FOLDER / "print_version.py")])
    reference = ask_version([options.reference, "-c", VERSION])[0] if options.reference else None
    document = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": describe_machine(),
        "flambeau": flambeau,
        "pytorch": reference,
        "python": python,
        "rows": [asdict(row) for row in rows],
    }
    for row in document["rows"]:
        for run in (row["flambeau"], row["reference"]):
            if run:
                del run["traceback"]
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


def format_row(row: Row) -> str:
    """Return one line of the table."""
    other = row.reference
    ratio = (
        f"{row.flambeau.seconds / other.seconds:5.2f}"
        if other and other.passed and row.flambeau.passed
        else "    -"
    )
    seconds = f"{other.seconds:7.1f}" if other and other.passed else f"{'fails' if other else '-':>7}"
    result = "passes" if row.flambeau.passed else "fails"
    program = Path(row.program).stem
    return (
        f"{row.package:24} {row.version:18} {program:32} {result:6} {row.flambeau.seconds:7.1f} {seconds} {ratio}  "
        f"{row.flambeau.error[:110]}"
    ).rstrip()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m ecosystem", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="programs whose name contains NAME"
    )
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter with the packages, without PyTorch"
    )
    parser.add_argument(
        "--reference", metavar="PYTHON", help="interpreter with the packages and PyTorch's CPU build"
    )
    parser.add_argument(
        "--limit", type=float, default=120.0, metavar="SECONDS", help="time limit of each program"
    )
    parser.add_argument("--tracebacks", action="store_true", help="print the last lines of each failure")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the programs, print the table, and write the results of a complete run.

    Returns:
        The number of programs that failed on Flambeau.
    """
    options = parse(arguments)
    versions = read_requirements()
    sources = str(FOLDER.parent / "src")
    rows = []
    print(f"{'package':24} {'version':18} {'program':32} result   flamb.  PyTorch ratio  error", flush=True)
    for path in find_programs(options.only):
        package = find_package(path.stem, list(versions))
        flambeau = run_program([options.python, *FLAMBEAU, str(path)], {"PYTHONPATH": sources}, options.limit)
        reference = None
        if options.reference:
            reference = run_program(
                [options.reference, str(path)], {"PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": ""}, options.limit
            )
        name = str(path.relative_to(FOLDER / "programs"))
        rows.append(Row(name, package, versions[package], flambeau, reference))
        print(format_row(rows[-1]), flush=True)
        if options.tracebacks and flambeau.traceback:
            print(re.sub("^", "    | ", flambeau.traceback, flags=re.MULTILINE), flush=True)
    failed = sum(not row.flambeau.passed for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} programs pass on Flambeau")
    if not options.only:
        write_results(rows, options)
    return min(failed, 125)


if __name__ == "__main__":
    sys.exit(main())
