"""Fusion of convolutions and linear layers with a following batch normalization, for inference."""

from __future__ import annotations

import copy
from typing import Any

from flambeau.nn.parameter import Parameter
from flambeau.tensor.tensor import Tensor

Given = Tensor | None


def _check(layer: Any, bn: Any) -> None:
    if layer.training or bn.training:
        raise AssertionError("Fusion only for eval!")


def _moments(bn: Any) -> tuple[Any, ...]:
    if bn.running_mean is None or bn.running_var is None:
        raise AssertionError("bn.running_mean and bn.running_var must not be None")
    return bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Any:
    """Return a convolution that is equal to `conv` followed by `bn` in evaluation mode. `transpose`: `conv` is
    transposed.

    Raises:
        AssertionError: If one of them is in training mode, or `bn` has no running statistics.
    """
    _check(conv, bn)
    fused = copy.deepcopy(conv)
    fused.weight, fused.bias = fuse_conv_bn_weights(fused.weight, fused.bias, *_moments(bn), transpose)
    return fused


def fuse_conv_bn_weights(
    conv_w: Tensor, conv_b: Given, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float, bn_w: Given, bn_b: Given,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:  # fmt: skip
    """Return the weight and bias of a convolution fused with the batch normalization after it."""
    channel = (1, -1) if transpose else (-1, 1)
    shape = (*channel, *(1,) * (conv_w.dim() - 2))
    return _fuse(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, shape)


def fuse_linear_bn_eval(linear: Any, bn: Any) -> Any:
    """Return a linear layer that is equal to `linear` followed by `bn` in evaluation mode.

    Raises:
        AssertionError: If one of them is in training mode, numbers of features differ, or `bn` has no running
            statistics.
    """
    _check(linear, bn)
    if bn.num_features not in (linear.out_features, 1):
        raise AssertionError(
            "To fuse, linear.out_features == bn.num_features or bn.num_features == 1, got "
            f"linear.out_features={linear.out_features} and bn.num_features={bn.num_features}"
        )
    fused = copy.deepcopy(linear)
    fused.weight, fused.bias = fuse_linear_bn_weights(fused.weight, fused.bias, *_moments(bn))
    return fused


def fuse_linear_bn_weights(
    linear_w: Tensor, linear_b: Given, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float, bn_w: Given, bn_b: Given
) -> tuple[Parameter, Parameter]:
    """Return the weight and bias of a linear map fused with the batch normalization after it."""
    return _fuse(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, (-1, 1))


def _fuse(
    weight: Tensor,
    bias: Given,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    gain: Given,
    shift: Given,
    shape: Any,
) -> tuple[Parameter, Parameter]:
    scale = (variance + eps).rsqrt()
    scale = scale if gain is None else scale * gain
    moved = (-mean if bias is None else bias - mean) * scale
    moved = moved if shift is None else moved + shift
    kind = weight.dtype if bias is None else bias.dtype
    new = (weight * scale.reshape(shape)).to(weight.dtype)
    return Parameter(new, weight.requires_grad), Parameter(
        moved.to(kind), bias is not None and bias.requires_grad
    )
