"""torch.nn: modules, parameters and functions of neural networks. Modules are imported on first use."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any

from flambeau.core.public_names import lacking as _lacking
from flambeau.nn import functional
from flambeau.nn.functional import namespace as _namespace  # binds the torch namespace's own forms
from flambeau.nn.functional import recurrent as _recurrent  # the same
from flambeau.nn.modules import NAMES as _MODULES

_LATER = {
    **dict.fromkeys(("Buffer", "Parameter", "UninitializedBuffer", "UninitializedParameter"), "nn.parameter"),
    **dict.fromkeys(_MODULES, "nn.modules"),
    "DataParallel": "nn.parallel",
    "factory_kwargs": "nn.modules.utils",
}
_ROOMS = (
    "_reduction",
    "attention",
    "common_types",
    "grad",
    "init",
    "modules",
    "parallel",
    "parameter",
    "utils",
)
__all__ = [*_LATER, *_ROOMS[1:], "functional"]
_raise_absence = _lacking("torch.nn")


def __getattr__(name: str) -> Any:
    if name in _LATER:
        found = getattr(_import_module(f"flambeau.{_LATER[name]}"), name)
    elif name in _ROOMS:
        found = _import_module(f"flambeau.nn.{name}")
    else:
        _raise_absence(name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
