"""`skip_init`: creation of modules without initializing their parameters."""

from __future__ import annotations

import inspect
from typing import Any

from flambeau.nn.modules.module import Module


def skip_init(module_cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Return `module_cls(*args, **kwargs)` with uninitialized parameters.

    The module is created on the meta device, so nothing is computed, and no random number is drawn.

    Raises:
        RuntimeError: If `module_cls` is not a Module, or does not accept `device`.
    """
    if not issubclass(module_cls, Module):
        raise RuntimeError(f"Expected a Module; got {module_cls}")
    if "device" not in inspect.signature(module_cls).parameters:
        raise RuntimeError("Module must support a 'device' arg to skip initialization")
    final_device = kwargs.pop("device", "cpu")
    return module_cls(*args, **kwargs, device="meta").to_empty(device=final_device)
