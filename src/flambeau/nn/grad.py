"""torch.nn.grad: the gradients of convolutions by their input and by their weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau.nn.functional.convolution import ints
from flambeau.ops.nn import convolution as ops
from flambeau.ops.nn.convolution import Geometry
from flambeau.tensor.call import call
from flambeau.tensor.tensor import Tensor


def _geometry(ndim: int, name: str, stride: Any, padding: Any, dilation: Any, groups: int) -> Geometry:
    given = {"stride": stride, "padding": padding, "dilation": dilation}
    each = {key: ints(value, ndim, name, key) for key, value in given.items()}
    return Geometry(**each, groups=groups)


def _of_input(ndim: int) -> Callable[..., Tensor]:
    name = f"conv{ndim}d_input"

    def gradient(
        input_size: Sequence[int], weight: Tensor, grad_output: Tensor, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> Tensor:  # fmt: skip
        how = _geometry(ndim, name, stride, padding, dilation, groups)
        size = tuple(input_size[-ndim:])
        out: Tensor = call(ops.convolution_backward_input, (grad_output, weight), (how, size))
        return out

    gradient.__name__ = gradient.__qualname__ = name
    gradient.__doc__ = f"The gradient of `conv{ndim}d` by its input, of shape `input_size`."
    return gradient


def _of_weight(ndim: int) -> Callable[..., Tensor]:
    name = f"conv{ndim}d_weight"

    def gradient(
        input: Tensor, weight_size: Sequence[int], grad_output: Tensor, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> Tensor:  # fmt: skip
        how = _geometry(ndim, name, stride, padding, dilation, groups)
        size = tuple(weight_size[-ndim:])
        out: Tensor = call(ops.convolution_backward_weight, (grad_output, input), (how, size))
        return out

    gradient.__name__ = gradient.__qualname__ = name
    gradient.__doc__ = f"The gradient of `conv{ndim}d` by its weight, of shape `weight_size`."
    return gradient


conv1d_input, conv2d_input, conv3d_input = map(_of_input, (1, 2, 3))
conv1d_weight, conv2d_weight, conv3d_weight = map(_of_weight, (1, 2, 3))
