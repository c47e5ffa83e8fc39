"""`launches()`: the names of the kernels that calls on tensors launch, in their order."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flambeau.driver.host.driver import HostDriver
from flambeau.driver.virtual.driver import VirtualDriver
from flambeau.tensor import call as engine


def _noting(noted: Any, launcher: Any) -> Any:
    return lambda driver, exe: noted(exe, launcher(driver, exe))


@contextmanager
def launches() -> Iterator[list[str]]:
    """A list that grows while the context lasts, by calls whose plans are there already and by new ones."""
    names: list[str] = []

    def noted(exe: Any, launch: Any) -> Any:
        return lambda *given: (names.append(exe.launch.kernel.name), launch(*given))[1]

    known = {plan: plan.launch for plan in engine.plans.values() if plan.executable}
    for plan, launch in known.items():
        plan.launch = noted(plan.executable, launch)
    drivers: list[Any] = [HostDriver, VirtualDriver]
    if "flambeau.driver.cuda.driver" in sys.modules:
        drivers.append(sys.modules["flambeau.driver.cuda.driver"].CudaDriver)
    launchers = {driver: driver.launcher for driver in drivers}
    for driver, launcher in launchers.items():
        driver.launcher = _noting(noted, launcher)
    try:
        yield names
    finally:
        for driver, launcher in launchers.items():
            driver.launcher = launcher
        for plan, launch in known.items():
            plan.launch = launch
