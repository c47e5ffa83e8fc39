"""Conversions between rows of elements and pointers to rows: `torch._convert_indices_from_coo_to_csr` and back."""

from __future__ import annotations

from typing import Any

from flambeau.core import dtype as dtypes
from flambeau.tensor.arguments.public import functions as torch
from flambeau.tensor.tensor import Tensor


def _convert_indices_from_coo_to_csr(input: Tensor, size: int, *, out_int32: bool = False) -> Tensor:
    """Return the pointers to the rows, (size + 1,), of elements in the rows `input`, which is sorted.

    Args:
        input: The row of each element.
        size: The number of rows.
        out_int32: Return int32 in place of int64.

    Raises:
        RuntimeError: If `input` is not a vector.
        NotImplementedError: If `input` is not of integers.
    """
    if input.dim() != 1:
        raise RuntimeError(f"Input is supposed to be a vector, but got {input.dim()} dimensional tensor.")
    if input.dtype.is_floating_point or input.dtype.is_complex or input.dtype is dtypes.bool_:
        raise NotImplementedError(
            f"\"convert_indices_from_coo_to_csr_cpu\" not implemented for '{input.dtype.torch_name}'"
        )
    rows = torch["arange"](size + 1, dtype=input.dtype, device=input.device)
    return torch["searchsorted"](input.contiguous(), rows, out_int32=out_int32)


def _convert_indices_from_csr_to_coo(
    crow_indices: Tensor, col_indices: Tensor, *, out_int32: bool = False, transpose: bool = False
) -> Tensor:
    """Return the rows and columns of elements, (2, elements), or with the batch (3, elements).

    Args:
        crow_indices: Pointers to the rows, (*batch, rows + 1).
        col_indices: The columns, (*batch, elements).
        out_int32: Return int32 in place of int64.
        transpose: Exchange rows and columns.
    """
    kind = dtypes.int32 if out_int32 else dtypes.int64
    batch, count = crow_indices.shape[:-1], crow_indices.shape[-1] - 1
    each: Any = crow_indices.diff(dim=-1).reshape(-1)
    numbers = torch["arange"](each.numel(), device=each.device)
    rows = numbers.repeat_interleave(each)
    parts = [rows % count if count else rows, col_indices.reshape(-1)]
    if transpose:
        parts.reverse()
    if batch:
        groups = torch["arange"](batch.numel(), device=each.device).repeat_interleave(col_indices.shape[-1])
        parts = [*torch["unravel_index"](groups, batch), *parts]
    return torch["stack"]([part.to(kind) for part in parts])
