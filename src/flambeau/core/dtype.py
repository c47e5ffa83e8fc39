"""`dtype`: element types, PyTorch's names, and the promotion rules."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

BOOL, INTEGRAL, FLOATING, COMPLEX = range(4)  # categories, in order of promotion


class dtype:  # PyTorch's public name
    """An element type. `numpy` is the NumPy (or ml_dtypes) type that stores it.

    `category` orders bool < integral < floating < complex: promotion between categories takes the
    higher one.
    """

    __slots__ = (
        "category", "is_complex", "is_floating_point", "is_signed", "itemsize", "name", "numpy",
    )  # fmt: skip

    def __init__(self, name: str, numpy: Any, category: int, signed: bool = True) -> None:
        self.name = name
        self.numpy: np.dtype[Any] = np.dtype(numpy)
        self.itemsize: int = self.numpy.itemsize
        self.category = category
        self.is_floating_point = category == FLOATING
        self.is_complex = category == COMPLEX
        self.is_signed = signed

    @property
    def torch_name(self) -> str:
        """The name in PyTorch's error texts: Float, Long, BFloat16."""
        return _TORCH_NAMES[self.name]

    def __repr__(self) -> str:
        return f"torch.{self.name}"

    def __reduce__(self) -> str:
        return self.name


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
bfloat16 = dtype("bfloat16", ml_dtypes.bfloat16, FLOATING)
float32 = dtype("float32", np.float32, FLOATING)
float64 = dtype("float64", np.float64, FLOATING)
float8_e4m3fn = dtype("float8_e4m3fn", ml_dtypes.float8_e4m3fn, FLOATING)
float8_e5m2 = dtype("float8_e5m2", ml_dtypes.float8_e5m2, FLOATING)
complex32 = dtype("complex32", ml_dtypes.complex32, COMPLEX)
complex64 = dtype("complex64", np.complex64, COMPLEX)
complex128 = dtype("complex128", np.complex128, COMPLEX)

DTYPES = (
    bool_, uint8, int8, int16, int32, int64, uint16, uint32, uint64, float16, bfloat16, float32,
    float64, float8_e4m3fn, float8_e5m2, complex32, complex64, complex128,
)  # fmt: skip

_by_numpy = {d.numpy: d for d in DTYPES}


def from_numpy(numpy: np.dtype[Any]) -> dtype:
    """The dtype that a NumPy type is stored as. Raises TypeError where PyTorch has none."""
    found = _by_numpy.get(np.dtype(numpy))
    if found is None:
        raise TypeError(
            f"can't convert np.ndarray of type {numpy}. The only supported types are: "
            + ", ".join(d.name for d in DTYPES)
        )
    return found
