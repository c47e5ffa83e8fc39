"""Sets of dtypes that pointwise operators compute in, and how the dtype of a result follows from the operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from flambeau.core.dtype import (
    COMPLEX,
    DTYPES,
    FLOATING,
    INTEGRAL,
    bfloat16,
    bool_,
    combine,
    complex32,
    complex64,
    complex128,
    dtype,
    dtype_of_scalar,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    uint16,
    uint32,
    uint64,
)  # fmt: skip
from flambeau.core.frozen import Record
from flambeau.core.meta import Meta
from flambeau.ops.op import Operand

WIDE_UNSIGNED = (uint16, uint32, uint64)
FLOAT8 = (float8_e4m3fn, float8_e5m2)
REFUSED = (*WIDE_UNSIGNED, *FLOAT8)  # dtypes that tensors can have and most operators do not compute with
ALL = tuple(d for d in DTYPES if d not in REFUSED)
FLOATS = tuple(d for d in ALL if d.category == FLOATING)
COMPLEXES = tuple(d for d in ALL if d.category == COMPLEX)
INTEGERS = tuple(d for d in ALL if d.category == INTEGRAL)
BITS = (bool_, *INTEGERS)
REALS = (*BITS, *FLOATS)
NUMBERS = (*INTEGERS, *FLOATS)
FLOATING_OR_COMPLEX = (*FLOATS, *COMPLEXES)

WIDE = {float16: float32, bfloat16: float32, complex32: complex64} | dict.fromkeys(FLOAT8, float32)


def wide(kind: dtype) -> dtype:
    """Return the dtype in which a reference implementation computes for operands of `kind`."""
    return WIDE.get(kind, kind)


# -- promotion: from the operands' common dtype to the one computed in, and the result's ----------------


def result_type(operands: Iterable[Operand], default: dtype) -> dtype:
    """Return the dtype in which an operator on these operands computes."""
    dimensioned, zero_dim, scalars = [], [], []
    for x in operands:
        if not isinstance(x, Meta):
            scalars.append(dtype_of_scalar(x, default))
        elif x.ndim:
            dimensioned.append(x.dtype)
        else:
            zero_dim.append(x.dtype)
    return combine(dimensioned, zero_dim, scalars)


class Promotion(Record):
    """The rule by which dtypes of an operator follow from its operands and the default dtype.

    Attributes:
        common: Returns the dtype to which operands are converted, from the operands and the default dtype.
        result: Returns the dtype of the result from that dtype.
    """

    common: Callable[[Sequence[Operand], dtype], dtype] = result_type
    result: Callable[[dtype], dtype] = lambda kind: kind


def _to_float(operands: Sequence[Operand], default: dtype) -> dtype:
    kind = result_type(operands, default)
    return default if kind.category <= INTEGRAL else kind


def _to_double(operands: Sequence[Operand], default: dtype) -> dtype:
    complexes = [x for x in operands if x is complex or (isinstance(x, Meta) and x.dtype.is_complex)]
    return complex128 if complexes else float64


ARITHMETIC = Promotion()
TO_FLOAT = Promotion(common=_to_float)
TO_DOUBLE = Promotion(common=_to_double)
TO_BOOL = Promotion(result=lambda kind: bool_)
TO_REAL = Promotion(result=lambda kind: kind.to_real())
FLOAT_TO_REAL = Promotion(common=_to_float, result=lambda kind: kind.to_real())
TO_COMPLEX = Promotion(result=lambda kind: kind.to_complex())
