"""Which calls are collected inside of compiled functions, and the regions in which they are.

See Note [Deferred launches] in runtime/hooks/launch_deferral.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from flambeau.core.callsite import caller
from flambeau.core.flags import flags
from flambeau.core.host.turn_scheduler import seat
from flambeau.core.meta import Meta
from flambeau.driver.protocol import AUTOCAST, Launch, is_join
from flambeau.driver.row_shares import can_fuse_held_rows
from flambeau.ops.pointwise.fused_chains import can_fuse, can_fuse_join, can_fuse_rows
from flambeau.runtime import current, system
from flambeau.runtime.device_context import Context
from flambeau.runtime.hooks import launch_deferral
from flambeau.tape.mode import mode
from flambeau.tensor.fusion.divided_calls import call_parts as call_parts
from flambeau.tensor.fusion.divided_calls import is_divided as is_divided
from flambeau.tensor.fusion.pending_calls import PendingGroup, is_reduction, rows_of
from flambeau.tensor.storage import is_pending
from flambeau.tensor.tensor import Tensor

LEAST_NBYTES = int(os.environ.get("FLAMBEAU_FUSE_FROM") or 1 << 25)
"""Bytes of an operand from which on calls are collected: see Note [Small calls] in runtime/hooks/launch_deferral.py. An
H200 multiplies 16 MiB by a number in 7 us, and 64 MiB in 36; the host needs 10 us for the call, and 14 to collect it.
"""

_MOST_DIMS = 7  # of a shape, which bounds the parameters of a kernel
_LEAST_ROW = 32  # elements of a row that threads read together
_BLOCK_BYTES = 1 << 14  # of rows that a block of the reduction template reads at least, if rows are short
_SPLIT_BYTES = 1 << 16  # of a row from which on the template lets several blocks reduce it
_SMALL = 1 << 18  # bytes for which it does not matter how many blocks there are


class CollectedLaunches:
    """A context in which the launches of pointwise operators that this thread calls are collected.

    Args:
        least_nbytes: Bytes of an operand from which on calls are collected; None for `LEAST_NBYTES`.
    """

    __slots__ = ("_before", "_least_nbytes")

    def __init__(self, least_nbytes: int | None = None) -> None:
        self._least_nbytes = LEAST_NBYTES if least_nbytes is None else least_nbytes

    def __enter__(self) -> None:
        self._before = launch_deferral.open_region(self._least_nbytes)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            launch_deferral.settle(f"the compiled function {'returns' if kind is None else 'raises'}")
        finally:
            launch_deferral.close_region(self._before)
            if not launch_deferral.open_regions:
                remove_settling_drivers()


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
    if context.index < 0 or out.numel == 0 or out.ndim > _MOST_DIMS or launch.kernel.name == AUTOCAST:
        return False  # all streams share what autocast casts
    if can_fuse_join(launch) or can_fuse_held_rows(launch):
        return True
    if can_fuse_rows(launch):
        return _keeps_device_busy(launch, context)
    return can_fuse(launch) and all(x.shape == out.shape for x in launch.inputs if isinstance(x, Meta))


def _keeps_device_busy(launch: Launch, context: Any) -> bool:
    """Return True if blocks that compute whole rows use the device well, and one block reduces each row."""
    source, rows = launch.inputs[0], launch.outputs[0].numel
    assert isinstance(source, Meta)
    length = source.numel // rows
    if source.ndim > _MOST_DIMS or length < _LEAST_ROW:
        return False
    multiprocessors = context.driver.device_properties(context.driver_index).multi_processor_count
    blocks = -(-source.nbytes // _BLOCK_BYTES)
    if length * source.itemsize >= _SPLIT_BYTES and rows < 4 * multiprocessors:
        return False  # the reduction alone lets several blocks reduce a row
    return source.nbytes <= _SMALL or min(blocks, rows) >= multiprocessors


def is_collecting() -> bool:
    """Return True if this thread runs a compiled function, and nothing needs each launch at its call."""
    return (
        launch_deferral.local.depth > 0
        and not (flags.profiled or flags.memory_subscribed or flags.launch_blocking or mode.anomaly)
        and seat() is None  # threads that take turns must not wait for each other's groups
    )


def is_small(plan: Any, args: Sequence[Any]) -> bool:
    """Return True if a call is launched immediately although it can be fused. See Note [Small calls]."""
    return plan.largest < launch_deferral.least_nbytes and not (
        launch_deferral.pending is not None and any(is_pending(args[i].memory) for i in plan.tensors)
    )


def collect(launch: Launch, plan: Any, args: Sequence[Any]) -> Tensor:
    """Defer a call and return its result, which has no memory yet."""
    numbers = _numbers(plan, args)
    with launch_deferral.lock:
        group = _group_of(launch, plan, args, None)
        return group.add(launch, plan, args, numbers, caller() if group.asks_sites else None)


def collect_into(launch: Launch, plan: Any, args: Sequence[Any], target: Tensor) -> bool:
    """Defer a call that writes into `target`. Return False if it also reads that memory in another layout."""
    if is_join(launch):
        return False
    numbers = _numbers(plan, args)
    with launch_deferral.lock:
        group = _group_of(launch, plan, args, target)
        if not group.calls and group.conflicts(launch, args, target):  # the conflict is within the call
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
        if group.context is not plan.context or group.stream is not stream:
            why = "the next call is on another stream"
        else:
            why = group.accepts(launch, args) or group.conflicts(launch, args, target)
        if not why:
            return group
        launch_deferral.settle(why)
    install_settling_drivers()
    shape = rows_of(launch).of if is_reduction(launch) else plan.output.shape
    group = PendingGroup(plan.context, stream, shape)
    launch_deferral.replace(group)
    return group


# Calls that neither enqueue nor await work, nor let anything outside enqueue any.
_UNORDERED = frozenset(
    {
        "name", "observes_blocks", "runs_bodies", "device_count", "device_properties", "mem_info", "mem_processes",
        "mem_alloc", "mem_free", "range_page", "range_reserve", "range_map", "range_unmap", "range_release",
        "host_pinned", "host_touch", "host_export", "block_alloc", "block_free", "stream_default", "event_create",
        "load", "generic", "launcher", "unload", "peer_can",
    }
)  # fmt: skip


class SettlingDriver:
    """A driver that issues the pending launches before every call but those that concern no order.

    A call that the driver protocol gains settles until it is named in `_UNORDERED`: the forwarder errs on the side of
    too many settlements. See Note [Deferred launches].
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name not in _UNORDERED:
            launch_deferral.settle(name)
        return getattr(self.inner, name)


def _contexts() -> list[Context]:
    return [*system.contexts(), system.host] if system.is_initialized() else [system.host]


def install_settling_drivers() -> None:
    """Let the drivers of all open contexts settle. Those of one machine stay the same object."""
    contexts = _contexts()
    bare = [context for context in contexts if not isinstance(context.driver, SettlingDriver)]
    if bare:
        settling = {id(c.driver.inner): c.driver for c in contexts if isinstance(c.driver, SettlingDriver)}
        for context in bare:
            inner = context.driver
            context.driver = settling.setdefault(id(inner), SettlingDriver(inner))


def remove_settling_drivers() -> None:
    """Give the contexts their own drivers back. A driver that another observer has wrapped since stays."""
    for context in _contexts():
        if isinstance(context.driver, SettlingDriver):
            context.driver = context.driver.inner


launch_deferral.collecting = sys.modules[__name__]
system.on_close(partial(launch_deferral.note_recording, False))
