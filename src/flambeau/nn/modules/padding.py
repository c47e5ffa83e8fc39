"""Padding of the last one, two and three dimensions."""

from __future__ import annotations

from typing import Any

from flambeau.nn.functional import pad
from flambeau.nn.modules.module import Module
from flambeau.nn.modules.utils import each
from flambeau.tensor.tensor import Tensor


class _PadNd(Module):
    """The base of padding layers; `padding` is a number or (left, right, top, bottom, front, back)."""

    ndim: int
    mode: str

    def __init__(self, padding: Any) -> None:
        super().__init__()
        self.padding = each(padding, 2 * self.ndim)

    def forward(self, input: Tensor) -> Tensor:
        return pad(input, self.padding, self.mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _CircularPadNd(_PadNd):
    mode = "circular"

    def forward(self, input: Tensor) -> Tensor:
        n = self.ndim
        if input.dim() not in (n + 1, n + 2):
            raise ValueError(f"expected {n + 1}D or {n + 2}D input (got {input.dim()}D input)")
        return super().forward(input)


class CircularPad1d(_CircularPadNd):
    """Circular padding of the last dimension of (N, C, W) or (C, W)."""

    ndim = 1


class CircularPad2d(_CircularPadNd):
    """Circular padding of the last two dimensions."""

    ndim = 2


class CircularPad3d(_CircularPadNd):
    """Circular padding of the last three dimensions."""

    ndim = 3


class _ConstantPadNd(_PadNd):
    mode = "constant"

    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPadNd):
    """A layer that pads the last dimension with `value`."""

    ndim = 1


class ConstantPad2d(_ConstantPadNd):
    """A layer that pads the last two dimensions with `value`."""

    ndim = 2


class ConstantPad3d(_ConstantPadNd):
    """A layer that pads the last three dimensions with `value`."""

    ndim = 3


class _ReflectionPadNd(_PadNd):
    mode = "reflect"


class ReflectionPad1d(_ReflectionPadNd):
    """The last dimension mirrored at its ends, which are not repeated."""

    ndim = 1


class ReflectionPad2d(_ReflectionPadNd):
    """The last two dimensions mirrored at their ends, which are not repeated."""

    ndim = 2


class ReflectionPad3d(_ReflectionPadNd):
    """The last three dimensions mirrored at their ends, which are not repeated."""

    ndim = 3


class _ReplicationPadNd(_PadNd):
    mode = "replicate"


class ReplicationPad1d(_ReplicationPadNd):
    """The ends of the last dimension repeated."""

    ndim = 1


class ReplicationPad2d(_ReplicationPadNd):
    """The ends of the last two dimensions repeated."""

    ndim = 2


class ReplicationPad3d(_ReplicationPadNd):
    """The ends of the last three dimensions repeated."""

    ndim = 3


class ZeroPad1d(ConstantPad1d):
    """A layer that pads the last dimension with zeros."""

    def __init__(self, padding: Any) -> None:
        super().__init__(padding, 0.0)

    extra_repr = _PadNd.extra_repr


class ZeroPad2d(ConstantPad2d):
    """A layer that pads the last two dimensions with zeros."""

    def __init__(self, padding: Any) -> None:
        super().__init__(padding, 0.0)

    extra_repr = _PadNd.extra_repr


class ZeroPad3d(ConstantPad3d):
    """A layer that pads the last three dimensions with zeros."""

    def __init__(self, padding: Any) -> None:
        super().__init__(padding, 0.0)

    extra_repr = _PadNd.extra_repr
