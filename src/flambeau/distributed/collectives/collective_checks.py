"""The argument checks of the functions of `distributed`, with PyTorch's texts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import chain
from operator import index
from typing import Any

from flambeau.core.dtype import bfloat16, bool_, float16, float32, float64
from flambeau.distributed.collectives.reduce_op import RedOpType, type_of, word_of
from flambeau.distributed.world import ProcessGroup
from flambeau.driver.protocol import PreMul
from flambeau.tensor.arguments.extents import require_backed
from flambeau.tensor.tensor import Tensor

_NO_COMPLEX = (
    RedOpType.MAX, RedOpType.MIN, RedOpType.PRODUCT, RedOpType.BAND, RedOpType.BOR, RedOpType.BXOR,
)  # fmt: skip
_SCALED = (float16, float32, bfloat16, float64)  # dtypes of PREMUL_SUM


def single(tensor: Any, name: str) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{name}` of type torch.Tensor\n"
            f"             but got {type(tensor)} instead."
        )
    require_backed(tensor)


def tensor_list(tensors: Any, name: str) -> None:
    if not isinstance(tensors, list):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{name}` of type List[torch.Tensor]\n"
            f"             but got {type(tensors)} instead."
        )
    if not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{name}` of type List[torch.Tensor]\n"
            f"             but got {type(tensors)} with elements of type {[type(t) for t in tensors]}."
        )
    for tensor in tensors:
        require_backed(tensor)


def some(tensors: Sequence[Any]) -> None:
    if not tensors:
        raise NotImplementedError(
            "There were no tensor arguments to this function (an empty list of Tensors)"
        )


def same_dtype(*groups: Any) -> None:
    """Check that tensors have one dtype. A complex number counts as two real ones."""
    last = None
    for tensor in chain.from_iterable([g if isinstance(g, list) else [g] for g in groups]):
        kind = tensor.dtype.to_real()
        if last is not None and kind is not last:
            raise ValueError(
                f"Invalid usage of tensors with different dtypesFound {last} and  {tensor.dtype}"
            )
        last = kind


def operation(op: Any, tensors: Sequence[Any], what: str) -> str | PreMul:
    """Return the driver's name of a reduction operation.

    Raises:
        ValueError: If the operation is not defined for these tensors.
    """
    kind = type_of(op)
    if not supports_complex(kind) and any(tensor.dtype.is_complex for tensor in tensors):
        raise ValueError(f"{what} does not support {kind} on complex tensors")
    word = word_of(op)
    if isinstance(word, PreMul):
        _check_premul_sum(tensors)
    if word == "avg" and any(t.dtype is bool_ for t in tensors):
        raise TypeError("Cannot use ReduceOp.AVG with boolean inputs")
    bits = word in ("band", "bor", "bxor")
    if bits and any(t.dtype.is_floating_point or t.dtype.is_complex for t in tensors):
        raise RuntimeError(f"Cannot use ReduceOp.{word.upper()} with non-integral dtype")
    return word


def _check_premul_sum(tensors: Sequence[Any]) -> None:
    if any(tensor.device.type == "cpu" for tensor in tensors):
        raise RuntimeError("Cannot use ReduceOp.PREMUL_SUM with Gloo")
    if any(tensor.dtype not in _SCALED for tensor in tensors):
        raise RuntimeError("PreMulSum Data type must be half, float, bfloat16 or double")


def supports_complex(reduceOp: Any) -> bool:  # noqa: N803 (PyTorch's name)
    """Return True if an operation is defined for complex numbers."""
    return type_of(reduceOp) not in _NO_COMPLEX


def process_group(group: Any, name: str) -> None:
    """Check that an argument is a process group.

    Raises:
        TypeError: For something else.
    """
    if not isinstance(group, ProcessGroup):
        raise TypeError(
            f"{name} must be a torch.distributed.ProcessGroup, not {type(group).__name__}: {group!r}"
        )


def other(group: ProcessGroup, rank: int, which: str) -> None:
    """Check that a message's peer is another rank."""
    if rank == group.rank():
        raise ValueError(
            f"Invalid {which} rank: {which} rank should not be the same as the rank of the current process."
        )


def root(rank: Any, size: int, what: str) -> int:
    """Return a rank of the group.

    Raises:
        TypeError: If it is not an integer.
        RuntimeError: If there is no such rank.
    """
    try:
        rank = index(rank)
    except TypeError:
        raise TypeError(f"{what}: the root rank must be an int, not {type(rank).__name__}") from None
    if not 0 <= rank < size:
        raise RuntimeError(f"ProcessGroup::{what}: invalid root rank: {rank}")
    return rank


def tag(number: Any) -> int:
    """Return the tag of a message.

    Raises:
        TypeError: If it is not a whole number.
    """
    try:
        return index(number)
    except TypeError:
        raise TypeError(f"tag must be an int, not {type(number).__name__}") from None


def timeout(limit: Any) -> timedelta | None:
    """Check that a timeout is a timedelta or None.

    Raises:
        TypeError: If it is something else.
    """
    if limit is not None and not isinstance(limit, timedelta):
        raise TypeError(f"Expected timeout argument to be of type datetime.timedelta, got {limit}")
    return limit


def as_long(tensors: Sequence[Any], size: int, what: str) -> None:
    """Check that a list has one tensor for each rank."""
    if len(tensors) != size:
        raise RuntimeError(
            f"ProcessGroup::{what}: Incorrect list size {len(tensors)}. The list's size should be {size}, same as size "
            "of the process group."
        )


def like(tensors: Sequence[Any], tensor: Any, what: str) -> None:
    """Check that tensors have one device and the size of `tensor`."""
    for place, other in enumerate(tensors):
        if other.device is not tensor.device:
            raise RuntimeError(
                f"ProcessGroup::{what}: tensors must be on one device, but there are {tensor.device} and {other.device}"
            )
        if other.numel() != tensor.numel():
            raise RuntimeError(
                f"ProcessGroup::{what}: invalid tensor size at index {place} (expected {tuple(tensor.shape)}, got "
                f"{tuple(other.shape)})"
            )


def times(wide: Any, narrow: Any, size: int, names: tuple[str, str], backend: str) -> None:
    """Check that a tensor is `size` times as large as another and has its dtype and device. PyTorch's errors differ
    by backend.
    """
    if wide.dtype is not narrow.dtype:
        kind = TypeError if backend == "nccl" else RuntimeError
        raise kind(f"{names[0]} tensor must have the same type as {names[1]} tensor")
    if wide.device is not narrow.device:
        raise RuntimeError(f"{names[0]} and {names[1]} tensor must be on one device")
    if wide.numel() != size * narrow.numel():
        error = ValueError if backend == "nccl" else RuntimeError
        raise error(f"{names[0]} tensor size must be equal to world_size times {names[1]} tensor size")
