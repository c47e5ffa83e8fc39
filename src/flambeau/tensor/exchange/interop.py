"""Exchange with NumPy and with other libraries: shared memory, no copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from flambeau.core.callsite import warn_program
from flambeau.core.device import CPU, device
from flambeau.core.dtype import dtype
from flambeau.core.dtype import from_numpy as dtype_of
from flambeau.core.flags import flags
from flambeau.core.layout import contiguous_strides, is_contiguous
from flambeau.core.meta import Meta
from flambeau.runtime import current, system
from flambeau.runtime.streams.stream import Stream
from flambeau.runtime.streams.wait_reason import wait_reason
from flambeau.tape.mode import mode
from flambeau.tensor.arguments.extents import int_of, ints_of, require_backed, require_layout
from flambeau.tensor.arguments.options import creates, kind_of, place_data
from flambeau.tensor.arguments.public import alias, function, method
from flambeau.tensor.arguments.typing import strides_like, type_name
from flambeau.tensor.exchange.data import new, numpy_kind, over
from flambeau.tensor.exchange.dlpack import from_dlpack, is_real
from flambeau.tensor.exchange.transfer import copy_as, on_host, stream_of
from flambeau.tensor.storage import ForeignStorage
from flambeau.tensor.tensor import Tensor, make

Array = np.ndarray[Any, Any]


@function
def from_numpy(ndarray: Array) -> Tensor:
    """Return a CPU tensor over the array's memory. Both show changes of either.

    Raises TypeError for a value that is not an array or of a dtype that PyTorch lacks, ValueError for negative
    strides.
    """
    if not isinstance(ndarray, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(ndarray).__name__})")
    kind = numpy_kind(ndarray)
    if any(s < 0 for s in ndarray.strides):
        raise ValueError(
            "At least one stride in the given numpy array is negative, and tensors with negative strides "
            "are not currently supported. (You can probably work around this by making a copy of your array  "
            "with array.copy().) "
        )
    if any(s % ndarray.itemsize for s in ndarray.strides):
        raise ValueError(
            "given numpy array strides not a multiple of the element byte size. Copy the numpy array to "
            "reallocate the memory."
        )
    if not ndarray.flags.writeable:
        _warn_of_read_only("NumPy array", "array", "writing to this tensor will result in undefined behavior")
    return over(ndarray, kind, ForeignStorage)


class _Owner:
    """The owner of a shared array's memory. NumPy reads its array interface and keeps the owner alive."""

    __slots__ = ("__array_interface__", "__weakref__", "memory")

    def __init__(self, t: Tensor) -> None:
        meta = t.meta
        self.memory = t.memory
        self.__array_interface__ = {
            "version": 3,
            "shape": meta.shape,
            "typestr": meta.dtype.numpy.str,
            "strides": meta.byte_strides,
            "data": (t.ptr, False),
        }


@method
def numpy(self: Tensor, *, force: bool = False) -> Array:
    """Return an array over the tensor's memory. The array keeps the memory alive.

    Args:
        force: Detach the tensor, and copy it from its device.

    Raises:
        TypeError: If it is not on the CPU.
        RuntimeError: If it requires a gradient, because autograd does not record NumPy's operations.
    """
    meta = self.meta
    if meta.sparse:
        raise TypeError("can't convert Sparse layout tensor to numpy. Use Tensor.to_dense() first.")
    if meta.device is not CPU:
        if not force:
            raise TypeError(
                f"can't convert {meta.device} device type tensor to numpy. Use Tensor.cpu() to copy the "
                "tensor to host memory first."
            )
        return numpy(on_host(self), force=True)
    if self.requires_grad and mode.recording and not force:
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )
    if meta.dtype.numpy.isbuiltin != 1:
        raise TypeError(f"Got unsupported ScalarType {meta.dtype.torch_name}")
    if not meta.numel:
        return np.empty(meta.shape, meta.dtype.numpy)
    require_backed(self)
    owner = _Owner(self)
    system.host.driver.host_export(self.ptr, meta.span, "numpy()", owner)
    return np.asarray(owner)


@method
def __array__(self: Tensor, dtype: Any = None, copy: bool | None = None) -> Array:
    """Return the tensor's memory as a NumPy array, or a copy if `dtype` or `copy` require one."""
    shared = numpy(self)
    return np.array(shared, dtype, copy=copy)


