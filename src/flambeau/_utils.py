"""torch._utils: functions of PyTorch's own that libraries import: rows of tensors, devices, what pickles call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from flambeau.core.device import device as _device
from flambeau.core.dtype import dtype as _dtype
from flambeau.core.ipc.exception_wrapper import ExceptionWrapper
from flambeau.core.public_names import explain_absent_names
from flambeau.nn.parallel.flat_buckets import buckets, flatten_bucket, unflatten_bucket
from flambeau.nn.parameter import _rebuild_parameter, _rebuild_parameter_with_state
from flambeau.runtime import current, system
from flambeau.tensor.exchange.pickling import rebuild as _rebuild_tensor_v2
from flambeau.tensor.tensor import Tensor

__all__ = [
    "ExceptionWrapper", "_flatten_dense_tensors", "_rebuild_parameter", "_rebuild_parameter_with_state",
    "_rebuild_tensor_v2", "_take_tensors", "_unflatten_dense_tensors",
]  # fmt: skip

explain_absent_names(globals(), "torch._utils")


def _flatten_dense_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """Return one row of all elements, of the dtype that they have together. A single contiguous tensor is its own
    row.
    """
    row: Tensor = flatten_bucket(tensors)
    return row


def _unflatten_dense_tensors(flat: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return views of the row `flat` with the shapes of `tensors`, in their order. Raises RuntimeError if it is too
    short.
    """
    return tuple(unflatten_bucket(flat[: sum(t.numel() for t in tensors)], tensors))


def _take_tensors(tensors: Sequence[Tensor], size_limit: int) -> Iterator[list[Tensor]]:
    """Return the tensors in lists of one kind of device and dtype, of at most `size_limit` bytes; a larger one has
    its own.
    """
    return buckets(tensors, size_limit)


def _element_size(dtype: _dtype) -> int:
    return dtype.itemsize


def _get_available_device_type() -> str | None:
    """Return "cuda" if there is a GPU, else None."""
    return "cuda" if system.is_available() else None


def _get_device_module(device_type: str) -> ModuleType:
    """Return the module of a kind of device, such as `torch.cuda` for "cuda"."""
    return import_module(f"flambeau.{device_type}")


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """Return the index of a CUDA device.

    Args:
        device: A torch.device, str, int or None.
        optional: True if None and devices without an index stand for the current device.
        allow_cpu: True if the CPU is allowed, whose index is -1.

    Raises:
        ValueError: If the device is not CUDA's, or has no index and `optional` is False.
    """
    if isinstance(device, str | _device):
        place = _device(device)
        if place.type == "cpu" and allow_cpu:
            return -1
        if place.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {place}")
        device = place.index
    if isinstance(device, int):
        return device
    if device is None and optional:
        return current.local.device
    raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{device}")
