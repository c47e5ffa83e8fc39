"""Loaded kernels of groups of calls, by a key of the calls. Owner of these caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flambeau.core.errors import DriverError, KernelPending, NotSupportedError
from flambeau.core.flags import flags
from flambeau.core.meta import Meta
from flambeau.driver.protocol import FusedStep, FusedView, Launch, Launcher
from flambeau.ops.pointwise.fused_chains import fuse
from flambeau.runtime import system
from flambeau.runtime.device_context import Context
from flambeau.tensor.fusion import fusion_log

_LIMIT = 4096  # groups, with their shapes


class Recipe(NamedTuple):
    """A group of calls without addresses and numbers: what its kernel depends on.

    Attributes:
        steps: The launch of each call and its sources as in `FusedStep`, and views of results.
        inputs: The operands of the group.
        stored: The calls whose results are stored.
        has_rows: As in `Fused`.
    """

    steps: tuple[tuple[Launch, tuple[int, ...]] | FusedView, ...]
    inputs: tuple[Any, ...]
    stored: tuple[int, ...]
    has_rows: bool

    def launch(self) -> Launch:
        """Return the launch of the group's kernel."""
        steps = [step if isinstance(step, FusedView) else FusedStep(*step) for step in self.steps]
        outputs = [self._result(k) for k in self.stored]
        return fuse(steps, self.inputs, self.stored, outputs, self.has_rows)

    def _result(self, k: int) -> Meta:
        step = self.steps[k]
        assert not isinstance(step, FusedView)
        return step[0].outputs[0]


class FusedPart(NamedTuple):
    """The launch of one kernel of a group.

    Attributes:
        launch: What launches it.
        stored: The calls whose results it stores, in the order of its outputs.
        tensors: For each tensor that it reads from memory, the number of an input of the group, or -1 - k for the
            result of call k, and the bytes from its address.
        numbers: The inputs that are passed by value.
        last: The last call that it computes, at whose line it is launched.
        freed: The calls whose results are not needed after it.
    """

    launch: Launcher
    stored: tuple[int, ...]
    tensors: tuple[tuple[int, int], ...]
    numbers: tuple[int, ...]
    last: int
    freed: tuple[int, ...]


FusedCall = tuple[FusedPart, ...]
"""The kernels of a group, in their order."""

_plans: dict[tuple[Any, ...], Launcher | None] = {}  # None: the group is launched call by call
_compiling: dict[tuple[Context, Recipe], Callable[[], bool]] = {}  # True until a kernel can be loaded

_calls: dict[tuple[Any, ...], FusedCall] = {}


def recall(key: tuple[Any, ...]) -> FusedCall | None:
    """Return how a group with this key was launched before; None if it was not fused yet."""
    return _calls.get(key)


def remember(key: tuple[Any, ...], call: FusedCall) -> None:
    """Store a call, so that `recall` finds it."""
    if len(_calls) >= _LIMIT:
        _calls.clear()
    _calls[key] = call


def find(context: Context, recipe: Recipe) -> Launcher | None:
    """Return what launches a group's kernel; None while it is compiled in the background, or if it cannot be.

    A capture waits for the compiler, because its graph runs often.
    """
    key = context, recipe, flags.recorded
    if key in _plans:
        return _plans[key]
    is_compiling = None if flags.recorded else _compiling.get((context, recipe))
    return None if is_compiling is not None and is_compiling() else _load(context, recipe)


def _load(context: Context, recipe: Recipe) -> Launcher | None:
    """Load the kernel of a group. Errors of the compiler are logged: separate launches do the same."""
    if len(_plans) >= _LIMIT:
        forget()
    driver, launch = context.driver, recipe.launch()
    try:
        launcher = driver.launcher(driver.load(launch, context.driver_index))
    except KernelPending as pending:
        if flags.recorded:
            pending.wait()
            return _load(context, recipe)
        _compiling[context, recipe] = pending.is_compiling
        return None
    except (DriverError, NotSupportedError, ImportError, OSError) as error:
        if fusion_log.is_on():
            fusion_log.write_refusal(launch, error)
        _plans[context, recipe, flags.recorded] = None
        return None
    _compiling.pop((context, recipe), None)
    _plans[context, recipe, flags.recorded] = launcher
    return launcher


def forget() -> None:
    """Drop all loaded kernels."""
    _plans.clear()
    _calls.clear()
    _compiling.clear()


system.on_close(forget)
