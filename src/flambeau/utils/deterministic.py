"""torch.utils.deterministic: whether new memory is filled while `use_deterministic_algorithms(True)` holds."""

from __future__ import annotations

import sys
from types import ModuleType

from flambeau.core.flags import flags


class _Deterministic(ModuleType):
    @property
    def fill_uninitialized_memory(self) -> bool:
        """Return True if `empty` and `resize_` fill what they give, while algorithms are to be deterministic
        (default True).

        Numbers with a point are NaN then, others their dtype's largest value: see tensor/deterministic_fill.py.
        It costs time. Raises RuntimeError if it is set to something that is not a bool.
        """
        return flags.fill_uninitialized

    @fill_uninitialized_memory.setter
    def fill_uninitialized_memory(self, mode: bool) -> None:
        if not isinstance(mode, bool):
            raise RuntimeError(f"expected a bool, but got {type(mode).__name__}")
        flags.fill_uninitialized = mode


sys.modules[__name__].__class__ = _Deterministic
