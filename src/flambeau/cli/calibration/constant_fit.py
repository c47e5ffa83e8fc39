"""The fit of a profile's constants to measured microbenchmarks.

# Note [The fit of a profile]
Problem: A constant, such as the bandwidth of the L2 cache, is never measured alone.
Rule: The virtual GPU itself is the model. The same microbenchmarks run on it, and the constants change until its times
are the measured ones. Constants that the same benchmarks depend on form a group, which is fitted together.
How: Gauss and Newton's steps in the logarithms of the constants, on the logarithms of simulated / measured time, with
derivatives by finite differences. Rows are weighted by 1 / residual where that exceeds 5 %, so that outliers count
as in a fit of absolute errors (iteratively reweighted least squares).
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import flambeau
from flambeau.cli.calibration.microbenchmarks import BENCHMARKS, Params, measure
from flambeau.cli.calibration.profile_text import profile_text
from flambeau.core.files import replace_file

Table = dict[str, Any]
"""A profile as its file has it: keys, and tables of keys."""
Simulation = Callable[[Table, Sequence[Params]], list[float]]
"""Function of a profile and rows of microbenchmarks that returns their simulated times in ns."""

_STEPS = 8
_DIFFERENCE = 0.05  # change of a logarithm with which derivatives are computed
_LONGEST = 1.5  # the largest change of a logarithm in one step
_DAMPING = 0.03  # keeps steps short along directions that the rows hardly determine
_CLOSE = 1e-3  # a step below which the fit ends
_USUAL = 0.05  # residual up to which all rows weigh the same


class Group(NamedTuple):
    """Constants, by dotted keys, and the benchmarks that they are fitted to."""

    keys: tuple[str, ...]
    benchmarks: tuple[str, ...]


_RATES = ("float16", "bfloat16", "tf32", "float32", "float64")
GROUPS = (  # each group depends on the groups before it
    Group(("host_factor",), ("eager call",)),
    Group(("costs.call_ns",), ("event record", "event wait")),
    Group(("costs.poll_ns",), ("poll",)),
    Group(("costs.sync_ns",), ("synchronize",)),
    Group(("costs.alloc_ns",), ("allocation",)),
    Group(("costs.kernel_ns", "l2_bandwidth", "efficiency.bandwidth"), ("launch", "in the L2 cache", "in memory")),
    *[Group((f"efficiency.{rate}",), (f"product, {rate}",)) for rate in _RATES],
    Group(("costs.node_ns",), ("graph",)),
    Group(("links.pcie", "links.copy_in_ns", "links.copy_out_ns"), ("pinned to device", "device to pinned")),
    Group(("links.pageable",), ("pageable to device",)),
    Group(("links.pageable_out", "links.host_copy"), ("device to pageable",)),
)  # fmt: skip
_PEAKS = {"efficiency.bandwidth": "bandwidth"} | {f"efficiency.{rate}": f"rates.{rate}" for rate in _RATES}
_LIMITS = {
    "efficiency.": (1e-3, 1.0),
    "costs.": (1.0, 1e9),
    "links.copy": (1.0, 1e9),
    "host_factor": (0.02, 50.0),
}
_RATE_LIMITS = (1e8, 1e16)


def simulate(profile: Table, rows: Sequence[Params]) -> list[float]:
    """Return the times of microbenchmarks on a virtual GPU of a profile, whose host runs Flambeau."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "profile.toml")
        replace_file(file, profile_text(profile | {"host": "flambeau"}, {}, []), durable=False)
        times = {}
        for data in (False, True):
            with flambeau.virtual(devices=1, profile=str(file), data=data, races="off") as machine:
                for place, row in enumerate(rows):
                    if BENCHMARKS[row["benchmark"]].reads == data:
                        times[place] = measure(flambeau, row, machine.driver.time_ns, rounds=1)[0]
    return [times[place] for place in range(len(rows))]


