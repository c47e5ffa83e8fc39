"""`torch.cuda`'s sensors of real GPUs (utilization, temperature, power), read by NVML.

`device` is a torch.device, int or str; None is the current device. Functions raise RuntimeError if the device does not
exist, and NotSupportedError on virtual GPUs or if NVML cannot be loaded.
"""

from __future__ import annotations

from typing import Any

from flambeau.core.errors import NotSupportedError
from flambeau.driver.driver_registry import sensor
from flambeau.runtime import current, system

__all__ = ["clock_rate", "memory_usage", "power_draw", "temperature", "utilization"]


def utilization(device: Any = None) -> int:
    """Return the percentage of the last sample period (1/6 to 1 s) in which a kernel ran on the device, like
    nvidia-smi.

    Raises:
        NotSupportedError: On virtual GPUs, which have no sensors.
    """
    return _read("utilization", device)


def memory_usage(device: Any = None) -> int:
    """Return the percentage of the last sample period in which the device's memory was accessed, like nvidia-smi.

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
    """Return the power that the device draws, in milliwatts.

    Raises:
        NotSupportedError: On virtual GPUs, which have no sensors.
    """
    return _read("power_draw", device)


def clock_rate(device: Any = None) -> int:
    """Return the clock of the device's multiprocessors in MHz. A virtual GPU runs at the clock of its profile.

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
