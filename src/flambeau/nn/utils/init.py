"""Modules whose parameters are to be filled otherwise."""

from __future__ import annotations

import inspect
from typing import Any

from flambeau.nn.modules.module import Module
from flambeau.runtime.generator import default_of
from flambeau.tensor.functions import creation


def skip_init(module_cls: Any, *args: Any, **kwargs: Any) -> Any:
    """A module whose parameters have no particular values: `module_cls(*args, **kwargs)`, which must take a `device`.

    No random number is drawn from the device's generator. (What initialization draws is given back: Flambeau has no
    meta device to make the module on.) Raises RuntimeError: no Module, or one that takes no device.
    """
    if not issubclass(module_cls, Module):
        raise RuntimeError(f"Expected a Module; got {module_cls}")
    if "device" not in inspect.signature(module_cls).parameters:
        raise RuntimeError("Module must support a 'device' arg to skip initialization")
    kwargs.setdefault("device", "cpu")
    generator = default_of(creation.empty(0, device=kwargs["device"]).device)
    state = generator.state_bytes()
    try:
        return module_cls(*args, **kwargs)
    finally:
        generator.load_state_bytes(state)
