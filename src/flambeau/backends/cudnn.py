"""torch.backends.cudnn: the flags of convolutions and recurrent layers.

enabled (True): whether library routines may be used. benchmark (False): whether they may be chosen by
timing; none is. deterministic (False): whether only deterministic ones may; all are. allow_tf32 (True): whether
float32 may be rounded to TF32 inside them.

cuDNN is an extra, `flambeau[cudnn]`. Where it is not installed real GPUs convolve by our own kernels and cuBLASLt;
virtual GPUs never need it.
"""

from __future__ import annotations

import sys

from flambeau.backends.flagged import Flag, FlaggedModule
from flambeau.driver.registry import cudnn_version


def is_available() -> bool:
    """Whether cuDNN is installed."""
    return cudnn_version() is not None


def version() -> int | None:
    """cuDNN's version, 91002 for 9.10.2; None where it is not installed."""
    return cudnn_version()


class _Cudnn(FlaggedModule):
    enabled = Flag("cudnn_enabled")
    benchmark = Flag("cudnn_benchmark")
    deterministic = Flag("cudnn_deterministic")
    allow_tf32 = Flag("cudnn_allow_tf32")


sys.modules[__name__].__class__ = _Cudnn
