"""torch._C: the names of PyTorch's C++ module that programs which override functions use."""

from __future__ import annotations

from importlib import import_module
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from flambeau import fft, linalg, special
from flambeau._library.user_operators import dispatch_below_autograd as _AutoDispatchBelowAutograd
from flambeau.core.absent import absent_class
from flambeau.core.device import device
from flambeau.core.public_names import lacking, publish
from flambeau.nn import functional
from flambeau.runtime import system
from flambeau.tensor.arguments.torch_function import (
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    in_mode,
)
from flambeau.tensor.arguments.torch_function import ignore_overrides as _disabled_torch_function_impl
from flambeau.tensor.arguments.torch_function import is_enabled as _is_torch_function_enabled
from flambeau.tensor.arguments.typing import preserve_format
from flambeau.tensor.exchange.transfer import to_arguments
from flambeau.tensor.settings import get_default_device
from flambeau.tensor.tensor import Tensor
from flambeau.tensor.wrappers import disabled_torch_dispatch as _disabled_torch_dispatch_impl

__all__ = [
    "DisableTorchFunction",
    "DisableTorchFunctionSubclass",
    "_AutoDispatchBelowAutograd",
    "_disabled_torch_dispatch_impl",
    "_disabled_torch_function_impl",
    "_is_torch_function_enabled",
]  # fmt: skip


def _parse_to(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool, Any]:
    """Return the device, the dtype, `non_blocking` and the memory format that arguments of `Module.to` name."""
    place, kind, non_blocking, _, form = to_arguments(args, kwargs)
    return place, kind, non_blocking, None if form is preserve_format else form


# Modules of functions that PyTorch writes in C++, by its names for them; graphs of torch.fx call functions by these.
_nn = SimpleNamespace(
    _parse_to=_parse_to,
    **{
        {"logsigmoid": "log_sigmoid"}.get(name, name): getattr(functional, name)
        for name in (
            "avg_pool2d", "avg_pool3d", "elu_", "gelu", "hardtanh_", "leaky_relu_", "linear", "logsigmoid", "one_hot",
            "scaled_dot_product_attention", "softplus", "softshrink",
        )
        if hasattr(functional, name)
    }
)  # fmt: skip


def _rename(prefix: str, module: ModuleType) -> SimpleNamespace:
    found = {name: value for name, value in vars(module).items() if isinstance(value, FunctionType)}
    return SimpleNamespace(**{f"{prefix}_{name}": value for name, value in found.items() if name[0] != "_"})


_fft, _linalg, _special = _rename("fft", fft), _rename("linalg", linalg), _rename("special", special)

_TensorMeta = type(Tensor)
TensorBase = Tensor  # Flambeau's class has no other base with the methods of tensors
Graph = absent_class("torch._C", "Graph", "Use torch.fx for graphs.")
Value = absent_class("torch._C", "Value", "Use torch.fx for graphs.")
PyTorchFileReader = absent_class("torch._C", "PyTorchFileReader", "Use torch.load, or the zipfile module.")
PyTorchFileWriter = absent_class("torch._C", "PyTorchFileWriter", "Use torch.save, or the zipfile module.")


def _log_api_usage_once(event: str) -> None:
    """Accept the name of a used function; PyTorch logs it if its C++ logger is on, Flambeau has none."""


_lacking = lacking("torch._C")


def __getattr__(name: str) -> Any:
    if name == "_functorch":
        return import_module("flambeau._C._functorch")
    if name.startswith(("_cuda_", "_Cuda")) or name.endswith("_allow_tf32"):
        return getattr(import_module("flambeau._C._cuda"), name, None) or _lacking(name)
    return _lacking(name)


def _is_tracing() -> bool:
    """Return False: no trace of TorchScript runs."""
    return False


def _get_tracing_state() -> None:
    """Return None, because no TorchScript trace runs."""


def _are_functorch_transforms_active() -> bool:
    """Return False: transforms of `torch.func` need no state of the dispatcher."""
    return False


def _get_accelerator(check: bool | None = None) -> device:
    """Return the device of the accelerator, the CPU if there is none.

    Args:
        check: True if an accelerator must be available.

    Raises:
        RuntimeError: If `check` is True and none is available.
    """
    if system.is_available():
        return device("cuda")
    if check:
        raise RuntimeError("Cannot access accelerator device when none is available.")
    return device("cpu")


def _get_default_device() -> str:
    """Return the type of device of new tensors."""
    return get_default_device().type


def _is_alias_of(this: Tensor, other: Tensor) -> bool:
    """Return True if two tensors share their storage."""
    return this.untyped_storage() == other.untyped_storage()


def _is_torch_function_mode_enabled() -> bool:
    """Return True if a TorchFunctionMode is active and not disabled."""
    return in_mode()


publish(globals())
