"""Runs one program of each public package on Flambeau and prints a table of results.

    make ecosystem                                        # builds .venv-ecosystem without PyTorch and runs all
    python -m ecosystem --python .venv-ecosystem/bin/python --only gpytorch
    python -m ecosystem --reference PYTHON                # also runs each program on PyTorch's CPU build
    python -m ecosystem --only keras --update             # replaces the rows of these programs

Each program runs in its own process, on Flambeau's virtual GPUs with race detection and, given an interpreter that has
PyTorch and the packages, on that. A complete run writes ecosystem/results.json, from which `make docs` writes
docs/ecosystem.md. A program passes on Flambeau if it ends with status 0 and has used a virtual GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
        cpu_seconds: Time that the processor worked for the process and its children.
        error: Last line of the error, empty if the program passed.
        traceback: Last lines of the standard error stream, empty if the program passed.
        races: Verdict of the race detector, empty on PyTorch.
    """

    passed: bool
    seconds: float
    cpu_seconds: float
    error: str = ""
    traceback: str = ""
    races: str = ""


@dataclass(frozen=True)
class Row:
    """The results of one program.

    Attributes:
        program: Path of the program below ecosystem/programs.
        package: Name of the package on the Python Package Index.
        version: Version that requirements.txt pins.
        options: Options of `flambeau run` that the program names in a comment.
        date: Day of the run.
        flambeau: Result on Flambeau.
        reference: Result on PyTorch, None if it was not run.
    """

    program: str
    package: str
    version: str
    options: str
    date: str
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
    with tempfile.TemporaryFile("w+", errors="replace") as stderr:
        process = subprocess.Popen(
            command, env=os.environ | ENVIRONMENT | environment, stdout=subprocess.DEVNULL, stderr=stderr
        )
        alarm = threading.Timer(limit, process.kill)
        alarm.start()
        _, status, usage = os.wait4(process.pid, 0)
        expired = alarm.finished.is_set()
        alarm.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = round(time.perf_counter() - start, 2)
        stderr.seek(0)
        lines = [line for line in stderr.read().splitlines() if line.strip()]
    work = round(usage.ru_utime + usage.ru_stime, 2)
    if expired:
        return Run(False, seconds, work, f"did not end within {limit:g} s")
    if process.returncode == 0:
        return Run(True, seconds, work)
    error = find_error(lines) or f"status {process.returncode}"
    return Run(False, seconds, work, error, "\n".join(lines[-14:]))


def run_on_flambeau(path: Path, python: str, limit: float) -> Run:
    """Run one program on virtual GPUs with race detection and return its result.

    Args:
        path: The program.
        python: Interpreter that has the packages.
        limit: Time limit in seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [python, *FLAMBEAU, "--report", str(report), *read_options(path).split(), str(path)]
        run = run_program(command, {"PYTHONPATH": str(FOLDER.parent / "src")}, limit)
        machines = read_machines(json.loads(report.read_text())) if report.exists() else []
    if run.passed and not any(
        device["peak_allocated"] for machine in machines for device in machine["devices"]
    ):
        return replace(run, passed=False, error="the program used no GPU")
    return replace(run, races=judge_races(machines))


def read_options(path: Path) -> str:
    """Return the options of `flambeau run` that a program names in a line `# flambeau run OPTIONS`."""
    found = re.search(r"^# flambeau run (.+)$", path.read_text(), re.MULTILINE)
    return found[1] if found else ""


def read_machines(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the machines of a report and of its child processes."""
    machines = list(report["machines"])
    for child in report["processes"]:
        machines += read_machines({"processes": [], **child})
    return machines


def judge_races(machines: Sequence[dict[str, Any]]) -> str:
    """Return the verdict of the race detector on all machines of a program."""
    certificates = [machine["certificate"] for machine in machines if machine["certificate"]]
    races = sum(len(certificate["races"]) for certificate in certificates)
    if races:
        return f"{races} found"
    return "none" if certificates and all(each["race_free"] for each in certificates) else "no certificate"


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


def write_row(row: Row) -> None:
    """Write a row to ecosystem/results.json in place of the former row of its program."""
    document = json.loads(RESULTS.read_text())
    programs = {str(path.relative_to(FOLDER / "programs")) for path in find_programs()}
    kept = {row["program"]: row for row in document["rows"] if row["program"] in programs}
    fields = asdict(row)
    for run in filter(None, (fields["flambeau"], fields["reference"])):
        del run["traceback"]
    former = kept.get(row.program, {})
    kept[row.program] = fields | {"reference": fields["reference"] or former.get("reference")}
    document["rows"] = [kept[program] for program in sorted(kept)]
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


def write_setting(options: argparse.Namespace) -> None:
    """Write the machine and the versions to ecosystem/results.json."""
    flambeau, python = ask_version([options.python, *FLAMBEAU, str(FOLDER / "print_version.py")])
    document = json.loads(RESULTS.read_text()) | {
        "machine": describe_machine(),
        "flambeau": flambeau,
        "python": python,
    }
    if options.reference:
        document["pytorch"] = ask_version([options.reference, "-c", VERSION])[0]
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


def format_row(row: Row) -> str:
    """Return one line of the table."""
    other = row.reference
    ratio = (
        f"{row.flambeau.cpu_seconds / other.cpu_seconds:5.2f}"
        if other and other.passed and row.flambeau.passed
        else "    -"
    )
    seconds = f"{other.cpu_seconds:7.1f}" if other and other.passed else f"{'fails' if other else '-':>7}"
    result = "passes" if row.flambeau.passed else "fails"
    program = Path(row.program).stem
    return (
        f"{row.package:24} {row.version:18} {program:32} {result:6} {row.flambeau.cpu_seconds:7.1f} {seconds} {ratio}  "
        f"{row.flambeau.races:14} {row.flambeau.error[:110]}"
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
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="programs that run at the same time")
    parser.add_argument(
        "--update", action="store_true", help="with --only: replace these rows of the results"
    )
    parser.add_argument("--tracebacks", action="store_true", help="print the last lines of each failure")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the programs, print the table, and write the results of a complete run.

    Returns:
        The number of programs that failed on Flambeau.
    """
    options = parse(arguments)
    written = options.update or not options.only
    if written:
        write_setting(options)
    rows = []
    print(f"{'package':24} {'version':18} {'program':32} result   flamb.  PyTorch ratio  races", flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(measure, path, options) for path in find_programs(options.only)]
        for future in as_completed(futures):
            row = future.result()
            rows.append(row)
            print(format_row(row), flush=True)
            if written:
                write_row(row)
            if options.tracebacks and row.flambeau.traceback:
                print(re.sub("^", "    | ", row.flambeau.traceback, flags=re.MULTILINE), flush=True)
    failed = sum(not row.flambeau.passed for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} programs pass on Flambeau; seconds are the processor's")
    return min(failed, 125)


def measure(path: Path, options: argparse.Namespace) -> Row:
    """Run one program on Flambeau and, with --reference, on PyTorch."""
    versions = read_requirements()
    package = find_package(path.stem, list(versions))
    flambeau = run_on_flambeau(path, options.python, options.limit)
    reference = None
    if options.reference:
        environment = {"PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": ""}
        reference = run_program([options.reference, str(path)], environment, options.limit)
    name = str(path.relative_to(FOLDER / "programs"))
    today = datetime.now(UTC).date().isoformat()
    return Row(name, package, versions[package], read_options(path), today, flambeau, reference)


if __name__ == "__main__":
    sys.exit(main())
