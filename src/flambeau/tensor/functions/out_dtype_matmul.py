"""Products in another dtype than their factors: `mm`, `bmm`, `addmm`, `baddbmm` with `out_dtype`, on CUDA, of float16
and bfloat16; `_int_mm` of int8, `_scaled_mm` of float8.
"""

from __future__ import annotations

from typing import Any

from flambeau.core.device import CPU
from flambeau.core.dtype import (
    bfloat16,
    dtype,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int32,
    uint8,
)
from flambeau.core.errors import type_name
from flambeau.core.typeinfo import finfo
from flambeau.ops.linalg import matmul as ops
from flambeau.ops.linalg.matmul import c_name
from flambeau.tensor.arguments.public import function
from flambeau.tensor.out_argument import run
from flambeau.tensor.tensor import Tensor


def product(name: str, a: Tensor, b: Tensor, kind: dtype, out: Tensor | None) -> Tensor:
    """Return the product in `kind`. Raises the errors of PyTorch's operator `name`."""
    _check(name, a, b, kind, out)
    found: Tensor = run(ops.matmul if kind is a.dtype else ops.mm_dtype, (a, b), (), out)
    return found


def add_product(
    name: str, input: Tensor, a: Tensor, b: Tensor, factors: tuple[Any, Any], kind: dtype, out: Tensor | None
) -> Tensor:
    """Return beta * input + alpha * (a @ b) in `kind`; the factors are beta and alpha."""
    _check(name, a, b, kind, out)
    if input.dtype not in (kind, a.dtype):
        what = "mat1" if name == "addmm" else "batch1"
        raise RuntimeError(f"self dtype must match either out_dtype or {what} dtype")
    op = ops.addmm if kind is a.dtype else ops.addmm_dtype
    found: Tensor = run(op, (input.to(kind), a, b, *factors), (), out)
    return found


_DIFFERENT = {
    "mm": "input dtypes must be the same",
    "addmm": "mat1 and mat2 must have the same dtype, but got {} and {}",
    "bmm": "batch1 and batch2 must have the same dtype",
    "baddbmm": "batch1 and batch2 must have the same dtype",
}


def check_device(name: str, a: Tensor, out: Tensor | None) -> None:
    """Raise NotImplementedError for a product on the CPU."""
    if a.device is CPU:
        raise NotImplementedError(
            f"Could not run 'aten::{name}.dtype{'' if out is None else '_out'}' with arguments from the 'CPU' backend: "
            "out_dtype is for CUDA."
        )


def _check(name: str, a: Tensor, b: Tensor, kind: Any, out: Tensor | None) -> None:
    if not isinstance(kind, dtype):
        raise TypeError(f"{name}(): argument 'out_dtype' must be torch.dtype, not {type_name(kind)}")
    check_device(name, a, out)
    if a.dtype is not b.dtype:
        raise RuntimeError(_DIFFERENT[name].format(c_name(a.dtype), c_name(b.dtype)))
    if kind is not a.dtype and (kind is not float32 or a.dtype not in (float16, bfloat16)):
        raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")
    if out is not None and out.dtype is not kind:
        raise RuntimeError("out_dtype must be the same as the dtype of the provided out tensor")


# -- products of 8-bit numbers --------------------------------------------------------------------------------

_FLOAT8 = (float8_e4m3fn, float8_e5m2)


@function
def _int_mm(input: Tensor, mat2: Tensor) -> Tensor:
    """Return the int32 product of two matrices of int8 (`input` may be uint8).

    Raises:
        RuntimeError: If a dtype or a shape does not fit.
    """
    a, b, name = input.meta, mat2.meta, f"int_mm_out_{'cuda' if input.device.type == 'cuda' else 'cpu'}"
    for what, x in (("self", a), ("mat2", b)):
        if x.ndim != 2:
            raise RuntimeError(f"{name}: Expected {what} to be of dimension 2 but got {x.ndim}")
    if a.shape[1] != b.shape[0]:
        raise RuntimeError(
            f"{name}: self.size(1) needs to match mat2.size(0) but got {a.shape[1]} and {b.shape[0]}"
        )
    if a.dtype not in (int8, uint8):
        raise RuntimeError(f"{name}: Expected self dtype to be int8 or uint8 but got {c_name(a.dtype)}")
    if b.dtype is not int8:
        raise RuntimeError(f"{name}: Expected mat2 dtype to be int8 but got {c_name(b.dtype)}")
    product: Any = input.to(float64) @ mat2.to(float64)
    return product.to(int32)


@function
def _scaled_mm(
    input: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """Return `(input * scale_a) @ (mat2 * scale_b) + bias` of float8 matrices, computed in float32.

    Args:
        input, mat2: The matrices.
        scale_a, scale_b: float32, one number each, or one for each row of `input` and column of `mat2`.
        bias: A row that is added to each row.
        scale_result: Factor of the result.
        out_dtype: The dtype of the result; None for that of `input`.
        use_fast_accum: No effect; hardware may round sums more often, here all sums are float32.

    Raises:
        RuntimeError: If shapes do not match.
        ValueError: If the matrices are not float8, or the scales do not match.
    """
    a, b = input.meta, mat2.meta
    for what, x in (("mat1", a), ("mat2", b)):
        if x.ndim != 2:
            raise RuntimeError(f"{what} must be a matrix")
    (n, k), (p, m) = a.shape, b.shape
    if k != p:
        raise RuntimeError(f"mat_a and mat_b shapes cannot be multiplied ({n}x{k} and {p}x{m})")
    _check_scales(a, b, scale_a.meta, scale_b.meta)
    given: tuple[Any, ...] = (input, mat2, scale_a, scale_b)
    left, right, by_row, by_column = (x.to(float32) for x in given)
    # One number scales the result; several scale rows and columns, which the product keeps apart.
    result: Any = (left @ right) * (by_row.reshape(()) if by_row.numel() == 1 else by_row)
    result = result * (by_column.reshape(()) if by_column.numel() == 1 else by_column)
    if bias is not None:
        result = result + bias.to(float32)
    if scale_result is not None:
        result = result * scale_result
    kind = a.dtype if out_dtype is None else out_dtype
    if kind in _FLOAT8:
        most = finfo(kind).max
        result = result.clamp(-most, most)
    return result.to(kind)


def _check_scales(a: Any, b: Any, scale_a: Any, scale_b: Any) -> None:
    by_row, by_column = (a.shape[0], 1), (1, b.shape[1])
    single = scale_a.numel == scale_b.numel == 1
    if (
        a.dtype not in _FLOAT8
        or b.dtype not in _FLOAT8
        or scale_a.dtype is not float32
        or scale_b.dtype is not float32
        or not (single or (scale_a.shape, scale_b.shape) == (by_row, by_column))
    ):
        raise ValueError(
            "Invalid scaling configuration.\n- For TensorWise scaling, a and b should be float8, scales should be "
            f"float and singletons.\n- For RowWise scaling, a and b should be float8, scales should be float, "
            f"scale_a should be {by_row} and scale_b should be {by_column}, and both contiguous.\n"
            f"Got {a.dtype}, {b.dtype}, scale_a: {scale_a.dtype} {tuple(scale_a.shape)}, scale_b: {scale_b.dtype} "
            f"{tuple(scale_b.shape)}"
        )
