"""Exchange with NumPy and with other libraries: shared memory, no copies."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from flambeau.core import dtype as dtypes
from flambeau.core.device import CPU
from flambeau.tensor.data import numpy_kind, over
from flambeau.tensor.public import function, method
from flambeau.tensor.storage import ForeignStorage
from flambeau.tensor.tensor import Tensor
from flambeau.tensor.transfer import host_array, on_host

Array = np.ndarray[Any, Any]


@function
def from_numpy(ndarray: Array) -> Tensor:
    """A CPU tensor over the array's memory: a change of one is seen in the other.

    Raises TypeError for what is no array or of a dtype that PyTorch lacks, ValueError for negative strides.
    """
    if not isinstance(ndarray, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(ndarray).__name__})")
    kind = numpy_kind(ndarray)
    if any(s < 0 for s in ndarray.strides):
        raise ValueError(
            "At least one stride in the given numpy array is negative, and tensors with negative strides are "
            "not currently supported. (You can probably work around this by making a copy of your array  with "
            "array.copy().) "
        )
    if any(s % ndarray.itemsize for s in ndarray.strides):
        raise ValueError(
            "given numpy array strides not a multiple of the element byte size. Copy the numpy array to "
            "reallocate the memory."
        )
    if not ndarray.flags.writeable:
        warnings.warn(
            "The given NumPy array is not writable, and PyTorch does not support non-writable tensors. This "
            "means writing to this tensor will result in undefined behavior. You may want to copy the array "
            "to protect its data or make it writable before converting it to a tensor. This type of warning "
            "will be suppressed for the rest of this program.",
            UserWarning,
            stacklevel=2,
        )
    return over(ndarray, kind, ForeignStorage)


class _Owner:
    """What a shared array's memory belongs to: NumPy reads its interface and keeps it."""

    __slots__ = ("__array_interface__", "storage")

    def __init__(self, t: Tensor) -> None:
        meta = t.meta
        self.storage = t.storage
        self.__array_interface__ = {
            "version": 3,
            "shape": meta.shape,
            "typestr": meta.dtype.numpy.str,
            "strides": meta.byte_strides,
            "data": (t.ptr, False),
        }


@method
def numpy(self: Tensor, *, force: bool = False) -> Array:
    """The tensor as an array over the same memory, which it keeps alive. `force` copies from a device first."""
    meta = self.meta
    if meta.device is not CPU:
        if not force:
            raise TypeError(
                f"can't convert {meta.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
                "to host memory first."
            )
        return numpy(on_host(self))
    if meta.dtype.numpy.isbuiltin != 1:
        raise TypeError(f"Got unsupported ScalarType {meta.dtype.torch_name}")
    host_array(self)
    if not meta.numel:
        return np.empty(meta.shape, meta.dtype.numpy)
    return np.asarray(_Owner(self))
