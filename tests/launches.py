"""`launches()`: the names of the kernels that calls on tensors launch, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flambeau.tensor import call as engine


@contextmanager
def launches() -> Iterator[list[str]]:
    """A list that grows while the context lasts, by calls whose plans are there already and by new ones."""
    names: list[str] = []

    def noted(exe: Any, launch: Any) -> Any:
        return lambda *given: (names.append(exe.launch.kernel.name), launch(*given))[1]

    launcher, known = (
        engine._launcher,
        {plan: plan.launch for plan in engine.plans.values() if plan.executable},
    )
    for plan, launch in known.items():
        plan.launch = noted(plan.executable, launch)
    engine._launcher = lambda driver, exe: noted(exe, launcher(driver, exe))
    try:
        yield names
    finally:
        engine._launcher = launcher
        for plan, launch in known.items():
            plan.launch = launch
