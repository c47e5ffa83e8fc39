"""Unique names of values in generated code."""

from __future__ import annotations

import builtins
import keyword
import math
import re
from types import NoneType
from typing import Any

import flambeau
from flambeau import device
from flambeau.core.public_names import publish
from flambeau.fx import _pytree as fx_pytree
from flambeau.utils import _pytree as pytree

__all__ = ["CUSTOM_BUILTINS", "Namespace"]

# Names that generated code finds without asking, with the statement that imports each.
CUSTOM_BUILTINS: dict[str, tuple[str, Any]] = {
    "inf": ("from math import inf", math.inf),
    "nan": ("from math import nan", math.nan),
    "NoneType": ("NoneType = type(None)", NoneType),
    "torch": ("import torch", flambeau),
    "device": ("from torch import device", device),
    "fx_pytree": ("import torch.fx._pytree as fx_pytree", fx_pytree),
    "pytree": ("import torch.utils._pytree as pytree", pytree),
}
_RESERVED = {*keyword.kwlist, *vars(builtins), *CUSTOM_BUILTINS}
_ILLEGAL = re.compile(r"[^0-9a-zA-Z_]+")
_NUMBERED = re.compile(r"(.*)_(\d+)$")


class Namespace:
    """The names in use, each with the object that it denotes.

    Attributes:
        _obj_to_name: Id of an object -> its name.
        _used_names: All names in use.
        _base_count: Name without suffix -> last number that was appended to it.
    """

    def __init__(self) -> None:
        self._obj_to_name: dict[Any, str] = {}
        self._used_names: set[str] = set()
        self._base_count: dict[str, int] = {}

    def create_name(self, candidate: str, obj: Any) -> str:
        """Return a name like `candidate` that is unique and legal, and associate it with `obj`.

        Args:
            candidate: The wish. Characters that identifiers cannot have become underscores.
            obj: The object to name, or None. One that has a name already keeps it.
        """
        if obj is not None and obj in self._obj_to_name:
            return self._obj_to_name[obj]
        name = _ILLEGAL.sub("_", candidate) or "_unnamed"
        if name[0].isdigit():
            name = f"_{name}"
        if self._is_taken(name, obj):
            name = self._append_number(name, obj)
        base, number = _split_number(name)
        if number is not None:
            self._base_count[base] = max(self._base_count.get(base, 0), number)
        self._used_names.add(name)
        if obj is not None:
            self._obj_to_name[obj] = name
        return name

    def _append_number(self, name: str, obj: Any) -> str:
        base, number = _split_number(name)
        last = max(self._base_count.get(base, 0), number or 0)
        while True:
            last += 1
            candidate = f"{base}_{last}"
            if not self._is_taken(candidate, obj):
                self._base_count[base] = last
                return candidate

    def _is_taken(self, name: str, obj: Any) -> bool:
        if name in self._used_names:
            return True
        if name not in _RESERVED:
            return False
        known = CUSTOM_BUILTINS[name][1] if name in CUSTOM_BUILTINS else getattr(builtins, name, self)
        return known is not obj

    def associate_name_with_obj(self, name: str, obj: Any) -> None:
        """Record that `name` belongs to `obj`."""
        self._used_names.add(name)
        self._obj_to_name[obj] = name


def _split_number(name: str) -> tuple[str, int | None]:
    found = _NUMBERED.match(name)
    return (found[1], int(found[2])) if found else (name, None)


def snake_case(name: str) -> str:
    """Return a name in lower case, with an underscore before each capital that follows a small letter."""
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower()


def strip_magic(name: str) -> str:
    """Return the name of a special method without its double underscores."""
    return name[2:-2] if name.startswith("__") and name.endswith("__") else name


publish(globals())
