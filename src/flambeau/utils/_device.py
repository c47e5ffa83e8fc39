"""torch.utils._device: the mode that makes a device the default of new tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from inspect import isfunction, signature
from typing import Any

from flambeau.core.device import device as Device
from flambeau.core.public_names import explain_absent_names
from flambeau.tensor.arguments.torch_function import TorchFunctionMode
from flambeau.utils._contextlib import context_decorator

__all__ = ["DeviceContext", "device_decorator", "set_device"]

# Functions with a parameter `device` that do not make tensors on the default device.
_OTHERS = {"from_dlpack", "from_file", "get_device_module", "normal", "set_default_device"}


@cache
def _device_constructors() -> set[Any]:
    """Return the functions that make tensors on the default device."""
    namespace: Any = sys.modules["flambeau"]  # which imports this package
    named = {
        value
        for name, value in vars(namespace).items()
        if isfunction(value) and not name.endswith("_like") and name not in _OTHERS
    }
    constructors = {each for each in named if "device" in signature(each).parameters}
    return constructors | {namespace.fft.fftfreq, namespace.fft.rfftfreq, namespace.nested.nested_tensor}


class DeviceContext(TorchFunctionMode):
    """A mode in which functions that make tensors use a device, unless they are called with another one.

    Args:
        device: The device, or its name.
    """

    def __init__(self, device: Any) -> None:
        self.device = Device(device)

    def __enter__(self) -> Any:
        self.device.__enter__()  # modules create their parameters below the functions that a mode overrides
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.device.__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _device_constructors() and kwargs.get("device") is None:
            kwargs["device"] = self.device
        return func(*args, **kwargs)


def device_decorator(device: Any, func: Any) -> Any:
    """Return a function or class that runs `func` with a device as the default."""
    return context_decorator(lambda: device, func)


def set_device(device: Any) -> Callable[[Any], Any]:
    """Return a decorator of functions that run with a device as the default."""
    return lambda func: device_decorator(Device(device), func)


explain_absent_names(globals(), "torch.utils._device")
