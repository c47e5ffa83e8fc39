"""Availability and versions of NVIDIA's libraries, found without importing NVIDIA's packages."""

from __future__ import annotations

import ctypes
import sys
from importlib import import_module
from importlib.util import find_spec

MINIMUM = 13000  # the driver API's version, as 1000 major + 10 minor

INSTALL = "pip install 'flambeau[cuda13]'"


def why_not() -> str | None:
    """Return the reason why no real GPU can be used, with a fix, or None. Does not initialize CUDA."""
    if not sys.platform.startswith("linux"):
        return f"Flambeau drives real GPUs on Linux, and this is {sys.platform}"
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "libcuda.so.1, which the NVIDIA driver installs, is not on this machine"
    version = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)) == 0 and version.value < MINIMUM:
        return (
            f"The NVIDIA driver on your system is too old (found version {version.value}): it supports CUDA "
            f"{version.value // 1000}.{version.value % 1000 // 10}, and Flambeau needs CUDA 13, driver 580 or newer"
        )
    if not _has("cuda.bindings.driver"):
        return f"the packages that drive real GPUs are not installed: {INSTALL}"
    return None


def _has(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def driver_versions() -> tuple[str | None, str | None]:
    """Return the NVIDIA driver's version ("580.82.07") and the newest CUDA version that it supports ("13.0"); None if
    unknown.

    Does not initialize CUDA.
    """
    number, text = ctypes.c_int(), ctypes.create_string_buffer(96)
    try:
        cuda = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)) == 0
    except OSError:
        return None, None
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        has_version = nvml.nvmlInit_v2() == 0
    except OSError:
        has_version = False
    if has_version:
        has_version = nvml.nvmlSystemGetDriverVersion(text, len(text)) == 0
        nvml.nvmlShutdown()
    api = f"{number.value // 1000}.{number.value % 1000 // 10}" if cuda else None
    return text.value.decode() if has_version else None, api


def cudnn_version() -> int | None:
    """Load cuDNN and return its version, 91002 for 9.10.2, or None if it is not installed. Needs no GPU."""
    try:
        path = import_module("cuda.pathfinder").load_nvidia_dynamic_lib("cudnn").abs_path
        library = ctypes.CDLL(path)
    except (RuntimeError, OSError, ImportError):
        return None
    library.cudnnGetVersion.restype = ctypes.c_size_t
    return int(library.cudnnGetVersion())
