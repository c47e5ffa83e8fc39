"""Tensors in nested arguments and results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flambeau.tensor.tensor import Tensor

_LEAVES = (int, float, complex, str, type(None), type)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield each tensor in nested tuples, lists, dicts, slices and instances of data classes, in their order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for member in value:
            if isinstance(member, Tensor):  # the usual case, without another generator
                yield member
            elif not isinstance(member, _LEAVES):
                yield from tensors_in(member)
    elif isinstance(value, dict):
        yield from tensors_in([*value.values()])
    elif isinstance(value, slice):
        yield from tensors_in([value.start, value.stop, value.step])
    elif hasattr(type(value), "__dataclass_fields__"):
        from dataclasses import fields  # most programs have no data class

        yield from tensors_in([getattr(value, field.name) for field in fields(value)])
