"""The values that PyTorch accepts as an int: Python's and NumPy's integers, and integer tensors of one element."""

from __future__ import annotations

from operator import index
from typing import Any


def int_or_none(x: Any) -> int | None:
    """Return `x` as an int; None for what is none: a bool, a float, a tensor of several elements."""
    if isinstance(x, bool):
        return None
    try:
        return index(x)
    except TypeError:
        return None
