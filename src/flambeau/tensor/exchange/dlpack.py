"""DLPack: tensors exchanged with other libraries of the same process without a copy.

# Note [Who owns an exported tensor]
The C structs and the storage are owned by one Python object. The struct holds a reference to it, which the consumer
drops by calling the deleter. An unconsumed capsule cannot do that when it is freed: its destructor is written in Python
and must not run while an exception is propagating, which is when such capsules are freed. Capsules are therefore
recorded until they are consumed, and the next DLPack call frees those that nothing else references.

A tensor on virtual GPUs is exported as an extension device's (kDLExtDev): only Flambeau can use its addresses, and
other libraries refuse it. A tensor on a real GPU is exported as CUDA's (kDLCUDA).

# Note [Streams of an exchange]
The consumer names the stream that it will use, and the producer makes that stream wait for its own current stream. The
host does not wait, and neither side needs to know the other's streams.
"""

from __future__ import annotations

import ctypes
import sys
import warnings
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any

from flambeau.core.device import CPU, META, device
from flambeau.core.dtype import DTYPES, dtype
from flambeau.core.layout import contiguous_strides
from flambeau.core.meta import Meta
from flambeau.runtime import current, system
from flambeau.runtime.device_context import Context
from flambeau.runtime.streams.stream import Stream
from flambeau.runtime.streams.wait_reason import wait_reason
from flambeau.tensor.arguments.extents import require_backed, require_layout
from flambeau.tensor.arguments.options import place
from flambeau.tensor.arguments.public import function, method
from flambeau.tensor.exchange.transfer import clone, is_pinned, stream_of, to
from flambeau.tensor.storage import ForeignStorage
from flambeau.tensor.tensor import Tensor, make

_CPU, _CUDA, _CUDA_HOST, _EXTENSION, _CUDA_MANAGED = 1, 2, 3, 12, 13  # DLDeviceType
_LEGACY, _PER_THREAD = 1, 2  # CUDA's names of two default streams
_READ_ONLY, _IS_COPIED = 1, 2
_VERSION = (1, 0)
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL, _E4M3FN, _E5M2 = 0, 1, 2, 4, 5, 6, 10, 12  # DLDataTypeCode


def _code(kind: dtype) -> tuple[int, int]:
    """Return (type code, bits) of a dtype."""
    special = {"bool": _BOOL, "bfloat16": _BFLOAT, "float8_e4m3fn": _E4M3FN, "float8_e5m2": _E5M2}
    code = special.get(kind.name)
    if code is None:
        code = (
            _COMPLEX
            if kind.is_complex
            else _FLOAT
            if kind.is_floating_point
            else _INT
            if kind.is_signed
            else _UINT
        )
    return code, 8 * kind.itemsize


_kinds = {_code(d): d for d in DTYPES}


class _Tensor(Structure):
    _fields_ = [
        ("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
        ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16),
        ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("byte_offset", c_uint64),
    ]  # fmt: skip


_Deleter = ctypes.CFUNCTYPE(None, c_void_p)


class _Managed(Structure):
    _fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", c_void_p)]


class _Versioned(Structure):
    _fields_ = [
        ("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", c_void_p),
        ("flags", c_uint64), ("tensor", _Tensor),
    ]  # fmt: skip


_NAMES = {
    _Managed: (b"dltensor", b"used_dltensor"),
    _Versioned: (b"dltensor_versioned", b"used_dltensor_versioned"),
}

_api = ctypes.pythonapi
_incref = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", _api))
_decref = ctypes.PYFUNCTYPE(None, c_void_p)(("Py_DecRef", _api))
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, ctypes.c_char_p, c_void_p)(
    ("PyCapsule_New", _api)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))


# -- export -----------------------------------------------------------------------------------------------


class _Export:
    """The C struct of an exported tensor, with the objects that it keeps alive."""

    __slots__ = ("__weakref__", "kept", "managed")

    def __init__(self, t: Tensor, form: type[Structure], flags: int) -> None:
        meta = t.meta
        require_backed(t)
        t.memory.share()  # streams that use the memory from now on are unknown
        shape, strides = (c_int64 * meta.ndim)(*meta.shape), (c_int64 * meta.ndim)(*meta.strides)
        kind, index = dlpack_device(t)
        managed = form()
        managed.tensor = _Tensor(
            t.ptr or None, kind, index, meta.ndim, *_code(meta.dtype), 1,
            ctypes.cast(shape, POINTER(c_int64)), ctypes.cast(strides, POINTER(c_int64)), 0,
        )  # fmt: skip
        managed.context = id(self)
        if form is _Versioned:
            managed.major, managed.minor = _VERSION
            managed.flags = flags
        managed.deleter = ctypes.cast(_drop[form], c_void_p)
        self.managed = managed
        self.kept = (t.memory, shape, strides)


