"""torch.nn.init: filling parameters. For a seed the CPU's generator draws the numbers that PyTorch's draws.

Each function fills its tensor in place, outside of automatic differentiation, and returns it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.runtime.generator import Generator
from flambeau.tensor.arguments.arg_errors import checking
from flambeau.tensor.arguments.torch_function import announce as _announce
from flambeau.tensor.functions import creation
from flambeau.tensor.functions.arithmetic import where
from flambeau.tensor.functions.linalg import linalg_qr
from flambeau.tensor.functions.random import randperm
from flambeau.tensor.tensor import Tensor

# -- gains and fans -------------------------------------------------------------------------------------

_GAINS = {
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d", "sigmoid"), 1),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), 1),
    "tanh": 5.0 / 3,
    "relu": math.sqrt(2.0),
    "selu": 3.0 / 4,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the recommended gain for a nonlinearity, by its name in `nn.functional`.

    1 for linear layers, convolutions and sigmoid; 5/3 for tanh; sqrt(2) for relu; sqrt(2 / (1 + slope ** 2)) for
    leaky_relu, whose slope is `param` (default 0.01); 3/4 for selu.

    Raises:
        ValueError: If the name is unknown, or the slope is not a number.
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, (int, float)):
            raise ValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}")
    return _GAINS[nonlinearity]


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """Return (fan_in, fan_out) of a weight (out, in, *kernel): inputs per output and outputs per input."""
    if tensor.dim() < 2:
        raise ValueError("Fan in and fan out can not be computed for tensor with fewer than 2 dimensions")
    outputs, inputs, *kernel = tensor.shape
    field = math.prod(kernel)
    return inputs * field, outputs * field


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    mode = mode.lower() if isinstance(mode, str) else mode
    modes = ["fan_in", "fan_out"]
    if mode not in modes:
        raise ValueError(f"Mode {mode} not supported, please use one of {modes}")
    return _calculate_fan_in_and_fan_out(tensor)[modes.index(mode)]


# -- plain distributions and constants ------------------------------------------------------------------


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill a tensor with random numbers of the uniform distribution over [a, b)."""
    return _no_grad_uniform_(tensor, a, b, generator)


def _no_grad_uniform_(tensor: Tensor, a: float, b: float, generator: Generator | None = None) -> Tensor:
    tensor.detach().uniform_(a, b, generator=generator)
    return tensor


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fill a tensor with normal numbers."""
    return _no_grad_normal_(tensor, mean, std, generator)


def _no_grad_normal_(tensor: Tensor, mean: float, std: float, generator: Generator | None = None) -> Tensor:
    tensor.detach().normal_(mean, std, generator=generator)
    return tensor


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Fill a tensor with normal numbers. A number outside of [a, b] is drawn again."""
    if mean < a - 2 * std or mean > b + 2 * std:
        warn_program(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. "
            "The distribution of values may be incorrect.",
            UserWarning,
        )
    likely = _normal_cdf((b - mean) / std) - _normal_cdf((a - mean) / std) > 0.3
    draw = _redraw_normal if likely else _redraw_uniform
    if tensor.is_meta:
        return tensor
    draw(tensor.detach(), mean, std, a, b, generator)
    return tensor


def _normal_cdf(x: float) -> float:
    return (1.0 + math.erf(x / math.sqrt(2.0))) / 2.0


def _redraw_normal(
    target: Tensor, mean: float, std: float, a: float, b: float, generator: Generator | None
) -> None:
    """Draw normal numbers, and redraw those that are outside of the bounds after rounding to the dtype."""
    low, high = (target.new_tensor(bound, device="cpu").item() for bound in (a, b))
    target.normal_(mean, std, generator=generator)
    while (outside := (target < low) | (target > high)).any():
        again = creation.empty_like(target).normal_(mean, std, generator=generator)
        target.copy_(where(outside, again, target))


def _redraw_uniform(
    target: Tensor, mean: float, std: float, a: float, b: float, generator: Generator | None
) -> None:
    """Draw uniform numbers and accept them with the normal density, for bounds within which few normal numbers lie."""
    peak = -0.5 * ((max(a, min(mean, b)) - mean) / std) ** 2

    def is_rejected(drawn: Tensor) -> Tensor:
        log_density = drawn.sub(mean).div_(std).pow_(2).mul_(-0.5).sub_(peak)
        return creation.empty_like(drawn).uniform_(generator=generator).log_().gt(log_density)

    pending = is_rejected(target.uniform_(a, b, generator=generator))
    while pending.any():
        again = creation.empty_like(target).uniform_(a, b, generator=generator)
        target.copy_(where(pending, again, target))
        pending = pending & is_rejected(again)


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill a tensor with `val`."""
    return _no_grad_fill_(tensor, val)


def _no_grad_fill_(tensor: Tensor, val: float) -> Tensor:
    tensor.detach().fill_(val)
    return tensor


def ones_(tensor: Tensor) -> Tensor:
    """Fill a tensor with ones."""
    return _no_grad_fill_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill a tensor with zeros."""
    tensor.detach().zero_()
    return tensor


# -- identities -----------------------------------------------------------------------------------------


