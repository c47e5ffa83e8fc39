"""`dtype`: element types, PyTorch's names, and the promotion rules."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from flambeau.core.errors import NotSupportedError
from flambeau.core.public_names import lacks

BOOL, INTEGRAL, FLOATING, COMPLEX = range(4)  # categories, in order of promotion
NAMED = 4  # the category of dtypes that programs may name and compare, and that no tensor has


class dtype:  # PyTorch's public name
    """An element type. `numpy` is the NumPy type that stores it: ml_dtypes' where NumPy has none.

    `category` orders bool < integral < floating < complex: promotion between categories takes the
    higher one. ml_dtypes, which takes 8 ms to import, is imported when its types are first asked for.
    """

    __slots__ = (
        "category", "is_complex", "is_floating_point", "is_signed", "itemsize", "name", "numpy",
    )  # fmt: skip

    numpy: np.dtype[Any]

    def __init__(self, name: str, stored: Any, category: int, signed: bool = True) -> None:
        """Create a dtype. `stored` is NumPy's type, or the item size of ml_dtypes' type with this name."""
        self.name = name
        if isinstance(stored, int):
            self.itemsize = stored
        else:
            self.numpy = np.dtype(stored)
            self.itemsize = self.numpy.itemsize
        self.category = category
        self.is_floating_point = category == FLOATING or (category == NAMED and name.startswith("float"))
        self.is_complex = category == COMPLEX
        self.is_signed = signed

    def __getattr__(self, name: str) -> Any:
        if name != "numpy":
            lacks(self, name)
        require_usable(self)
        self.numpy = np.dtype(getattr(import_module("ml_dtypes"), self.name))
        return self.numpy

    @property
    def torch_name(self) -> str:
        """Return the name in PyTorch's error texts: Float, Long, BFloat16."""
        return _TORCH_NAMES.get(self.name) or self.name.capitalize()

    def to_complex(self) -> dtype:
        """Return the complex dtype whose parts have this dtype. Raises RuntimeError if PyTorch has none."""
        found = self if self.is_complex else _COMPLEX.get(self.name)
        if found is None:
            raise RuntimeError(f"Unknown Complex ScalarType for {self.torch_name}")
        return found

    def to_real(self) -> dtype:
        """Return the dtype of a complex dtype's parts; any other dtype itself."""
        return _REAL.get(self.name, self)

    def __repr__(self) -> str:
        return f"torch.{self.name}"

    def __reduce__(self) -> str:
        return self.name  # pickled by its name in the package: torch.float32


_TORCH_NAMES = {
    "bool": "Bool", "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long",
    "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64", "float16": "Half", "bfloat16": "BFloat16",
    "float32": "Float", "float64": "Double", "float8_e4m3fn": "Float8_e4m3fn", "float8_e5m2": "Float8_e5m2",
    "complex32": "ComplexHalf", "complex64": "ComplexFloat", "complex128": "ComplexDouble",
}  # fmt: skip

bool_ = dtype("bool", np.bool_, BOOL, signed=False)
uint8 = dtype("uint8", np.uint8, INTEGRAL, signed=False)
int8 = dtype("int8", np.int8, INTEGRAL)
int16 = dtype("int16", np.int16, INTEGRAL)
int32 = dtype("int32", np.int32, INTEGRAL)
int64 = dtype("int64", np.int64, INTEGRAL)
uint16 = dtype("uint16", np.uint16, INTEGRAL, signed=False)
uint32 = dtype("uint32", np.uint32, INTEGRAL, signed=False)
uint64 = dtype("uint64", np.uint64, INTEGRAL, signed=False)
float16 = dtype("float16", np.float16, FLOATING)
bfloat16 = dtype("bfloat16", 2, FLOATING)
float32 = dtype("float32", np.float32, FLOATING)
float64 = dtype("float64", np.float64, FLOATING)
float8_e4m3fn = dtype("float8_e4m3fn", 1, FLOATING)
float8_e5m2 = dtype("float8_e5m2", 1, FLOATING)
complex32 = dtype("complex32", 4, COMPLEX)
complex64 = dtype("complex64", np.complex64, COMPLEX)
complex128 = dtype("complex128", np.complex128, COMPLEX)

DTYPES = (
    bool_, uint8, int8, int16, int32, int64, uint16, uint32, uint64, float16, bfloat16, float32,
    float64, float8_e4m3fn, float8_e5m2, complex32, complex64, complex128,
)  # fmt: skip
PYTHON_TYPES: dict[type, dtype] = {float: float64, int: int64, bool: bool_, complex: complex128}
"""The dtypes that Python's types of numbers stand for."""

# Dtypes that libraries list and compare. core/meta.py refuses tensors of them.
NAMED_DTYPES = (
    *[dtype(f"uint{bits}", 1, NAMED, signed=False) for bits in range(1, 8)],
    *[dtype(f"int{bits}", 1, NAMED) for bits in range(1, 8)],
    *[dtype(f"float8_{kind}", 1, NAMED) for kind in ("e4m3fnuz", "e5m2fnuz", "e8m0fnu")],
    dtype("float4_e2m1fn_x2", 1, NAMED),
    dtype("qint8", 1, NAMED), dtype("qint32", 4, NAMED),
    *[dtype(name, 1, NAMED, signed=False) for name in ("quint8", "quint4x2", "quint2x4")],
    *[dtype(name, 1, NAMED, signed=False) for name in ("bits1x8", "bits2x4", "bits4x2", "bits8")],
    dtype("bits16", 2, NAMED, signed=False),
)  # fmt: skip


