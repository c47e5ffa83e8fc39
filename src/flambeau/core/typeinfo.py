"""`finfo` and `iinfo`: the limits of dtypes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from flambeau.core.dtype import BOOL, BORROWED, INTEGRAL, NAMED, PYTHON_TYPES, dtype
from flambeau.core.flags import flags


def _dtype_of(kind: Any) -> Any:
    """Return the dtype that a Python type stands for; everything else is returned as it is."""
    return PYTHON_TYPES.get(kind, kind) if isinstance(kind, type) else kind


def _limits_of(kind: dtype) -> Any:
    """Return the limits of a floating dtype from NumPy or ml_dtypes. The dtype may be one without arithmetic."""
    if kind.category == NAMED:
        types = import_module("ml_dtypes")
        return types.finfo(getattr(types, kind.name))
    return (import_module("ml_dtypes") if kind in BORROWED else np).finfo(kind.numpy)


class finfo:  # PyTorch's public name
    """The limits of a floating-point dtype, or of the parts of a complex dtype. Without an argument: those of the
    default dtype.

    Raises:
        TypeError: For any other dtype.
    """

    def __init__(self, type: dtype | None = None) -> None:
        kind = flags.default_dtype if type is None else _dtype_of(type)
        if not isinstance(kind, dtype):
            raise TypeError(f"finfo(): argument 'type' (position 1) must be torch.dtype, not {_name(kind)}")
        kind = kind.to_real()
        if not kind.is_floating_point:
            raise TypeError(
                "torch.finfo() requires a floating point input type. Use torch.iinfo to handle 'torch.finfo'"
            )
        info = _limits_of(kind)
        self.dtype = kind.name
        self.bits = kind.itemsize * 8
        self.eps = float(info.eps)
        self.max = float(info.max)
        self.min = float(info.min)
        self.tiny = self.smallest_normal = float(info.tiny)
        digits = int(_mantissa_bits(self.eps) * _LOG10_2)
        self.resolution = 10.0**-digits

    def __eq__(self, other: object) -> bool:
        return isinstance(other, finfo) and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash(self.dtype)

    def __repr__(self) -> str:
        return (
            f"finfo(resolution={self.resolution:g}, min={self.min:g}, max={self.max:g}, eps={self.eps:g}, "
            f"smallest_normal={self.smallest_normal:g}, tiny={self.tiny:g}, dtype={self.dtype})"
        )


_LOG10_2 = 0.30102999566398120


def _mantissa_bits(eps: float) -> int:
    """Return the bits of a mantissa whose last place is `eps`."""
    return -int(eps.hex().rpartition("p")[2])


class iinfo:  # PyTorch's public name
    """The limits of an integer dtype.

    Raises:
        TypeError: For any other dtype, including bool.
    """

    def __init__(self, type: dtype) -> None:
        type = _dtype_of(type)
        if not isinstance(type, dtype):
            raise TypeError(f"iinfo(): argument 'type' (position 1) must be torch.dtype, not {_name(type)}")
        if type.category == BOOL:
            raise TypeError("torch.bool is not supported by torch.iinfo")
        if type.category != INTEGRAL:
            raise TypeError(
                "torch.iinfo() requires an integer input type. Use torch.finfo to handle 'torch.iinfo'"
            )
        info = np.iinfo(type.numpy)
        self.dtype = type.name
        self.bits = type.itemsize * 8
        self.min = int(info.min)
        self.max = int(info.max)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, iinfo) and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash(self.dtype)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min:g}, max={self.max:g}, dtype={self.dtype})"


def _name(x: Any) -> str:
    return x.__class__.__name__
