"""`torch.__config__`: how this package was built, as text."""

from __future__ import annotations

import os

from flambeau.core.public_names import explain_absent_names
from flambeau.tensor.settings import get_num_threads
from flambeau.version import __version__

explain_absent_names(globals(), "torch.__config__")


def show() -> str:
    """Return a description of the build; libraries that Flambeau does not contain are OFF."""
    libraries = ("MKL", "MKLDNN", "NNPACK", "OPENMP", "ROCM", "XPU", "GLOO")
    settings = [f"TORCH_VERSION={__version__}", "BLAS_INFO=numpy", "LAPACK_INFO=scipy", "USE_CUDA=ON"]
    settings += [f"USE_{name}=OFF" for name in libraries]
    return f"PyTorch built with:\n  - Flambeau {__version__}\n  - Build settings: {', '.join(settings)}, \n"


def parallel_info() -> str:
    """Return the numbers of threads."""
    return (
        "ATen/Parallel:\n"
        f"\tat::get_num_threads() : {get_num_threads()}\n"
        f"std::thread::hardware_concurrency() : {os.cpu_count()}\n"
        "ATen parallel backend: NumPy's BLAS\n"
    )


def _cxx_flags() -> str:
    """Return the options of a C++ compiler: none, because Flambeau is written in Python."""
    return ""
