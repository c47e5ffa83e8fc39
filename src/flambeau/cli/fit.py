"""`flambeau fit`: run a torch program on each modelled GPU and compare peak memory and step time."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from flambeau.cli.environment import why_no_machine, why_not_readable
from flambeau.cli.output.console import error_text, time_text
from flambeau.cli.run import options_of, run
from flambeau.core.files import replace_file
from flambeau.driver.driver_registry import open_driver, virtual_models
from flambeau.runtime import system
from flambeau.runtime.memory.allocator_statistics import format_size

_HEAD = ("profile", "memory", "peak allocated", "reserved", "fits", "step", "")
_NEEDS_DATA = "keep shapes and times, no data"  # part of the error that virtual GPUs without data raise


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], summary: str) -> None:
    parser = commands.add_parser(
        "fit",
        help=summary,
        description="Run a program on virtual GPUs of each profile and print a table: whether it fits into the "
        "memory, its peak memory, and the simulated time of a training step. No kernel computes, unless the program "
        "reads values.",
        epilog="A step lasts from the end of one optimizer's step to the end of the next; the devices are "
        "synchronized in between. The first step is not counted.",
    )
    parser.add_argument(
        "--profiles", metavar="NAMES", help="profiles or TOML files, with commas between them (default: all)"
    )
    parser.add_argument("--devices", metavar="N", default="1", help="number of virtual GPUs (default: 1)")
    parser.add_argument(
        "--steps",
        metavar="N",
        type=int,
        default=5,
        help="end the program after N steps (default: 5); 0: run it to its end",
    )
    parser.add_argument("--child", nargs=2, metavar=("PROFILE", "FILE"), help=argparse.SUPPRESS)
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module's name")
    parser.add_argument("program", metavar="PROGRAM", help="a script, or with -m a module")
    parser.add_argument(
        "arguments", metavar="...", nargs=argparse.REMAINDER, help="the program's own arguments"
    )
    parser.set_defaults(do=fit)


def fit(options: argparse.Namespace) -> int:
    """Run the program on each profile and print the table. Returns the exit status: 1 if it fits no profile."""
    if options.child:
        return _run_child(options)
    names = options.profiles.split(",") if options.profiles else virtual_models()
    problem = "" if options.module else why_not_readable(Path(options.program))
    for name in names:
        options.profile, options.schedule = name, None
        problem = problem or why_no_machine(options)
    if options.steps < 0:
        problem = problem or f"--steps must not be negative, got {options.steps}"
    if problem:
        print(f"flambeau fit: {problem}", file=sys.stderr)
        return 2
    width, fitting, errors = max(len(name) for name in ("profile", *names)), 0, []
    _print_row(_HEAD, width)
    for name in names:
        result = _measure(options, name)
        if "error" in result:
            print(f"flambeau fit: the program failed on {name}: {result['error']}", file=sys.stderr)
            return 1
        _print_row(_row(name, result), width)
        fitting += result["fits"]
        errors += [result["error_of_times"]] if result["fits"] and result["error_of_times"] else []
    if errors:
        print(error_text([max(found) for found in zip(*errors, strict=True)]))
    return 0 if fitting else 1


def _measure(options: argparse.Namespace, profile: str) -> dict[str, Any]:
    """Run the program in a new process; without data first, and with data if it reads values."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "result.json")
        command = [sys.executable, "-m", "flambeau", "fit", "--devices", options.devices]
        command += ["--steps", str(options.steps), "--child", profile, str(file)]
        command += [*(["-m"] if options.module else []), options.program, *options.arguments]
        for data in ("0", "1"):
            environment = os.environ | {"FLAMBEAU_VIRTUAL_DATA": data, "FLAMBEAU_DRIVER": "virtual"}
            done = subprocess.run(
                command,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
            if _NEEDS_DATA not in done.stderr:
                break
        last = (done.stderr.strip().splitlines() or [""])[-1]
        if not file.exists():
            return {"error": last}
        result: dict[str, Any] = json.loads(file.read_text())
        result["data"] = data == "1"
        if done.returncode and "OutOfMemoryError" in done.stderr:
            result["fits"] = False
        elif done.returncode:
            return {"error": last}
        return result


def _run_child(options: argparse.Namespace) -> int:
    """Run the program on one profile and write the measurements to a file."""
    profile, file = options.child
    ends: list[int] = []

    def on_step(*_: object) -> None:
        for context in system.contexts():
            context.synchronize()
        ends.append(system.bare_driver().time_ns())
        if options.steps and len(ends) > options.steps:
            raise SystemExit(0)

    import_module("flambeau.optim.optimizer").register_optimizer_step_post_hook(on_step)
    report = f"{file}.report"
    arguments = ["--driver", "virtual", "--profile", profile, "--devices", options.devices, "--races", "off"]
    arguments += ["--quiet", "--report", report, *(["-m"] if options.module else []), options.program]
    status = run(options_of([*arguments, *options.arguments]))
    machines = json.loads(Path(report).read_text())["machines"]
    devices = [device for machine in machines for device in machine["devices"]]
    result = {
        "allocated": max([device["peak_allocated"] for device in devices], default=0),
        "reserved": max([device["peak_reserved"] for device in devices], default=0),
        "fits": True,
        "memory": _free_memory(profile),
        "steps": [later - earlier for earlier, later in pairwise(ends)],
        "time": max([machine["time_ns"] for machine in machines], default=0),
        "error_of_times": max(
            [machine["time_error"] for machine in machines if machine["time_error"]], default=None
        ),
    }
    replace_file(file, json.dumps(result), durable=False)
    return status


def _free_memory(profile: str) -> int:
    """Return the bytes that a program finds free on a GPU that nothing else uses."""
    driver = open_driver("shapes", devices=1, profile=profile)
    free, _ = driver.mem_info(0)
    driver.close()
    return free


def _row(name: str, result: dict[str, Any]) -> tuple[str, ...]:
    steps = result["steps"]
    notes = ["ran with data"] if result["data"] else []
    if result["fits"] and not steps:
        notes.append(f"no optimizer step; the program took {time_text(result['time'])}")
    return (
        name, format_size(result["memory"]), format_size(result["allocated"]),
        format_size(result["reserved"]), "yes" if result["fits"] else "no",
        time_text(round(statistics.median(steps))) if steps and result["fits"] else "-", "; ".join(notes),
    )  # fmt: skip


def _print_row(row: Sequence[str], width: int) -> None:
    """Print a row of the table, the name on the left and numbers on the right, as soon as it is complete."""
    name, memory, allocated, reserved, fits, step, note = row
    line = f"{name:{width}}{memory:>12}{allocated:>16}{reserved:>12}{fits:>6}{step:>13}  {note}"
    print(line.rstrip(), flush=True)
