"""The public test kit, with the names of `torch.testing`.

`flambeau.testing.explore(fn)` and `flambeau.testing.ranks(fn, n)` call the functions of the modules with these names.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from flambeau.core.public_names import lacking

_LATER = {  # they import all of Flambeau
    "assert_allclose": "flambeau.testing.closeness",
    "assert_close": "flambeau.testing.closeness",
    "make_tensor": "flambeau.testing.random_tensors",
}
_CALLED = ("explore", "ranks")  # likewise
_absent = lacking("torch.testing")


class _Called(ModuleType):
    """A module that may be called as its function of the same name is."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)


def make_callable(module: str) -> None:
    """Make a module callable. A module calls this for itself at its end."""
    sys.modules[module].__class__ = _Called


def __getattr__(name: str) -> Any:
    if name in _CALLED:
        return import_module(f"flambeau.testing.{name}")
    if name not in _LATER:
        return _absent(name)
    found = globals()[name] = getattr(import_module(_LATER[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, *_CALLED})
