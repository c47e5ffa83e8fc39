"""Dropout: in training each element (or channel) is zeroed with probability p, and the others are divided by 1 - p.

On the CPU the zeroed elements equal PyTorch's for the same seed. On CUDA `dropout` draws like PyTorch's fused kernel
with vectors of four elements; the other functions draw like `bernoulli_`.
"""

from __future__ import annotations

import math

from flambeau.core.callsite import warn_program
from flambeau.core.errors import argument_type
from flambeau.nn.functional.activation import require_tensor
from flambeau.tensor import dispatch, interception
from flambeau.tensor.arguments.public import function
from flambeau.tensor.functions import creation
from flambeau.tensor.functions.random import dropout_on_cuda
from flambeau.tensor.signatures import by_parser, signatures
from flambeau.tensor.tensor import Tensor

_ALPHA = 1.7580993408473766  # -selu(-inf)


def check_probability(p: float) -> None:
    """Raise ValueError if p is outside of 0 to 1; NaN is refused later, with RuntimeError."""
    if p < 0 or p > 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def _drop(input: Tensor, p: float, train: bool, inplace: bool, feature: bool, alpha: bool) -> Tensor:
    check_probability(p)
    if p != p:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {p}")
    inplace = bool(inplace)
    if not isinstance(train, bool):
        raise TypeError(argument_type("dropout", "train", 3, "bool", train))
    if not require_tensor(input, "dropout").meta.numel or p == 0 or not train:
        return input
    if p == 1:
        zero = creation.zeros((), dtype=input.dtype, device=input.device)
        return input.mul_(zero) if inplace else input.mul(zero)
    if not (feature or alpha or inplace) and input.is_cuda and input.meta.dtype.is_floating_point:
        return dropout_on_cuda(input, p)
    noise = _channel_noise(input) if feature else creation.empty_like(input)
    noise.bernoulli_(1 - p)
    if not alpha:
        if interception.count and dispatch.is_shown((noise,)):
            dispatch.show("div_.Scalar", noise, 1 - p)
        else:
            noise.div_(1 - p)
        return input.mul_(noise) if inplace else input.mul(noise)
    a = 1 / math.sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p))
    shift = noise.add(-1).mul_(_ALPHA * a).add_(_ALPHA * a * p)
    noise.mul_(a)
    return input.mul_(noise).add_(shift) if inplace else input.mul(noise).add_(shift)


def _channel_noise(input: Tensor) -> Tensor:
    """Return one number for each channel of each sample."""
    if input.dim() < 2:
        raise RuntimeError("Feature dropout requires at least 2 dimensions in the input")
    size = (*input.shape[:2], *(1,) * (input.dim() - 2))
    return creation.empty(size, dtype=input.dtype, device=input.device)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero elements with probability p."""
    return _drop(input, p, training, inplace, False, False)


@by_parser
@signatures("F.alpha_dropout(input: Tensor, p: float=, training: bool=, inplace: Any=)")
def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Apply dropout that preserves mean and variance of SELU's outputs."""
    return _drop(input, p, training, inplace, False, True)


@by_parser
@signatures("F.feature_alpha_dropout(input: Tensor, p: float=, training: bool=, inplace: Any=)")
def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Return `alpha_dropout` of whole channels."""
    return _drop(input, p, training, inplace, True, True)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero whole channels of (N, C, L) or (C, L).

    Raises:
        RuntimeError: For other numbers of dimensions.
    """
    check_probability(p)
    if require_tensor(input, "dropout1d").dim() not in (2, 3):
        raise RuntimeError(
            f"dropout1d: Expected 2D or 3D input, but received a {input.dim()}D input. Note that dropout1d exists to "
            "provide channel-wise dropout on inputs with 1 spatial dimension, a channel dimension, and an optional "
            "batch dimension (i.e. 2D or 3D inputs)."
        )
    return _drop_batched(input, p, training, inplace, input.dim() == 3)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero whole channels of (N, C, H, W) with probability `p`, and scale the others."""
    check_probability(p)
    if require_tensor(input, "dropout2d").dim() not in (3, 4):
        _warn(f"dropout2d: Received a {input.dim()}-D input to dropout2d, which is deprecated.")
    elif input.dim() == 3:
        _warn(
            "dropout2d: Received a 3D input to dropout2d and assuming that channel-wise 1D dropout is desired."
        )
    return _drop(input, p, training, inplace, True, False)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero whole channels of (N, C, D, H, W) or (C, D, H, W) with probability `p`, and scale the others."""
    check_probability(p)
    if require_tensor(input, "dropout3d").dim() not in (4, 5):
        _warn(f"dropout3d: Received a {input.dim()}-D input to dropout3d, which is deprecated.")
    return _drop_batched(input, p, training, inplace, input.dim() == 5)


def _warn(text: str) -> None:
    warn_program(text, UserWarning)


def _drop_batched(input: Tensor, p: float, training: bool, inplace: bool, batched: bool) -> Tensor:
    if batched:
        return _drop(input, p, training, inplace, True, False)
    out = _drop(input.unsqueeze(0), p, training, inplace, True, False).squeeze(0)
    return input if inplace else out


def _publish(name: str, inplace: bool, feature: bool, alpha: bool) -> None:
    """Bind a dropout function of the torch namespace, such as `torch.dropout(input, p, train)`."""

    def drop(input: Tensor, p: float, train: bool) -> Tensor:
        if not 0 <= p <= 1:  # nn.functional's are refused with ValueError
            raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {p:g}")
        return _drop(input, p, train, inplace, feature, alpha)

    drop.__name__ = drop.__qualname__ = name
    drop.__doc__ = (
        "Dropout of " + ("whole channels" if feature else "elements") + (", in place." if inplace else ".")
    )
    function(drop)


for _name, _feature, _alpha in (
    ("dropout", False, False), ("feature_dropout", True, False), ("alpha_dropout", False, True),
    ("feature_alpha_dropout", True, True),
):  # fmt: skip
    _publish(_name, False, _feature, _alpha)
    _publish(f"{_name}_", True, _feature, _alpha)
