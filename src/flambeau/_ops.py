"""torch.ops: namespaces of operators that C++ libraries register. Flambeau loads none, so each is empty."""

from __future__ import annotations

import os
from typing import Any, NoReturn

__all__ = ["ops"]


class _OpNamespace:
    """The operators of one namespace, such as `torch.ops.torchvision`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, op_name: str) -> NoReturn:
        raise AttributeError(f"'_OpNamespace' '{self.name}' object has no attribute '{op_name}'")


class _Ops:
    """The type of `torch.ops`, whose attributes are namespaces."""

    __name__ = "torch.ops"

    @property
    def loaded_libraries(self) -> set[str]:
        """The paths of the libraries that `load_library` has loaded."""
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