def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with the identity, so that a linear layer preserves as many inputs as possible.

    Raises:
        ValueError: If the tensor does not have 2 dimensions.
    """
    if tensor.dim() != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    target = tensor.detach()
    target.zero_().diagonal().fill_(1)
    return tensor


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fill a kernel with the Dirac delta, so that each group of a convolution preserves as many channels as possible.

    Raises:
        ValueError: If the tensor does not have 3 to 5 dimensions, or `groups` does not divide the first.
    """
    if tensor.dim() not in (3, 4, 5):
        raise ValueError("Only tensors with 3, 4, or 5 dimensions are supported")
    outputs, _, *kernel = tensor.shape
    if not groups or outputs % groups:
        raise ValueError("dim 0 must be divisible by groups")
    target = tensor.detach().zero_()
    centre = tuple([n // 2 for n in kernel])
    per_group = outputs // groups
    for group in range(groups):
        rows = target[(slice(group * per_group, (group + 1) * per_group), slice(None), *centre)]
        rows.diagonal().fill_(1)
    return tensor


# -- by fans --------------------------------------------------------------------------------------------


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Initialize by Glorot's rule, uniformly in +-gain * sqrt(6 / (fan_in + fan_out))."""
    std = gain * math.sqrt(2.0 / float(sum(_calculate_fan_in_and_fan_out(tensor))))
    bound = math.sqrt(3.0) * std
    return _no_grad_uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Initialize by Glorot's rule, normally with standard deviation gain * sqrt(2 / (fan_in + fan_out))."""
    std = gain * math.sqrt(2.0 / float(sum(_calculate_fan_in_and_fan_out(tensor))))
    return _no_grad_normal_(tensor, 0.0, std, generator)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Initialize by He's rule, uniformly in +-gain * sqrt(3 / fan). `a` is the slope of a following leaky_relu."""
    if _is_empty(tensor):
        return tensor
    std = calculate_gain(nonlinearity, a) / math.sqrt(_calculate_correct_fan(tensor, mode))
    bound = math.sqrt(3.0) * std
    return _no_grad_uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Initialize by He's rule, normally with standard deviation gain / sqrt(fan). `a` is the slope of a following
    leaky_relu.
    """
    if _is_empty(tensor):
        return tensor
    std = calculate_gain(nonlinearity, a) / math.sqrt(_calculate_correct_fan(tensor, mode))
    return _no_grad_normal_(tensor, 0, std, generator)


def _is_empty(tensor: Tensor) -> bool:
    if 0 not in tensor.shape:
        return False
    warn_program("Initializing zero-element tensors is a no-op", UserWarning)
    return True


# -- matrices -------------------------------------------------------------------------------------------


def orthogonal_(tensor: Tensor, gain: float = 1, generator: Generator | None = None) -> Tensor:
    """Initialize with a (semi-)orthogonal matrix times `gain`; dimensions after the first are flattened.

    Raises:
        ValueError: If the tensor has fewer than two dimensions.
    """
    if tensor.dim() < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    if not tensor.numel():
        return tensor
    target = tensor.detach()
    rows = target.shape[0]
    drawn = target.new_empty((rows, target.numel() // rows)).normal_(0, 1, generator=generator)
    wide = drawn.shape[0] < drawn.shape[1]
    q, r = linalg_qr(drawn.t() if wide else drawn)
    q = q * r.diagonal().sign()  # makes q uniformly distributed among the orthogonal matrices
    target.view(drawn.shape).copy_(q.t() if wide else q).mul_(gain)
    return tensor


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """Fill a matrix with normal numbers, and with zeros in a fraction `sparsity` of each column.

    Raises:
        ValueError: If the tensor does not have 2 dimensions.
    """
    if tensor.dim() != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    if not math.isfinite(sparsity):
        raise ValueError(f"sparse_(): sparsity must be finite, but got {sparsity}")
    target = tensor.detach().normal_(0, std, generator=generator)
    rows, columns = target.shape
    zeros = math.ceil(sparsity * rows)
    for column in range(columns):
        target[randperm(rows)[:zeros], column] = 0
    return tensor


# Arguments of a wrong type raise TypeError.
globals().update({
    fill.__name__: checking(fill, fill.__name__)
    for fill in (
        uniform_, normal_, trunc_normal_, constant_, ones_, zeros_, eye_, dirac_, xavier_uniform_, xavier_normal_,
        kaiming_uniform_, kaiming_normal_, orthogonal_, sparse_,
    )
})  # fmt: skip


# -- the names of old -----------------------------------------------------------------------------------


def _old(fill: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the function under its name without the underscore, with a warning."""

    @wraps(fill)
    def with_warning(*args: Any, **kwargs: Any) -> Tensor:
        warn_program(
            f"`nn.init.{fill.__name__[:-1]}` is now deprecated in favor of `nn.init.{fill.__name__}`.",
            FutureWarning,
        )
        return fill(*args, **kwargs)

    with_warning.__name__ = fill.__name__[:-1]
    return with_warning


_no_grad_trunc_normal_, _no_grad_zero_ = trunc_normal_, zeros_  # packages import these names of PyTorch's

uniform, normal, constant, eye, dirac = map(_old, (uniform_, normal_, constant_, eye_, dirac_))
xavier_uniform, xavier_normal = map(_old, (xavier_uniform_, xavier_normal_))
kaiming_uniform, kaiming_normal = map(_old, (kaiming_uniform_, kaiming_normal_))
orthogonal, sparse = map(_old, (orthogonal_, sparse_))

_announce({
    "__name__": __name__, "uniform_": uniform_, "normal_": normal_, "constant_": constant_,
    "kaiming_uniform_": kaiming_uniform_,
})  # fmt: skip
