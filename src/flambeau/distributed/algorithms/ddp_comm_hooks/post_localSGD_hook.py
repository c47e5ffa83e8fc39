"""Post-local SGD (Lin, Stich, Patel, Jaggi): average over all ranks at first, later only over the ranks of one
machine.
"""

# ruff: noqa: N802, N803, N999  names as PyTorch writes them

from __future__ import annotations

from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.ddp.buckets import GradBucket
from flambeau.distributed.ddp.comm_hooks import mean
from flambeau.distributed.future import Future

__all__ = ["PostLocalSGDState", "post_localSGD_hook"]

explain_absent_names(globals(), "torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook")


class PostLocalSGDState:
    """The groups of a post-local SGD, and when each is used.

    Args:
        process_group: The group of the first iterations; None for all ranks.
        subgroup: The group of the iterations from `start_localSGD_iter` on.
        post_local_gradient_allreduce: False for no communication from `start_localSGD_iter` on.
    """

    def __init__(
        self,
        process_group: Any,
        subgroup: Any,
        start_localSGD_iter: int,
        post_local_gradient_allreduce: bool = True,
    ) -> None:
        self.process_group = process_group
        self.subgroup = subgroup
        self.start_localSGD_iter = start_localSGD_iter
        self.post_local_gradient_allreduce = post_local_gradient_allreduce
        self.iter = 0

    def maybe_increase_iter(self, bucket: GradBucket) -> None:
        """Increase the number of iterations if the bucket is the last one of its iteration."""
        if bucket.is_last():
            self.iter += 1


def post_localSGD_hook(state: PostLocalSGDState, bucket: GradBucket) -> Future:
    """Return the mean over all ranks, or later over a subgroup. An averager of models must then average the groups."""
    local = state.iter >= state.start_localSGD_iter
    flat = bucket.buffer()
    state.maybe_increase_iter(bucket)
    if not local:
        return mean(state.process_group, flat)
    if state.post_local_gradient_allreduce:
        return mean(state.subgroup, flat)
    future = Future()
    future.set_result(flat)
    return future
