"""`Compiler`: compiles CUDA C++ to a cubin for one architecture, by NVRTC, with a cache on disk.

NVRTC is loaded only when a kernel is not in the cache. Cubins are built for the exact architecture, because an older
driver refuses PTX of a newer NVRTC.
"""

from __future__ import annotations

import hashlib
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from flambeau.core.errors import DriverError
from flambeau.driver.cuda.device.kernel_cache import DiskCache
from flambeau.driver.cuda.device.program import header_text

_OPTIONS = ("--std=c++17", "-default-device", "--fmad=false")  # see docs/real-gpus.md: contraction


def architecture_of(capability: tuple[int, int]) -> str:
    """Return NVRTC's name of a compute capability; for Hopper "sm_90a", which includes Hopper-only instructions."""
    major, minor = capability
    return f"sm_{major}{minor}" + ("a" if capability == (9, 0) else "")


class Compiler:
    """A compiler for one architecture.

    Args:
        architecture: The architecture, such as "sm_90a".
        folder: The folder of the disk cache; None disables it.
        options: Further options of NVRTC.
    """

    def __init__(self, architecture: str, folder: Path | None, options: tuple[str, ...] = ()) -> None:
        self.architecture = architecture
        self._options = (*_OPTIONS, *options, f"--gpu-architecture={architecture}")
        self._cache = DiskCache(folder) if folder is not None else None
        self._prelude = header_text("prelude")
        self._version = ""  # the compiler's version; found on first use, because that takes milliseconds
        self.compiled = 0  # number of compilations by NVRTC

    def cubin(self, source: str) -> bytes:
        """Return the cubin of the prelude and `source`. A DriverError contains the compiler's log."""
        text = f"{self._prelude}\n{source}"
        if self._cache is None:
            return self._compile(text)
        key = self._key(text)
        found = self._cache.get(key)
        if found is None:
            found = self._compile(text)
            self._cache.put(key, found)
        return found

    def has(self, source: str) -> bool:
        """Return True if the disk cache has the cubin of `source`."""
        return (
            self._cache is not None and self._cache.get(self._key(f"{self._prelude}\n{source}")) is not None
        )

    def _key(self, text: str) -> str:
        self._version = self._version or _compiler_version()
        parts = (text, *self._options, self._version)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _compile(self, text: str) -> bytes:
        self.compiled += 1
        nvrtc: Any = import_module("cuda.bindings.nvrtc")
        options = [option.encode() for option in self._options]
        program = _check(nvrtc.nvrtcCreateProgram(text.encode(), b"flambeau.cu", 0, [], []))
        try:
            (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
            if status:
                raise DriverError(
                    f"NVRTC could not compile a kernel:\n{_log(nvrtc, program)}\n{text[-4000:]}"
                )
            cubin = b" " * int(_check(nvrtc.nvrtcGetCUBINSize(program)))
            _check(nvrtc.nvrtcGetCUBIN(program, cubin))
            return cubin
        finally:
            nvrtc.nvrtcDestroyProgram(program)


def _check(result: tuple[Any, ...]) -> Any:
    if result[0]:
        raise DriverError(f"NVRTC: {result[0]!r}")
    return result[1] if len(result) == 2 else None


def _log(nvrtc: Any, program: Any) -> str:
    log = b" " * int(_check(nvrtc.nvrtcGetProgramLogSize(program)))
    _check(nvrtc.nvrtcGetProgramLog(program, log))
    return log.rstrip(b"\0 ").decode()


def _compiler_version() -> str:
    """Return the installed compiler's version, without loading it if its package states the version."""
    try:
        return metadata.version("nvidia-cuda-nvrtc")
    except metadata.PackageNotFoundError:
        nvrtc: Any = import_module("cuda.bindings.nvrtc")
        status, major, minor = nvrtc.nvrtcVersion()
        if status:
            raise DriverError(f"NVRTC: {status!r}") from None
        return f"{major}.{minor}"
