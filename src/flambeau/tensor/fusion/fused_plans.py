"""Loaded kernels of groups of calls, found by what the calls are. Owner of these caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flambeau.core.errors import DriverError, KernelPending, NotSupportedError
from flambeau.core.meta import Meta
from flambeau.driver.api import FusedStep, Launch, Launcher
from flambeau.ops.pointwise.fusion import fuse
from flambeau.runtime import system
from flambeau.runtime.context import Context
from flambeau.tensor.fusion import fusion_log

_LIMIT = 4096  # groups, with their shapes


class Recipe(NamedTuple):
    """A group of calls without addresses and numbers: what its kernel depends on.

    Attributes:
        calls: The launch of each call, and its sources as in `FusedStep`.
        inputs: The operands of the group.
        stored: The calls whose results are stored.
        has_rows: As in `Fused`.
    """

    calls: tuple[tuple[Launch, tuple[int, ...]], ...]
    inputs: tuple[Any, ...]
    stored: tuple[int, ...]
    has_rows: bool

    def launch(self) -> Launch:
        """Return the launch of the group's kernel."""
        steps = [FusedStep(launch, sources) for launch, sources in self.calls]
        return fuse(steps, self.inputs, self.stored, self.outputs(), self.has_rows)

    def outputs(self) -> list[Meta]:
        return [self.calls[k][0].outputs[0] for k in self.stored]


class FusedCall(NamedTuple):
    """The launch of a group's kernel.

    Attributes:
        launch: What launches it.
        stored: The calls whose results it stores, in the order of its outputs.
        tensors: The inputs of the group that it reads from memory.
        numbers: The inputs that are passed by value.
        last: The last call that it computes, at whose line it is launched.
    """

    launch: Launcher
    stored: tuple[int, ...]
    tensors: tuple[int, ...]
    numbers: tuple[int, ...]
    last: int


_plans: dict[tuple[Context, Recipe], Launcher | None] = {}  # None: the group is launched call by call
_compiling: dict[tuple[Context, Recipe], Callable[[], bool]] = {}  # True until a kernel can be loaded

_calls: dict[tuple[Any, ...], FusedCall] = {}


def recall(key: tuple[Any, ...]) -> FusedCall | None:
    """Return how a group with this key was launched before; None if it was not fused yet."""
    return _calls.get(key)


def remember(key: tuple[Any, ...], call: FusedCall) -> None:
    """Let `recall` find a call."""
    if len(_calls) >= _LIMIT:
        _calls.clear()
    _calls[key] = call


def find(context: Context, recipe: Recipe) -> Launcher | None:
    """Return what launches a group's kernel; None while it is compiled in the background, or if it cannot be."""
    key = context, recipe
    if key in _plans:
        return _plans[key]
    is_compiling = _compiling.get(key)
    return None if is_compiling is not None and is_compiling() else _load(context, recipe)


def _load(context: Context, recipe: Recipe) -> Launcher | None:
    """Load the kernel of a group. Errors of the compiler are logged: separate launches do the same."""
    if len(_plans) >= _LIMIT:
        forget()
    driver, launch = context.driver, recipe.launch()
    try:
        launcher = driver.launcher(driver.load(launch, context.driver_index))
    except KernelPending as pending:
        _compiling[context, recipe] = pending.is_compiling
        return None
    except (DriverError, NotSupportedError, ImportError, OSError) as error:
        if fusion_log.is_on():
            fusion_log.write_refusal(launch, error)
        _plans[context, recipe] = None
        return None
    _compiling.pop((context, recipe), None)
    _plans[context, recipe] = launcher
    return launcher


def forget() -> None:
    """Drop all loaded kernels."""
    _plans.clear()
    _calls.clear()
    _compiling.clear()


system.on_close(forget)
