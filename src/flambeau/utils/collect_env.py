"""torch.utils.collect_env: versions of the package, libraries, compilers and the machine, for reports of errors.

    python -m flambeau.utils.collect_env

`flambeau doctor` also says which devices a program would get, and why.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from flambeau import version
from flambeau.core.public_names import explain_absent_names
from flambeau.driver.driver_registry import cudnn_version, driver_versions
from flambeau.runtime import system

__all__ = ["SystemEnv", "get_env_info", "get_pretty_env_info", "main", "pretty_str"]

_PACKAGES = re.compile(
    r"(flambeau|torch|numpy|scipy|ml[_-]dtypes|nvtx|mypy|optree|onnx|triton|cuda-|nvidia-)", re.I
)
_VERSION = re.compile(r"\d+(?:\.\d+)+")


class SystemEnv(NamedTuple):
    """The collected values. None where a value is unknown, "N/A" for parts that this package does not have."""

    torch_version: str
    is_debug_build: str
    cuda_compiled_version: str | None
    gcc_version: str | None
    clang_version: str | None
    cmake_version: str | None
    os: str
    libc_version: str
    python_version: str
    python_platform: str
    is_cuda_available: str
    cuda_runtime_version: str | None
    cuda_module_loading: str
    nvidia_driver_version: str | None
    nvidia_gpu_models: str | None
    cudnn_version: str | None
    is_xpu_available: str
    pip_version: str
    pip_packages: str
    conda_packages: str | None
    hip_compiled_version: str
    hip_runtime_version: str
    miopen_runtime_version: str
    caching_allocator_config: str
    is_xnnpack_available: str
    cpu_info: str | None


_LABELS = (
    ("PyTorch version", "torch_version"), ("Is debug build", "is_debug_build"),
    ("CUDA used to build PyTorch", "cuda_compiled_version"), ("ROCM used to build PyTorch", "hip_compiled_version"),
    ("", ""), ("OS", "os"), ("GCC version", "gcc_version"), ("Clang version", "clang_version"),
    ("CMake version", "cmake_version"), ("Libc version", "libc_version"),
    ("", ""), ("Python version", "python_version"), ("Python platform", "python_platform"),
    ("Is CUDA available", "is_cuda_available"), ("CUDA runtime version", "cuda_runtime_version"),
    ("CUDA_MODULE_LOADING set to", "cuda_module_loading"), ("GPU models and configuration", "nvidia_gpu_models"),
    ("Nvidia driver version", "nvidia_driver_version"), ("cuDNN version", "cudnn_version"),
    ("Is XPU available", "is_xpu_available"), ("HIP runtime version", "hip_runtime_version"),
    ("MIOpen runtime version", "miopen_runtime_version"), ("Is XNNPACK available", "is_xnnpack_available"),
    ("Caching allocator config", "caching_allocator_config"), ("", ""), ("CPU", "cpu_info"), ("", ""),
    ("Versions of relevant libraries", "pip_packages"), ("", ""), ("Conda packages", "conda_packages"),
)  # fmt: skip


def get_env_info() -> SystemEnv:
    """Return the versions of this package, of libraries, compilers and the driver, and the visible GPUs.

    The GPUs are those that a program here gets: under `flambeau run` without a real GPU, virtual ones. CUDA is
    initialized if it is available.
    """
    available = system.is_available()
    driver, runtime = driver_versions()
    return SystemEnv(
        torch_version=version.__version__,
        is_debug_build=str(version.debug),
        cuda_compiled_version=version.cuda,
        gcc_version=_tool_version("gcc"),
        clang_version=_tool_version("clang"),
        cmake_version=_tool_version("cmake"),
        os=_system(),
        libc_version="-".join(platform.libc_ver()) if sys.platform == "linux" else "N/A",
        python_version=f"{sys.version.replace(chr(10), ' ')} ({sys.maxsize.bit_length() + 1}-bit runtime)",
        python_platform=platform.platform(),
        is_cuda_available=str(available),
        cuda_runtime_version=runtime,
        cuda_module_loading=os.environ.get("CUDA_MODULE_LOADING", "LAZY") if available else "N/A",
        nvidia_driver_version=driver,
        nvidia_gpu_models="\n".join(_gpus()) if available else "No CUDA",
        cudnn_version=None if (number := cudnn_version()) is None else str(number),
        is_xpu_available="False",
        pip_version="pip3",
        pip_packages="\n".join(_packages()),
        conda_packages=_conda_packages(),
        hip_compiled_version="N/A",
        hip_runtime_version="N/A",
        miopen_runtime_version="N/A",
        caching_allocator_config=_allocator_settings(),
        is_xnnpack_available="False",
        cpu_info=_cpu(),
    )


def pretty_str(envinfo: SystemEnv) -> str:
    """Return collected values as text, a line or block for each."""
    lines = []
    for label, field in _LABELS:
        value = getattr(envinfo, field) if field else ""
        value = "Could not collect" if value is None else value
        lines.append(f"{label}:{chr(10) if chr(10) in value else ' '}{value}" if label else "")
    return "\n".join(lines)


def get_pretty_env_info() -> str:
    """Return what `get_env_info` collects as text."""
    return pretty_str(get_env_info())


def main() -> None:
    """Print what `get_env_info` collects."""
    print("Collecting environment information...")
    print(get_pretty_env_info())


def _allocator_settings() -> str:
    """Return the text of the variable that configures the caching allocator; "N/A" if none is set."""
    found = (os.environ.get(name) for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"))
    return next((text for text in found if text), "N/A")


def _tool_version(name: str) -> str | None:
    """Return the version that a compiler prints in its first line; None if it is not installed."""
    path = shutil.which(name)
    if path is None:
        return None
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False)
    return next(iter(_VERSION.findall(done.stdout.partition("\n")[0])[-1:]), None)


def _system() -> str:
    """Return the name of the operating system and its machine."""
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = f"{platform.system()} {platform.release()}"
    return f"{name} ({platform.machine()})"


def _gpus() -> Iterator[str]:
    settings = system.machine_settings()
    kind = f" (virtual: profile {settings.profile})" if settings.driver == "virtual" else ""
    system.init()
    for context in system.contexts():
        name = context.driver.device_properties(context.driver_index).name
        yield f"GPU {context.index}: {name}{kind}"


def _packages() -> Iterator[str]:
    found = {
        each.metadata["Name"]: each.version for each in metadata.distributions() if each.metadata["Name"]
    }
    for name in sorted(found, key=str.lower):
        if _PACKAGES.match(name):
            yield f"[pip3] {name}=={found[name]}"


def _conda_packages() -> str | None:
    """Return the packages of a conda environment; None outside of one."""
    folder = os.environ.get("CONDA_PREFIX")
    if not folder:
        return None
    names = sorted(path.stem for path in Path(folder, "conda-meta").glob("*.json"))
    return "\n".join(f"[conda] {name}" for name in names if _PACKAGES.match(name)) or None


def _cpu() -> str | None:
    """Return the model of the processor and the number of its threads."""
    with_name = Path("/proc/cpuinfo")
    text = with_name.read_text("utf-8", "replace") if with_name.is_file() else ""
    found = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    name = found[1] if found else platform.processor() or None
    return name and f"{name}, {os.cpu_count()} threads"


explain_absent_names(globals(), "torch.utils.collect_env")

if __name__ == "__main__":
    main()
