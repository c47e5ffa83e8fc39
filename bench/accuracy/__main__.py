"""Simulated times compared with real ones, for workloads drawn at random.

    python -m bench.accuracy measure FILE        # on a machine with a GPU and PyTorch: writes the measurements
    python -m bench.accuracy details FILE        # there, too: each call's kernels and allocations, to learn from
    python -m bench.accuracy compare FILE        # anywhere: the same workloads on a virtual GPU, worst rows last
    python -m bench.accuracy page                # anywhere: simulates the files of docs/accuracy.md and writes it

Each family's workloads are drawn by the seed in the file. Every second one, by a fixed random split, is for fitting
the cost model; the others are held out, and the tables are about them unless `--part` says otherwise. A file of a seed
that nothing was fitted to is held out as a whole: `--part all`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from bench.accuracy import details, kernels, more_kernels, more_programs, page, programs
from bench.accuracy.kernels import Family, Params
from bench.accuracy.measure import measure

FAMILIES = {
    family.name: family
    for module in (kernels, programs, more_kernels, more_programs)
    for family in module.FAMILIES
}
SEED = 26
RESULTS = Path(__file__).parents[1] / "results" / "accuracy"
HELD_OUT = RESULTS / "h100_seed_27.json"
OTHER = RESULTS / "h200_seed_32.json"
TIME_ERRORS = RESULTS.parents[2] / "src/flambeau/driver/virtual/time_errors.json"
# Commands that ran so often belong to the measured call, not to its preparation.
_REPEATED = 20
PARTS = {"held-out": (True,), "fitting": (False,), "all": (False, True)}  # values of a workload's `held`


def draw_workloads(seed: int) -> Iterator[tuple[Family, Params, bool]]:
    """Yield each workload: its family, parameters, and whether it is held out."""
    for family in FAMILIES.values():
        random = Random(f"{seed} {family.name}")
        for _ in range(family.count):
            params = family.draw(random)
            yield family, params, random.random() < 0.5


def run_real(path: Path, seed: int, rounds: int, limit: float) -> None:
    """Measure all workloads under PyTorch, until `limit` seconds have passed, and write them to a file."""
    import torch

    rows: list[dict[str, Any]] = []
    begin = time.monotonic()
    for family, params, held in draw_workloads(seed):
        if time.monotonic() - begin > limit:
            print(f"stopped after {limit} s, before {family.name}")
            break
        row: dict[str, Any] = {"family": family.name, "held": held, "params": params}
        try:
            row |= measure(torch, family, params, time.perf_counter_ns, rounds)
        except (RuntimeError, NotImplementedError, ValueError, AttributeError) as error:
            row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"
            print(family.name, params, row["error"])
            torch.cuda.synchronize()
        rows.append(row)
        torch.cuda.empty_cache()
    data = {
        "machine": torch.cuda.get_device_name(), "date": datetime.date.today().isoformat(),
        "software": f"PyTorch {torch.__version__}", "seed": seed, "workloads": rows,
    }  # fmt: skip
    _write(path, data)
    print(f"{len(rows)} workloads in {time.monotonic() - begin:.0f} s")


def list_details(path: Path, seed: int, limit: float) -> None:
    """Write the kernels and allocations of all workloads' calls to a file, until `limit` seconds have passed."""
    import torch

    rows: list[dict[str, Any]] = []
    begin = time.monotonic()
    for family, params, held in draw_workloads(seed):
        if time.monotonic() - begin > limit:
            print(f"stopped after {limit} s, before {family.name}")
            break
        row: dict[str, Any] = {"family": family.name, "held": held, "params": params}
        try:
            row |= details.details(torch, family, params)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"
        rows.append(row)
        torch.cuda.empty_cache()
    _write(path, {"machine": torch.cuda.get_device_name(), "seed": seed, "workloads": rows})
    print(f"details of {len(rows)} workloads in {time.monotonic() - begin:.0f} s")


def _write(path: Path, data: dict[str, Any]) -> None:
    """Write a file with one workload a line."""
    lines = ",\n".join(json.dumps(row) for row in data["workloads"])
    head = json.dumps({key: value for key, value in data.items() if key != "workloads"})
    path.write_text(f'{head[:-1]}, "workloads": [\n{lines}\n]}}\n')


def simulate(family: Family, params: Params, profile: str) -> dict[str, float]:
    """Return what `measure` finds on a virtual GPU."""
    import flambeau

    with flambeau.virtual(devices=1, profile=profile, data=family.reads(params)) as machine:
        return measure(flambeau, family, params, machine.driver.time_ns, 1)


def own_kernels(family: Family, params: Params, profile: str) -> list[str]:
    """Return the names of the commands that a workload's call consists of."""
    import flambeau

    counts: Counter[str] = Counter()
    with flambeau.virtual(devices=1, profile=profile, data=family.reads(params)) as machine:
        driver: Any = machine.driver
        driver.on_command = lambda record: counts.update([record.name])
        measure(flambeau, family, params, driver.time_ns, 1)
    return sorted(name for name, count in counts.items() if count >= _REPEATED)