def _dropper(form: type[Structure]) -> Any:
    def drop(address: int) -> None:
        _decref(form.from_address(address).context)

    return _Deleter(drop)


_unconsumed: list[tuple[Any, type[Structure]]] = []  # capsules that this process has returned, see the note


def _sweep() -> None:
    """Drop consumed capsules, and reclaim the exports of capsules that no library will consume any more."""
    for entry in list(_unconsumed):
        capsule, form = entry
        unused = _NAMES[form][0]
        if not _is_valid(capsule, unused):
            _unconsumed.remove(entry)
        elif sys.getrefcount(capsule) <= 3:  # the entry's, this function's, the argument's
            _unconsumed.remove(entry)
            _drop[form](_pointer(capsule, unused))


_drop: dict[Any, Any] = {form: _dropper(form) for form in _NAMES}


def dlpack_device(t: Tensor) -> tuple[int, int]:
    """Return (DLPack's device type, index) of a tensor."""
    if t.meta.device is META:
        raise BufferError("Cannot pack tensors on meta")
    if t.meta.device is CPU:
        return (_CUDA_HOST if is_pinned(t) else _CPU), 0
    context = t.memory.context
    return (_CUDA, context.driver_index) if is_real(context) else (_EXTENSION, t.get_device())


def is_real(context: Context) -> bool:
    """Return True if a device's addresses are CUDA addresses, which other libraries can use."""
    return context.backing.name == "cuda"


@method
def __dlpack_device__(self: Tensor) -> tuple[int, int]:
    """Return (DLPack's device type, index)."""
    return dlpack_device(self)


