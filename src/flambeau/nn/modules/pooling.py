"""Pooling over windows of one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.nn import functional as F
from flambeau.nn.modules.module import Module
from flambeau.nn.modules.utils import each
from flambeau.tensor.tensor import Tensor


class _PoolNd(Module):
    """The base of pooling layers; `ndim` is the number of dimensions of a window."""

    ndim: int


# -- the largest of each window -------------------------------------------------------------------------


class _MaxPoolNd(_PoolNd):
    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Any:
        pool: Any = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[self.ndim - 1]
        return pool(
            input, self.kernel_size, self.stride, self.padding, self.dilation, ceil_mode=self.ceil_mode,
            return_indices=self.return_indices,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPoolNd):
    """The largest of each window of (N, C, L) or (C, L); with `return_indices` also where it was."""

    ndim = 1


class MaxPool2d(_MaxPoolNd):
    """The maximum of each window of (N, C, H, W) or (C, H, W); with `return_indices` also its index."""

    ndim = 2


class MaxPool3d(_MaxPoolNd):
    """The largest of each window of (N, C, D, H, W) or (C, D, H, W); with `return_indices` also where it was."""

    ndim = 3


class _MaxUnpoolNd(_PoolNd):
    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        super().__init__()
        self.kernel_size = each(kernel_size, self.ndim)
        self.stride = each(kernel_size if stride is None else stride, self.ndim)
        self.padding = each(padding, self.ndim)

    def forward(self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        unpool: Any = (F.max_unpool1d, F.max_unpool2d, F.max_unpool3d)[self.ndim - 1]
        out: Tensor = unpool(input, indices, self.kernel_size, self.stride, self.padding, output_size)
        return out

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpoolNd):
    """The inverse of `MaxPool1d`: maxima at their positions, zeros elsewhere."""

    ndim = 1


class MaxUnpool2d(_MaxUnpoolNd):
    """The inverse of `MaxPool2d`: maxima at their positions, zeros elsewhere."""

    ndim = 2


class MaxUnpool3d(_MaxUnpoolNd):
    """The inverse of `MaxPool3d`: maxima at their positions, zeros elsewhere."""

    ndim = 3


class _FractionalMaxPoolNd(_PoolNd):
    def __init__(
        self, kernel_size: Any, output_size: Any = None, output_ratio: Any = None, return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = each(kernel_size, self.ndim)
        if any(k <= 0 for k in self.kernel_size):
            raise ValueError(f"kernel_size must be greater than 0, but got {kernel_size}")
        self.return_indices = return_indices
        self.register_buffer("_random_samples", _random_samples)
        self.output_size = None if output_size is None else each(output_size, self.ndim)
        self.output_ratio = None if output_ratio is None else each(output_ratio, self.ndim)
        if output_size is None and output_ratio is None:
            raise ValueError(
                f"{type(self).__name__} requires specifying either an output size, or a pooling ratio"
            )
        if output_size is not None and output_ratio is not None:
            raise ValueError("only one of output_size and output_ratio may be specified")
        if self.output_ratio is not None and not all(0 < r < 1 for r in self.output_ratio):
            raise ValueError(f"output_ratio must be between 0 and 1 (got {output_ratio})")

    def forward(self, input: Tensor) -> Any:
        pool: Any = (F.fractional_max_pool2d, F.fractional_max_pool3d)[self.ndim - 2]
        return pool(
            input, self.kernel_size, self.output_size, self.output_ratio, self.return_indices,
            _random_samples=self._random_samples,
        )  # fmt: skip


class FractionalMaxPool2d(_FractionalMaxPoolNd):
    """The largest of each window of (N, C, H, W); the windows' places are drawn so that the output's size fits."""

    ndim = 2


class FractionalMaxPool3d(_FractionalMaxPoolNd):
    """The largest of each window of (N, C, T, H, W); the windows' places are drawn so that the output's size fits."""

    ndim = 3


# -- means and norms ------------------------------------------------------------------------------------


class _AvgPoolNd(_PoolNd):
    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool1d(_AvgPoolNd):
    """The mean of each window of (N, C, L) or (C, L)."""

    ndim = 1

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = each(kernel_size, 1)
        self.stride = each(kernel_size if stride is None else stride, 1)
        self.padding = each(padding, 1)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool1d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )


class _AvgPoolWithDivisor(_AvgPoolNd):
    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:
        pool = (F.avg_pool2d, F.avg_pool3d)[self.ndim - 2]
        return pool(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad,
            self.divisor_override,
        )  # fmt: skip


class AvgPool2d(_AvgPoolWithDivisor):
    """The mean of each window of (N, C, H, W) or (C, H, W)."""

    ndim = 2


class AvgPool3d(_AvgPoolWithDivisor):
    """The mean of each window of (N, C, D, H, W) or (C, D, H, W)."""

    ndim = 3


class _LPPoolNd(_PoolNd):
    def __init__(
        self, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
    ) -> None:
        super().__init__()
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        pool = (F.lp_pool1d, F.lp_pool2d, F.lp_pool3d)[self.ndim - 1]
        return pool(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self) -> str:
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class LPPool1d(_LPPoolNd):
    """The p-th root of the sum of p-th powers of each window of (N, C, L) or (C, L)."""

    ndim = 1


class LPPool2d(_LPPoolNd):
    """The p-th root of the sum of p-th powers of each window of (N, C, H, W) or (C, H, W)."""

    ndim = 2


class LPPool3d(_LPPoolNd):
    """The p-th root of the sum of p-th powers of each window of (N, C, D, H, W) or (C, D, H, W)."""

    ndim = 3


# -- to a size ------------------------------------------------------------------------------------------


class _AdaptiveMaxPoolNd(_PoolNd):
    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size = output_size
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        pool = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[self.ndim - 1]
        return pool(input, self.output_size, self.return_indices)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(_AdaptiveMaxPoolNd):
    """The largest of each of `output_size` windows of (N, C, L) or (C, L)."""

    ndim = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPoolNd):
    """The largest of each of `output_size` windows of (N, C, H, W) or (C, H, W)."""

    ndim = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPoolNd):
    """The largest of each of `output_size` windows of (N, C, D, H, W) or (C, D, H, W)."""

    ndim = 3


class _AdaptiveAvgPoolNd(_PoolNd):
    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        pool = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[self.ndim - 1]
        return pool(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_AdaptiveAvgPoolNd):
    """The mean of each of `output_size` windows of (N, C, L) or (C, L)."""

    ndim = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPoolNd):
    """The mean of each of `output_size` windows of (N, C, H, W) or (C, H, W)."""

    ndim = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPoolNd):
    """The mean of each of `output_size` windows of (N, C, D, H, W) or (C, D, H, W)."""

    ndim = 3
