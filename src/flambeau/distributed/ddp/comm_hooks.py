"""Communication hooks of a reducer, by the names that DistributedDataParallel calls: `BuiltinCommHookType`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.core.dtype import dtype, float16
from flambeau.distributed.backend_names import NamedNumber
from flambeau.distributed.ddp.buckets import GradBucket
from flambeau.distributed.ddp.reducer import Reducer
from flambeau.distributed.ddp.replicas import reduce_in_place
from flambeau.distributed.future import Future
from flambeau.distributed.world import world


class BuiltinCommHookType(NamedNumber):
    """The communication hooks that a reducer provides itself."""

    ALLREDUCE = 1
    FP16_COMPRESS = 2


BuiltinCommHookType.__module__ = "flambeau.distributed"


def mean(group: Any, tensor: Any) -> Future:
    """Return a future of the mean of a flat tensor over a group (None: all ranks), computed in place."""
    group = world().require_default() if group is None else group
    future = reduce_in_place(group, tensor.div_(group.size()), async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


def mean_as(kind: dtype, group: Any, bucket: GradBucket) -> Future:
    """Return a future of the mean of a bucket, sent as numbers of another dtype."""
    group = world().require_default() if group is None else group
    flat = bucket.buffer()
    narrow = flat.to(kind).div_(group.size())
    future = reduce_in_place(group, narrow, async_op=True).get_future()
    return future.then(lambda done: flat.copy_(done.value()[0]))


def _register_comm_hook(reducer: Reducer, state: Any, comm_hook: Callable[..., Any]) -> None:
    """Reduce by `comm_hook(state, bucket)`. Raises RuntimeError if there is a hook."""
    reducer._register(state, comm_hook, "register_comm_hook", "register_builtin_comm_hook")


def _register_builtin_comm_hook(reducer: Reducer, comm_hook_type: BuiltinCommHookType) -> None:
    """Register a built-in communication hook. Raises RuntimeError if the reducer has a hook already."""
    builtin = _fp16_mean if comm_hook_type == BuiltinCommHookType.FP16_COMPRESS else _plain_mean
    reducer._register(reducer.group, builtin, "register_builtin_comm_hook", "register_comm_hook")


def _plain_mean(group: Any, bucket: GradBucket) -> Future:
    return mean(group, bucket.buffer())


def _fp16_mean(group: Any, bucket: GradBucket) -> Future:
    return mean_as(float16, group, bucket)
