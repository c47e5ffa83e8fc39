"""`flambeau calibrate`: measure a real GPU and write the profile of virtual GPUs that behave like it."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

import flambeau
from flambeau.cli.calibration.profile_text import profile_text
from flambeau.cli.environment import why_not_readable, why_not_writable
from flambeau.core.files import replace_file
from flambeau.driver.driver_registry import profile_table, virtual_models, why_no_gpu
from flambeau.version import flambeau as version

_SEED = 26
_MAY_BE_ZERO = ("minor", "reserved")  # properties that may be 0; in another property 0 means unknown
_DIGITS = 4  # significant digits of fitted numbers
_NO_GPU = (
    "flambeau calibrate: there is no GPU to measure: {why}\n"
    "Run it on a machine with an NVIDIA GPU, or fit measurements of one that you have as a file: --from FILE"
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], summary: str) -> None:
    parser = commands.add_parser(
        "calibrate",
        help=summary,
        description="Run microbenchmarks on a real GPU (two minutes at most), fit the constants of a profile to half "
        "of them, and print the errors of the other half. The profile is for --profile and FLAMBEAU_VIRTUAL_PROFILE.",
        epilog="The measurements are written next to the profile, with the ending .json, for --from. The exit status "
        "is 1 if there is no GPU.",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("profile.toml"),
        help="the profile to write (default: profile.toml)",
    )
    parser.add_argument("--device", metavar="N", type=int, default=0, help="index of the GPU (default: 0)")
    parser.add_argument(
        "--from", dest="measured", metavar="FILE", type=Path, help="fit stored measurements; needs no GPU"
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, default=_SEED, help=f"seed of the random sizes (default: {_SEED})"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(do=calibrate)


def calibrate(options: argparse.Namespace) -> int:
    """Measure, fit, print and write. Returns the exit status: 1 if there is no GPU, 2 for a wrong command line."""
    if options.child:
        return _run_child(options)
    output = options.output
    problem = why_not_writable(output)
    if not problem and output.suffix != ".toml":
        problem = "the profile's file must end with .toml"
    if problem:
        print(f"flambeau calibrate: {output}: {problem}", file=sys.stderr)
        return 2
    store = options.measured or output.with_suffix(".json")
    if options.measured is None and (status := _measure(options, store)):
        return status
    try:
        data = _read(store)
    except ValueError as error:
        print(f"flambeau calibrate: {store}: {error}", file=sys.stderr)
        return 2
    return _fit_and_report(data, store, output)


def _measure(options: argparse.Namespace, store: Path) -> int:
    """Measure in a new process, because virtual GPUs cannot be opened while real ones are."""
    why = why_no_gpu()
    if why:
        print(_NO_GPU.format(why=why), file=sys.stderr)
        return 1
    print("measuring, at most two minutes ...", flush=True)
    command = [sys.executable, "-m", "flambeau", "calibrate", "--child", "-o", str(store)]
    command += ["--device", str(options.device), "--seed", str(options.seed)]
    return subprocess.run(command, env=os.environ | {"FLAMBEAU_DRIVER": "cuda"}, check=False).returncode


def _run_child(options: argparse.Namespace) -> int:
    """Measure a device in this process and write the measurements to a file."""
    microbenchmarks = import_module("flambeau.cli.calibration.microbenchmarks")
    count = flambeau.cuda.device_count()
    if not 0 <= options.device < count:
        print(
            f"flambeau calibrate: there is no device {options.device}; {count} are visible", file=sys.stderr
        )
        return 2
    flambeau.cuda.set_device(options.device)
    data = microbenchmarks.measure_all(flambeau, time.perf_counter_ns, options.seed)
    write_measurements(
        options.output, data | {"date": date.today().isoformat(), "software": f"Flambeau {version}"}
    )
    return 0


def write_measurements(path: Path, data: dict[str, Any]) -> None:
    """Write what `measure_all` returned as JSON, one row of the measurements a line."""
    rows = ",\n".join([json.dumps(row) for row in data["rows"]])
    head = json.dumps({key: value for key, value in data.items() if key != "rows"})
    replace_file(path, f'{head[:-1]}, "rows": [\n{rows}\n]}}\n')


def _read(path: Path) -> dict[str, Any]:
    if problem := why_not_readable(path):
        raise ValueError(problem)
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        rows = [row for row in data["rows"] if "error" not in row]
        if not rows or not all(row["ns"] > 0 and row["calls"] > 0 and "held" in row for row in rows):
            raise KeyError("rows")
        table = profile_table("h100")
        if any(type(value) is not type(table[key]) for key, value in data["device"].items()):
            raise TypeError("device")
        base_profile(data["device"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"this is not a file of `flambeau calibrate`: {type(error).__name__}: {error}"
        ) from None
    return data


def base_profile(device: dict[str, Any]) -> tuple[dict[str, Any], str, bool]:
    """Return the profile from which a device's profile begins, the name of its base, and True if that is its model.

    Without a profile of the same model, the nearest one of the same generation is the base. Its rates are scaled by
    multiprocessors and clocks.
    """
    device = {key: value for key, value in device.items() if value or key in _MAY_BE_ZERO}
    tables = {name: profile_table(name) for name in virtual_models()}
    for name, table in tables.items():
        if table["name"] == device["name"]:
            return table | device, name, True

    def distance(name: str) -> tuple[int, int]:
        table = tables[name]
        generations = abs(10 * (table["major"] - device["major"]) + table["minor"] - device["minor"])
        return generations, abs(table["sms"] - device["sms"])

    name = min(tables, key=distance)
    table = tables[name]
    ratio = device["sms"] / table["sms"] * device.get("clock_khz", table["clock_khz"]) / table["clock_khz"]
    rates = {kind: rate and rate * ratio for kind, rate in table["rates"].items()}
    return table | device | {"rates": rates}, name, False


def _fit_and_report(data: dict[str, Any], store: Path, output: Path) -> int:
    fits = import_module("flambeau.cli.calibration.constant_fit")
    start, base, is_known = base_profile(data["device"])
    start["host_factor"] = 1.0
    rows = [row for row in data["rows"] if "error" not in row]
    profile, fitted = fits.fit(start, [row for row in rows if not row["held"]], is_known)
    held = [row for row in rows if row["held"]]
    for key in fitted:
        profile = fits.with_value(profile, key, float(f"{fits.value_of(profile, key):.{_DIGITS}g}"))
    ratios = [ns / row["ns"] for ns, row in zip(fits.simulate(profile, held), held, strict=True)]
    errors = list(_error_lines(held, ratios))
    print(f"{data['device']['name']}: fitted to {len(rows) - len(held)} rows; base {base}\n")
    for line in _constant_lines(fits, start, profile, fitted):
        print(line)
    print("\nerrors of rows that were not used for the fit")
    for line in errors:
        print(line)
    failures = Counter([(row["benchmark"], row["error"]) for row in data["rows"] if "error" in row])
    for (benchmark, error), count in failures.items():
        print(f"not measured: {benchmark}, {count} rows: {error}")
    head = [
        f"{data['device']['name']}, measured by `flambeau calibrate` on {data.get('date', 'an unknown day')}",
        f"with {data.get('software', 'Flambeau')}. Keys without a remark are those of the profile {base}.",
        "Errors of rows that were not used for the fit:",
        *errors,
    ]
    remarks = _remarks(data["device"], start, is_known)
    deviations = [(row["benchmark"], abs(ratio - 1)) for row, ratio in zip(held, ratios, strict=True)]
    for group in fits.GROUPS:
        found = [deviation for benchmark, deviation in deviations if benchmark in group.benchmarks]
        error = f", error {statistics.median(found):.0%}" if found else ""
        remarks |= {key: f"measured{error}" for key in fits.keys_of(group, is_known) if key in fitted}
    replace_file(output, profile_text(profile, remarks, head))
    profile_table(str(output))  # a profile that cannot be read back would be a bug of this command
    print(f"\nprofile: {output}; measurements: {store}")
    return 0


def _remarks(device: dict[str, Any], start: dict[str, Any], is_known: bool) -> dict[str, str]:
    """Return the origin of the values that are not fitted: dotted key -> text."""
    remarks = dict.fromkeys(device, "of the device")
    if not is_known:
        scaled = [kind for kind, rate in start["rates"].items() if rate]
        remarks |= {f"rates.{kind}": "scaled by multiprocessors and clock" for kind in scaled}
    return remarks


def _constant_lines(
    fits: Any, start: dict[str, Any], profile: dict[str, Any], fitted: dict[str, int]
) -> Iterator[str]:
    yield f"{'constant':24}{'before':>14}{'fitted':>14}{'rows':>6}"
    for key, count in fitted.items():
        before, after = fits.value_of(start, key), fits.value_of(profile, key)
        yield f"{key:24}{before:14.5g}{after:14.5g}{count:6}"


def _error_lines(rows: Sequence[dict[str, Any]], ratios: Sequence[float]) -> Iterator[str]:
    """Yield a line for each benchmark and one for all benchmarks: number, measured times, simulated / measured,
    errors.
    """
    yield f"{'benchmark':24}{'rows':>5}{'measured, us':>22}{'ratio':>8}{'median':>8}{'largest':>9}"
    names = list(dict.fromkeys(row["benchmark"] for row in rows))
    for name in [*names, "all"]:
        places = [place for place, row in enumerate(rows) if name in ("all", row["benchmark"])]
        times, found = [rows[place]["ns"] / 1e3 for place in places], [ratios[place] for place in places]
        errors = [abs(ratio - 1) for ratio in found]
        span = f"{min(times):.3g} to {max(times):,.4g}"
        yield (
            f"{name:24}{len(places):5}{span:>22}{statistics.median(found):8.2f}{statistics.median(errors):8.1%}"
            f"{max(errors):9.1%}"
        )
