"""Null GPUs: NVIDIA's libraries do nothing but succeed, and operators' results come from their host bodies.

Programs over them ask the CUDA driver for the kernels that they would ask a real GPU for, and get the CPU's answers, so
that they go on. `build` and `environment` make processes so; `install` runs at the start of each. It needs gcc.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIBRARIES = {
    "null_cuda.c": "libcuda.so.1", "null_nccl.c": "libnccl.so.2", "null_cudnn.c": "libcudnn.so.9",
    "null_cublaslt.c": "libcublasLt.so.13",
}  # fmt: skip
MOST = 1 << 27  # elements of operands up to which host bodies run


def build(folder: Path) -> None:
    """Compile the libraries, and write the module that each process imports by itself."""
    for source, name in LIBRARIES.items():
        options = ["-shared", "-fPIC", "-w", f"-Wl,-soname,{name}", "-ldl", "-lpthread"]
        subprocess.run(["gcc", "-o", folder / name, HERE / source, *options], check=True)
    (folder / "sitecustomize.py").write_text("import null_gpu\n\nnull_gpu.install()\n")


def environment(folder: Path, nvrtc: Path, more: dict[str, str]) -> dict[str, str]:
    """Of processes over the null GPUs in `folder`, with NVRTC as pip has installed it into `nvrtc`, and `more`."""
    paths = [folder, nvrtc, HERE, HERE.parents[1] / "src", os.environ.get("PYTHONPATH", "")]
    (library,) = nvrtc.glob("nvidia/*/lib/libnvrtc.so.*")
    return {
        **os.environ,
        "LD_LIBRARY_PATH": f"{folder}{os.pathsep}{library.parent}",
        "NULL_GPU_LIBRARIES": os.pathsep.join([*LIBRARIES.values(), library.name]),
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths if path),
        "FLAMBEAU_DRIVER": "cuda",
        "NULL_CUDA_MOVES": str(1 << 28),
        **more,
    }


def install() -> None:
    """Take the null libraries, whatever the machine has, and run host bodies behind launches."""
    for name in os.environ["NULL_GPU_LIBRARIES"].split(os.pathsep):
        ctypes.CDLL(name)
    from flambeau.driver.cuda import driver
    from flambeau.driver.cuda.libraries import native_library
    from flambeau.driver.cuda.nn import convolution

    native_library.load_library = _loaded
    driver.CudaDriver.generic = lambda self, launch, index: (
        None
    )  # a host body needs the record of each launch
    driver.CudaDriver.load = _loading(driver.CudaDriver.load)  # type: ignore[method-assign]
    convolution._by_cudnn = _both_ways(convolution._by_cudnn)


def _loading(load: Callable[..., Any]) -> Callable[..., Any]:
    from flambeau.core.errors import NotSupportedError
    from flambeau.driver.host.driver import HostDriver, HostExecutable

    host = HostDriver()

    def loading(self: Any, launch: Any, index: int) -> Any:
        """An executable that launches its kernels, which do nothing, and then has the host do what they are for."""
        exe = load(self, launch, index)
        try:
            run = host.launcher(HostExecutable(launch.with_(capability=exe.launch.capability)))
        except (NotSupportedError, AssertionError):  # a step of another launch
            return exe
        if sum([meta.numel for meta in launch.operands]) > MOST:
            return exe
        launch_on = exe.launch_on

        def both(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
            launch_on(ptrs, scalars, stream)
            run(ptrs, scalars, stream)

        exe.launch_on = both
        return exe

    return loading


def _both_ways(by_cudnn: Callable[..., bool]) -> Callable[..., bool]:
    """Real cuDNN declines some convolutions, which only it knows: their other way is built, too."""
    from flambeau.driver.cuda.codegen.kernel_steps import KernelSteps
    from flambeau.driver.cuda.nn import convolution

    def both(steps: Any, meeting: Any, target: str) -> bool:
        found = by_cudnn(steps, meeting, target)
        if found:
            convolution._BY_COLUMNS[target](KernelSteps(steps.launch, steps.device, steps.driver), meeting)
        return found

    return both


class _Nothing:
    """A library whose functions do nothing but succeed, in the place of one that has no null source here."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        def nothing(*args: Any) -> int:
            return 0

        return nothing


def _loaded(name: str, title: str, extra: str) -> Any:
    null = next((file for file in LIBRARIES.values() if file.startswith(f"lib{name}.")), None)
    return ctypes.CDLL(null) if null else _Nothing()
