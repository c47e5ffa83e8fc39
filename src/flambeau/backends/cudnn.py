"""torch.backends.cudnn: the flags of convolutions and recurrent layers.

enabled (True): use library routines. benchmark (False), benchmark_limit (10): no effect, because routines are never
chosen by timing. deterministic (False): no effect, because all routines are deterministic. allow_tf32 (True): round
float32 to TF32. conv.fp32_precision, rnn.fp32_precision: the same setting as "tf32" or "ieee". fp32_precision: for both
and for matrix products, see Note [Precisions of float32]. Setting one to a value of another type raises RuntimeError.

cuDNN is an extra, `flambeau[cudnn]`. Without it real GPUs use kernels of this package and cuBLASLt; virtual GPUs never
need it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flambeau.backends.flagged import Attributes, Flag, FlaggedModule
from flambeau.backends.matmul_flags import Precision, is_tf32, say_tf32
from flambeau.core.device import CPU
from flambeau.core.dtype import float16, float32, float64
from flambeau.core.errors import NotSupportedError
from flambeau.core.flags import flags as flags_of
from flambeau.driver.driver_registry import cudnn_version
from flambeau.tensor.tensor import Tensor


def is_available() -> bool:
    """Return True if cuDNN is installed."""
    return cudnn_version() is not None


def version() -> int | None:
    """Return cuDNN's version, 91002 for 9.10.2; None where it is not installed."""
    return cudnn_version()


CUDNN_TENSOR_DTYPES = {float16, float32, float64}


def is_acceptable(tensor: Tensor) -> bool:
    """Return True if cuDNN takes a tensor: of float16, float32 or float64, on a GPU. Warns where it is not
    installed.
    """
    if not flags_of.cudnn_enabled or tensor.device is CPU or tensor.dtype not in CUDNN_TENSOR_DTYPES:
        return False
    if not is_available():
        warnings.warn("cuDNN library not found: pip install 'flambeau[cudnn]'", UserWarning, stacklevel=2)
        return False
    return True


_SAID = ("enabled", "benchmark", "benchmark_limit", "deterministic", "allow_tf32")


def set_flags(
    _enabled: bool | None = None,
    _benchmark: bool | None = None,
    _benchmark_limit: int | None = None,
    _deterministic: bool | None = None,
    _allow_tf32: bool | None = None,
    _fp32_precision: str = "none",
    _depthwise_kernel: str | None = None,
) -> tuple[Any, ...]:
    """Set several flags; None leaves a flag unchanged. Returns the previous values in the order of the arguments.

    `_fp32_precision` takes precedence over `_allow_tf32`.

    Raises:
        RuntimeError: If a value has another type.
        NotSupportedError: If the depthwise kernel is not "auto".
    """
    if _depthwise_kernel not in (None, "auto"):
        raise NotSupportedError(f"cudnn.depthwise_kernel={_depthwise_kernel!r}: cuDNN chooses")
    module: Any = sys.modules[__name__]
    before = tuple([getattr(module, name) for name in _SAID])
    tf32 = _allow_tf32 if _fp32_precision == "none" else is_tf32(_fp32_precision)
    wanted = (_enabled, _benchmark, _benchmark_limit, _deterministic, tf32)
    for name, value in zip(_SAID, wanted, strict=True):
        if value is not None:
            _Cudnn.__dict__[name].check(value)
    for name, value in zip(_SAID, wanted, strict=True):
        if value is not None:
            setattr(module, name, value)
    return (*before, "none", None)


@contextmanager
def flags(
    enabled: bool = False,
    benchmark: bool = False,
    benchmark_limit: int = 10,
    deterministic: bool = False,
    allow_tf32: bool = True,
    fp32_precision: str = "none",
    depthwise_kernel: str = "auto",
) -> Iterator[None]:
    """Return a context manager with other flags; the defaults of this signature are set, too. See `set_flags`."""
    before = set_flags(
        enabled, benchmark, benchmark_limit, deterministic, allow_tf32, fp32_precision, depthwise_kernel
    )
    try:
        yield
    finally:
        set_flags(*before)


class _AllowTF32(Flag):
    """The TF32 switch of convolutions and recurrent layers together. Reading it raises RuntimeError while they
    differ.
    """

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        if owner is not None and flags_of.cudnn_allow_tf32 != flags_of.rnn_allow_tf32:
            raise RuntimeError(
                "PyTorch is checking whether allow_tf32 is enabled for cuDNN without a specific operator name, but the "
                "current flag(s) indicate that cuDNN conv and cuDNN RNN have different TF32 flags. Use "
                "torch.backends.cudnn.conv.fp32_precision and torch.backends.cudnn.rnn.fp32_precision."
            )
        return super().__get__(owner, kind)

    def __set__(self, owner: object, value: Any) -> None:
        self.check(value)
        say_tf32(value, "conv", "rnn")


class _Cudnn(FlaggedModule):
    enabled = Flag("cudnn_enabled", "set_enabled_cudnn")
    benchmark = Flag("cudnn_benchmark", "set_benchmark_cudnn")
    benchmark_limit = Flag("cudnn_benchmark_limit", "set_benchmark_limit_cudnn", int)
    deterministic = Flag("cudnn_deterministic", "set_deterministic_cudnn")
    allow_tf32 = _AllowTF32("cudnn_allow_tf32", "set_allow_tf32_cudnn")
    fp32_precision = Precision("cuda")


class _Convolutions(Attributes):
    fp32_precision = Precision("conv")


class _RecurrentLayers(Attributes):
    fp32_precision = Precision("rnn")


conv = _Convolutions()
rnn = _RecurrentLayers()
sys.modules[__name__].__class__ = _Cudnn
