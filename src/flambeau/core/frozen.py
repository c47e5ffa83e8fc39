"""`Record` and `Value`: immutable classes with named fields.

They replace `dataclass(frozen=True)`, which compiles code for each class: 0.7 ms each while the package is imported.
Creating an instance is slower than of a dataclass. Objects that calls create are therefore NamedTuples, and classes
that import does not need are dataclasses.
"""

from __future__ import annotations

from typing import Any, NoReturn, Self, dataclass_transform


@dataclass_transform(frozen_default=True, eq_default=False)
class Record:
    """An immutable record whose fields are the annotations of its class and bases. Two records are never equal."""

    _fields: tuple[str, ...] = ()
    _names: frozenset[str] = frozenset()
    _defaults: dict[str, Any] = {}  # recreated for each class below

    def __init_subclass__(cls, kw_only: bool = False) -> None:  # kw_only is for type checkers
        own = tuple(cls.__annotations__)
        cls._fields += own
        cls._names = frozenset(cls._fields)
        cls._defaults = cls._defaults | {name: vars(cls)[name] for name in own if name in vars(cls)}

    def __init__(self, *values: Any, **named: Any) -> None:
        placed = dict(zip(self._fields, values, strict=False))
        held = {**self._defaults, **placed, **named}
        once = len(placed) == len(values) and placed.keys().isdisjoint(named)
        if not once or held.keys() != self._names:
            raise TypeError(f"{type(self).__name__} takes {', '.join(self._fields)}")
        vars(self).update(held)

    def with_(self, **changes: Any) -> Self:
        """Return a copy of the record with other values of these fields."""
        return type(self)(**{**vars(self), **changes})

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"cannot delete field {name!r}")

    def __repr__(self) -> str:
        fields = [f"{name}={getattr(self, name)!r}" for name in self._fields]
        return f"{type(self).__qualname__}({', '.join(fields)})"


@dataclass_transform(frozen_default=True, eq_default=True)
class Value(Record):
    """A record that equals other records of its class with equal values."""

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple([getattr(self, name) for name in self._fields]))
