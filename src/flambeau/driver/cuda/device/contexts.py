"""`Contexts`: the devices of a process, and the current context of each thread.

# Note [Contexts of real GPUs]
Every device is used through its primary context, which PyTorch, CuPy and the CUDA runtime share. It is retained when a
call first needs it. The driver API has a current context for each thread. `enter` sets it before each call that
depends on it: always if there are several GPUs, since other libraries switch contexts too, and once per thread if
there is one GPU. A garbage collection may run between `enter` and the call and free an object of another GPU. With
several GPUs each collection therefore restores the context that was current before it.
"""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

from cuda.bindings import driver as cu

from flambeau.core.errors import DriverError
from flambeau.driver.cuda.device.calls import INVALID_DEVICE, NO_DEVICE, check, error_of
from flambeau.driver.cuda.device.device import CudaDevice


class _Thread(threading.local):
    """The calling thread's state: whether its current context was set, and the context before a garbage collection."""

    entered = False
    context: Any = None


class Contexts:
    """The CUDA contexts of all devices. `thread.entered` is True if one of them is current in the calling thread."""

    def __init__(self) -> None:
        self.devices = [CudaDevice(i) for i in range(_count_devices())]
        self.several = len(self.devices) > 1
        self.thread = _Thread()
        self.closed = False
        self._process = os.getpid()
        self._collected = self._keep_context
        if self.several:
            gc.callbacks.append(self._collected)

    def check_open(self) -> None:
        if self.closed:
            raise DriverError("the cuda driver has been closed")

    def device(self, index: int) -> CudaDevice:
        self.check_open()
        if not 0 <= index < len(self.devices):
            raise DriverError(
                f"CUDA error: invalid device ordinal: the cuda driver has {len(self.devices)} devices, "
                f"there is no device {index}"
            )
        return self.devices[index]

    def enter(self, device: CudaDevice) -> None:
        """Make the device's context current in this thread. See Note [Contexts of real GPUs]."""
        (code,) = cu.cuCtxSetCurrent(device.open() if device.context is None else device.context)
        if code:
            raise error_of(code)
        self.thread.entered = True

    def enter_at(self, index: int) -> None:
        self.enter(self.devices[index])

    def settle(self, device: CudaDevice) -> None:
        """Enter a device and wait for all of its work."""
        self.enter(device)
        check(cu.cuCtxSynchronize())

    def leave(self) -> None:
        """Unregister the callback of garbage collection, because the driver closes."""
        if self.several:
            gc.callbacks.remove(self._collected)

    def _keep_context(self, phase: str, info: dict[str, int]) -> None:
        """Restore the current context after each garbage collection, whose finalizers may change it.

        A forked child has no contexts.
        """
        if os.getpid() != self._process:
            return
        if phase == "start":
            _, self.thread.context = cu.cuCtxGetCurrent()
        else:
            cu.cuCtxSetCurrent(self.thread.context)


def _count_devices() -> int:
    """Initialize the CUDA driver and count its visible devices; CUDA_VISIBLE_DEVICES may hide all of them.

    The driver answers INVALID_DEVICE if that variable names a device twice.
    """
    (code,) = cu.cuInit(0)
    if code in (NO_DEVICE, INVALID_DEVICE):
        return 0
    if code:
        raise error_of(code)
    count: int = check(cu.cuDeviceGetCount())
    return count
