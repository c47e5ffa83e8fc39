"""Rules of dtypes and of Python's numbers in torch._prims_common."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from functools import reduce
from typing import Any, TypeAlias

import flambeau as torch

DeviceLikeType: TypeAlias = str | torch.device | int
NumberType: TypeAlias = bool | int | float | complex
Number = (bool, int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool)
Dim = int
IntLike = (int, torch.SymInt)
FloatLike = (float, torch.SymFloat)
BoolLike = (bool, torch.SymBool)
TensorLike = torch.Tensor
TensorLikeType: TypeAlias = torch.Tensor
TensorOrNumberLikeType: TypeAlias = torch.Tensor | NumberType

__all__ = [
    "ELEMENTWISE_TYPE_PROMOTION_KIND", "REDUCTION_OUTPUT_TYPE_KIND", "RETURN_TYPE", "BoolLike", "DeviceLikeType",
    "Dim", "FloatLike", "IntLike", "Number", "NumberType", "TensorLike", "TensorLikeType", "TensorOrNumberLikeType",
    "can_safe_cast_to", "canonicalize_device", "corresponding_complex_dtype", "corresponding_real_dtype",
    "device_or_default", "dtype_or_default", "dtype_to_type", "dtype_to_type_ctor", "elementwise_dtypes",
    "get_computation_dtype", "get_dtype", "get_higher_dtype", "get_higher_type", "is_boolean_dtype",
    "is_complex_dtype", "is_cpu_scalar_tensor", "is_float_dtype", "is_grad_dtype", "is_integer_dtype",
    "is_low_precision_dtype", "is_weakly_lesser_type", "layout_or_default", "number_type", "reduction_dtypes",
    "set_correction", "type_to_dtype",
]  # fmt: skip

_TYPES = (bool, int, float, complex)
_SYMBOLIC = {torch.SymBool: bool, torch.SymInt: int, torch.SymFloat: float}
_COMPUTED = {
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.complex32: torch.complex64,
}
# Groups of dtypes in rising order. Two of one group are promoted to the next group.
_LEVELS = (
    (torch.bool,), (torch.uint8, torch.int8), (torch.int16,), (torch.int32,), (torch.int64,),
    (torch.float16, torch.bfloat16), (torch.float32,), (torch.float64,), (torch.complex32,), (torch.complex64,),
    (torch.complex128,),
)  # fmt: skip


class ELEMENTWISE_TYPE_PROMOTION_KIND(Enum):
    """The rules by which an elementwise operator chooses the dtype of its result."""

    DEFAULT = (0,)
    NO_OPMATH = (1,)
    INT_TO_FLOAT = (2,)
    ALWAYS_BOOL = (3,)
    COMPLEX_TO_FLOAT = (4,)
    BOOL_TO_LONG = (5,)


class REDUCTION_OUTPUT_TYPE_KIND(Enum):
    """The rules by which a reduction chooses the dtype of its result."""

    SAME = (0,)
    COMPLEX_TO_FLOAT = (1,)
    KEEP_PROMOTED_TYPE = (2,)
    ALWAYS_BOOL = (3,)


class RETURN_TYPE(Enum):
    """The kinds of results of a primitive: a new tensor, a view, an input that it changed, or nothing."""

    NEW = (0,)
    VIEW = (1,)
    INPLACE = (2,)
    NONE = (3,)


def is_boolean_dtype(dtype: torch.dtype) -> bool:
    """Return True if a dtype is `torch.bool`."""
    return dtype is torch.bool


def is_integer_dtype(dtype: torch.dtype) -> bool:
    """Return True if a dtype has integers; `torch.bool` does not."""
    return dtype_to_type(dtype) is int


def is_float_dtype(dtype: torch.dtype) -> bool:
    """Return True if a dtype has real floating-point numbers."""
    return dtype.is_floating_point


def is_complex_dtype(dtype: torch.dtype) -> bool:
    """Return True if a dtype has complex numbers."""
    return dtype.is_complex


def is_grad_dtype(dtype: torch.dtype) -> bool:
    """Return True if tensors of a dtype can require gradients."""
    return dtype.is_floating_point or dtype.is_complex


def is_low_precision_dtype(dtype: torch.dtype) -> bool:
    """Return True for float16, bfloat16 and complex32."""
    return dtype in _COMPUTED


def corresponding_real_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the parts of a complex dtype.

    Raises:
        KeyError: If the dtype is not complex.
    """
    if not dtype.is_complex:
        raise KeyError(dtype)
    return dtype.to_real()