@method
def __dlpack__(
    self: Tensor,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """Return a capsule over this tensor's memory. `stream` is the consumer's stream; -1 requests no ordering.

    Raises:
        BufferError: If it requires a gradient, or is not on `dl_device` and `copy=False` forbids a copy.
    """
    if self.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if self.meta.device is META:
        raise BufferError("Cannot pack tensors on meta")
    source, flags = _as_asked(self, dl_device, copy)
    if source.meta.device is not CPU:
        _order(source, stream)
    elif stream not in (None, -1):
        raise BufferError("stream must be None for a tensor on the CPU")
    form = _Versioned if max_version is not None and max_version[0] >= 1 else _Managed
    export = _Export(source, form, flags)
    if source.meta.device is CPU:
        system.host.driver.host_export(source.ptr, source.meta.span, "__dlpack__()", export)
    capsule = _new_capsule(ctypes.addressof(export.managed), _NAMES[form][0], None)
    _incref(export)
    _sweep()
    _unconsumed.append((capsule, form))
    return capsule


def _as_asked(t: Tensor, where: tuple[int, int] | None, copy: bool | None) -> tuple[Tensor, int]:
    if where is None or tuple(where) == dlpack_device(t):
        return (clone(t), _IS_COPIED) if copy else (t, 0)
    if tuple(where) != (_CPU, 0):
        raise BufferError(f"cannot give a tensor of {t.meta.device} on DLPack device {tuple(where)}")
    if t.meta.device is CPU:
        return (clone(t), _IS_COPIED) if copy else (t, 0)
    if copy is False:
        raise BufferError(f"cannot give a tensor of {t.meta.device} on the CPU without a copy")
    return to(t, CPU), _IS_COPIED


def _order(t: Tensor, stream: Any) -> None:
    """Make the consumer's stream wait for the current stream. See Note [Streams of an exchange]."""
    context = t.memory.context
    system.require_open(context)
    if stream == -1 or (stream is None and not is_real(context)):  # virtual: from here, on the same stream
        return
    if stream is not None and type(stream) is not int:
        raise TypeError("stream must be ``int`` or ``none``")
    if stream == _PER_THREAD:
        raise BufferError("per-thread default stream is not supported.")
    if stream == 0:
        raise BufferError("unsupported stream on CUDA: 0.")
    consumer = Stream(context.device, stream_ptr=_LEGACY if stream is None else stream)
    producer = stream_of(t)
    if consumer != producer:
        with wait_reason(str, "__dlpack__: the consumer's stream comes after the current one"):
            consumer.wait_stream(producer)


# -- import -----------------------------------------------------------------------------------------------


class _Borrowed:
    """A struct of another library, which is released with the last tensor over its memory."""

    __slots__ = ("_address", "_deleter")

    def __init__(self, address: int, deleter: int | None) -> None:
        self._address = address
        self._deleter = deleter

    def __del__(self) -> None:
        if self._deleter:
            _Deleter(self._deleter)(self._address)


@function
def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """Return a tensor over the memory of an object with `__dlpack__`, or of a capsule: both see each change.

    Raises BufferError or RuntimeError for memory that Flambeau cannot use.
    """
    capsule = ext_tensor
    if hasattr(ext_tensor, "__dlpack__"):
        capsule = _capsule_of(ext_tensor)
    shared = _adopt(capsule)
    if device is not None and place(device) is not shared.meta.device:
        if copy is False:
            raise ValueError(
                f"cannot move a tensor from {shared.meta.device} to {place(device)} without copying"
            )
        return to(shared, place(device))
    return clone(shared) if copy else shared


def _capsule_of(producer: Any) -> Any:
    streams = {}
    if hasattr(producer, "__dlpack_device__"):
        kind, index = producer.__dlpack_device__()
        if int(kind) in (_CUDA, _CUDA_MANAGED):
            context = system.context_of(_cuda_device(index))
            streams["stream"] = current.local.streams[context.index].cuda_stream or _LEGACY
    try:
        return producer.__dlpack__(max_version=_VERSION, **streams)
    except TypeError:  # a producer from before versions
        return producer.__dlpack__(**streams)


def _adopt(capsule: Any) -> Tensor:
    for form, (unused, used) in _NAMES.items():
        if _is_valid(capsule, unused):
            address = _pointer(capsule, unused)
            managed: Any = form.from_address(address)
            meta, ptr = _read(managed)
            _set_name(capsule, used)
            _sweep()
            owner = _Borrowed(address, managed.deleter)
            context = system.context_of(meta.device)
            pinned = managed.tensor.device_type == _CUDA_HOST
            memory = ForeignStorage(ptr, meta.span, context, None, owner, pinned)
            if context is system.host:
                context.driver.host_export(ptr, meta.span, "from_dlpack()", memory)
            return make(meta, memory, ptr)
    raise RuntimeError(
        "from_dlpack received an invalid capsule. Note that DLTensor capsules can be consumed only once, so "
        "you might have already constructed a tensor from it once."
    )


def _read(managed: Any) -> tuple[Meta, int]:
    """Return the meta and the address that a struct describes. Errors are raised before ownership passes."""
    if isinstance(managed, _Versioned):
        if managed.major != _VERSION[0]:
            raise BufferError(f"DLPack version {managed.major}.{managed.minor} is not understood")
        if managed.flags & _READ_ONLY:
            warnings.warn(
                "The given tensor is read-only; writing to it is undefined behavior.",
                UserWarning,
                stacklevel=4,
            )
    t = managed.tensor
    kind = _kinds.get((t.code, t.bits))
    if kind is None or t.lanes != 1:
        raise BufferError(f"Unsupported DLPack type: code {t.code}, {t.bits} bits, {t.lanes} lanes")
    if t.ndim < 0 or (t.ndim and not t.shape):
        raise BufferError(f"the DLPack tensor has {t.ndim} dimensions, and no sizes for them")
    shape = tuple(t.shape[: t.ndim])
    strides = tuple(t.strides[: t.ndim]) if t.strides else contiguous_strides(shape)
    if any(s < 0 for s in strides):
        raise BufferError("tensors with negative strides are not supported")
    require_layout(shape, strides)
    return Meta.of(shape, strides, kind, _place_of(t)), (t.data or 0) + t.byte_offset


def _cuda_device(ordinal: int) -> device:
    """Return the device with a CUDA ordinal. Raises BufferError if it is virtual or not visible."""
    found = [c.device for c in system.contexts() if is_real(c) and c.driver_index == ordinal]
    if not found:
        raise BufferError(
            f"Flambeau cannot use memory of CUDA device {ordinal}: it is not among the devices that are in use here"
        )
    return found[0]


def _place_of(t: Any) -> device:
    if t.device_type in (_CPU, _CUDA_HOST):
        return CPU
    if t.device_type == _EXTENSION:
        return device("cuda", t.device_id)
    if t.device_type in (_CUDA, _CUDA_MANAGED):
        return _cuda_device(t.device_id)
    raise BufferError(f"Flambeau cannot use memory of DLPack device type {t.device_type}")
