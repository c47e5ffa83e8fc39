"""`Functions`: compiled kernels, loaded: each source once for each device, until the driver closes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from cuda.bindings import driver as cu

from flambeau.core.errors import DriverError, KernelPending
from flambeau.core.logs import is_logged, log
from flambeau.driver.cuda.device.calls import check
from flambeau.driver.cuda.device.compiler import Compiler, architecture_of
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram
from flambeau.driver.protocol import Fused, Launch

_SHARED = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Compilation(threading.Thread):
    """A thread that compiles one kernel.

    Attributes:
        cubin: The compiled kernel.
        error: What the compiler raised; None if it succeeded.
    """

    cubin = b""
    error: Exception | None = None

    def __init__(self, compiler: Compiler, source: str) -> None:
        super().__init__(name="flambeau-compilation", daemon=True)
        self._compiler, self._source = compiler, source

    def run(self) -> None:
        try:
            self.cubin = self._compiler.cubin(self._source)
        except (DriverError, ImportError, OSError) as error:
            self.error = error


class Functions:
    """The loaded kernels. `folder` is the disk cache of compiled kernels; None disables it."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._compilers: dict[tuple[int, int], Compiler] = {}  # architecture -> compiler
        self._functions: dict[tuple[int, str], Any] = {}  # (device, source) -> function
        self._libraries: list[Any] = []
        self._compilations: dict[tuple[tuple[int, int], str], Compilation] = {}  # of fused kernels

    def of(self, device: CudaDevice, launch: Launch, program: KernelProgram) -> Any:
        """Return the loaded function of a launch's kernel. The device's context is current."""
        name, source = program.name_and_source(launch)
        key = (device.index, source)
        found = self._functions.get(key)
        if found is None:
            if isinstance(launch.kernel.cuda, Fused):
                self._require_compiled(device, source)
            with self._lock:
                found = self._functions[key] = self._functions.get(key) or self._compile(
                    device, name, source, program.shared
                )
            if isinstance(launch.kernel.cuda, Fused) and is_logged("fusion"):
                log("fusion", f"source of {launch.kernel.name}:\n{source}")
        return found

    def _require_compiled(self, device: CudaDevice, source: str) -> None:
        """Raise KernelPending while a thread compiles the source, or the error with which the compilation failed.

        Why: separate kernels do what a fused one does, so a program need not wait for the compiler.
        """
        compilation = self._compilations.get((device.capability, source))
        if compilation is None:
            compiler = self._compiler(device)
            if compiler.has(source):
                return
            compilation = self._compilations[device.capability, source] = Compilation(compiler, source)
            compilation.start()
        if compilation.is_alive():
            raise KernelPending(compilation.is_alive, compilation.join)
        if compilation.error is not None:
            raise compilation.error

    def _compile(self, device: CudaDevice, name: str, source: str, shared: int) -> Any:
        compilation = self._compilations.pop((device.capability, source), None)
        cubin = self._compiler(device).cubin(source) if compilation is None else compilation.cubin
        library = check(cu.cuLibraryLoadData(cubin, [], [], 0, [], [], 0))
        self._libraries.append(library)
        function = check(cu.cuKernelGetFunction(check(cu.cuLibraryGetKernel(library, name.encode()))))
        if shared:  # more than 48 KiB of shared memory must be requested
            check(cu.cuFuncSetAttribute(function, _SHARED, shared))
        return function

    def _compiler(self, device: CudaDevice) -> Compiler:
        found = self._compilers.get(device.capability)
        if found is None:
            name = architecture_of(device.capability)
            found = self._compilers[device.capability] = Compiler(name, self._folder)
        return found

    def wait(self) -> None:
        """Wait for the compiling threads.

        Why: NVRTC's libraries free their memory when the process ends, and a thread still inside would crash it.
        """
        with self._lock:  # the lock is held while a thread of the program compiles
            compilations = list(self._compilations.values())
        for compilation in compilations:
            compilation.join()

    def drop(self) -> None:
        """Unload all kernels without reporting errors."""
        for library in self._libraries:
            cu.cuLibraryUnload(library)
        self._libraries.clear()
        self._functions.clear()
