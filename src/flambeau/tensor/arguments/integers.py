"""The values that PyTorch accepts as an int: Python's and NumPy's integers, and integer tensors of one element."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

import numpy as np

from flambeau.core.dtype import INTEGRAL, bool_

LIMIT = 1 << 63
OVERFLOW = "Overflow when unpacking long long"


def int_or_none(x: Any) -> int | None:
    """Return `x` as an int, or None for a bool, a float or a tensor of several elements."""
    if isinstance(x, bool):
        return None
    try:
        return index(x)
    except TypeError:
        return None


def as_int(value: Any) -> int:
    """Return an object with `__index__` as an int.

    Raises:
        TypeError: If `value` is no integer.
        ValueError: If it has more than 63 bits.
    """
    plain = index(value)
    if -LIMIT <= plain < LIMIT:
        return plain
    raise ValueError(OVERFLOW)


def is_int(value: Any) -> bool:
    """Return True for Python's and NumPy's integers, and for 0-dim integer tensors.

    PyTorch's parser accepts these for the type int. For SymInt it accepts every object with `__index__`.
    """
    meta = getattr(value, "meta", None)
    if meta is not None:
        return not meta.ndim and meta.dtype.category == INTEGRAL
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def refuse_bool_tensors(sizes: Iterable[Any], function: str, name: str) -> None:
    """Raise RuntimeError if a size is a tensor of dtype bool. As a dimension PyTorch accepts one."""
    for at, size in enumerate(sizes):
        if getattr(size, "dtype", None) is bool_:
            raise RuntimeError(
                f"{function}(): argument '{name}' must consist of ints, but found a tensor of dtype bool at pos {at}. "
                "Convert it by int() or Tensor.int()."
            )
