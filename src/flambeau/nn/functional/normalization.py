"""Normalization of batches, layers, groups, instances and neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from flambeau.core.errors import argument_type
from flambeau.core.typeinfo import finfo
from flambeau.nn.functional.activation import refuse_gradient, require_tensor
from flambeau.nn.functional.padding import pad
from flambeau.nn.functional.pooling import avg_pool2d, avg_pool3d
from flambeau.ops.nn import normalization as ops
from flambeau.ops.pointwise.pointwise_arithmetic import moving_average
from flambeau.tensor import dispatch, interception
from flambeau.tensor.arguments.arg_errors import IntTuple
from flambeau.tensor.arguments.extents import ints_of
from flambeau.tensor.arguments.integers import int_or_none
from flambeau.tensor.arguments.options import integer
from flambeau.tensor.arguments.public import function
from flambeau.tensor.call import call, call_into
from flambeau.tensor.signatures import by_parser, compares
from flambeau.tensor.tensor import Tensor

Given = Tensor | None


def _present(name: str, weight: Given, bias: Given = None) -> tuple[list[Tensor], tuple[bool, bool]]:
    """Return the list of weight and bias without those that are None, and a flag for each."""
    more = []
    if weight is not None:
        more.append(require_tensor(weight, name, "weight", 3))
    if bias is not None:
        more.append(require_tensor(bias, name, "bias", 4))
    return more, (weight is not None, bias is not None)


@by_parser
def batch_norm(
    input: Tensor, running_mean: Given, running_var: Given, weight: Given = None, bias: Given = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Return each channel of (N, C, ...) minus its mean, divided by its standard deviation.

    In training these are the batch's, and update the running statistics by `momentum`; otherwise the running
    ones.

    In training they are the batch's, and move the running ones by `momentum`; else the running ones.
    """
    named = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    for place, (name, value) in enumerate(named.items(), 2):  # a number would reach the kernel
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(argument_type("batch_norm", name, place, "Tensor", value))
    if not training and (running_mean is None or running_var is None):
        raise RuntimeError("running_mean and running_var must be defined in evaluation mode")
    if eps < 0 or (training and eps == 0):
        allowed = "positive during training" if training else "non-negative"
        raise ValueError(f"batch_norm eps must be {allowed}, but got {eps}")
    return _batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def _batch_norm(
    input: Tensor, running_mean: Given, running_var: Given, weight: Given, bias: Given, training: bool, momentum: float,
    eps: float,
) -> Tensor:  # fmt: skip
    more, given = _present("batch_norm", weight, bias)
    refuse_gradient("native_batch_norm", "running_mean", running_mean)
    refuse_gradient("native_batch_norm", "running_var", running_var)
    if interception.count and dispatch.is_shown((input, running_mean, running_var, weight, bias)):
        if training:
            _per_channel(input)
        arguments = (running_mean, running_var, weight, bias, training, momentum, float(eps))
        return dispatch.compose("batch_norm", input, *arguments)  # type: ignore[no-any-return]
    if not training:
        return call(ops.batch_norm_infer, (input, running_mean, running_var, *more), (float(eps), given))
    if input.ndim < 2:
        raise RuntimeError(f"batch_norm: expected an input of 2 dimensions or more, got {list(input.shape)}")
    count = _per_channel(input)
    for running in (running_mean, running_var):
        if running is not None and running.shape != (input.shape[1],):
            raise RuntimeError(f"running_mean should contain {input.shape[1]} elements not {running.numel()}")
    out, mean, _, variance = call(ops.batch_norm_train, (input, *more), (float(eps), given))
    if running_mean is not None:
        call_into(moving_average, (running_mean,), (running_mean, mean, 1 - momentum, momentum))
    if running_var is not None:
        share = momentum * count / max(count - 1, 1)
        call_into(moving_average, (running_var,), (running_var, variance, 1 - momentum, share))
    return out


def _per_channel(input: Tensor) -> int:
    """Return the number of values of each channel. Raises ValueError for one value, whose variance is undefined."""
    shape = require_tensor(input, "batch_norm").shape
    count = shape[0]
    for n in shape[2:]:
        count *= n
    if count == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {shape}")
    return count


