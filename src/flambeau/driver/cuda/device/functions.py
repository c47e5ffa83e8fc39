"""`Functions`: compiled kernels, loaded: each source once for each device, until the driver closes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from cuda.bindings import driver as cu

from flambeau.driver.api import Launch
from flambeau.driver.cuda.device.calls import check
from flambeau.driver.cuda.device.compiler import Compiler, architecture_of
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram

_SHARED = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Functions:
    """The loaded kernels. `folder` is the disk cache of compiled kernels; None disables it."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._compilers: dict[tuple[int, int], Compiler] = {}  # architecture -> compiler
        self._functions: dict[tuple[int, str], Any] = {}  # (device, source) -> function
        self._libraries: list[Any] = []

    def of(self, device: CudaDevice, launch: Launch, program: KernelProgram) -> Any:
        """Return the loaded function of a launch's kernel. The device's context is current."""
        name, source = program.name_and_source(launch)
        key = (device.index, source)
        found = self._functions.get(key)
        if found is None:
            with self._lock:
                found = self._functions[key] = self._functions.get(key) or self._compile(
                    device, name, source, program.shared
                )
        return found

    def _compile(self, device: CudaDevice, name: str, source: str, shared: int) -> Any:
        cubin = self._compiler(device).cubin(source)
        library = check(cu.cuLibraryLoadData(cubin, [], [], 0, [], [], 0))
        self._libraries.append(library)
        function = check(cu.cuKernelGetFunction(check(cu.cuLibraryGetKernel(library, name.encode()))))
        if shared:  # a launch gets more than 48 KiB only if the function was allowed to
            check(cu.cuFuncSetAttribute(function, _SHARED, shared))
        return function

    def _compiler(self, device: CudaDevice) -> Compiler:
        found = self._compilers.get(device.capability)
        if found is None:
            name = architecture_of(device.capability)
            found = self._compilers[device.capability] = Compiler(name, self._folder)
        return found

    def drop(self) -> None:
        """Unload all kernels without reporting errors."""
        for library in self._libraries:
            cu.cuLibraryUnload(library)
        self._libraries.clear()
        self._functions.clear()
