"""The registry of drivers, the only module that names them. It imports a driver when one is opened."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flambeau.driver.protocol import Driver

if TYPE_CHECKING:
    from flambeau.core.host.host_wait import Awaited

_DRIVERS = {
    "host": ("flambeau.driver.host", "HostDriver"),
    "virtual": ("flambeau.driver.virtual", "VirtualDriver"),
    "shapes": ("flambeau.driver.virtual.meta_driver", "ShapeDriver"),
    "meta": ("flambeau.driver.host.dataless", "MetaDriver"),
    "cuda": ("flambeau.driver.cuda.driver", "CudaDriver"),
}


def why_no_gpu() -> str | None:
    """Return the reason why real GPUs cannot be used, with a fix; None if they may be usable.

    Imports no NVIDIA package.
    """
    found: str | None = import_module("flambeau.driver.cuda.probe").why_not()
    return found


def driver_versions() -> tuple[str | None, str | None]:
    """Return the version of the NVIDIA driver and the newest CUDA version that it runs; None for each if
    unknown.
    """
    found: tuple[str | None, str | None] = import_module("flambeau.driver.cuda.probe").driver_versions()
    return found


def cudnn_version() -> int | None:
    """Return the version of cuDNN, which runs convolutions on real GPUs; None if im2col kernels run them
    instead.
    """
    found: int | None = import_module("flambeau.driver.cuda.probe").cudnn_version()
    return found


def nccl_version() -> int:
    """Return the version of NCCL; 22809 is 2.28.9.

    Raises:
        NotSupportedError: If NCCL is not installed.
    """
    found: int = import_module("flambeau.driver.cuda.libraries.nccl").NcclCommunicators().version()
    return found


def product_workspace() -> int:
    """Return the bytes of workspace that matrix products on a real GPU use for each stream."""
    found: int = import_module("flambeau.driver.cuda.libraries.cublaslt").WORKSPACE
    return found


def sensor(name: str, uuid: str) -> int:
    """Return the value of a real GPU's sensor, which `driver/cuda/libraries/nvml.py` lists by name.

    Raises:
        NotSupportedError: If NVML is not available.
    """
    found: int = import_module("flambeau.driver.cuda.libraries.nvml").sensor(name, uuid)
    return found


def tools_range(on: bool) -> None:
    """Start or stop recording in the NVIDIA tool that runs this process."""
    import_module("flambeau.driver.cuda.libraries.nvtx").tools_range(on)


def nvtx_tool() -> Any:
    """Return the subscriber that forwards ranges to the NVIDIA tool that runs this process; None without a
    tool.
    """
    return import_module("flambeau.driver.cuda.libraries.nvtx").tool()


def open_driver(name: str, **settings: Any) -> Driver:
    """Open a driver by name with its settings. The call never falls back to another driver.

    Raises:
        ValueError: If there is no driver of that name, or it rejects a setting.
    """
    if name not in _DRIVERS:
        raise ValueError(f"no driver is called {name!r}; there are {', '.join(sorted(_DRIVERS))}")
    module, driver = _DRIVERS[name]
    opened: Driver = getattr(import_module(module), driver)(**settings)
    return opened


def check_virtual(setting: str, value: object) -> None:
    """Check a value of the setting `devices`, `profile` or `schedule` without opening virtual GPUs.

    Raises:
        ValueError: If virtual GPUs would reject the value.
    """
    import_module("flambeau.driver.virtual.driver").CHECKS[setting](value)


def virtual_models() -> list[str]:
    """Return the names of the built-in profiles of single nodes, without aliases."""
    profile = import_module("flambeau.driver.virtual.profile")
    return [name for name in profile.profile_names() if profile.load_profile(name).cluster is None]


def profile_table(name: str) -> dict[str, Any]:
    """Return the keys of a profile, or of the TOML file at that path, as the file has them.

    Raises:
        ValueError: If the name is unknown, or the file is missing or malformed.
    """
    table: dict[str, Any] = import_module("flambeau.driver.virtual.profile").profile_table(name)
    return table


def go_on(other: Awaited | None = None) -> None:
    """Let virtual GPUs progress while the host waits for another process.

    With `other`, the object that the host waits for, and no other thread to do so, they progress until it
    has arrived.
    """
    exchange = sys.modules.get("flambeau.driver.virtual.collectives.coordinator_client")
    if exchange is not None:
        exchange.go_on(other)


def ask_around() -> None:
    """Let virtual GPUs progress while the host polls another process."""
    exchange = sys.modules.get("flambeau.driver.virtual.collectives.coordinator_client")
    if exchange is not None:
        exchange.ask_around()


def meet_at(address: str) -> None:
    """Connect this process's virtual GPUs to those of other processes at "RANK@HOST:PORT", without a launcher."""
    import_module("flambeau.driver.virtual.collectives.coordinator_client").meet_at(address)