@by_parser
def instance_norm(
    input: Tensor, running_mean: Given = None, running_var: Given = None, weight: Given = None,
    bias: Given = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Return each channel of each sample of (N, C, ...) minus its mean, divided by its standard deviation."""
    size = require_tensor(input, "instance_norm").shape
    if use_input_stats:
        _check_spatial(size)
    elif running_mean is None or running_var is None:
        raise RuntimeError(
            "Expected running_mean and running_var to be defined when use_input_stats is false"
        )
    batch, channels = size[0], size[1]
    repeated = [None if t is None else t.repeat(batch) for t in (running_mean, running_var, weight, bias)]
    out = _batch_norm(
        input.reshape(1, batch * channels, *size[2:]), *repeated, use_input_stats, momentum, eps
    )
    for running, moved in zip((running_mean, running_var), repeated, strict=False):
        if running is not None and moved is not None and use_input_stats:
            running.copy_(moved.view(batch, channels).mean(0))
    return out.view(size)


def _check_spatial(size: Sequence[int]) -> None:
    count = 1
    for n in size[2:]:
        count *= n
    if count == 1:
        raise ValueError(f"Expected more than 1 spatial element when training, got input size {size}")


def layer_norm(
    input: Tensor,
    normalized_shape: IntTuple,
    weight: Given = None,
    bias: Given = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return the trailing dimensions `normalized_shape` minus their mean, divided by their standard deviation."""
    ndim = _count_normalized_dims(require_tensor(input, "layer_norm"), normalized_shape)
    more, given = _present("layer_norm", weight, bias)
    return call(ops.layer_norm, (input, *more), (ndim, float(eps), given))


def rms_norm(
    input: Tensor, normalized_shape: IntTuple, weight: Given = None, eps: float | None = None
) -> Tensor:
    """Return the trailing dimensions `normalized_shape` divided by their root mean square."""
    normalized_shape = ints_of(_require_sequence(normalized_shape), "rms_norm", "normalized_shape", 2)
    if require_tensor(input, "rms_norm").dim() < len(normalized_shape):
        raise ValueError(
            f"Input tensor must have at least {len(normalized_shape)} dimensions, but got {input.dim()}"
        )
    ndim = _count_normalized_dims(input, normalized_shape)
    if eps is None:
        eps = finfo(input.dtype).eps if input.dtype.itemsize > 4 else _FLOAT_EPS
    more, given = _present("rms_norm", weight)
    return call(ops.rms_norm, (input, *more), (ndim, float(eps), given))


_FLOAT_EPS = 2.0**-23


def _require_sequence(shape: Any) -> Sequence[Any]:
    if not isinstance(shape, tuple | list):
        raise TypeError(argument_type("layer_norm", "normalized_shape", 2, "tuple of ints", shape))
    return shape


def _count_normalized_dims(input: Tensor, shape: IntTuple) -> int:
    """Return the number of dimensions in `shape`, which must be the last ones of the input."""
    if _require_sequence(shape) and isinstance(shape[0], bool):
        ints_of(shape, "layer_norm", "normalized_shape", 2)  # raises TypeError
    wanted = [index(n) for n in shape]
    if not wanted:
        raise RuntimeError(
            f"Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got "
            f"normalized_shape = {wanted}"
        )
    if list(input.shape[-len(wanted) :]) != wanted:
        star = ", ".join(["*", *map(str, wanted)])
        raise RuntimeError(
            f"Given normalized_shape={wanted}, expected input with shape [{star}], but got input of size"
            f"{list(input.shape)}"
        )
    return len(wanted)


def group_norm(
    input: Tensor, num_groups: int, weight: Given = None, bias: Given = None, eps: float = 1e-5
) -> Tensor:
    """Return each group of channels of each sample of (N, C, ...) minus its mean, divided by its standard deviation."""
    if int_or_none(num_groups) is None:
        raise TypeError(argument_type("group_norm", "num_groups", 2, "int", num_groups))
    if require_tensor(input, "group_norm").dim() < 2:
        raise RuntimeError(f"Expected at least 2 dimensions for input tensor but received {input.dim()}")
    if num_groups > 0 and input.numel() == num_groups:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {input.shape}"
        )
    more, given = _present("group_norm", weight, bias)
    return call(ops.group_norm, (input, *more), (num_groups, float(eps), given))


@compares("alpha", "beta", "k", "size")
def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """Return x / (k + alpha * mean of squares over `size` neighbouring channels) ** beta."""
    if require_tensor(input, "local_response_norm").dim() < 3:
        raise ValueError(
            f"Expected 3D or higher dimensionality                          input (got {input.dim()} dimensions)"
        )
    if not input.numel():
        return input
    size = integer(size, "pad", "pad", 2)
    squares = input.mul(input)
    if input.dim() == 3:
        around = pad(squares.unsqueeze(1), (0, 0, size // 2, (size - 1) // 2))
        mean = avg_pool2d(around, (size, 1), stride=1).squeeze(1)
    else:
        n, channels, height = input.shape[:3]
        flat = squares.view(n, 1, channels, height, -1)
        around = pad(flat, (0, 0, 0, 0, size // 2, (size - 1) // 2))
        mean = avg_pool3d(around, (size, 1, 1), stride=1).squeeze(1).view(input.shape)
    return input / mean.mul(alpha).add(k).pow(beta)


function(rms_norm)