@method
def __array_wrap__(self: Tensor, array: Array, context: Any = None, return_scalar: bool = False) -> Tensor:
    """Return the result of a NumPy function on a tensor as a tensor; booleans as uint8, as in PyTorch."""
    return from_numpy(array.astype(np.uint8) if array.dtype == bool else array)


def _cuda_array_interface(self: Tensor) -> dict[str, Any]:
    """Return the CUDA array interface, version 3, for other CUDA libraries."""
    if self.meta.device is CPU:
        raise AttributeError(
            f"Can't get __cuda_array_interface__ on non-CUDA tensor type: {type_name(self.meta)} "
            "If CUDA data is required use tensor.cuda() to copy tensor to device memory."
        )
    if is_real(self.memory.context):
        return _interface_of(self)
    raise AttributeError(
        f"__cuda_array_interface__: the tensor lies on {self.meta.device} of virtual GPUs, whose addresses "
        "are simulated; no other library can read them. Use Tensor.cpu() first."
    )


def _interface_of(t: Tensor) -> dict[str, Any]:
    if t.requires_grad:
        raise RuntimeError(
            "Can't get __cuda_array_interface__ on Variable that requires grad. If gradients aren't required, use "
            "var.detach() to get Variable that doesn't require grad."
        )
    meta = t.meta
    require_backed(t)
    t.memory.share()  # streams that use the memory from now on are unknown
    return {
        "version": 3,
        "shape": meta.shape,
        "typestr": meta.dtype.numpy.str,
        "descr": [("", meta.dtype.numpy.str)],
        "strides": None if is_contiguous(meta.shape, meta.strides) else meta.byte_strides,
        "data": (t.ptr if meta.numel else 0, False),
        "stream": stream_of(t).cuda_stream or 1,  # the stream that the consumer must wait for
    }


