"""NVML, for what the CUDA driver does not tell: which processes use a device."""

from __future__ import annotations

import ctypes

from flambeau.core.errors import DriverError, NotSupportedError

_TOO_SMALL = 7  # NVML_ERROR_INSUFFICIENT_SIZE
_UNKNOWN = (1 << 64) - 1  # what usedGpuMemory is where the system does not say


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


def processes(uuid: str) -> list[tuple[int, int]]:
    """(process id, bytes) of each process that computes on a device.

    NotSupportedError: the machine has no NVML; DriverError: it failed.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise NotSupportedError(f"NVML cannot be loaded: {error}") from None
    _check(nvml.nvmlInit_v2(), "nvmlInit")
    try:
        return _processes(nvml, uuid)
    finally:
        nvml.nvmlShutdown()


def _processes(nvml: ctypes.CDLL, uuid: str) -> list[tuple[int, int]]:
    device = ctypes.c_void_p()
    name = (uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}").encode()
    _check(nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(device)), "nvmlDeviceGetHandleByUUID")
    room = 64
    while True:
        count, found = ctypes.c_uint(room), (_Process * room)()
        code = nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), found)
        if code != _TOO_SMALL:
            break
        room = 2 * max(room, count.value)
    _check(code, "nvmlDeviceGetComputeRunningProcesses")
    return [(p.pid, 0 if p.used == _UNKNOWN else p.used) for p in found[: count.value]]


def _check(code: int, call: str) -> None:
    if code:
        raise DriverError(f"{call} failed with NVML error {code}")