def fit(
    start: Table, rows: Sequence[Params], is_known: bool, simulation: Simulation = simulate
) -> tuple[Table, dict[str, int]]:
    """Fit the constants of `GROUPS` to measured rows.

    Constants that the device lacks, or whose benchmarks could not run, keep their value.

    Args:
        start: The profile to begin with, which has all other constants.
        rows: Rows for the fit, with `ns`, the measured time.
        is_known: True if `start` has the model's peaks, so that the share of them is fitted. False if the peaks are.
        simulation: The model.

    Returns:
        The profile, and the number of rows to which each constant was fitted.
    """
    profile = start
    fitted: dict[str, int] = {}
    for group in GROUPS:
        keys = keys_of(group, is_known)
        chosen = [row for row in rows if row["benchmark"] in group.benchmarks]
        if chosen and all(_has_rate(start, key) for key in group.keys):
            profile = _fit_group(profile, keys, chosen, simulation)
            fitted |= dict.fromkeys(keys, len(chosen))
    return profile, fitted


def keys_of(group: Group, is_known: bool) -> tuple[str, ...]:
    """Return the keys of the constants that a group varies. If the peaks are unknown they replace the shares."""
    return group.keys if is_known else tuple([_PEAKS.get(key, key) for key in group.keys])


def _has_rate(profile: Table, key: str) -> bool:
    first, _, kind = key.partition(".")
    return first != "efficiency" or kind == "bandwidth" or profile["rates"][kind] is not None


def _fit_group(profile: Table, keys: Sequence[str], rows: Sequence[Params], simulation: Simulation) -> Table:
    measured = np.log([row["ns"] for row in rows])
    place = np.log([value_of(profile, key) for key in keys])

    def residual(logs: Any) -> Any:
        return np.log(simulation(_with_logs(profile, keys, logs), rows)) - measured

    found = residual(place)
    for _ in range(_STEPS):
        # Downwards, because shares end at 1.
        slopes = np.stack(
            [found - residual(place - _DIFFERENCE * unit) for unit in np.eye(len(place))], axis=1
        )
        slopes /= _DIFFERENCE
        weights = np.sqrt(_USUAL / np.maximum(np.abs(found), _USUAL))
        damped = np.concatenate([slopes * weights[:, None], _DAMPING * np.eye(len(place))])
        step = np.linalg.lstsq(damped, np.concatenate([-found * weights, np.zeros(len(place))]), rcond=None)[
            0
        ]
        step = np.clip(step, -_LONGEST, _LONGEST)
        # A long step may overshoot where the model has bends.
        for _ in range(4):
            trial = _clip(keys, place + step)
            after = residual(trial)
            if np.sum(np.abs(after)) <= np.sum(np.abs(found)):
                break
            step = step / 3
        else:
            break
        moved = np.max(np.abs(trial - place))
        place, found = trial, after
        if moved < _CLOSE:
            break
    return _with_logs(profile, keys, place)


def _clip(keys: Sequence[str], logs: Any) -> Any:
    limits = [
        next((pair for start, pair in _LIMITS.items() if key.startswith(start)), _RATE_LIMITS) for key in keys
    ]
    return np.clip(logs, [math.log(low) for low, _ in limits], [math.log(high) for _, high in limits])


def value_of(profile: Table, key: str) -> float:
    """Return the number at a dotted key."""
    value: Any = profile
    for part in key.split("."):
        value = value[part]
    return float(value)


def with_value(profile: Table, key: str, value: float) -> Table:
    """Return a profile with another number at a dotted key; times in ns are rounded."""
    first, _, rest = key.partition(".")
    if rest:
        return profile | {first: with_value(profile[first], rest, value)}
    return profile | {key: round(value) if key.endswith("_ns") else value}


def _with_logs(profile: Table, keys: Sequence[str], logs: Any) -> Table:
    for key, log in zip(keys, logs, strict=True):
        profile = with_value(profile, key, math.exp(log))
    return profile
