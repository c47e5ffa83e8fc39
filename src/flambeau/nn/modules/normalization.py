"""Normalization of layers, groups and neighbours."""

from __future__ import annotations

import numbers
from typing import Any

from flambeau.nn import functional as F
from flambeau.nn import init
from flambeau.nn.modules.module import Module
from flambeau.nn.parameter import Parameter
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import Tensor


class LocalResponseNorm(Module):
    """The normalization x / (k + alpha * mean of squares over `size` adjacent channels) ** beta, of (N, C, *)."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class CrossMapLRN2d(LocalResponseNorm):
    """The older form of `LocalResponseNorm` for (N, C, H, W).

    PyTorch's leaves the first channel in the window of every later one, and so does this. Its gradient is not
    that of its result; this one's is.
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1) -> None:
        super().__init__(size, alpha, beta, k)

    def forward(self, input: Any) -> Tensor:
        if input.dim() != 4:
            raise ValueError(f"CrossMapLRN2d: Expected input to be 4D, got {input.dim()}D instead.")
        places = creation.arange(input.shape[1], device=input.device)
        near = (places.unsqueeze(1) - places).abs() < int((self.size - 1) / 2 + 1)
        window = (near | (places == 0)).to(input.dtype)
        sums = window.matmul((input * input).flatten(2)).view(input.shape)
        out: Tensor = input * (sums * (self.alpha / self.size) + self.k).pow(-self.beta)
        return out


class _Affine(Module):
    """A normalization with optional weight (initially ones) and bias (initially zeros) of one shape."""

    weight: Parameter | None
    bias: Parameter | None

    def _make(self, shape: Any, weight: bool, bias: bool, device: Any, dtype: Any) -> None:
        for name, present in (("weight", weight), ("bias", bias)):
            made = Parameter(creation.empty(shape, device=device, dtype=dtype)) if present else None
            self.register_parameter(name, made)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to one and the bias to zero."""
        if self._parameters["weight"] is not None:
            init.ones_(self.weight)
        if self._parameters.get("bias") is not None:
            init.zeros_(self.bias)


def _shape_of(normalized_shape: Any) -> tuple[int, ...]:
    one = isinstance(normalized_shape, numbers.Integral)
    return (normalized_shape,) if one else tuple(normalized_shape)


class LayerNorm(_Affine):
    """The trailing dimensions less their mean, over their standard deviation, times weight plus bias."""

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = _shape_of(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self._make(self.normalized_shape, elementwise_affine, elementwise_affine and bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )


class RMSNorm(_Affine):
    """The trailing dimensions over their root mean square, times weight. If `eps` is None, it is the machine epsilon of
    the dtype.
    """

    def __init__(
        self, normalized_shape: Any, eps: float | None = None, elementwise_affine: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = _shape_of(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        made = Parameter(creation.empty(self.normalized_shape, device=device, dtype=dtype))
        self.register_parameter("weight", made if elementwise_affine else None)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_Affine):
    """Each group of channels of each sample of (N, C, *) less its mean, over its standard deviation.

    Raises:
        ValueError: For groups that do not divide the channels.
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: Any = None,
        dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if not num_groups or num_channels % num_groups:
            raise ValueError(f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        self._make(num_channels, affine, affine and bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )
