"""`torch.cuda`'s functions on what a GPU does and how warm it is: NVML's, of real GPUs.

`device` is a torch.device, int or str; None is the current device. RuntimeError: there is no such device.
NotSupportedError: it is a virtual GPU, or NVML cannot be loaded.
"""

from __future__ import annotations

from typing import Any

from flambeau.core.errors import NotSupportedError
from flambeau.driver.registry import sensor
from flambeau.runtime import current, system

__all__ = ["clock_rate", "memory_usage", "power_draw", "temperature", "utilization"]


def utilization(device: Any = None) -> int:
    """Return percent of the last sample period (1/6 to 1 s) in which a kernel ran on the device, as nvidia-smi says.

    Raises:
        NotSupportedError: On virtual GPUs, which have no sensors.
    """
    return _read("utilization", device)


def memory_usage(device: Any = None) -> int:
    """Return percent of the last sample period in which the device's memory was read or written, as nvidia-smi says.

    Raises:
        NotSupportedError: On virtual GPUs, which have no sensors.
    """
    return _read("memory_usage", device)


def temperature(device: Any = None) -> int:
    """Return the device's temperature in degrees Celsius.

    Raises:
        NotSupportedError: On virtual GPUs, which have no sensors.
    """
    return _read("temperature", device)


def power_draw(device: Any = None) -> int:
    """Return what the device draws, in milliwatts.

    Raises:
        NotSupportedError: On virtual GPUs, which have no sensors.
    """
    return _read("power_draw", device)


def clock_rate(device: Any = None) -> int:
    """Return the clock of the device's multiprocessors in MHz. A virtual GPU runs at its profile's.

    Raises:
        RuntimeError: If there is no such device.
    """
    if system.is_virtual():
        context = current.context_at(current.index_of(device, optional=True))
        return context.driver.device_properties(context.driver_index).clock_rate // 1000
    return _read("clock_rate", device)


def _read(name: str, device: Any) -> int:
    context = current.context_at(current.index_of(device, optional=True))
    if system.is_virtual():
        raise NotSupportedError(
            f"torch.cuda.{name}: virtual GPUs have no sensors, and no time passes on them"
        )
    return sensor(name, context.driver.device_properties(context.driver_index).uuid)
