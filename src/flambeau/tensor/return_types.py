"""`torch.return_types`: the named tuples that functions with several results return."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from flambeau.tensor import public


class Named(tuple[Any, ...]):
    """A tuple whose members have names, printed as PyTorch prints it."""

    __slots__ = ()
    fields: tuple[str, ...] = ()

    def __new__(cls, members: Iterable[Any]) -> Named:
        self = tuple.__new__(cls, members)
        if len(self) != len(cls.fields):
            raise TypeError(
                f"{cls.__module__}.{cls.__name__}() takes a {len(cls.fields)}-sequence "
                f"({len(self)}-sequence given)"
            )
        return self

    def __repr__(self) -> str:
        members = ",\n".join(f"{name}={value!r}" for name, value in zip(self.fields, self, strict=True))
        return f"torch.return_types.{type(self).__name__}(\n{members})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self).__name__, tuple(self)))


def _member(at: int) -> property:
    return property(lambda self: self[at])


def _define(name: str, *fields: str) -> type[Named]:
    body: dict[str, Any] = {"__slots__": (), "__module__": "torch.return_types", "fields": fields}
    body.update({field: _member(at) for at, field in enumerate(fields)})
    return type(name, (Named,), body)


def _rebuild(name: str, members: tuple[Any, ...]) -> Named:
    return globals()[name](members)


aminmax = _define("aminmax", "min", "max")
cummax = _define("cummax", "values", "indices")
cummin = _define("cummin", "values", "indices")
kthvalue = _define("kthvalue", "values", "indices")
max = _define("max", "values", "indices")
median = _define("median", "values", "indices")
min = _define("min", "values", "indices")
mode = _define("mode", "values", "indices")
nanmedian = _define("nanmedian", "values", "indices")
sort = _define("sort", "values", "indices")
topk = _define("topk", "values", "indices")

public.functions["return_types"] = sys.modules[__name__]