def require_usable(*kinds: dtype) -> None:
    """Check that tensors may have dtypes.

    Raises:
        NotSupportedError: If one is among `NAMED_DTYPES`.
    """
    for kind in kinds:
        if kind.category == NAMED:
            raise NotSupportedError(f"{kind} is a name only: Flambeau has no tensors of this dtype")


ALIASES = {
    "float": float32, "double": float64, "half": float16, "short": int16, "int": int32, "long": int64,
    "chalf": complex32, "cfloat": complex64, "cdouble": complex128,
}  # fmt: skip

_COMPLEX = {"float16": complex32, "bfloat16": complex64, "float32": complex64, "float64": complex128}
_REAL = {"complex32": float16, "complex64": float32, "complex128": float64}
BORROWED = (bfloat16, float8_e4m3fn, float8_e5m2, complex32)  # ml_dtypes provides their NumPy types
_by_numpy = {d.numpy: d for d in DTYPES if d not in BORROWED}


def from_numpy(numpy: np.dtype[Any]) -> dtype:
    """Return the dtype that a NumPy type is stored as. Raises TypeError where PyTorch has none."""
    stored = np.dtype(numpy)
    found = _by_numpy.get(stored) or _borrowed_by_numpy_dtype().get(stored)
    if found is None:
        raise TypeError(
            f"can't convert np.ndarray of type {numpy}. The only supported types are: "
            + ", ".join(d.name for d in DTYPES)
        )
    return found


@cache
def _borrowed_by_numpy_dtype() -> dict[np.dtype[Any], dtype]:
    return {d.numpy: d for d in BORROWED}


# -- promotion --------------------------------------------------------------------------------------------

_ORDER = {d: i for i, d in enumerate(DTYPES)}  # within a category the later wins, but for the pairs below
_NARROW_PAIRS = {
    frozenset((uint8, int8)): int16,
    frozenset((float16, bfloat16)): float32,
    frozenset((bfloat16, complex32)): complex64,
}
_WIDE_UNSIGNED = (uint16, uint32, uint64)  # stored, converted, and combined with floats only
_FLOAT8 = (float8_e4m3fn, float8_e5m2)


@cache
def promote_types(a: dtype, b: dtype) -> dtype:
    """Return the smallest dtype that neither is too large or of too high a kind for.

    Raises RuntimeError for pairs that PyTorch does not combine: float8 with anything else, the unsigned types of
    16 bits and more with anything but floats.
    """
    require_usable(a, b)
    if a is b:
        return a
    if a in _FLOAT8 or b in _FLOAT8:
        raise RuntimeError(
            f"Promotion for Float8 Types is not supported, attempted to promote {a.torch_name} and {b.torch_name}"
        )
    low, high = sorted((a, b), key=lambda d: (d.category, _ORDER[d]))
    if (low in _WIDE_UNSIGNED or high in _WIDE_UNSIGNED) and not high.is_floating_point:
        raise RuntimeError(
            "Promotion for uint16, uint32, uint64 types is not supported, "
            f"attempted to promote {a.torch_name} and {b.torch_name}"
        )
    found = _NARROW_PAIRS.get(frozenset((a, b)))
    if found is not None:
        return found
    if high.is_complex and low.is_floating_point:
        return promote_types(low.to_complex(), high)
    return high


def can_cast(source: dtype, target: dtype) -> bool:
    """Return True if a result of `source` may be stored as `target`: never in a lower category."""
    return source.category <= target.category


_SCALARS: dict[type, dtype | None] = {bool: bool_, int: int64, float: None, complex: None}


def dtype_of_scalar(kind: type, default: dtype) -> dtype:
    """Return the dtype of a Python scalar of this type; floats and complex numbers have the default dtype's width."""
    found = _SCALARS[kind]
    if found is not None:
        return found
    return default if kind is float else default.to_complex()


def combine(dimensioned: Iterable[dtype], zero_dim: Iterable[dtype], scalars: Iterable[dtype]) -> dtype:
    """Return the dtype that an operator on these operands computes in.

    Tensors with dimensions decide; 0-dim tensors change the result only by a higher category, and Python scalars
    again only by a higher one than both.
    """
    found: dtype | None = None
    for kinds in (scalars, zero_dim, dimensioned):
        own = _promote_all(kinds)
        found = own if found is None else found if own is None else _raise_category(own, found)
    assert found is not None
    return found


def _promote_all(kinds: Iterable[dtype]) -> dtype | None:
    found: dtype | None = None
    for kind in kinds:
        found = kind if found is None else promote_types(found, kind)
    return found


def _raise_category(decides: dtype, other: dtype) -> dtype:
    if other.category <= decides.category and decides is not bool_:
        return decides
    if decides.is_floating_point:  # the other operand is complex: the result has the deciding float's width
        return decides.to_complex()
    return other if other.is_complex else promote_types(decides, other)
