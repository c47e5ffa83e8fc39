"""Rules of shapes, strides and dimensions in torch._prims_common."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias

import flambeau as torch

ShapeType: TypeAlias = torch.Size | list[int] | tuple[int, ...]
StrideType: TypeAlias = list[int] | tuple[int, ...]
DimsType: TypeAlias = int | list[int] | tuple[int, ...]
DimsSequenceType: TypeAlias = list[int] | tuple[int, ...]

__all__ = [
    "DimsSequenceType", "DimsType", "ShapeType", "StrideType", "apply_perm", "canonicalize_dim",
    "canonicalize_dims", "check", "compute_reduction_output_shape", "compute_required_storage_length",
    "extract_dims_from_varargs", "extract_shape_from_varargs", "infer_size", "infer_size_shapes", "invert_perm",
    "is_channels_last_contiguous", "is_channels_last_contiguous_2d", "is_channels_last_contiguous_3d",
    "is_contiguous", "is_contiguous_for_memory_format", "is_expandable_to", "is_same_shape",
    "is_valid_permutation", "make_channels_last_1d_strides_for", "make_channels_last_2d_strides_for",
    "make_channels_last_3d_strides_for", "make_channels_last_strides_for", "make_contiguous_strides_for",
    "prod", "reduction_dims", "same_shape", "suggest_memory_format", "validate_dim_length", "validate_idx",
    "validate_no_repeating_dims", "validate_shape",
]  # fmt: skip


def prod(xs: Sequence[Any]) -> Any:
    """Return the product of numbers, 1 without any."""
    return reduce(operator.mul, xs, 1)


def check(b: bool, s: Callable[[], str], exc_type: type[Exception] = RuntimeError) -> None:
    """Raise an exception of a type with the text of `s()` unless `b` is true."""
    warnings.warn(
        "`torch._prims_common.check` is deprecated and will be removed in the future. "
        "Please use `torch._check*` functions instead.",
        FutureWarning,
        stacklevel=2,
    )
    if not b:
        raise exc_type(s())


# -- dimensions ---------------------------------------------------------------------------------------------------


def validate_dim_length(length: int) -> None:
    """Raise AssertionError unless a size is an integer that is not negative."""
    if not isinstance(length, int | torch.SymInt) or length < 0:
        raise AssertionError(f"Expected a nonnegative dimension, got {length!r}")


def validate_shape(shape: Any) -> None:
    """Raise AssertionError unless a shape is a sequence of sizes."""
    if not isinstance(shape, Sequence):
        raise AssertionError(f"shape must be a Sequence, got {type(shape)}")
    for length in shape:
        validate_dim_length(length)


def validate_idx(rank: int, idx: int) -> None:
    """Raise AssertionError unless `idx` is a dimension of a tensor of `rank` dimensions; 0 is valid without any."""
    if not isinstance(idx, int):
        raise AssertionError(f"idx must be Dim, got {type(idx)}")
    if not isinstance(rank, int):
        raise AssertionError(f"rank must be Dim, got {type(rank)}")
    if not (0 <= idx < rank or idx == 0):
        raise AssertionError(f"idx {idx} is out of bounds for rank {rank}")


def canonicalize_dim(rank: int, idx: int, wrap_scalar: bool = True) -> int:
    """Return the position of a dimension, counted from the first one, which is 0.

    Args:
        rank: Number of dimensions.
        idx: The dimension; negative ones count from the end.
        wrap_scalar: Treat a tensor without dimensions as if it had one; otherwise it raises.

    Raises:
        IndexError: If there is no such dimension.
    """
    if rank < 0:
        raise IndexError(f"Rank cannot be negative but got {rank}")
    if rank == 0 and not wrap_scalar:
        raise IndexError(f"Dimension specified as {idx} but tensor has no dimensions")
    rank = max(rank, 1)
    if not -rank <= idx < rank:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {idx})"
        )
    return idx % rank


def canonicalize_dims(rank: int, indices: Any, wrap_scalar: bool = True) -> Any:
    """Return one dimension, or a tuple of dimensions, counted from 0."""
    if isinstance(indices, int):
        return canonicalize_dim(rank, indices, wrap_scalar)
    return tuple(canonicalize_dim(rank, each, wrap_scalar) for each in indices)


def validate_no_repeating_dims(dims: Sequence[int]) -> None:
    """Raise RuntimeError if a dimension appears twice."""
    if len(dims) != len(set(dims)):
        raise RuntimeError("duplicate value in the list of dims")


def reduction_dims(shape: ShapeType, dims: Sequence[int] | None) -> tuple[int, ...]:
    """Return the dimensions that a reduction reduces, counted from 0: all for None."""
    if dims is None:
        return tuple(range(len(shape)))
    canonical = tuple(canonicalize_dim(len(shape), each) for each in dims)
    validate_no_repeating_dims(canonical)
    return canonical


def compute_reduction_output_shape(shape: ShapeType, dimensions: Sequence[int]) -> tuple[int, ...]:
    """Return the shape without the reduced dimensions."""
    for each in dimensions:
        validate_idx(len(shape), each)
    return tuple(size for number, size in enumerate(shape) if number not in dimensions)


def is_valid_permutation(rank: int, perm: DimsSequenceType) -> bool:
    """Return True if a tuple or list is a permutation of the dimensions."""
    return isinstance(perm, Sequence) and sorted(perm) == list(range(rank))


def apply_perm(inp: Sequence[Any], perm: Sequence[int]) -> list[Any]:
    """Return a list whose element `i` is `inp[perm[i]]`; -1 drops an element."""
    permuted: list[Any] = [-1] * len(inp)
    for target, source in enumerate(perm):
        permuted[target] = inp[source]
    return permuted


def invert_perm(perm: Sequence[int]) -> list[int]:
    """Return the permutation that undoes another."""
    inverse = [-1] * len(perm)
    for target, source in enumerate(perm):
        inverse[source] = target
    return inverse


def extract_dims_from_varargs(dims: Any) -> Any:
    """Return the dimensions of `f(1, 2)` and of `f((1, 2))`."""
    return dims[0] if dims and isinstance(dims[0], Sequence) else dims


def extract_shape_from_varargs(shape: Any, validate: bool = True) -> Any:
    """Return the shape of `f(2, 3)` and of `f((2, 3))`."""
    if len(shape) == 1 and isinstance(shape[0], Sequence):
        shape = shape[0]
    if validate:
        validate_shape(shape)
    return shape


# -- shapes -------------------------------------------------------------------------------------------------------


def same_shape(a: ShapeType, b: ShapeType, *, allow_rhs_unbacked: bool = False) -> bool:
    """Return True if two shapes are equal. Sizes are numbers here, so `allow_rhs_unbacked` has no effect."""
    return tuple(a) == tuple(b)


def is_same_shape(a: Sequence[int], b: Sequence[int]) -> bool:
    """Return True if two shapes are equal."""
    return tuple(a) == tuple(b)


def is_expandable_to(shape: ShapeType, desired: ShapeType) -> bool:
    """Return True if a shape can be expanded to another."""
    if len(shape) > len(desired):
        return False
    pairs = zip(reversed(shape), reversed(desired), strict=False)
    return all(size in (1, wanted) for size, wanted in pairs)


def infer_size_shapes(a: ShapeType, b: ShapeType) -> tuple[int, ...]:
    """Return the shape that two shapes are broadcast to.

    Raises:
        RuntimeError: If they cannot be.
    """
    ndim = max(len(a), len(b))
    first, second = ((1,) * (ndim - len(each)) + tuple(each) for each in (a, b))
    for number in reversed(range(ndim)):
        if first[number] != second[number] and 1 not in (first[number], second[number]):
            raise RuntimeError(
                f"The size of tensor a ({first[number]}) must match the size of tensor b ({second[number]}) "
                f"at non-jagged dimension {number}"
            )
    return tuple(other if size == 1 else size for size, other in zip(first, second, strict=True))


def infer_size(shape: ShapeType, numel: int) -> tuple[int, ...]:
    """Return a shape with the size that -1 stands for.

    Args:
        shape: Sizes, of which one may be -1.
        numel: Number of elements.

    Raises:
        RuntimeError: If no size, or more than one, makes `numel` elements.
    """
    if list(shape).count(-1) > 1:
        raise RuntimeError("only one dimension can be inferred")
    for size in shape:
        if size < -1:
            raise RuntimeError(f"invalid shape dimension {size}")
    known = prod([size for size in shape if size != -1])
    if -1 not in shape:
        if numel != known:
            raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {numel}")
        return tuple(shape)
    if known == 0:
        raise RuntimeError(
            f"cannot reshape tensor of 0 elements into shape {list(shape)} because the unspecified dimension size "
            "-1 can be any value and is ambiguous"
        )
    if numel % known:
        raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {numel}")
    return tuple(numel // known if size == -1 else size for size in shape)


# -- strides ------------------------------------------------------------------------------------------------------


def make_contiguous_strides_for(shape: ShapeType, row_major: bool = True) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor, in elements.

    Args:
        shape: The shape.
        row_major: False lays out each matrix of the last two dimensions by columns.
    """
    validate_shape(shape)
    strides = _make_strides([max(size, 1) for size in shape], range(len(shape))[::-1])
    if row_major or len(shape) < 2:
        return strides
    return (*strides[:-2], 1, max(shape[-2], 1))


