"""A communication hook that reduces nothing, to measure training without communication."""

from __future__ import annotations

from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.ddp.buckets import GradBucket
from flambeau.distributed.future import Future

__all__ = ["noop_hook"]

explain_absent_names(globals(), "torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks")


def noop_hook(_: Any, bucket: GradBucket) -> Future:
    """Return this rank's gradients unchanged. Parameters of the ranks diverge, so use it only for measurements."""
    future = Future()
    future.set_result(bucket.buffer())
    return future
