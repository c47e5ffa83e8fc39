"""`_MixedPrecision` of DistributedDataParallel: modules compute with copies of their parameters in a narrow dtype.

# Note [Narrow parameters]
Before forward one launch copies every parameter to the narrow dtype, and the copy is the parameter's memory until the
end of backward, because nodes save it. Gradients are narrow too. They are summed in `reduce_dtype` and then converted
to the dtype of the parameter, which has its own memory again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flambeau.core.dtype import dtype
from flambeau.distributed.ddp.buckets import GradBucket, copy_all
from flambeau.distributed.future import Future
from flambeau.tape.mode import recording
from flambeau.tensor.functions.creation import empty_like


@dataclass
class _MixedPrecision:
    """The dtypes of mixed precision; None leaves a dtype unchanged.

    Attributes:
        param_dtype: The dtype of parameters and inputs.
        reduce_dtype: The dtype of the reduction (default: `param_dtype`).
        buffer_dtype: The dtype of buffers.
    """

    param_dtype: dtype | None = None
    reduce_dtype: dtype | None = None
    buffer_dtype: dtype | None = None


class NarrowParameters:
    """The parameters of one DistributedDataParallel, in low precision during forward and backward."""

    def __init__(self, params: list[Any], config: _MixedPrecision) -> None:
        self.config = config
        self.params = [p for p in params if p.is_floating_point()]
        # The full-precision data of `params`, kept here while the parameters hold low-precision copies.
        self.wide: list[Any] = []

    def narrow(self) -> None:
        """Give each parameter a copy of its values in the narrow dtype. Existing gradients are converted."""
        kind = self.config.param_dtype
        if kind is None:
            return
        self.widen()
        with recording(False):
            wide = [p.data for p in self.params]
            copies = [empty_like(x, dtype=kind) for x in wide]
            copy_all(copies, wide)
            for p, copy in zip(self.params, copies, strict=True):
                grad, p.grad = p.grad, None
                p.data = copy
                if grad is not None:
                    p.grad = grad.to(kind)
        self.wide = wide

    def widen(self) -> None:
        """Restore the parameters' full-precision memory, and convert gradients to the parameters' dtype."""
        wide, self.wide = self.wide, []
        with recording(False):
            for p, x in zip(self.params, wide, strict=False):
                grad, p.grad = p.grad, None
                p.data = x
                if grad is not None:
                    p.grad = grad.to(x.dtype)

    def reduce_bucket(self, reducer: Any, bucket: GradBucket) -> Future:
        """Return the communication hook: a sum in the narrow dtype, divided by the number of ranks."""
        kind = self.config.reduce_dtype or self.config.param_dtype
        count = reducer.divisor
        bucket.set_buffer(bucket.buffer().to(kind))
        return reducer._run_allreduce_hook(bucket).then(lambda done: done.value()[0].div_(count))
