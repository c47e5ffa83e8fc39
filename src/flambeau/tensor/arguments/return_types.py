"""`torch.return_types`: the named tuples that functions with several results return."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from flambeau.tensor.arguments import public


class NamedResult(tuple[Any, ...]):
    """A tuple whose members have names, printed as PyTorch prints it."""

    __slots__ = ()
    fields: tuple[str, ...] = ()
    stored: type[NamedResult]  # the result type of calls with `out=`

    def __new__(cls, members: Iterable[Any]) -> NamedResult:
        self = tuple.__new__(cls, members)
        if len(self) != len(cls.fields):
            raise TypeError(
                f"{cls.__module__}.{cls.__name__}() takes a {len(cls.fields)}-sequence "
                f"({len(self)}-sequence given)"
            )
        return self

    @classmethod
    def of(cls, members: Iterable[Any], out: Any) -> NamedResult:
        """Return the results of a call as a named tuple; with `out`, of the type for results in `out`."""
        return (cls if out is None else cls.stored)(members)

    def __repr__(self) -> str:
        members = ",\n".join(f"{name}={value!r}" for name, value in zip(self.fields, self, strict=True))
        return f"torch.return_types.{type(self).__name__}(\n{members})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self).__name__, tuple(self)))


def _member(at: int) -> property:
    return property(lambda self: self[at])


def _define(name: str, *fields: str) -> type[NamedResult]:
    """Return the class of this name, and a second class with `_out` appended to the name."""
    body: dict[str, Any] = {
        "__slots__": (), "__module__": "torch.return_types", "__match_args__": fields, "fields": fields,
        "n_fields": len(fields), "n_sequence_fields": len(fields), "n_unnamed_fields": 0,
    }  # fmt: skip
    body.update({field: _member(at) for at, field in enumerate(fields)})
    new: type[NamedResult] = type(name, (NamedResult,), body)
    stored = f"{name}_out"
    globals()[stored] = new.stored = type(stored, (NamedResult,), body)
    return new


def _rebuild(name: str, members: tuple[Any, ...]) -> NamedResult:
    return globals()[name](members)


aminmax = _define("aminmax", "min", "max")
cummax = _define("cummax", "values", "indices")
cummin = _define("cummin", "values", "indices")
frexp = _define("frexp", "mantissa", "exponent")
geqrf = _define("geqrf", "a", "tau")
histogram = _define("histogram", "hist", "bin_edges")
histogramdd = _define("histogramdd", "hist", "bin_edges")
kthvalue = _define("kthvalue", "values", "indices")
linalg_cholesky_ex = _define("linalg_cholesky_ex", "L", "info")
linalg_eig = _define("linalg_eig", "eigenvalues", "eigenvectors")
linalg_eigh = _define("linalg_eigh", "eigenvalues", "eigenvectors")
linalg_inv_ex = _define("linalg_inv_ex", "inverse", "info")
linalg_lstsq = _define("linalg_lstsq", "solution", "residuals", "rank", "singular_values")
linalg_ldl_factor = _define("linalg_ldl_factor", "LD", "pivots")
linalg_ldl_factor_ex = _define("linalg_ldl_factor_ex", "LD", "pivots", "info")
linalg_lu = _define("linalg_lu", "P", "L", "U")
linalg_lu_factor = _define("linalg_lu_factor", "LU", "pivots")
linalg_lu_factor_ex = _define("linalg_lu_factor_ex", "LU", "pivots", "info")
linalg_qr = _define("linalg_qr", "Q", "R")
linalg_slogdet = _define("linalg_slogdet", "sign", "logabsdet")
linalg_solve_ex = _define("linalg_solve_ex", "result", "info")
linalg_svd = _define("linalg_svd", "U", "S", "Vh")
lu_unpack = _define("lu_unpack", "P", "L", "U")
max = _define("max", "values", "indices")
median = _define("median", "values", "indices")
min = _define("min", "values", "indices")
mode = _define("mode", "values", "indices")
nanmedian = _define("nanmedian", "values", "indices")
qr = _define("qr", "Q", "R")
slogdet = _define("slogdet", "sign", "logabsdet")
sort = _define("sort", "values", "indices")
svd = _define("svd", "U", "S", "V")
topk = _define("topk", "values", "indices")
triangular_solve = _define("triangular_solve", "solution", "cloned_coefficient")

public.functions["return_types"] = sys.modules[__name__]