def corresponding_complex_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the complex dtype whose parts have a dtype.

    Raises:
        KeyError: If there is none.
    """
    if dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise KeyError(dtype)
    return torch.complex64 if dtype is torch.bfloat16 else dtype.to_complex()


def get_computation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which operators compute: float32 for float16 and bfloat16, otherwise the dtype."""
    return _COMPUTED.get(dtype, dtype)


def dtype_to_type(dtype: torch.dtype) -> type:
    """Return Python's type of the numbers of a dtype."""
    if not isinstance(dtype, torch.dtype):
        raise AssertionError(f"Expected torch.dtype, got {type(dtype)}")
    if dtype is torch.bool:
        return bool
    return complex if dtype.is_complex else float if dtype.is_floating_point else int


def dtype_to_type_ctor(dtype: torch.dtype) -> Callable[[Any], Any]:
    """Return the function that converts a number to Python's type of a dtype."""
    return dtype_to_type(dtype)


def type_to_dtype(typ: type) -> torch.dtype:
    """Return the dtype of tensors that are made from numbers of a type of Python.

    Raises:
        ValueError: If the type is not a number's.
    """
    if not isinstance(typ, type):
        raise AssertionError(f"Expected type, got {type(typ)}")
    real = torch.get_default_dtype()
    kind = _SYMBOLIC.get(typ, typ)
    if kind not in _TYPES:
        raise ValueError(f"Invalid type {typ}!")
    return {bool: torch.bool, int: torch.int64, float: real, complex: real.to_complex()}[kind]


def get_dtype(x: Any) -> torch.dtype:
    """Return the dtype of a tensor, or that of a tensor made from a number."""
    return x.dtype if isinstance(x, torch.Tensor) else type_to_dtype(type(x))


def get_higher_type(a: type, b: type) -> type:
    """Return the type of two that can represent the numbers of both: bool, int, float, complex, in this order."""
    _check_types(a, b)
    return max(_SYMBOLIC.get(a, a), _SYMBOLIC.get(b, b), key=_TYPES.index)


def is_weakly_lesser_type(a: type, b: type) -> bool:
    """Return True if `b` can represent the numbers of `a`."""
    return get_higher_type(a, b) is _SYMBOLIC.get(b, b)


def _check_types(*types: type) -> None:
    if any(_SYMBOLIC.get(each, each) not in _TYPES for each in types):
        raise RuntimeError(f"Expected builtin numeric types, found {types[0]}, {types[1]}")


def get_higher_dtype(a: Any, b: Any) -> torch.dtype | None:
    """Return the dtype that PyTorch promotes two dtypes, tensors or numbers to; None means nothing.

    Unlike by `torch.promote_types`, any complex dtype is higher than all real ones.

    Raises:
        ValueError: If a dtype has no rank, as unsigned integers of more than 8 bits.
    """
    dtypes = [_dtype_of(each) for each in (a, b)]
    known = [each for each in dtypes if each is not None]
    return reduce(_choose_higher, known) if known else None


