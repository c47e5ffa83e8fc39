"""torch.utils.deterministic: the filling of new memory under `use_deterministic_algorithms(True)`."""

from __future__ import annotations

import sys
from types import ModuleType

from flambeau.core.flags import flags


class _Deterministic(ModuleType):
    @property
    def fill_uninitialized_memory(self) -> bool:
        """Return True if `empty` and `resize_` fill new memory while algorithms must be deterministic (default True).

        Floating-point numbers become NaN, others their dtype's largest value: see tensor/deterministic_fill.py. Filling
        takes time.

        Raises:
            RuntimeError: If it is set to a value that is not a bool.
        """
        return flags.fill_uninitialized

    @fill_uninitialized_memory.setter
    def fill_uninitialized_memory(self, mode: bool) -> None:
        if not isinstance(mode, bool):
            raise RuntimeError(f"expected a bool, but got {type(mode).__name__}")
        flags.fill_uninitialized = mode


sys.modules[__name__].__class__ = _Deterministic
