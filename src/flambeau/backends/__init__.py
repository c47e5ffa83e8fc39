"""torch.backends: flags of the libraries and algorithms that compute operators.

fp32_precision ("none"): precision of float32 in library calls: see Note [Precisions of float32].
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from flambeau.backends import cuda, cudnn, mps
from flambeau.backends.flagged import FlaggedModule
from flambeau.backends.matmul_flags import Precision

_LATER = ("cpu", "kleidiai", "mha", "mkl", "mkldnn", "nnpack", "openmp", "opt_einsum", "quantized",
          "xnnpack")  # fmt: skip

__all__ = ["cuda", "cudnn", "mps", *_LATER]


class _Backends(FlaggedModule):
    fp32_precision = Precision("generic")

    def __getattr__(self, name: str) -> Any:
        return import_module(f"flambeau.backends.{name}") if name in _LATER else super().__getattr__(name)


sys.modules[__name__].__class__ = _Backends
