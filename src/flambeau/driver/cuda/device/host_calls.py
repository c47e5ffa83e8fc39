"""`HostCalls`: host functions of the program that streams call, in a thread of CUDA."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as cu

from flambeau.driver.cuda.device.calls import error_of
from flambeau.driver.cuda.device.capture import CudaCapture

_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class HostCalls:
    """Host functions by key, each until it has run. Functions of a graph are kept until the graph is destroyed.

    Attributes:
        raised: The exceptions that functions raised.
    """

    def __init__(self) -> None:
        self.raised: list[BaseException] = []  # errors that the next wait raises
        self._calls: dict[int, Callable[[], None]] = {}
        self._kept: set[int] = set()  # keys of calls that graphs repeat
        self._trampoline = _HOST_FUNCTION(self._run)
        self._trampoline_at = ctypes.cast(self._trampoline, ctypes.c_void_p).value

    def queue(self, key: int, call: Callable[[], None], native: Any, capture: CudaCapture | None) -> None:
        """Enqueue a call of a host function. With `capture`, each launch of the graph calls it."""
        self._calls[key] = call
        if capture is not None:
            capture.calls.append(key)
            self._kept.add(key)
        (code,) = cu.cuLaunchHostFunc(native, cu.CUhostFn(self._trampoline_at), key)
        if code:
            del self._calls[key]
            raise error_of(code)

    def _run(self, key: int) -> None:
        """Run a host function in CUDA's thread. It needs the GIL, which every wait of this driver releases."""
        try:
            (self._calls[key] if key in self._kept else self._calls.pop(key))()
        except BaseException as error:
            self.raised.append(error)

    def forget(self, capture: CudaCapture) -> None:
        """Drop the host functions of a capture whose graph was destroyed."""
        for key in capture.calls:
            self._kept.discard(key)
            self._calls.pop(key, None)
