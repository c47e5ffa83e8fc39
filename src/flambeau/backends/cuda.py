"""torch.backends.cuda: the flags of matrix products."""

from __future__ import annotations

import sys
from typing import Any

from flambeau.backends.flagged import FlaggedModule
from flambeau.core.flags import flags

_PRECISIONS = ("highest", "high", "medium")


class _Matmul:
    """allow_tf32 (True): whether float32 matrix products may round their inputs to TF32."""

    __slots__ = ()

    @property
    def allow_tf32(self) -> bool:
        return flags.matmul_allow_tf32

    @allow_tf32.setter
    def allow_tf32(self, value: Any) -> None:
        if not isinstance(value, bool):
            raise RuntimeError(f"set_allow_tf32_cublas expects a bool, but got {type(value).__name__}")
        set_float32_matmul_precision("high" if value else "highest")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Unknown attribute {name}: Flambeau lacks it (PyTorch may have it)")

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "allow_tf32":
            raise AttributeError(f"Unknown attribute {name}: Flambeau lacks it (PyTorch may have it)")
        object.__setattr__(self, name, value)


matmul = _Matmul()


def is_built() -> bool:
    """Whether this package can drive CUDA devices: always True. It does not say that there are any."""
    return True


def set_float32_matmul_precision(precision: str) -> None:
    """How float32 matrix products compute: "highest" (float32), "high" or "medium" (inputs rounded to TF32).

    Raises RuntimeError: not a str. ValueError: another str (PyTorch warns and changes nothing).
    """
    if not isinstance(precision, str):
        raise RuntimeError(f"set_float32_matmul_precision expects a str, but got {type(precision).__name__}")
    if precision not in _PRECISIONS:
        raise ValueError(f"{precision} is not one of 'highest', 'high', or 'medium'")
    flags.float32_matmul_precision = precision
    flags.matmul_allow_tf32 = precision != "highest"


def get_float32_matmul_precision() -> str:
    """How float32 matrix products compute: "highest", "high" or "medium"."""
    return flags.float32_matmul_precision


class _Cuda(FlaggedModule):
    pass


sys.modules[__name__].__class__ = _Cuda
