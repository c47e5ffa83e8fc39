"""`group_by_device_and_dtype`: parallel lists of tensors, divided into those of one device and dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def group_by_device_and_dtype(
    tensorlistlist: Sequence[Sequence[Any]], with_indices: bool = False
) -> dict[tuple[Any, Any], tuple[list[list[Any]], list[int]]]:
    """Group parallel lists by the device and dtype of the first list's tensors.

    Args:
        tensorlistlist: Lists of one length, or empty lists; None stands for an absent tensor in other lists.
        with_indices: True if the groups contain the positions in the lists.

    Returns:
        (device, dtype) -> the lists of the group, and positions.

    Raises:
        RuntimeError: If the lists differ in length or the first list lacks a tensor.
    """
    first = tensorlistlist[0]
    if any(len(tensors) not in (0, len(first)) for tensors in tensorlistlist):
        raise RuntimeError(
            f"_group_tensors_by_device_and_dtype: all lists must have the same length, but got "
            f"{[len(tensors) for tensors in tensorlistlist]}"
        )
    groups: dict[tuple[Any, Any], tuple[list[list[Any]], list[int]]] = {}
    for index, tensor in enumerate(first):
        if tensor is None:
            raise RuntimeError(
                "Tensors of the first list of nested Tensor lists are supposed to be defined but got None at "
                f"position {index}"
            )
        lists, indices = groups.setdefault((tensor.device, tensor.dtype), ([[] for _ in tensorlistlist], []))
        for group, tensors in zip(lists, tensorlistlist, strict=True):
            if tensors:
                group.append(tensors[index])
        if with_indices:
            indices.append(index)
    return groups
