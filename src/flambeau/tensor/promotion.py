"""Promotion and dtypes in the `torch` namespace: result_type, can_cast, finfo, the default dtype."""

from __future__ import annotations

from typing import Any

from flambeau.core import dtype as dtypes
from flambeau.core.dtype import dtype
from flambeau.core.errors import argument_type
from flambeau.core.flags import flags
from flambeau.core.typeinfo import finfo, iinfo
from flambeau.ops.pointwise.dtype_promotion import result_type as result_of
from flambeau.tensor.arguments import public
from flambeau.tensor.arguments.public import both, function
from flambeau.tensor.signatures import accepts, signatures
from flambeau.tensor.tensor import Tensor

public.functions.update(finfo=finfo, iinfo=iinfo)


def _dtype(x: Any, name: str, argument: str, position: int) -> dtype:
    if isinstance(x, type) and x in dtypes.PYTHON_TYPES:
        return dtypes.PYTHON_TYPES[x]
    if not isinstance(x, dtype):
        raise TypeError(argument_type(name, argument, position, "torch.dtype", x))
    return x


@function
@signatures("promote_types(type1: dtype, type2: dtype)")
def promote_types(type1: Any, type2: Any) -> dtype:
    """Return the smallest dtype to which both can be converted. Raises RuntimeError for pairs without one."""
    first, second = _dtype(type1, "promote_types", "type1", 1), _dtype(type2, "promote_types", "type2", 2)
    return dtypes.promote_types(first, second)


@function
@signatures("can_cast(from: dtype, to: dtype)")
def can_cast(from_: Any, to: Any) -> bool:
    """Return True if a result of `from_` may be stored as `to`."""
    return dtypes.can_cast(_dtype(from_, "can_cast", "from_", 1), _dtype(to, "can_cast", "to", 2))


@function
@accepts("result_type", tensor="tensor1", other="tensor2", scalar1="tensor1", scalar2="tensor2")
def result_type(tensor1: Any, tensor2: Any) -> dtype:
    """Return the dtype of an arithmetic operation on these two tensors or numbers."""
    operands: list[Any] = []
    for i, x in enumerate((tensor1, tensor2)):
        if isinstance(x, Tensor):
            operands.append(x.meta)
        elif x.__class__ in (bool, int, float, complex):
            operands.append(x.__class__)
        else:
            raise TypeError(argument_type("result_type", f"tensor{i + 1}", i + 1, "Tensor", x))
    return result_of(operands, flags.default_dtype)


@both
def is_floating_point(input: Tensor) -> bool:
    """Return True if a tensor has a floating dtype."""
    if not isinstance(input, Tensor):
        raise TypeError(argument_type("is_floating_point", "input", 1, "Tensor", input))
    return input.dtype.is_floating_point


@both
def is_complex(input: Tensor) -> bool:
    """Return True if a tensor has a complex dtype."""
    if not isinstance(input, Tensor):
        raise TypeError(argument_type("is_complex", "input", 1, "Tensor", input))
    return input.dtype.is_complex


@function
def get_default_dtype() -> dtype:
    """Return the dtype of new floating tensors."""
    return flags.default_dtype


@function
def set_default_dtype(d: Any) -> None:
    """Set the dtype of new floating tensors: float16, bfloat16, float32 or float64. Raises TypeError."""
    if not isinstance(d, dtype) or not d.is_floating_point:
        raise TypeError("only floating-point types are supported as the default type")
    if d.itemsize == 1:
        raise TypeError(f"couldn't find storage object {d.torch_name}Storage")
    flags.default_dtype = d
