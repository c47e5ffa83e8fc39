"""Hooks that average gradients, also in narrower dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.core.dtype import bfloat16, dtype, float16
from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.ddp.buckets import GradBucket
from flambeau.distributed.ddp.comm_hooks import mean, mean_as
from flambeau.distributed.future import Future

__all__ = [
    "allreduce_hook",
    "bf16_compress_hook",
    "bf16_compress_wrapper",
    "fp16_compress_hook",
    "fp16_compress_wrapper",
]

explain_absent_names(globals(), "torch.distributed.algorithms.ddp_comm_hooks.default_hooks")

Hook = Callable[[Any, GradBucket], Future]


def allreduce_hook(process_group: Any, bucket: GradBucket) -> Future:
    """Return the mean over the ranks, as without a hook."""
    return mean(process_group, bucket.buffer())


def fp16_compress_hook(process_group: Any, bucket: GradBucket) -> Future:
    """Return the mean over the ranks, sent as float16."""
    return mean_as(float16, process_group, bucket)


def bf16_compress_hook(process_group: Any, bucket: GradBucket) -> Future:
    """Return the mean over the ranks, sent as bfloat16."""
    return mean_as(bfloat16, process_group, bucket)


def fp16_compress_wrapper(hook: Hook) -> Hook:
    """Return a hook that hands `hook` the bucket as float16."""
    return _compress_to(hook, float16, "fp16_compress_wrapper_hook")


def bf16_compress_wrapper(hook: Hook) -> Hook:
    """Return a hook that hands `hook` the bucket as bfloat16."""
    return _compress_to(hook, bfloat16, "bf16_compress_wrapper_hook")


def _compress_to(hook: Hook, kind: dtype, name: str) -> Hook:
    def compressed_hook(hook_state: Any, bucket: GradBucket) -> Future:
        wide = bucket.buffer()
        bucket.set_buffer(wide.to(kind))
        return hook(hook_state, bucket).then(lambda done: wide.copy_(done.value()))

    compressed_hook.__name__ = compressed_hook.__qualname__ = name
    return compressed_hook
