"""The autograd function of `SyncBatchNorm`: statistics of the batches of all ranks, forward and backward.

# Note [Statistics of all ranks]
A rank sends means and variances of its channels, and its number of values. The variance over all ranks is the mean of
the variances plus the variance of the means, weighted by the numbers of values (Chan, Golub, LeVeque, 1979), which
avoids cancellation in sums of squares. No rank waits for its GPU. In backward the ranks sum two numbers for each
channel. Gradients of weight and bias are those of the rank's own batch, like those of any other parameter.
"""

from __future__ import annotations

from typing import Any

from flambeau.autograd.function import Function
from flambeau.core.dtype import float32, float64
from flambeau.distributed.ddp.replicas import reduce_in_place
from flambeau.nn.functional import batch_norm
from flambeau.tensor.functions.creation import empty
from flambeau.tensor.functions.reduction import var_mean


class SyncBatchNorm(Function):
    """`apply(input, weight, bias, running_mean, running_var, eps, momentum, group)`: input (N, C, ...) on a GPU."""

    @staticmethod
    def forward(
        ctx: Any, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, eps: float,
        momentum: float, group: Any,
    ) -> Any:  # fmt: skip
        mean, variance, total = _statistics(input, group)
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((variance * (total / (total - 1))).to(running_var.dtype), momentum)
        ctx.group = group
        ctx.save_for_backward(input, weight, mean, (variance + eps).rsqrt(), total)
        return batch_norm(input, mean, variance, weight, bias, False, 0.0, eps)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        input, weight, mean, scale, total = ctx.saved_tensors
        dims, shape = _others(input), (1, -1, *[1] * (input.dim() - 2))
        wide = grad.to(mean.dtype)
        centered = input.to(mean.dtype) - mean.view(shape)
        sums = empty(2, mean.shape[0], dtype=mean.dtype, device=mean.device)
        sums[0] = wide.sum(dims)
        sums[1] = (wide * centered).sum(dims)
        to_weight = to_bias = None
        if ctx.needs_input_grad[1]:
            to_weight = (sums[1] * scale).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            to_bias = sums[0].to(grad.dtype if weight is None else weight.dtype)
        to_input = None
        if ctx.needs_input_grad[0]:
            to_bias = None if to_bias is None else to_bias.clone()
            reduce_in_place(ctx.group, sums)
            means = sums / total
            factor = scale if weight is None else scale * weight.to(mean.dtype)
            along = centered * (means[1] * scale * scale).view(shape)
            to_input = ((wide - means[0].view(shape) - along) * factor.view(shape)).to(input.dtype)
        return to_input, to_weight, to_bias, None, None, None, None, None


def _others(input: Any) -> list[int]:
    return [dim for dim in range(input.dim()) if dim != 1]


def _statistics(input: Any, group: Any) -> tuple[Any, Any, Any]:
    """Return each channel's mean and variance over all ranks, and the number of elements. See the note above."""
    kind = float64 if input.dtype is float64 else float32
    channels = input.shape[1]
    count = input.numel() // channels
    mine = empty(2 * channels + 1, dtype=kind, device=input.device)
    if count:
        variance, mean = var_mean(input.to(kind), _others(input), unbiased=False)
        mine[:channels], mine[channels:-1] = mean, variance
    else:
        mine.zero_()
    mine[-1] = count
    all_ = empty(group.size(), 2 * channels + 1, dtype=kind, device=input.device)
    group.backend_of("cuda").all_gather(list(all_.unbind(0)), mine).wait()
    means, variances, counts = all_[:, :channels], all_[:, channels:-1], all_[:, -1:]
    total = counts.sum()
    weights = counts / total
    mean = (means * weights).sum(0)
    variance = ((variances + (means - mean).square()) * weights).sum(0)
    return mean, variance, total
