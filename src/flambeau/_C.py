"""torch._C: of the module of PyTorch's C++ half, what programs that override functions take from there."""

from __future__ import annotations

from flambeau.core.names import lacking, publish
from flambeau.tensor.arguments.torch_function import DisableTorchFunction, DisableTorchFunctionSubclass
from flambeau.tensor.arguments.torch_function import ignore_overrides as _disabled_torch_function_impl
from flambeau.tensor.arguments.torch_function import is_enabled as _is_torch_function_enabled

__all__ = [
    "DisableTorchFunction", "DisableTorchFunctionSubclass", "_disabled_torch_function_impl",
    "_is_torch_function_enabled",
]  # fmt: skip

__getattr__ = lacking("torch._C")
publish(globals())