def time_errors(rows: Sequence[page.Row], profile: str) -> dict[str, Any]:
    """Return what virtual GPUs say of their errors: those of each family, and the family of each kernel."""
    errors: dict[str, list[float]] = {}
    votes: dict[str, Counter[str]] = {}
    for row in rows:
        family = FAMILIES[row["family"]]
        errors.setdefault(family.name, []).append(
            round(abs(row["simulated"]["ns"] / row["real"]["ns"] - 1), 3)
        )
        if family.kind in ("kernel", "copy"):
            for name in own_kernels(family, row["params"], profile):
                votes.setdefault(name, Counter())[family.name] += 1
    families = {
        name: max(found, key=lambda f: found[f] / len(errors[f])) for name, found in sorted(votes.items())
    }
    return {"errors": {name: sorted(values) for name, values in errors.items()}, "families": families}


def compare(path: Path, profile: str, part: str, only: str) -> None:
    """Print simulated and measured times: a row per family, then the worst workloads."""
    rows = []
    for row in json.loads(path.read_text())["workloads"]:
        if "error" in row or row["held"] not in PARTS[part] or only not in row["family"]:
            continue
        family = FAMILIES[row["family"]]
        try:
            found = simulate(family, row["params"], profile)
        except Exception as error:  # one workload that fails does not end the table
            print(
                f"{family.name} {row['params']}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr
            )
            continue
        rows.append((family, row, found, found["ns"] / row["ns"], found["peak"] == row["peak"]))
    print(
        f"{'family':24}{'number':>7}{'median error':>14}{'within 1.5':>12}{'beyond 3':>10}{'peak equal':>12}"
    )
    for name in [*FAMILIES, *dict.fromkeys(f.kind for f in FAMILIES.values())]:
        print_row(name, [r for r in rows if name in (r[0].name, r[0].kind)])
    print()
    for family, row, found, ratio, _ in sorted(rows, key=lambda r: spread_of(r[3]))[-40:]:
        times = f"{row['ns'] / 1e3:11.1f} us, simulated {found['ns'] / 1e3:11.1f}"
        print(f"{ratio:8.2f}  {times}  {family.name} {row['params']}")


def simulated_file(measured: Path) -> Path:
    """Return the file of measured and simulated times that belongs to a file of measured ones."""
    return measured.with_name(f"{measured.stem}_simulated.json")


def simulate_all(path: Path, profile: str) -> dict[str, Any]:
    """Simulate all workloads of a file, and store the times with the measured ones."""
    measured = json.loads(path.read_text())
    rows = []
    for row in measured["workloads"]:
        if "error" not in row:
            family = FAMILIES[row["family"]]
            found = simulate(family, row["params"], profile)
            rows.append({
                "family": family.name, "kind": family.kind, "held": row["held"], "params": row["params"],
                "real": {"ns": round(row["ns"]), "peak": row["peak"]},
                "simulated": {"ns": round(found["ns"]), "peak": found["peak"]},
            })  # fmt: skip
    data = {key: measured[key] for key in ("machine", "date", "software", "seed")} | {"profile": profile}
    lines = ",\n".join(json.dumps(row) for row in rows)
    simulated_file(path).write_text(f'{json.dumps(data)[:-1]}, "rows": [\n{lines}\n]}}\n')
    return data | {"rows": rows}


def write_page() -> None:
    """Simulate the workloads of both files of the page, and write it and the errors that reports state."""
    data, other = simulate_all(HELD_OUT, "h100"), simulate_all(OTHER, "h200")
    TIME_ERRORS.write_text(
        page.errors_text(time_errors([*page.held_out(data), *page.held_out(other)], "h100"))
    )
    page.write_page(data, other, RESULTS.parents[2] / "docs")


def spread_of(ratio: float) -> float:
    """Return how many times a simulated time is too long or too short; infinity for no time."""
    return max(ratio, 1 / ratio) if ratio else math.inf


def print_row(name: str, rows: Sequence[Any]) -> None:
    if not rows:
        return
    ratios = [row[3] for row in rows]
    errors = [abs(ratio - 1) for ratio in ratios]
    spread = [spread_of(ratio) for ratio in ratios]
    shares = [sum(s <= 1.5 for s in spread), sum(s > 3 for s in spread), sum(row[4] for row in rows)]
    print(
        f"{name:24}{len(rows):7}{statistics.median(errors):14.1%}"
        f"{shares[0] / len(rows):12.0%}{shares[1] / len(rows):10.0%}{shares[2] / len(rows):12.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("measure", "details", "compare", "page"))
    parser.add_argument("file", type=Path, nargs="?", default=HELD_OUT)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300, help="seconds")
    parser.add_argument("--profile", default="h100")
    parser.add_argument(
        "--part", choices=PARTS, default="held-out", help="which workloads (default: held-out)"
    )
    parser.add_argument("--only", default="", help="families with this text in their name")
    given = parser.parse_args()
    if given.command == "measure":
        run_real(given.file, given.seed, given.rounds, given.limit)
    elif given.command == "details":
        list_details(given.file, given.seed, given.limit)
    elif given.command == "page":
        write_page()
    else:
        compare(given.file, given.profile, given.part, given.only)


if __name__ == "__main__":
    main()