def _make_strides(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return strides of dimensions that follow each other in memory, the innermost first in `order`."""
    strides, step = [0] * len(shape), 1
    for number in order:
        strides[number] = step
        step *= shape[number]
    return tuple(strides)


def make_channels_last_1d_strides_for(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor (N, C, L) whose channels are adjacent."""
    return _make_channels_last_strides(shape, 3)


def make_channels_last_2d_strides_for(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor (N, C, H, W) in `torch.channels_last`."""
    return _make_channels_last_strides(shape, 4)


def make_channels_last_3d_strides_for(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor (N, C, D, H, W) in `torch.channels_last_3d`."""
    return _make_channels_last_strides(shape, 5)


def _make_channels_last_strides(shape: Sequence[int], ndim: int) -> tuple[int, ...]:
    if len(shape) != ndim:
        raise RuntimeError(f"Only tensors of rank {ndim} can use this channels last memory format")
    return _make_strides(shape, [1, *range(ndim - 1, 1, -1), 0])


def make_channels_last_strides_for(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor of 3, 4 or 5 dimensions whose channels are adjacent."""
    if len(shape) not in (3, 4, 5):
        raise RuntimeError(f"no channels last format strides exist in {len(shape)} dimensions")
    return _make_channels_last_strides(shape, len(shape))


def _has_strides(a: torch.Tensor, strides: Sequence[int]) -> bool:
    """Return True if a tensor has strides in the dimensions of more than one element."""
    return all(
        size == 1 or own == wanted for size, own, wanted in zip(a.shape, a.stride(), strides, strict=True)
    )


def is_contiguous(a: torch.Tensor, false_if_dde: bool = False) -> bool:
    """Return True if a tensor is contiguous."""
    return a.numel() < 2 or _has_strides(a, make_contiguous_strides_for(a.shape))


def is_channels_last_contiguous_2d(a: torch.Tensor, false_if_dde: bool = False) -> bool:
    """Return True if a tensor has 4 dimensions and the layout of `torch.channels_last`."""
    return a.ndim == 4 and _has_strides(a, make_channels_last_2d_strides_for(a.shape))


def is_channels_last_contiguous_3d(a: torch.Tensor, false_if_dde: bool = False) -> bool:
    """Return True if a tensor has 5 dimensions and the layout of `torch.channels_last_3d`."""
    return a.ndim == 5 and _has_strides(a, make_channels_last_3d_strides_for(a.shape))


def is_channels_last_contiguous(a: torch.Tensor) -> bool:
    """Return True if a tensor has either layout in which channels are adjacent."""
    return is_channels_last_contiguous_2d(a) or is_channels_last_contiguous_3d(a)


def is_contiguous_for_memory_format(
    a: torch.Tensor, *, memory_format: torch.memory_format, false_if_dde: bool = False
) -> bool:
    """Return True if a tensor is contiguous in a memory format.

    Raises:
        RuntimeError: For `torch.preserve_format`.
    """
    tests: dict[Any, Callable[[torch.Tensor], bool]] = {
        torch.contiguous_format: is_contiguous,
        torch.channels_last: is_channels_last_contiguous_2d,
        torch.channels_last_3d: is_channels_last_contiguous_3d,
    }
    if memory_format not in tests:
        raise RuntimeError(f"is_contiguous received unsupported memory format {memory_format}")
    return tests[memory_format](a)


def suggest_memory_format(x: torch.Tensor) -> torch.memory_format:
    """Return the memory format that a tensor's strides have: channels last, or the contiguous format."""
    if x.layout != torch.strided or x.ndim not in (4, 5) or 0 in x.shape:
        return torch.contiguous_format
    order = [0, *range(2, x.ndim), 1]  # from the largest stride to the smallest
    if x.stride(1) == 0 or not _decreases(x, order):
        return torch.contiguous_format
    return torch.channels_last if x.ndim == 4 else torch.channels_last_3d


def _decreases(x: torch.Tensor, order: Sequence[int]) -> bool:
    """Return True if strides do not decrease from the last dimension of `order` to the first.

    A dimension of one element whose stride equals the channels' is ambiguous: it counts as contiguous.
    """
    least = 0
    for number in reversed(order):
        if x.stride(number) < least or (number == 0 and least == x.stride(1)):
            return False
        least = x.stride(number) * max(x.shape[number], 1) if x.shape[number] > 1 else x.stride(number)
    return True


def compute_required_storage_length(shape: ShapeType, strides: StrideType, storage_offset: int) -> int:
    """Return the number of elements that a storage needs for a shape, strides and an offset."""
    if prod(shape) == 0:
        return 0
    return 1 + storage_offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
