"""Views over storages: their arguments, and the single check that a view is inside its storage.

# Note [Views over storages]
Problem: a layout with one wrong number accesses memory of other tensors. The numbers may be from a file, and may have
any type: 8-bit tensors wrap around in arithmetic, NaN passes comparisons, and True and 0.5 are numbers too.
Rule: code that creates a view from external sizes, strides and offset calls `require_within` first. It refuses
everything except plain ints of 63 bits before it computes with them.
Consequence: functions that accept more (integer tensors, NumPy's integers) convert with `ints_of` and `int_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.core.brief import brief
from flambeau.core.device import META
from flambeau.core.errors import type_name
from flambeau.core.layout import span
from flambeau.tensor.arguments.integers import (
    LIMIT,
    OVERFLOW,
    as_int,
    int_or_none,
    is_int,
    refuse_bool_tensors,
)
from flambeau.tensor.storage import WrapperStorage


def require_within(
    nbytes: int, itemsize: int, shape: Sequence[int], strides: Sequence[int], offset: int
) -> None:
    """Raise unless every element of a layout lies within a storage. See Note [Views over storages].

    Args:
        nbytes: Size of the storage.
        itemsize: Bytes per element.
        shape: Size of each dimension.
        strides: Elements from one index to the next, for each dimension.
        offset: Elements from the start of the storage to the first element.

    Raises:
        TypeError: If a size, a stride or the offset is not a plain int.
        RuntimeError: If one is negative or has more than 63 bits, or if the layout exceeds the storage.
    """
    require_layout(shape, strides)
    _require_plain("storage_offset", (offset,))
    if not 0 <= offset < LIMIT:
        raise RuntimeError(f"Tensor: invalid storage offset {brief(offset)}")
    reach = span(shape, strides)
    needed = (offset + reach) * itemsize if reach else 0
    if needed > nbytes:
        raise out_of_bounds(shape, strides, offset, itemsize, needed, nbytes)


def require_layout(shape: Sequence[int], strides: Sequence[int]) -> None:
    """Raise TypeError or RuntimeError unless sizes and strides are plain ints that describe a tensor."""
    _require_plain("size", shape)
    _require_plain("stride", strides)
    if len(shape) != len(strides):
        raise RuntimeError(
            f"dimensionality of sizes ({len(shape)}) must match dimensionality of strides ({len(strides)})"
        )
    if not all(0 <= n < LIMIT for n in (*shape, *strides)):
        raise RuntimeError(
            f"Storage size calculation overflowed with sizes=[{', '.join(map(brief, shape))}] and "
            f"strides=[{', '.join(map(brief, strides))}]"
        )


def require_backed(t: Any) -> None:
    """Raise RuntimeError if a tensor reaches beyond its storage. See Note [Storages made smaller] in
    storage_resize.py.
    """
    meta = t.meta
    if meta.short:
        if isinstance(t.memory, WrapperStorage):
            raise RuntimeError(
                f"{type(t).__name__} has no memory: it is a tensor that `__torch_dispatch__` of its class computes with"
            )
        offset = (t.ptr - t.memory.ptr) // meta.itemsize
        needed = offset * meta.itemsize + meta.span
        raise out_of_bounds(meta.shape, meta.strides, offset, meta.itemsize, needed, t.memory.nbytes)


def require_data(t: Any, operator: str) -> None:
    """Raise NotImplementedError if an operator's result depends on data that a meta tensor does not have."""
    if t.meta.device is META:
        raise NotImplementedError(
            f"aten::{operator}: attempted to run this operator with Meta tensors, but its result depends on "
            "their data, which they do not have. Run it on a CPU or CUDA device."
        )


def _require_plain(name: str, values: Sequence[Any]) -> None:
    for at, value in enumerate(values):
        if type(value) is not int:
            raise TypeError(f"{name} must consist of plain ints, but got {type_name(value)} at pos {at}")


def out_of_bounds(
    shape: Sequence[int], strides: Sequence[int], offset: int, itemsize: int, needed: int, nbytes: int
) -> RuntimeError:
    """Return PyTorch's error for a layout that exceeds its storage."""
    return RuntimeError(
        f"setStorage: sizes {list(shape)}, strides {list(strides)}, storage offset {offset}, and itemsize {itemsize} "
        f"requiring a storage size of {needed} are out of bounds for storage of size {nbytes}"
    )


# -- arguments of functions -------------------------------------------------------------------------------


def ints_of(values: Any, function: str, name: str, position: int) -> tuple[int, ...]:
    """Return a sequence of ints as plain ints. Raises TypeError like PyTorch's argument parser."""
    if not isinstance(values, (list, tuple)):
        values = (values,)
    elif not name.startswith("dim"):
        refuse_bool_tensors(values, function, name)
    return tuple([_unpack_size(value, at, function, name, position) for at, value in enumerate(values)])


def _unpack_size(value: Any, at: int, function: str, name: str, position: int) -> int:
    plain = int_or_none(value) if at == 0 or not isinstance(value, bool) else int(value)
    if plain is None and at == 0:
        raise TypeError(
            f"{function}(): argument '{name}' (position {position}) must be tuple of ints, but found element of type "
            f"{type_name(value)} at pos 0"
        )
    if plain is None or not -LIMIT <= plain < LIMIT:
        why = OVERFLOW if plain is not None else f"type must be tuple of ints,but got {type_name(value)}"
        raise TypeError(
            f"{function}(): argument '{name}' failed to unpack the object at pos {at + 1} with error \"{why}\""
        )
    return plain


def int_of(value: Any, function: str, name: str, position: int | None = None) -> int:
    """Return an int, as PyTorch's argument parser reads one, as a plain int.

    Raises:
        TypeError: If `value` is not an integer; a bool is none.
        ValueError: If `value` has more than 63 bits.
    """
    plain = value if value.__class__ is int else int_or_none(value)
    if name == "dim" and not is_int(value):
        plain = None
    elif plain is not value:
        refuse_bool_tensors((value,), function, name)
    if plain is None:
        where = "" if position is None else f" (position {position})"
        raise TypeError(f"{function}(): argument '{name}'{where} must be int, not {type_name(value)}")
    return as_int(plain)
