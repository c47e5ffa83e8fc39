"""What the functions of `distributed` ask of their arguments, in PyTorch's words."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import chain
from operator import index
from typing import Any

from flambeau.core.dtype import bool_
from flambeau.distributed.reductions import RedOpType, type_of, word_of
from flambeau.tensor.tensor import Tensor

_NO_COMPLEX = (
    RedOpType.MAX, RedOpType.MIN, RedOpType.PRODUCT, RedOpType.BAND, RedOpType.BOR, RedOpType.BXOR,
)  # fmt: skip


def single(tensor: Any, name: str) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{name}` of type torch.Tensor\n"
            f"             but got {type(tensor)} instead."
        )


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


def same_dtype(*groups: Any) -> None:
    """One dtype; complex numbers count as their parts."""
    last = None
    for tensor in chain.from_iterable([g if isinstance(g, list) else [g] for g in groups]):
        kind = tensor.dtype.to_real()
        if last is not None and kind is not last:
            raise ValueError(
                f"Invalid usage of tensors with different dtypesFound {last} and  {tensor.dtype}"
            )
        last = kind


def operation(op: Any, tensors: Sequence[Any], what: str) -> str:
    """A driver's word for `op`. ValueError: not of these tensors."""
    kind = type_of(op)
    if not supports_complex(kind) and any(tensor.dtype.is_complex for tensor in tensors):
        raise ValueError(f"{what} does not support {kind} on complex tensors")
    word = word_of(kind)
    if word == "avg" and any(t.dtype is bool_ for t in tensors):
        raise TypeError("Cannot use ReduceOp.AVG with boolean inputs")
    bits = word in ("band", "bor", "bxor")
    if bits and any(t.dtype.is_floating_point or t.dtype.is_complex for t in tensors):
        raise RuntimeError(f"Cannot use ReduceOp.{word.upper()} with non-integral dtype")
    return word


def supports_complex(op: Any) -> bool:
    """Whether an operation is defined for complex numbers."""
    return type_of(op) not in _NO_COMPLEX


def root(rank: int, size: int, what: str) -> int:
    if not 0 <= rank < size:
        raise RuntimeError(f"ProcessGroup::{what}: invalid root rank: {rank}")
    return rank


def tag(number: Any) -> int:
    """A message's. TypeError: it is no whole number."""
    try:
        return index(number)
    except TypeError:
        raise TypeError(f"tag must be an int, not {type(number).__name__}") from None


def timeout(limit: Any) -> timedelta | None:
    """A limit of a wait, or None. TypeError: it is something else."""
    if limit is not None and not isinstance(limit, timedelta):
        raise TypeError(f"Expected timeout argument to be of type datetime.timedelta, got {limit}")
    return limit


def as_long(tensors: Sequence[Any], size: int, what: str) -> None:
    """A list of one tensor for each rank."""
    if len(tensors) != size:
        raise RuntimeError(
            f"ProcessGroup::{what}: Incorrect list size {len(tensors)}. The list's size should be {size}, same as size "
            "of the process group."
        )


def like(tensors: Sequence[Any], tensor: Any, what: str) -> None:
    """Tensors of one device, each of the size of `tensor`."""
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


def times(wide: Any, narrow: Any, size: int, names: tuple[str, str], engine: str) -> None:
    """A tensor `size` times as large as another of its dtype and device. An engine's errors are its own in PyTorch."""
    if wide.dtype is not narrow.dtype:
        raise TypeError(f"{names[0]} tensor must have the same type as {names[1]} tensor")
    if wide.device is not narrow.device:
        raise RuntimeError(f"{names[0]} and {names[1]} tensor must be on one device")
    if wide.numel() != size * narrow.numel():
        error = ValueError if engine == "nccl" else RuntimeError
        raise error(f"{names[0]} tensor size must be equal to world_size times {names[1]} tensor size")
