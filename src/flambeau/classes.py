"""torch.classes: classes that C++ libraries register. Flambeau loads no such library, so none is registered."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import NoReturn

from flambeau._ops import ops


class _Namespace(ModuleType):
    """A namespace of `torch.classes`. It is empty, because Flambeau loads no C++ libraries."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        namespace = self.__name__.rpartition(".")[2]
        raise RuntimeError(
            f"Class {namespace}.{name} not registered! Flambeau loads no C++ libraries: write the class in Python."
        )


class _Classes(ModuleType):
    """`torch.classes`, whose attributes are the namespaces of libraries."""

    @property
    def loaded_libraries(self) -> set[str]:
        """Return the paths of loaded libraries."""
        return ops.loaded_libraries

    def load_library(self, path: str) -> None:
        """Load a library of classes. Raises what `torch.ops.load_library` raises."""
        ops.load_library(path)

    def __getattr__(self, name: str) -> ModuleType:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Namespace(f"torch.classes.{name}")


sys.modules[__name__].__class__ = _Classes