def _from_interface(obj: Any) -> Tensor:
    """Return a tensor on the current device over the memory of another library's array."""
    about = obj.__cuda_array_interface__
    if about.get("mask") is not None:
        raise NotImplementedError("__cuda_array_interface__: arrays with a mask are not supported")
    context = system.context_of(device("cuda"))
    if not is_real(context):
        raise TypeError(
            "an object with __cuda_array_interface__ lies on a real GPU, and those in use here are virtual"
        )
    kind = dtype_of(np.dtype(about["typestr"]))
    shape = ints_of(about["shape"], "__cuda_array_interface__", "shape", 1)
    strides = contiguous_strides(shape)
    if about.get("strides") is not None:
        steps = ints_of(about["strides"], "__cuda_array_interface__", "strides", 2)
        if any(step < 0 for step in steps):
            raise ValueError("tensors with negative strides are not supported")
        if any(step % kind.itemsize for step in steps):
            raise ValueError(
                f"__cuda_array_interface__: strides {steps} are not multiples of the element size, {kind.itemsize}"
            )
        strides = tuple([step // kind.itemsize for step in steps])
    require_layout(shape, strides)
    native = about.get("stream")
    if native is not None:
        here, there = current.local.streams[context.index], Stream(context.device, stream_ptr=native)
        if here != there:
            with wait_reason(str, "__cuda_array_interface__: the array's stream comes before its use here"):
                here.wait_stream(there)
    meta = Meta.of(shape, strides, kind, context.device)
    ptr = about["data"][0] or 0
    return make(meta, ForeignStorage(ptr, meta.span, context, None, obj, False), ptr)


alias("__cuda_array_interface__", property(_cuda_array_interface), as_function=False)  # type: ignore[arg-type]


@function
@creates
def frombuffer(
    buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Tensor:
    """Return a 1-d CPU tensor over a buffer's memory: `count` elements (-1: all) from byte `offset` on.

    Raises:
        ValueError: If the object is not a buffer, or sizes do not match it.
    """
    kind = kind_of(dtype, "frombuffer")
    try:
        view = memoryview(buffer)
    except TypeError:
        raise ValueError("object does not implement Python buffer protocol.") from None
    size, itemsize = view.nbytes, kind.itemsize
    count, offset = int_of(count, "frombuffer", "count"), int_of(offset, "frombuffer", "offset")
    if not size or not count:
        raise ValueError(f"both buffer length ({size}) and count ({count}) must not be 0")
    if not 0 <= offset < size:
        raise ValueError(
            f"offset ({offset} bytes) must be non-negative and no greater than buffer length "
            f"({size} bytes) minus 1"
        )
    if count > 0 and size - offset < count * itemsize:
        raise ValueError(
            f"requested buffer length ({count} * {itemsize} bytes) after offset ({offset} bytes) must not be "
            f"greater than actual buffer length ({size} bytes)"
        )
    if count < 0 and (size - offset) % itemsize:
        raise ValueError(
            f"buffer length ({size - offset} bytes) after offset ({offset} bytes) must be a multiple of "
            f"element size ({itemsize})"
        )
    if view.readonly:
        writes = "you can write to the underlying (supposedly non-writable) buffer using the tensor"
        _warn_of_read_only("buffer", "buffer", writes)
    array = np.frombuffer(buffer, np.uint8, count * itemsize if count > 0 else -1, offset)
    return over(array.view(kind.numpy), kind, ForeignStorage)


def _warn_of_read_only(given: str, what: str, means: str) -> None:
    warn_program(
        f"The given {given} is not writable, and PyTorch does not support non-writable tensors. This means {means}. "
        f"You may want to copy the {what} to protect its data or make it writable before converting it to a tensor.",
        UserWarning,
    )


# -- sharing where it can be shared -----------------------------------------------------------------------


@function
def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Return `data` as a tensor: itself, or a tensor over the same NumPy memory, unless dtype or device require a
    copy.
    """
    if isinstance(data, bytes):
        raise TypeError("new(): invalid data type 'bytes'")
    if isinstance(data, bytearray | memoryview):  # a sequence of numbers, and for `asarray` a buffer
        return new(data, None if dtype is None else kind_of(dtype, "as_tensor"), place_data(device))
    return asarray(data, dtype=dtype, device=device)


@function
@creates
def asarray(
    obj: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None, requires_grad: bool = False
) -> Tensor:
    """Return a tensor of a tensor, a NumPy array, a DLPack capsule's owner, a buffer, a number or a sequence.

    Shares memory where it can; `copy` forces a copy (True) or forbids one (False: ValueError if needed).
    """
    kind = None if dtype is None else kind_of(dtype, "asarray")
    where = place_data(device)
    shared = _share_memory_of(obj, kind)
    if shared is None:
        if copy is False:
            raise ValueError("can't alias arbitrary sequence into a tensor.")
        return new(obj, kind, where)
    meta = shared.meta.with_(dtype=kind, device=where)
    if meta is shared.meta and not copy:
        return shared
    if copy is False:
        raise ValueError(_why_no_alias(shared.meta, meta))
    return copy_as(shared, meta.with_(strides=strides_like(meta, None)))


def _share_memory_of(obj: Any, kind: dtype | None) -> Tensor | None:
    """Return a tensor over the memory of `obj`, or None if it has none to share."""
    if isinstance(obj, Tensor):
        return obj
    if isinstance(obj, np.ndarray):
        return from_numpy(obj)
    if isinstance(getattr(obj, "_row", None), Tensor):
        return _over_row(obj._row, kind)
    if isinstance(obj, (np.generic, bool, int, float, complex, list, tuple, range, str)):
        return None
    if hasattr(obj, "__dlpack__"):
        return from_dlpack(obj)
    if hasattr(obj, "__cuda_array_interface__"):
        return _from_interface(obj)
    try:
        memoryview(obj)
    except TypeError:
        return None
    return frombuffer(obj, dtype=kind or flags.default_dtype)


def _over_row(row: Tensor, kind: dtype | None) -> Tensor:
    """Return a tensor over all bytes or elements of a storage, `row`."""
    kind = kind or (flags.default_dtype if row.meta.itemsize == 1 else row.meta.dtype)
    count = row.meta.nbytes // kind.itemsize
    return make(Meta.contiguous_of((count,), kind, row.meta.device), row.memory, row.ptr)


def _why_no_alias(have: Meta, want: Meta) -> str:
    if have.device is not want.device:
        return f"can't alias tensor from device '{have.device}' to '{want.device}'."
    return f"can't alias tensor with dtype '{have.dtype.torch_name}' into dtype '{want.dtype.torch_name}'."
