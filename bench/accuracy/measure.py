"""Timing of one workload, by the same code on a real GPU under PyTorch and on a virtual one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.accuracy.kernels import Call, Family, Params

Clock = Callable[[], int]
"""Nanoseconds of the host."""

_CALLS = 10
_BEHIND_NS = 60_000  # of a spinning kernel, beyond the host's time for the calls that wait behind it


@contextmanager
def float32_precision(t: Any, params: Params) -> Iterator[None]:
    """Set within the block whether float32 products may use TF32; the libraries' defaults differ."""
    switches = (t.backends.cuda.matmul, t.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = bool(params.get("tf32", False))
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value


def measure(t: Any, family: Family, params: Params, clock: Clock, rounds: int) -> dict[str, float]:
    """Build a workload's call and measure it.

    Args:
        t: The library, `torch` or `flambeau`.
        family: The workload's family.
        params: Its parameters.
        clock: The host's clock.
        rounds: Number of repetitions, of which the median counts.

    Returns:
        `ns`: of the device for one call behind a spinning kernel (kernels, copies that do not wait, overlaps), or of
        the host until the device is idle, for one call (chains, copies that wait). `host_ns`: of the host for one
        call. `peak`: bytes that the call allocates at most, beyond what was there before.
    """
    t.manual_seed(0)
    waits = family.kind == "chain" or (family.kind == "copy" and "pinned" not in params["op"])
    with float32_precision(t, params):
        call = family.build(t, params)
        for _ in range(3):
            call()
        t.cuda.synchronize()
        peak = _peak(t, call)
        found = [_round(t, call, clock, waits) for _ in range(rounds)]
    ns, host = (statistics.median(values) for values in zip(*found, strict=True))
    return {"ns": ns, "host_ns": host, "peak": peak}


def _peak(t: Any, call: Call) -> int:
    t.cuda.reset_peak_memory_stats()
    before = t.cuda.memory_allocated()
    kept = call()
    peak: int = t.cuda.max_memory_allocated() - before
    del kept
    t.cuda.synchronize()
    return peak


def _round(t: Any, call: Call, clock: Clock, waits: bool) -> tuple[float, float]:
    """Return (ns, host ns) of one call, from a row of them."""
    begin = clock()
    for _ in range(_CALLS):
        call()
    host = (clock() - begin) / _CALLS
    t.cuda.synchronize()
    if waits:
        return (clock() - begin) / _CALLS, host
    start, end = (t.cuda.Event(enable_timing=True) for _ in range(2))
    t.cuda._sleep(int(2.0 * (_CALLS * host * 1.3 + _BEHIND_NS)))  # cycles, at most 2 a nanosecond
    start.record()
    for _ in range(_CALLS):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e6 / _CALLS, host
