"""The expected error of simulated times, from the errors of measured workloads.

`python -m bench.accuracy page` writes `time_errors.json`: for each family of workloads that the model was not fitted
to, the errors |simulated / measured - 1| on an H100 under PyTorch, and the family to which each kernel belongs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

_FILE = Path(__file__).with_name("time_errors.json")
_HOST = ("small calls", "step")  # families of workloads whose time is mostly the host's
_NO_KERNELS = (*_HOST, "graph", "overlap", "copy")


class TimeError(NamedTuple):
    """The error of simulated times in the median, and the one that 9 of 10 times do not exceed; 0.1 is 10 %."""

    median: float
    tenth: float


class _MeasuredErrors(NamedTuple):
    errors: dict[str, list[float]]  # by family
    families: dict[str, str]  # by kernel


@cache
def _measured_errors() -> _MeasuredErrors:
    return _MeasuredErrors(**json.loads(_FILE.read_text(encoding="utf-8")))


def expected_error(busy: Mapping[str, int], host_share: float) -> TimeError | None:
    """Return the error to expect of a program's time: that of the measured workloads of its families.

    A workload weighs as much as its family's share of the program's time. Kernels that were not measured have the
    errors of all kernels.

    Args:
        busy: Kernel -> ns that the devices were busy with it.
        host_share: The share of the time that is the host's own.

    Returns:
        None if the devices ran nothing.
    """
    measured = _measured_errors()
    device = sum(busy.values())
    if not device:
        return None
    weights: dict[tuple[str, ...], float] = {_HOST: host_share}
    others = tuple([family for family in measured.errors if family not in _NO_KERNELS])
    for name, ns in busy.items():
        family = measured.families.get(name)
        key = others if family is None else (family,)
        weights[key] = weights.get(key, 0.0) + (1 - host_share) * ns / device
    weighted = []
    for families, weight in weights.items():
        errors = [error for family in families for error in measured.errors[family]]
        weighted += [(error, weight / len(errors)) for error in errors]
    weighted.sort()
    return TimeError(_quantile(weighted, 0.5), _quantile(weighted, 0.9))


def _quantile(weighted: list[tuple[float, float]], share: float) -> float:
    """Return the least error up to which this share of the weight lies."""
    left = share * sum([weight for _, weight in weighted])
    for error, weight in weighted:
        left -= weight
        if left <= 1e-12:
            return error
    return weighted[-1][0]
