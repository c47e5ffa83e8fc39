"""torch._VF: PyTorch's C++ functions by the names that they have in `torch`, such as `_VF.lstm`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from flambeau.core.public_names import lacking

_absent = lacking("torch._VF")


def __getattr__(name: str) -> Any:
    found = getattr(import_module("flambeau"), name, None)
    return found if callable(found) else _absent(name)
