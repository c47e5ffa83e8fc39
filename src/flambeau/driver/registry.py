"""The one place that names the drivers. A driver's package is imported when it is opened, not before."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flambeau.driver.api import Driver

if TYPE_CHECKING:
    from flambeau.core.host.host_wait import Awaited

_DRIVERS = {
    "host": ("flambeau.driver.host", "HostDriver"),
    "virtual": ("flambeau.driver.virtual", "VirtualDriver"),
    "shapes": ("flambeau.driver.virtual.meta_driver", "ShapeDriver"),
    "cuda": ("flambeau.driver.cuda.driver", "CudaDriver"),
}


def why_no_gpu() -> str | None:
    """Why real GPUs cannot be used, with the fix; None where they can be tried. Imports nothing of NVIDIA's."""
    found: str | None = import_module("flambeau.driver.cuda.probe").why_not()
    return found


def driver_versions() -> tuple[str | None, str | None]:
    """The NVIDIA driver's version and the newest CUDA that it runs, as texts; None where there is none."""
    found: tuple[str | None, str | None] = import_module("flambeau.driver.cuda.probe").driver_versions()
    return found


def cudnn_version() -> int | None:
    """The version of the cuDNN that real GPUs' convolutions run by; None where they run by our own columns."""
    found: int | None = import_module("flambeau.driver.cuda.probe").cudnn_version()
    return found


def nccl_version() -> int:
    """The version of the NCCL that real GPUs' collectives run by: 22809 is 2.28.9. NotSupportedError: there is none."""
    found: int = import_module("flambeau.driver.cuda.libraries.nccl").NcclCommunicators().version()
    return found


def product_workspace() -> int:
    """Bytes of workspace that matrix products on a real GPU have, for each stream."""
    found: int = import_module("flambeau.driver.cuda.libraries.cublaslt").WORKSPACE
    return found


def sensor(name: str, uuid: str) -> int:
    """What a real GPU's sensor says, by the names of `driver/cuda/libraries/nvml.py`. NotSupportedError: there is no
    NVML."""
    found: int = import_module("flambeau.driver.cuda.libraries.nvml").sensor(name, uuid)
    return found


def tools_range(on: bool) -> None:
    """Let the NVIDIA tool that runs this process record from now on, or no more."""
    import_module("flambeau.driver.cuda.libraries.nvtx").tools_range(on)


def nvtx_tool() -> Any:
    """What passes the program's ranges on to the NVIDIA tool that runs this process; None if none does."""
    return import_module("flambeau.driver.cuda.libraries.nvtx").tool()


def open_driver(name: str, **settings: Any) -> Driver:
    """Open a driver by name, with that driver's settings. Never falls back to another.

    Raises:
        ValueError: there is no driver of that name, or it refuses a setting.
    """
    if name not in _DRIVERS:
        raise ValueError(f"no driver is called {name!r}; there are {', '.join(sorted(_DRIVERS))}")
    module, driver = _DRIVERS[name]
    opened: Driver = getattr(import_module(module), driver)(**settings)
    return opened


def check_virtual(setting: str, value: object) -> None:
    """ValueError: virtual GPUs would refuse this value of `devices`, `profile` or `schedule`. Opens none."""
    import_module("flambeau.driver.virtual.driver").CHECKS[setting](value)


def go_on(other: Awaited | None = None) -> None:
    """The host is about to wait for another process: virtual GPUs that meet others' do meanwhile what they can.

    With `other`, what it waits for, they do so until that has come: when no other thread is there.
    """
    exchange = sys.modules.get("flambeau.driver.virtual.collectives.coordinator_client")
    if exchange is not None:
        exchange.go_on(other)


def ask_around() -> None:
    """The host asks whether something of other processes is done, again and again: virtual GPUs go on meanwhile."""
    exchange = sys.modules.get("flambeau.driver.virtual.collectives.coordinator_client")
    if exchange is not None:
        exchange.ask_around()


def meet_at(address: str) -> None:
    """Let this process's virtual GPUs meet those of other processes at "RANK@HOST:PORT", where no launcher serves."""
    import_module("flambeau.driver.virtual.collectives.coordinator_client").meet_at(address)
