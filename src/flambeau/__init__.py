"""Flambeau: the CUDA runtime that PyTorch's documentation describes, on real and on virtual GPUs.

`import flambeau as torch` runs torch programs. Importing opens no driver and imports no GPU package.
"""

from __future__ import annotations

import sys as _sys
from typing import Any as _Any

if not _sys.platform.startswith(("linux", "darwin")):
    raise ImportError(
        f"Flambeau runs on Linux (x86-64, aarch64) and on macOS, not on {_sys.platform}: its memory is mapped as there"
    )

from flambeau import backends, cuda, random, version
from flambeau.backends.cuda import get_float32_matmul_precision, set_float32_matmul_precision
from flambeau.core import dtype as _dtypes
from flambeau.core.device import device
from flambeau.core.dtype import dtype
from flambeau.core.errors import OutOfMemoryError, RaceError
from flambeau.core.size import Size
from flambeau.runtime.generator import Generator
from flambeau.runtime.system import virtual
from flambeau.tensor import (  # each binds its functions and methods
    arithmetic as _arithmetic,
    attributes as _attributes,
    constructor as _constructor,
    creation as _creation,
    indexing as _indexing,
    interop as _interop,
    joining as _joining,
    matmul as _matmul,
    printing as _printing,
    promotion as _promotion,
    public as _public,
    random as _random,
    reduction as _reduction,
    sorting as _sorting,
    storages as _storages,
    transfer as _transfer,
    views as _views,
)
from flambeau.tensor.tensor import Tensor
from flambeau.version import __version__

globals().update({d.name: d for d in _dtypes.DTYPES} | _dtypes.ALIASES)
globals().update(_public.functions)


for _class in (Tensor, device, dtype, Size, Generator, OutOfMemoryError, RaceError):
    _class.__module__ = __name__  # what reprs and pickles say; under `flambeau run` they say torch (cli/finder.py)


def __getattr__(name: str) -> _Any:
    raise AttributeError(f"module 'torch' has no attribute '{name}': Flambeau lacks it (PyTorch may have it)")