def _choose_higher(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    levels = [[each in group for group in _LEVELS].index(True) for each in (a, b)]
    if a is b or levels[0] != levels[1]:
        return a if levels[0] >= levels[1] else b
    return _LEVELS[levels[0] + 1][0]  # of float16 and bfloat16 neither can represent the other


def _dtype_of(x: Any) -> torch.dtype | None:
    if x is not None and not isinstance(x, (torch.dtype, torch.Tensor, *Number)):
        raise AssertionError(f"a must be None, torch.dtype, TensorLike, or Number, got {type(x)}")
    return x if x is None or isinstance(x, torch.dtype) else get_dtype(x)


def can_safe_cast_to(*, cast_to: torch.dtype, cast_from: torch.dtype) -> bool:
    """Return True if Python's type of a dtype's numbers can represent those of another."""
    return is_weakly_lesser_type(dtype_to_type(cast_from), dtype_to_type(cast_to))


def elementwise_dtypes(
    *_args: Any, type_promotion_kind: ELEMENTWISE_TYPE_PROMOTION_KIND
) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtype in which an elementwise operator computes, and the dtype of its result.

    Args:
        _args: Tensors, numbers and None, which is ignored.
        type_promotion_kind: The operator's rule.

    Raises:
        ValueError: For another argument.
    """
    for each in _args:
        if each is not None and not isinstance(each, (torch.Tensor, *Number)):
            raise ValueError(f"Unexpected type {type(each)} when computing elementwise type promotion!")
    result = _promote([each for each in _args if each is not None])
    kinds = ELEMENTWISE_TYPE_PROMOTION_KIND
    if type_promotion_kind is kinds.NO_OPMATH:
        return result, result
    if type_promotion_kind is kinds.INT_TO_FLOAT and not is_grad_dtype(result):
        result = torch.get_default_dtype()
    if type_promotion_kind is kinds.BOOL_TO_LONG and result is torch.bool:
        result = torch.int64
    computed = get_computation_dtype(result)
    if type_promotion_kind is kinds.COMPLEX_TO_FLOAT and result.is_complex:
        return computed, result.to_real()
    return computed, torch.bool if type_promotion_kind is kinds.ALWAYS_BOOL else result


def _promote(args: list[Any]) -> torch.dtype:
    """Return the promoted dtype: among tensors of the highest type, those with dimensions count first."""
    highest = max((dtype_to_type(get_dtype(each)) for each in args), key=_TYPES.index, default=bool)
    counted = (float, complex) if highest is complex else (highest,)
    tensors = [
        each for each in args if isinstance(each, torch.Tensor) and dtype_to_type(each.dtype) in counted
    ]
    dtypes = [each.dtype for each in tensors if each.ndim] or [each.dtype for each in tensors]
    if highest is complex:
        dtypes = [each if each.is_complex else corresponding_complex_dtype(each) for each in dtypes]
    return reduce(_choose_higher, dtypes) if dtypes else type_to_dtype(highest)


def reduction_dtypes(
    arg: torch.Tensor, output_dtype_kind: REDUCTION_OUTPUT_TYPE_KIND, dtype: torch.dtype | None = None
) -> tuple[torch.dtype, torch.dtype | None]:
    """Return the dtype in which a reduction computes, and that of its result; None keeps the computed dtype.

    Args:
        arg: The tensor.
        output_dtype_kind: The reduction's rule.
        dtype: The requested dtype.
    """
    kinds = REDUCTION_OUTPUT_TYPE_KIND
    given = dtype or arg.dtype
    result: torch.dtype | None = given
    if output_dtype_kind is kinds.COMPLEX_TO_FLOAT and given.is_complex:
        result = given.to_real()
    elif output_dtype_kind is kinds.KEEP_PROMOTED_TYPE:
        result = None
    elif output_dtype_kind is kinds.ALWAYS_BOOL:
        result = torch.bool
    return get_computation_dtype(given), result


def number_type(x: Any) -> type:
    """Return Python's type of a number, which may be symbolic."""
    return _SYMBOLIC.get(type(x), type(x))


def dtype_or_default(dtype: torch.dtype | None) -> torch.dtype:
    """Return a dtype, the default dtype for None."""
    return torch.get_default_dtype() if dtype is None else dtype


def device_or_default(device: Any) -> Any:
    """Return a device, the CPU for None."""
    return torch.device("cpu") if device is None else device


def layout_or_default(layout: Any) -> Any:
    """Return a layout, `torch.strided` for None."""
    return torch.strided if layout is None else layout


def canonicalize_device(device: Any) -> torch.device:
    """Return a device from a device or its name."""
    if not isinstance(device, torch.device | str):
        raise AssertionError(f"device must be torch.device or str, got {type(device)}")
    return torch.device(device)


def is_cpu_scalar_tensor(a: object) -> bool:
    """Return True if a value is a tensor on the CPU without dimensions."""
    return isinstance(a, torch.Tensor) and a.ndim == 0 and a.device.type == "cpu"


def set_correction(unbiased: bool | None = None, correction: Any = None) -> float:
    """Return the correction of a variance from either of its two parameters.

    Raises:
        RuntimeError: If both are given.
        ValueError: If the correction is not a real number.
    """
    if correction is not None and unbiased is not None:
        raise RuntimeError("cannot specify both correction and unbiased arguments")
    if correction is None:
        return 0.0 if unbiased is False else 1.0
    if not isinstance(correction, (*IntLike, *FloatLike)):
        raise ValueError("correction argument should be integer or float")
    return math.nan if correction != correction else float(correction)
