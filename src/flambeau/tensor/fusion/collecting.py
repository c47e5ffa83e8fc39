"""Which calls are collected inside of compiled functions, and the regions in which they are.

See Note [Deferred launches] in runtime/hooks/launch_deferral.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from flambeau.core.callsite import caller
from flambeau.core.flags import flags
from flambeau.core.host.turn_scheduler import seat
from flambeau.core.meta import Meta
from flambeau.driver.api import AUTOCAST, Launch
from flambeau.ops.pointwise.fusion import can_fuse
from flambeau.runtime import current, system
from flambeau.runtime.hooks import launch_deferral
from flambeau.tape.mode import mode
from flambeau.tensor import interception
from flambeau.tensor.fusion import settling_driver
from flambeau.tensor.fusion.pending_calls import PendingGroup
from flambeau.tensor.tensor import Tensor

_MOST_DIMS = 7  # of a shape, which bounds the parameters of a kernel


@contextmanager
def collected_launches() -> Iterator[None]:
    """Collect the launches of pointwise operators that this thread calls within a block."""
    interception.open_one()
    launch_deferral.add_region(1)
    try:
        yield
        launch_deferral.settle("the compiled function returns")
    except BaseException:
        launch_deferral.settle("the compiled function raises")
        raise
    finally:
        launch_deferral.add_region(-1)
        if not launch_deferral.open_regions:
            settling_driver.remove()
        interception.close_one()


@contextmanager
def eager_launches() -> Iterator[None]:
    """Collect nothing within a block: `torch.compiler.disable` inside of a compiled function."""
    depth, launch_deferral.local.depth = launch_deferral.local.depth, 0
    try:
        yield
    finally:
        launch_deferral.local.depth = depth


def can_collect(launch: Launch, context: Any) -> bool:
    """Return True if a call may be deferred: its operator can be fused, and nothing watches single launches."""
    out = launch.outputs[0]
    return (
        context.index >= 0
        and out.numel > 0
        and out.ndim <= _MOST_DIMS
        and can_fuse(launch)
        and launch.kernel.name != AUTOCAST  # all streams share its result
        and all(x.shape == out.shape for x in launch.inputs if isinstance(x, Meta))
    )


def is_collecting() -> bool:
    """Return True if this thread runs a compiled function, and nothing needs each launch at its call."""
    return (
        launch_deferral.local.depth > 0
        and not (flags.profiled or flags.memory_subscribed or flags.launch_blocking or mode.anomaly)
        and seat() is None  # threads that take turns must not wait for each other's groups
    )


def collect(launch: Launch, plan: Any, args: Sequence[Any]) -> Tensor:
    """Defer a call and return its result, which has no memory yet."""
    numbers = _numbers(plan, args)
    with launch_deferral.lock:
        group = _group_of(launch, plan, args, None)
        return group.add(launch, plan, args, numbers, caller() if group.asks_sites else None)


def collect_into(launch: Launch, plan: Any, args: Sequence[Any], target: Tensor) -> bool:
    """Defer a call that writes into `target`. Return False if it also reads that memory in another layout."""
    numbers = _numbers(plan, args)
    with launch_deferral.lock:
        group = _group_of(launch, plan, args, target)
        if group.conflicts(launch, args, target):  # a new group, so the conflict is within the call
            return False
        group.add_into(launch, plan, args, numbers, caller() if group.asks_sites else None, target)
    return True


def _numbers(plan: Any, args: Sequence[Any]) -> Sequence[Any]:
    """Return the operands that are passed by value."""
    return [send(args[i]) for i, send in plan.scalars] if plan.scalars else ()


def _group_of(launch: Launch, plan: Any, args: Sequence[Any], target: Tensor | None) -> PendingGroup:
    """Return the group that a call belongs to: the pending one, or a new one."""
    stream = current.local.streams[plan.index]
    group: Any = launch_deferral.pending
    if group is not None:
        why = group.accepts(plan.context, stream, plan.output.shape) or group.conflicts(launch, args, target)
        if not why:
            return group
        launch_deferral.settle(why)
    settling_driver.install()
    group = PendingGroup(plan.context, stream, plan.output.shape)
    launch_deferral.replace(group)
    return group


launch_deferral.collecting = sys.modules[__name__]
system.on_close(partial(launch_deferral.note_recording, False))
