"""Convolutions over one, two and three dimensions, and transposed ones."""

from __future__ import annotations

import math
from typing import Any

from flambeau.nn import functional as F
from flambeau.nn import init
from flambeau.nn.modules.lazy import LazyModuleMixin
from flambeau.nn.modules.module import Module
from flambeau.nn.modules.utils import _reverse_repeat_tuple, each
from flambeau.nn.parameter import Parameter, UninitializedParameter, is_lazy
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import Tensor

_PADDING_NAMES = ("same", "valid")
_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _ConvNd(Module):
    """The base of convolutions. `ndim` is the number of spatial dimensions.

    weight (out_channels, in_channels / groups, *kernel_size), transposed (in_channels, out_channels / groups,
    ...), and bias (out_channels) start uniform in +-1 / sqrt(fan_in).
    """

    ndim: int
    transposed = False
    bias: Parameter | None

    def _build(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any,
        output_padding: Any, groups: int, bias: bool, padding_mode: str, device: Any, dtype: Any,
    ) -> None:  # fmt: skip
        n = self.ndim
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = each(kernel_size, n)
        self.stride = each(stride, n)
        self.padding = padding if isinstance(padding, str) else each(padding, n)
        self.dilation = each(dilation, n)
        self.output_padding = each(output_padding, n)
        self.groups = groups
        self.padding_mode = padding_mode
        self._check()
        self._reversed_padding_repeated_twice = self._around()
        self.weight = Parameter(creation.empty(self._weight_shape(), device=device, dtype=dtype))
        if bias:
            self.bias = Parameter(creation.empty(out_channels, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def _check(self) -> None:
        if self.groups <= 0:
            raise ValueError("groups must be a positive integer")
        if self.in_channels % self.groups:
            raise ValueError("in_channels must be divisible by groups")
        if self.out_channels % self.groups:
            raise ValueError("out_channels must be divisible by groups")
        if isinstance(self.padding, str):
            if self.padding not in _PADDING_NAMES:
                raise ValueError(
                    f"Invalid padding string {self.padding!r}, should be one of {_PADDING_NAMES}"
                )
            if self.padding == "same" and any(s != 1 for s in self.stride):
                raise ValueError("padding='same' is not supported for strided convolutions")
        if self.padding_mode not in _PADDING_MODES:
            raise ValueError(
                f"padding_mode must be one of {_PADDING_MODES}, but got padding_mode='{self.padding_mode}'"
            )

    def _around(self) -> list[int] | tuple[int, ...]:
        """Return the padding in the form of `F.pad`, for padding modes other than zeros."""
        if not isinstance(self.padding, str):
            return _reverse_repeat_tuple(self.padding, 2)
        around: list[int] = []
        for d, k in zip(reversed(self.dilation), reversed(self.kernel_size), strict=False):
            total = d * (k - 1) if self.padding == "same" else 0
            around += [total // 2, total - total // 2]
        return around

    def _weight_shape(self) -> tuple[int, ...]:
        channels = (self.in_channels, self.out_channels)
        first, second = channels if self.transposed else channels[::-1]
        return (first, second // self.groups, *self.kernel_size)

    def reset_parameters(self) -> None:
        """Draw weight and bias again."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in, _ = init._calculate_fan_in_and_fan_out(self.weight)
            if fan_in:
                init.uniform_(self.bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))

    def extra_repr(self) -> str:
        n = len(self.kernel_size)
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        )
        for name, plain in (("padding", (0,) * n), ("dilation", (1,) * n), ("output_padding", (0,) * n)):
            if getattr(self, name) != plain:
                text += f", {name}={getattr(self, name)}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode}"
        return text


class _Conv(_ConvNd):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._build(
            in_channels, out_channels, kernel_size, stride, padding, dilation, 0, groups, bias, padding_mode,
            device, dtype,
        )  # fmt: skip

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.weight, self.bias)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        conv: Any = (F.conv1d, F.conv2d, F.conv3d)[self.ndim - 1]
        padding = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        out: Tensor = conv(input, weight, bias, self.stride, padding, self.dilation, self.groups)
        return out


class Conv1d(_Conv):
    """A convolution (cross-correlation) of (N, C_in, L) with a kernel, to (N, C_out, L_out). The batch dimension is
    optional.

    Args:
        padding: A number, a tuple, "valid" or "same".
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        groups: Number of groups of channels, which are convolved separately.
    """

    ndim = 1


class Conv2d(_Conv):
    """A convolution (cross-correlation) of (N, C_in, H, W) with a kernel, to (N, C_out, H_out, W_out). See `Conv1d`."""

    ndim = 2


class Conv3d(_Conv):
    """A convolution (cross-correlation) of (N, C_in, D, H, W) with a kernel, to (N, C_out, D_out, H_out, W_out). See
    `Conv1d`.
    """

    ndim = 3


# -- transposed -----------------------------------------------------------------------------------------


class _ConvTransposeNd(_ConvNd):
    transposed = True

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0,
        output_padding: Any = 0, groups: int = 1, bias: bool = True, dilation: Any = 1, padding_mode: str = "zeros",
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        super().__init__()
        self._build(
            in_channels, out_channels, kernel_size, stride, padding, dilation, output_padding, groups, bias,
            padding_mode, device, dtype,
        )  # fmt: skip

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        """Run the transposed convolution. `output_size` selects among the possible output sizes."""
        conv: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[self.ndim - 1]
        more = self._output_padding(input, output_size)
        out: Tensor = conv(
            input, self.weight, self.bias, self.stride, self.padding, more, self.groups, self.dilation
        )
        return out

    def _output_padding(self, input: Tensor, output_size: Any) -> tuple[int, ...]:
        if output_size is None:
            return self.output_padding
        n = self.ndim
        others = 2 if input.dim() == n + 2 else 1
        wanted = list(output_size)
        if len(wanted) == others + n:
            wanted = wanted[others:]
        if len(wanted) != n:
            raise ValueError(
                f"ConvTranspose{n}D: for {input.dim()}D input, output_size must have {n} or {others + n} elements "
                f"(got {len(wanted)})"
            )
        smallest = [
            (size - 1) * s - 2 * p + d * (k - 1) + 1
            for size, s, p, d, k in zip(
                input.shape[others:], self.stride, self.padding, self.dilation, self.kernel_size, strict=True
            )
        ]
        largest = [size + s - 1 for size, s in zip(smallest, self.stride, strict=True)]
        if not all(low <= size <= high for low, size, high in zip(smallest, wanted, largest, strict=True)):
            raise ValueError(
                f"requested an output size of {output_size}, but valid sizes range from {smallest} to {largest} "
                f"(for an input of {input.shape[2:]})"
            )
        return tuple([size - low for size, low in zip(wanted, smallest, strict=True)])


class ConvTranspose1d(_ConvTransposeNd):
    """The gradient of `Conv1d` with respect to its input: (N, C_in, L) to (N, C_out, L_out).

    `output_padding` is added to one side of the output's size.
    """

    ndim = 1


class ConvTranspose2d(_ConvTransposeNd):
    """The gradient of `Conv2d` with respect to its input: (N, C_in, H, W) to (N, C_out, H_out, W_out)."""

    ndim = 2


class ConvTranspose3d(_ConvTransposeNd):
    """The gradient of `Conv3d` with respect to its input: (N, C_in, D, H, W) to (N, C_out, D_out, H_out, W_out)."""

    ndim = 3


# -- lazy -----------------------------------------------------------------------------------------------


class _LazyConvXdMixin(LazyModuleMixin):
    """A mixin of layers that take `in_channels` from their first input."""

    def _declare(self, out_channels: int, bias: bool, device: Any, dtype: Any) -> None:
        """Create parameters whose shapes are not known yet."""
        self.out_channels = out_channels
        self.weight = UninitializedParameter(device=device, dtype=dtype)
        if bias:
            self.bias = UninitializedParameter(device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        if self.in_channels and not self.has_uninitialized_params():
            super().reset_parameters()

    def initialize_parameters(self, input: Tensor, *args: Any, **kwargs: Any) -> None:
        if not self.has_uninitialized_params():
            return
        n = self.ndim
        if input.dim() not in (n + 1, n + 2):
            raise RuntimeError(
                f"Expected {n + 1}D (unbatched) or {n + 2}D (batched) input to {type(self).__name__}, but got input of "
                f"size: {input.shape}"
            )
        self.in_channels = input.shape[-n - 1]
        if self.in_channels % self.groups:
            raise ValueError("in_channels must be divisible by groups")
        self.weight.materialize(self._weight_shape())
        if is_lazy(self.bias):
            self.bias.materialize((self.out_channels,))
        self.reset_parameters()


class _LazyConv(_LazyConvXdMixin):
    def __init__(
        self, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
        groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            0, 0, kernel_size, stride, padding, dilation, groups, False, padding_mode, device, dtype
        )
        self._declare(out_channels, bias, device, dtype)


class _LazyConvTranspose(_LazyConvXdMixin):
    def __init__(
        self, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
        groups: int = 1, bias: bool = True, dilation: Any = 1, padding_mode: str = "zeros", device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            0, 0, kernel_size, stride, padding, output_padding, groups, False, dilation, padding_mode, device, dtype
        )  # fmt: skip
        self._declare(out_channels, bias, device, dtype)


class LazyConv1d(_LazyConv, Conv1d):
    """`Conv1d` that takes `in_channels` from its first input."""

    cls_to_become = Conv1d


class LazyConv2d(_LazyConv, Conv2d):
    """`Conv2d` that takes `in_channels` from its first input."""

    cls_to_become = Conv2d


class LazyConv3d(_LazyConv, Conv3d):
    """`Conv3d` that takes `in_channels` from its first input."""

    cls_to_become = Conv3d


class LazyConvTranspose1d(_LazyConvTranspose, ConvTranspose1d):
    """`ConvTranspose1d` that takes `in_channels` from its first input."""

    cls_to_become = ConvTranspose1d


class LazyConvTranspose2d(_LazyConvTranspose, ConvTranspose2d):
    """`ConvTranspose2d` that takes `in_channels` from its first input."""

    cls_to_become = ConvTranspose2d


class LazyConvTranspose3d(_LazyConvTranspose, ConvTranspose3d):
    """`ConvTranspose3d` that takes `in_channels` from its first input."""

    cls_to_become = ConvTranspose3d
