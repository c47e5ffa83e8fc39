"""The simulated time of the host: what calls of operators, and work between them, cost the program's thread.

# Note [The host's time]
Problem: Small models are limited by the host, whose Python and C++ code takes longer than their kernels.
Rule: The host's clock advances by a fixed time for each kernel that is launched, by the name of the kernel, and for
each view, module, node and the like that the runtime reports (`host_work`). A file of `hosts/` has the times. The
default, `pytorch`, is PyTorch's on an H100's host; `flambeau` is Flambeau's. A profile's `host_factor` scales both.
Consequences: A time stands for the whole call: Python, dispatch, allocation and launch. Nothing depends on the wall
clock. The program's own Python code, and its work on CPU tensors, cost nothing. Commands start later than they did
without, so the schedule `earliest` may choose another legal order, as the modelled machine does.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flambeau.driver.virtual.scheduling.scheduler import Scheduler

_FOLDER = Path(__file__).parent / "hosts"
WORK = ("view", "creation", "module", "record", "backward", "node")  # in the order of `host_work.KINDS`


@dataclass(frozen=True)
class HostCosts:
    """The host's times for calls, in ns.

    Attributes:
        work: The time of each kind of work in `WORK`.
        launches: Name of a kernel -> time of a call that launches it. "other" stands for all other names, "library" for
            a kernel inside a call that PyTorch passes to a library as a whole.
        operands: Name of a kernel that takes lists of tensors -> additional time for each operand.
        calls: Times of other calls that reach the driver: copies, fills, launches of graphs and host functions.
    """

    work: tuple[int, ...]
    launches: dict[str, int]
    operands: dict[str, int]
    calls: dict[str, int]

    def of_launch(self, name: str, operands: int) -> int:
        """Return the time of a call that launches one kernel."""
        return self.launches.get(name, self.launches["other"]) + self.operands.get(name, 0) * operands


def host_names() -> list[str]:
    """Return the names of the modelled hosts."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


@cache
def load_host(name: str, factor: float = 1.0) -> HostCosts:
    """Return the costs of a modelled host, multiplied by a factor. `name` is one of `host_names()`."""
    tables: dict[str, dict[str, int]] = tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    scaled = {
        title: {key: round(ns * factor) for key, ns in table.items()} for title, table in tables.items()
    }
    work = tuple([scaled["work"][kind] for kind in WORK])
    return HostCosts(work, scaled["launches"], scaled["operands"], scaled["calls"])


class HostClock:
    """The host's simulated clock, which each kind of host work advances. All methods run under the driver's lock."""

    __slots__ = ("_core", "costs", "library_calls", "library_launch")

    def __init__(self, core: Scheduler, name: str, factor: float) -> None:
        self._core = core
        self.costs = load_host(name, factor)
        self.library_launch = self.costs.launches["library"]
        self.library_calls = 0  # number of library calls that are running

    def charge(self, kind: int, count: int) -> None:
        """Advance the clock by work of one kind of `host_work`."""
        if kind < 0:
            self.library_calls += count
        elif not self.library_calls:
            self._core.now += self.costs.work[kind] * count


class RankClocks:
    """The host time of each rank that is a thread. The scheduler holds the time of the rank that runs."""

    def __init__(self, core: Scheduler) -> None:
        self._core = core
        self._times: dict[int, int] = {}
        self._at_start = 0
        self.is_used = False  # True once ranks took turns

    def switch(self, before: int, after: int) -> None:
        """Store the time of rank `before` and continue with that of rank `after`."""
        core = self._core
        if not self._times:
            self._at_start = core.now
            self.is_used = True
        self._times[before] = core.now
        core.now = self._times.get(after, self._at_start)
        if core.request_log is not None:
            core.request_log.switch_host(before, after)

    def join(self) -> None:
        """Continue at the latest time, after all ranks have ended."""
        core = self._core
        core.now = max([core.now, *self._times.values()])
        self._times = {}
        if core.request_log is not None:
            core.request_log.join_hosts()
