"""Loaded kernels of groups of calls, found by what the calls are. Owner of that cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flambeau.core.meta import Meta
from flambeau.driver.api import FusedStep, Launch, Launcher
from flambeau.ops.pointwise.fusion import fuse
from flambeau.runtime import system
from flambeau.runtime.context import Context

_LIMIT = 4096  # groups, with their shapes


class Recipe(NamedTuple):
    """A group of calls without addresses and numbers: what its kernel depends on.

    Attributes:
        calls: The launch of each call, and its sources as in `FusedStep`.
        inputs: The operands of the group.
        stored: The calls whose results are stored.
    """

    calls: tuple[tuple[Launch, tuple[int, ...]], ...]
    inputs: tuple[Any, ...]
    stored: tuple[int, ...]

    def launch(self) -> Launch:
        """Return the launch of the group's kernel."""
        steps = [FusedStep(launch, sources) for launch, sources in self.calls]
        return fuse(steps, self.inputs, self.stored, self.outputs())

    def outputs(self) -> list[Meta]:
        return [self.calls[k][0].outputs[0] for k in self.stored]


_plans: dict[tuple[Context, Recipe], Launcher] = {}


def find(context: Context, recipe: Recipe) -> Launcher | None:
    """Return what launches a group's kernel; None while the kernel is compiled in the background."""
    launcher = _plans.get((context, recipe))
    return _load(context, recipe) if launcher is None else launcher


def _load(context: Context, recipe: Recipe) -> Launcher | None:
    if len(_plans) >= _LIMIT:
        _plans.clear()
    driver = context.driver
    launcher = _plans[context, recipe] = driver.launcher(driver.load(recipe.launch(), context.driver_index))
    return launcher


def describe(recipe: Recipe, places: Sequence[str]) -> str:
    """Return the operators of a group with their lines, for logs."""
    names = [launch.kernel.name for launch, _ in recipe.calls]
    return ", ".join(
        [f"{name} ({place})" if place else name for name, place in zip(names, places, strict=True)]
    )


system.on_close(_plans.clear)
