"""Products of groups of rows, and of float8 matrices with scales: `grouped_mm` and `scaled_mm`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from flambeau.core.dtype import bfloat16, dtype, float8_e4m3fn, float8_e5m2, float16, float32, int32
from flambeau.core.errors import NotSupportedError
from flambeau.core.meta import Meta
from flambeau.tensor.arguments.public import function, functions
from flambeau.tensor.functions.joining import stack
from flambeau.tensor.functions.out_dtype_matmul import _scaled_mm
from flambeau.tensor.tensor import Tensor


class ScalingType(Enum):
    """The part of a matrix whose elements share a scale."""

    TensorWise = 0
    RowWise = 1
    BlockWise1x16 = 2
    BlockWise1x32 = 3
    BlockWise1x128 = 4
    BlockWise128x128 = 5


class SwizzleType(Enum):
    """The order of scales in memory."""

    NO_SWIZZLE = 0
    SWIZZLE_32_4_4 = 1


Recipes = ScalingType | Sequence[ScalingType]
Swizzles = SwizzleType | Sequence[SwizzleType]


# -- groups ---------------------------------------------------------------------------------------------


def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: dtype | None = None,
) -> Tensor:
    """Return the products of groups of a matrix's rows or columns, as mixture-of-experts layers compute them.

    With two matrices of three dimensions, the groups are their first dimension. A matrix of two dimensions is divided
    at `offs`, which the host reads: rows of `mat_a`, columns of `mat_b`, or both at their common dimension.

    Args:
        mat_a: (M, K) or (groups, M, K).
        mat_b: (K, N) or (groups, K, N), of the same dtype.
        offs: int32, the end of each group. Rows and columns after the last end are zero in the result.
        bias: None.
        out_dtype: None, or the dtype of `mat_a`.

    Raises:
        RuntimeError: If dtypes, shapes, strides or offsets do not fit.
    """
    _check_groups(mat_a.meta, mat_b.meta, offs, bias, out_dtype)
    if offs is None:
        return mat_a @ mat_b
    stacked = mat_a.ndim + mat_b.ndim == 4
    total = mat_b.meta.shape[-1] if mat_a.ndim == 3 else mat_a.meta.shape[-1 if stacked else 0]
    ends = _ends(offs, total)
    parts = list(zip([0, *ends], ends, strict=False))
    if stacked:
        return stack([mat_a[:, i:j] @ mat_b[i:j] for i, j in parts])
    if mat_a.ndim == 2:
        products = [mat_a[i:j] @ mat_b[group] for group, (i, j) in enumerate(parts)]
        return functions["cat"]([*products, mat_a.new_zeros(total - ends[-1], mat_b.meta.shape[-1])], 0)
    products = [mat_a[group] @ mat_b[:, i:j] for group, (i, j) in enumerate(parts)]
    return functions["cat"]([*products, mat_a.new_zeros(mat_a.meta.shape[1], total - ends[-1])], 1)


def _ends(offs: Tensor, total: int) -> list[int]:
    ends: list[int] = offs.tolist()
    if ends != sorted(ends) or not 0 <= ends[0] <= ends[-1] <= total:
        raise RuntimeError(
            f"offs must increase from 0 to at most {total}, the size of the dimension, but is {ends}"
        )
    return ends


def _check_groups(a: Meta, b: Meta, offs: Tensor | None, bias: Any, kind: dtype | None) -> None:
    for name, x in (("mat_a", a), ("mat_b", b)):
        if x.dtype not in (float32, bfloat16, float16):
            raise RuntimeError(
                f"Expected {name} to be Float32, BFloat16 or Float16 matrix, got {x.dtype.torch_name}"
            )
    for name, x in (("mat_a", a), ("mat_b", b)):
        if x.ndim not in (2, 3):
            raise RuntimeError(f"{name} has to be 2 or 3d")
    if a.shape[-1] != b.shape[-2]:
        raise RuntimeError("contraction dimension of mat_a and mat_b must match")
    if a.ndim == b.ndim == 3 and a.shape[0] != b.shape[0]:
        raise RuntimeError("batched dimension has to match")
    for x in (a, b):
        _check_strides(x)
    if (offs is None) != (a.ndim == b.ndim == 3):
        raise RuntimeError(
            "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d"
        )
    if offs is not None:
        _check_offsets(a, b, offs.meta)
    if a.dtype is not b.dtype:
        raise RuntimeError(f"mat_a and mat_b must have the same dtype, but got {a.dtype} and {b.dtype}")
    if bias is not None:
        raise RuntimeError("Bias not supported yet")
    if kind not in (None, a.dtype):
        raise RuntimeError("Grouped gemm output dtype must match `mat_a` dtype")


def _check_strides(x: Meta) -> None:
    """Raise RuntimeError unless rows or columns are contiguous and begin at multiples of 16 bytes."""
    (rows, columns), (row, column) = x.shape[-2:], x.strides[-2:]
    if row == 1 and column >= max(1, rows):
        step = column
    elif column == 1 and row >= max(1, columns):
        step = row
    else:
        raise RuntimeError(
            f"Invalid strides/sizes, got {list(x.strides)} for strides and {list(x.shape)} for sizes"
        )
    if step * x.itemsize % 16:
        raise RuntimeError("strides should be multiple of 16 bytes")


def _check_offsets(a: Meta, b: Meta, offs: Meta) -> None:
    if offs.ndim != 1:
        raise RuntimeError("offs has to be 1D")
    if offs.dtype is not int32:
        raise RuntimeError("Offsets have to be int32")
    if not offs.numel:
        raise RuntimeError("offs names no group")
    groups = next((x.shape[0] for x in (a, b) if x.ndim == 3), offs.numel)
    if groups != offs.numel:
        raise RuntimeError("matrix batch sizes have to match")


@function
def _grouped_mm(
    input: Tensor,
    mat2: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: dtype | None = None,
) -> Tensor:
    """Return `torch.nn.functional.grouped_mm`, by the name of its operator."""
    return grouped_mm(input, mat2, offs=offs, bias=bias, out_dtype=out_dtype)


# -- scales ---------------------------------------------------------------------------------------------


def scaled_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor | list[Tensor],
    scale_recipe_a: Recipes,
    scale_b: Tensor | list[Tensor],
    scale_recipe_b: Recipes,
    swizzle_a: Swizzles | None = None,
    swizzle_b: Swizzles | None = None,
    bias: Tensor | None = None,
    output_dtype: dtype | None = bfloat16,
    contraction_dim: list[int] | tuple[int, ...] = (),
    use_fast_accum: bool = False,
) -> Tensor:
    """Return `(mat_a * scale_a) @ (mat_b * scale_b) + bias` of float8 matrices, computed in float32.

    Args:
        mat_a, mat_b: The matrices, of float8.
        scale_a, scale_b: float32, one number each (`TensorWise`), or (M, 1) and (1, N) (`RowWise`).
        scale_recipe_a, scale_recipe_b: `ScalingType.TensorWise` or `ScalingType.RowWise`, the same for both.
        swizzle_a, swizzle_b: None or `SwizzleType.NO_SWIZZLE`.
        bias: What to add to each row.
        output_dtype: The dtype of the result; None is that of `mat_a`.
        contraction_dim: The dimensions that are summed over: none named, or (1, 0).
        use_fast_accum: True allows hardware to round sums more often. All sums are of float32 here.

    Raises:
        NotSupportedError: For scales of blocks, for swizzled scales and for other dimensions.
        ValueError: If the matrices are not of float8, or the scales do not fit.
        RuntimeError: If a shape does not fit.
    """
    recipes = (_only(scale_recipe_a), _only(scale_recipe_b))
    for recipe in recipes:
        if recipe not in (ScalingType.TensorWise, ScalingType.RowWise):
            raise NotSupportedError(f"scaled_mm: scales of {recipe}; use one for each tensor or for each row")
    if {_only(swizzle_a), _only(swizzle_b)} - {None, SwizzleType.NO_SWIZZLE}:
        raise NotSupportedError(
            "scaled_mm: swizzled scales; pass scales in row-major order without a swizzle"
        )
    if tuple(contraction_dim) not in ((), (1, 0)):
        raise NotSupportedError(
            f"scaled_mm: contraction_dim={tuple(contraction_dim)}; transpose the matrices and pass ()"
        )
    scales = (_only(scale_a), _only(scale_b))
    if recipes[0] is not recipes[1]:
        raise ValueError(f"Invalid scaling configuration: {recipes[0]} for mat_a and {recipes[1]} for mat_b")
    for name, recipe, scale in zip(("scale_a", "scale_b"), recipes, scales, strict=True):
        if recipe is ScalingType.TensorWise and (scale.numel() != 1 or scale.dtype is not float32):
            raise ValueError(f"{name} must have 1 Float element")
    return _scaled_mm(mat_a, mat_b, *scales, bias, None, output_dtype, use_fast_accum)


def scaled_grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor | list[Tensor],
    scale_recipe_a: Recipes,
    scale_b: Tensor | list[Tensor],
    scale_recipe_b: Recipes,
    swizzle_a: Swizzles | None = None,
    swizzle_b: Swizzles | None = None,
    bias: Tensor | None = None,
    offs: Tensor | None = None,
    output_dtype: dtype | None = bfloat16,
    contraction_dim: list[int] | tuple[int, ...] = (),
    use_fast_accum: bool = False,
) -> Tensor:
    """Return the products of groups of float8 matrices with a scale for each row: `grouped_mm` of `scaled_mm`.

    Args:
        mat_a, mat_b: The matrices, as in `grouped_mm`, of float8.
        scale_a, scale_b: float32: one number for each row of `mat_a` and column of `mat_b`, of shape (groups, rows) for
            three dimensions and (rows) for two. If both have two dimensions, (groups * rows).
        scale_recipe_a, scale_recipe_b: `ScalingType.RowWise`.
        swizzle_a, swizzle_b: None or `SwizzleType.NO_SWIZZLE`.
        bias: None.
        offs: int32, the end of each group. Rows and columns after the last end are zero in the result.
        output_dtype: The dtype of the result; None is bfloat16.
        contraction_dim: No dimensions.
        use_fast_accum: True allows hardware to round sums more often. All sums are of float32 here.

    Raises:
        NotSupportedError: For other scales, for swizzled ones and for other dimensions.
        RuntimeError: If dtypes, shapes or offsets do not fit.
    """
    if {_only(scale_recipe_a), _only(scale_recipe_b)} != {ScalingType.RowWise}:
        raise NotSupportedError(
            "scaled_grouped_mm: pass scales of rows, ScalingType.RowWise, for both matrices"
        )
    if {_only(swizzle_a), _only(swizzle_b)} - {None, SwizzleType.NO_SWIZZLE} or contraction_dim:
        raise NotSupportedError("scaled_grouped_mm: pass scales without a swizzle, and no contraction_dim")
    if bias is not None:
        raise RuntimeError("Bias not supported yet")
    a, b = mat_a.meta, mat_b.meta
    _check_grouped(a, b, offs)
    rows, columns = _only(scale_a), _only(scale_b)
    groups = _groups(a, b, offs)
    stacked = a.ndim == b.ndim == 2
    for name, x, scale, size in (("scale_a", a, rows, a.shape[-2]), ("scale_b", b, columns, b.shape[-1])):
        shape = (groups, size) if x.ndim == 3 else (groups * size if stacked else size,)
        if scale.dtype is not float32 or tuple(scale.shape) != shape:
            raise RuntimeError(
                f"{name} must be float32 of shape {shape}, got {scale.dtype} of {tuple(scale.shape)}"
            )
    # The product keeps rows and columns apart, and without scales TF32 does not round the factors.
    found: Any = grouped_mm(mat_a.to(float32), mat_b.to(float32), offs=offs)
    if a.ndim == b.ndim:
        by_row, by_column = rows.reshape(groups, -1, 1), columns.reshape(groups, 1, -1)
    elif a.ndim == 3:
        by_row, by_column = _of_each(rows, offs, b.shape[-1]).mT, columns
    else:
        by_row, by_column = rows.unsqueeze(-1), _of_each(columns, offs, a.shape[0])
    return (found * by_row * by_column).to(bfloat16 if output_dtype is None else output_dtype)  # type: ignore[no-any-return]


def _of_each(scale: Any, offs: Any, total: int) -> Any:
    """Return the scales of each row's group, (total, n); zeros for rows of no group."""
    ends = _ends(offs, total)
    parts = [
        scale[i].expand(stop - start, -1)
        for i, (start, stop) in enumerate(zip([0, *ends], ends, strict=False))
    ]
    return functions["cat"]([*parts, scale.new_zeros(total - ends[-1], scale.shape[1])], 0)


def _groups(a: Meta, b: Meta, offs: Tensor | None) -> int:
    return next((x.shape[0] for x in (a, b) if x.ndim == 3), 0 if offs is None else offs.meta.numel)


def _check_grouped(a: Meta, b: Meta, offs: Tensor | None) -> None:
    for name, x in (("mat_a", a), ("mat_b", b)):
        if x.dtype not in (float8_e4m3fn, float8_e5m2):
            raise RuntimeError(f"Expected {name} to be a Float8 matrix, got {x.dtype.torch_name}")
        if x.ndim not in (2, 3):
            raise RuntimeError(f"{name} has to be 2 or 3d")
    if (offs is None) != (a.ndim == b.ndim == 3):
        raise RuntimeError(
            "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d"
        )


def _only(value: Any) -> Any:
    """Return the value, or the only member of a list."""
    if isinstance(value, list | tuple):
        if len(value) != 1:
            raise NotSupportedError(f"scaled_mm: {len(value)} levels of scales; pass one")
        return value[0]
    return value
