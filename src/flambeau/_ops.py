"""torch.ops: PyTorch's own operators in `aten`, and namespaces that programs define with `torch.library`.

C++ libraries of operators cannot be loaded.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from flambeau.tensor import dispatch

__all__ = ["ops"]

_TABLE = "flambeau._library.user_operators"  # not imported before the program defines an operator
_ATEN = "flambeau._aten.table"  # the operators of PyTorch's own; not imported before the program names one

dispatch.load_lowering_with(lambda: import_module("flambeau._aten.lowering"))

_OPERATORS = frozenset(
    f"__{i}{name}__" for i in ("", "i") for name in ("and", "lshift", "or", "rshift", "xor")
)  # operators of Python that `aten` has


def _table(namespace: str) -> Any:
    """Return the module that holds the operators of `torch.ops`; None if no operator is defined yet."""
    if namespace == "aten":
        import_module(_ATEN)
    return sys.modules.get(_TABLE)


class _OpNamespace(ModuleType):
    """The operators of one namespace, such as `torch.ops.torchvision`."""

    def __init__(self, name: str) -> None:
        super().__init__(f"torch.ops.{name}")
        self.name = name
        self.__file__ = "torch.ops"

    def __getattr__(self, op_name: str) -> Any:
        table = _table(self.name)
        dunder = op_name.startswith("__") and op_name not in _OPERATORS
        if table is None or dunder or not table.overloads_of(f"{self.name}::{op_name}"):
            raise AttributeError(f"'_OpNamespace' '{self.name}' object has no attribute '{op_name}'")
        packet = table.packet_of(f"{self.name}::{op_name}")
        setattr(self, op_name, packet)
        return packet

    def __dir__(self) -> list[str]:
        if self.name == "aten":
            return sorted({*import_module(_ATEN).names(), *_table(self.name).operator_names(self.name)})
        table = _table(self.name)
        return [] if table is None else list(table.operator_names(self.name))


class _Ops:
    """The type of `torch.ops`, whose attributes are namespaces."""

    __name__ = "torch.ops"

    @property
    def loaded_libraries(self) -> set[str]:
        """Return the paths of the libraries that `load_library` has loaded."""
        return set()

    def load_library(self, path: str | os.PathLike[str]) -> NoReturn:
        """Raise OSError: a library of operators needs PyTorch's C++ library.

        Args:
            path: The library's file.
        """
        raise OSError(
            f"Could not load this library: {os.fspath(path)}. Its operators need PyTorch's C++ library, which is not "
            "here: `torch` is Flambeau in this process."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"'_Ops' object has no attribute '{name}'")
        namespace = _OpNamespace(name)
        setattr(self, name, namespace)
        return namespace


ops = _Ops()


def __getattr__(name: str) -> Any:
    if name in ("OpOverload", "OpOverloadPacket"):
        return getattr(import_module(_TABLE), name)
    raise AttributeError(
        f"module 'torch._ops' has no attribute '{name}': Flambeau lacks it (PyTorch may have it)"
    )
