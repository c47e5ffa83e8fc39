"""NVML: the processes that use a device, and its sensors, which the CUDA driver does not report."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flambeau.core.errors import DriverError, NotSupportedError

_TOO_SMALL = 7  # NVML_ERROR_INSUFFICIENT_SIZE
_UNKNOWN = (1 << 64) - 1  # the value of usedGpuMemory on systems that do not report it


class _NvmlProcess(ctypes.Structure):
    """The C struct nvmlProcessInfo_t."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


def processes(uuid: str) -> list[tuple[int, int]]:
    """Return (process id, bytes) of each process that computes on a device.

    Raises:
        NotSupportedError: If the machine has no NVML.
        DriverError: If it failed.
    """
    with _open_device(uuid) as (nvml, device):
        return _processes(nvml, device)


class _Utilization(ctypes.Structure):
    """The C struct nvmlUtilization_t: percents of the last sample period."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


def sensor(name: str, uuid: str) -> int:
    """Return a sensor's value.

    Names: "utilization" and "memory_usage" in percent, "temperature" in Celsius, "power_draw" in mW, "clock_rate"
    in MHz.

    Raises:
        NotSupportedError: If the machine has no NVML.
        DriverError: If it failed, as where the device has no such sensor.
    """
    with _open_device(uuid) as (nvml, device):
        if name in ("utilization", "memory_usage"):
            rates = _Utilization()
            _check(
                nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(rates)),
                "nvmlDeviceGetUtilizationRates",
            )
            return rates.gpu if name == "utilization" else rates.memory
        value = ctypes.c_uint()
        call, *which = _SENSORS[name]
        _check(getattr(nvml, call)(device, *which, ctypes.byref(value)), call)
        return value.value


_SENSORS: dict[str, tuple[Any, ...]] = {
    "temperature": ("nvmlDeviceGetTemperature", 0),  # NVML_TEMPERATURE_GPU
    "power_draw": ("nvmlDeviceGetPowerUsage",),
    "clock_rate": ("nvmlDeviceGetClockInfo", 1),  # NVML_CLOCK_SM
}


@contextmanager
def _open_device(uuid: str) -> Iterator[tuple[Any, ctypes.c_void_p]]:
    """Return the library and a device's handle."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise NotSupportedError(f"NVML cannot be loaded: {error}") from None
    _check(nvml.nvmlInit_v2(), "nvmlInit")
    try:
        device = ctypes.c_void_p()
        name = (uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}").encode()
        _check(nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(device)), "nvmlDeviceGetHandleByUUID")
        yield nvml, device
    finally:
        nvml.nvmlShutdown()


def _processes(nvml: Any, device: ctypes.c_void_p) -> list[tuple[int, int]]:
    room = 64
    while True:
        count, found = ctypes.c_uint(room), (_NvmlProcess * room)()
        code = nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), found)
        if code != _TOO_SMALL:
            break
        room = 2 * max(room, count.value)
    _check(code, "nvmlDeviceGetComputeRunningProcesses")
    return [(p.pid, 0 if p.used == _UNKNOWN else p.used) for p in found[: count.value]]


def _check(code: int, call: str) -> None:
    if code:
        raise DriverError(f"{call} failed with NVML error {code}")
