"""Nested tuples, lists and dicts as a list of their leaves and a hashable description of the nesting.

Each replay flattens its arguments. `utils/_pytree.py`, which also knows classes that programs register, takes 2.6 times
as long to do and hash this.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from flambeau.core.size import Size
from flambeau.tensor.arguments.return_types import NamedResult


class Nesting(NamedTuple):
    """The nesting of a container.

    Attributes:
        kind: Its class.
        keys: The keys of a dict.
        parts: The nesting of each item; None for leaves.
    """

    kind: type
    keys: tuple[Any, ...]
    parts: tuple[Nesting | None, ...]


def flatten(value: Any, leaves: list[Any]) -> Nesting | None:
    """Append the leaves of a value to `leaves`, and return its nesting; None for a leaf."""
    kind = type(value)
    if kind in (dict, OrderedDict):
        return Nesting(kind, tuple(value), tuple([flatten(x, leaves) for x in value.values()]))
    if kind in (tuple, list, Size) or isinstance(value, NamedResult) or _is_named_tuple(value):
        return Nesting(kind, (), tuple([flatten(x, leaves) for x in value]))
    leaves.append(value)
    return None


def name_leaves(nesting: Nesting | None) -> list[str]:
    """Return how a program reaches each leaf of a value, such as "['loss'][0]"; "" for the value itself."""
    if nesting is None:
        return [""]
    keys = nesting.keys or range(len(nesting.parts))
    return [
        f"[{key!r}]{rest}"
        for key, part in zip(keys, nesting.parts, strict=True)
        for rest in name_leaves(part)
    ]


def rebuild(nesting: Nesting | None, leaves: Sequence[Any]) -> Any:
    """Return the value with this nesting and these leaves."""
    return _rebuild(nesting, iter(leaves))


def _rebuild(nesting: Nesting | None, leaves: Iterator[Any]) -> Any:
    if nesting is None:
        return next(leaves)
    kind, keys, parts = nesting
    items = [_rebuild(part, leaves) for part in parts]
    if keys or kind in (dict, OrderedDict):
        return kind(zip(keys, items, strict=True))
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")
