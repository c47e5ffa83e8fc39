"""Storages as programs see them: `Tensor.untyped_storage()`, `Tensor.set_`."""

from __future__ import annotations

from operator import index
from typing import Any

from flambeau.core import dtype as dtypes
from flambeau.core.device import CPU, device
from flambeau.core.dtype import dtype
from flambeau.core.errors import type_name
from flambeau.core.layout import contiguous_strides, span
from flambeau.core.meta import Meta
from flambeau.tensor import public
from flambeau.tensor.call import empty
from flambeau.tensor.creation import check_strides
from flambeau.tensor.data import new as made_of
from flambeau.tensor.holders import holders
from flambeau.tensor.options import checked_shape, integer, place
from flambeau.tensor.public import method
from flambeau.tensor.storage import PinnedStorage, Storage
from flambeau.tensor.tensor import Tensor, make
from flambeau.tensor.transfer import copy_, cuda, is_pinned, item, pin_memory, resized, to, tolist


class Face:
    """A storage as a one-dimensional row of elements of one dtype."""

    __slots__ = ("_held",)
    _held: Tensor

    @property
    def _row(self) -> Tensor:
        """All of the storage, which may have been resized since."""
        held = self._held
        if held.meta.nbytes != held.memory.nbytes or held.ptr != held.memory.ptr:
            held = self._held = _row(held, held.meta.dtype)
        return held

    @property
    def device(self) -> device:
        """Where the memory is."""
        return self._row.meta.device

    @property
    def is_cuda(self) -> bool:
        """Whether it is on a CUDA device."""
        return self.device.type == "cuda"

    def nbytes(self) -> int:
        """How many bytes it has."""
        return self._row.memory.nbytes

    def size(self) -> int:
        """How many elements it has."""
        return self._row.meta.numel

    def data_ptr(self) -> int:
        """The address of its first byte."""
        return self._row.data_ptr()

    def element_size(self) -> int:
        """Bytes per element."""
        return self._row.meta.itemsize

    def get_device(self) -> int:
        """The index of its CUDA device; -1 on the CPU."""
        return -1 if self.device.index is None else self.device.index

    def is_pinned(self) -> bool:
        """Whether it is pinned host memory."""
        return is_pinned(self._row)

    def pin_memory(self) -> Any:
        """A copy in pinned host memory; itself if it is pinned."""
        return self._of(pin_memory(self._row))

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Any:
        """A copy on a CUDA device; itself if it is there."""
        return self._of(cuda(self._row, device, non_blocking))

    def cpu(self) -> Any:
        """A copy on the CPU; itself if it is there."""
        return self._of(to(self._row, CPU))

    def clone(self) -> Any:
        """A copy."""
        return self._of(to(self._row, copy=True))

    def copy_(self, source: Face, non_blocking: bool = False) -> Any:
        """Copy the elements of another storage of this size. Returns itself."""
        copy_(self._row, source._row, non_blocking)
        return self

    def tolist(self) -> list[Any]:
        """The elements as Python numbers."""
        found: list[Any] = tolist(self._row)
        return found

    def resizable(self) -> bool:
        """Whether `resize_` works: the memory is no other library's or process'."""
        return type(self._row.memory) in (Storage, PinnedStorage)

    def resize_(self, size: int) -> Any:
        """Give it another size, in elements; what is more is uninitialized. All its tensors follow. Returns itself.

        A CUDA device gets the memory back that a smaller storage gives up, so that tensors that reach beyond it
        are out of bounds. RuntimeError: the memory is another library's or process'.
        """
        if type(size) is bool or not hasattr(size, "__index__"):
            raise RuntimeError(f"resize_ expects an int, but got {type_name(size)}")
        if not self.resizable():
            raise RuntimeError("Trying to resize storage that is not resizable")
        count = index(size)
        if count < 0:
            raise RuntimeError(f"resize_ expects a size of 0 or more, but got {count}")
        _resize(self._row, count * self.element_size())
        return self

    def fill_(self, value: Any) -> Any:
        """Set every element. Returns itself."""
        self._row.fill_(value)
        return self

    def untyped(self) -> UntypedStorage:
        """The same memory as bytes."""
        return untyped_storage(self._row)

    def _of(self, row: Tensor) -> Any:
        return self if row is self._row else face(self.__class__, row)

    def __len__(self) -> int:
        return self.size()

    def __getitem__(self, at: int) -> Any:
        return item(self._element(at))

    def __setitem__(self, at: int, value: Any) -> None:
        self._element(at).fill_(value)

    def _element(self, at: int) -> Tensor:
        n = self.size()
        if not -n <= at < n:
            raise IndexError(f"index {at} out of range for storage of size {n}")
        row = self._row
        return make(row.meta.with_(shape=(), strides=()), row.memory, row.ptr + at % n * row.meta.itemsize)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Face)
            and self.data_ptr() == other.data_ptr()
            and self.nbytes() == other.nbytes()
        )

    def __hash__(self) -> int:
        return hash((self.data_ptr(), self.nbytes()))

    def _shown(self, what: str) -> str:
        return "".join(f" {x}\n" for x in self.tolist()) + f"[torch.storage.{what} of size {self.size()}]"


class UntypedStorage(Face):
    """The bytes under a tensor. `UntypedStorage(nbytes, device=)` makes new ones."""

    __slots__ = ()

    def __init__(self, size: int = 0, *, device: Any = None) -> None:
        count = integer(size, "UntypedStorage", "size", 1)
        self._held = empty(Meta.contiguous_of((count,), dtypes.uint8, place(device)))

    def __repr__(self) -> str:
        return self._shown(f"UntypedStorage(device={self.device})")


class TypedStorage(Face):
    """The elements under a tensor."""

    __slots__ = ()

    @property
    def dtype(self) -> dtype:
        """The element type."""
        return self._row.meta.dtype

    def __repr__(self) -> str:
        return self._shown(f"TypedStorage(dtype={self.dtype}, device={self.device})")


public.functions.update(UntypedStorage=UntypedStorage, TypedStorage=TypedStorage)


class _OldStorage(type):
    """The type of the old storage types: instances are the storages of their dtype and kind of device."""

    kind: dtype
    where: str

    def __instancecheck__(cls, obj: Any) -> bool:
        return isinstance(obj, TypedStorage) and obj.dtype is cls.kind and obj.device.type == cls.where


def _old_type(kind: dtype, where: str) -> Any:
    """`torch.FloatStorage(3)` is uninitialized, `torch.FloatStorage([1, 2])` holds 1 and 2."""

    def construct(cls: Any, *args: Any) -> TypedStorage:
        if len(args) > 1:
            raise TypeError(f"{cls.__name__}() takes a size or a sequence, got {len(args)} arguments")
        size = args[0] if args else 0
        if isinstance(size, int):
            row = empty(Meta.contiguous_of((integer(size, cls.__name__, "size", 1),), kind, place(where)))
        else:
            row = made_of(list(size), kind, place(where))
        made: TypedStorage = face(TypedStorage, row)
        return made

    members = {"__new__": construct, "__module__": "torch" if where == "cpu" else "torch.cuda", "dtype": kind}
    made = _OldStorage(f"{kind.torch_name}Storage", (), members)
    made.kind, made.where = kind, where
    return made


_OLD = [
    d
    for d in dtypes.DTYPES
    if d.name in (
        "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
        "complex128",
    )
]  # fmt: skip
public.functions.update({f"{d.torch_name}Storage": _old_type(d, "cpu") for d in _OLD})
cuda_storages: dict[str, Any] = {f"{d.torch_name}Storage": _old_type(d, "cuda") for d in _OLD}
"""The storage types of `torch.cuda`, by name."""


def face(cls: Any, row: Tensor) -> Any:
    """What programs see of a row's storage: a `TypedStorage` or an `UntypedStorage`."""
    made = object.__new__(cls)
    made._held = row
    return made


def _row(t: Tensor, kind: dtype) -> Tensor:
    """All of a tensor's storage as a row of `kind`."""
    storage = t.memory
    meta = Meta.contiguous_of((storage.nbytes // kind.itemsize,), kind, t.meta.device)
    return make(meta, storage, storage.ptr)


_CONTENTS = ("ptr", "nbytes", "block", "stream")
_PINNED = ("ptr", "nbytes", "_pinned", "_allocator")


def _resize(row: Tensor, nbytes: int) -> None:
    storage = row.memory
    if storage.device is CPU and nbytes <= storage.nbytes:
        storage.nbytes = (
            nbytes  # what it gives up stays there: tensors that reach beyond read no freed memory
        )
        return
    looking, _ = holders(row)
    other = resized(storage, nbytes)
    shift = other.ptr - storage.ptr
    for name in _PINNED if isinstance(storage, PinnedStorage) else _CONTENTS:
        mine, its = getattr(storage, name), getattr(other, name)
        setattr(storage, name, its)
        setattr(other, name, mine)  # and gives it back at its end
    for each in looking:
        each.ptr += shift


@method
def untyped_storage(self: Tensor) -> UntypedStorage:
    """The bytes under this tensor, shared with all its views."""
    found: UntypedStorage = face(UntypedStorage, _row(self, dtypes.uint8))
    return found


@method
def storage(self: Tensor) -> TypedStorage:
    """The elements under this tensor."""
    found: TypedStorage = face(TypedStorage, _row(self, self.meta.dtype))
    return found


@method
def set_(
    self: Tensor, source: Any = None, storage_offset: int = 0, size: Any = None, stride: Any = None
) -> Tensor:
    """Look at other memory: a tensor's, a storage's (at an offset, with sizes and strides), or none."""
    if source is None:
        return _point(self, empty(Meta.contiguous_of((0,), self.meta.dtype, self.meta.device)))
    if isinstance(source, Tensor) and size is None:
        _check_kind(self, source.meta.dtype)
        return _point(self, source)
    if isinstance(source, TypedStorage):
        _check_kind(self, source.dtype)
    storage = source._row if isinstance(source, Face) else source
    return _point(self, over_storage(storage, self.meta.dtype, storage_offset, size, stride))


def over_storage(row: Tensor, kind: dtype, offset: int, size: Any, stride: Any) -> Tensor:
    """A tensor over a row's storage. Raises RuntimeError if it does not lie within."""
    storage = row.memory
    if offset < 0:
        raise RuntimeError(f"Tensor: invalid storage offset {offset}")
    shape = ((storage.nbytes // kind.itemsize) - offset,) if size is None else checked_shape(size, "set_")
    strides = contiguous_strides(shape) if stride is None else tuple(stride)
    check_strides(shape, strides)
    meta = Meta.of(shape, strides, kind, row.meta.device)
    needed = (offset + span(shape, strides)) * kind.itemsize
    if needed > storage.nbytes:
        raise RuntimeError(
            f"setStorage: sizes {list(shape)}, strides {list(strides)}, storage offset {offset}, and "
            f"itemsize {kind.itemsize} requiring a storage size of {needed} are "
            f"out of bounds for storage of size {storage.nbytes}"
        )
    return make(meta, storage, storage.ptr + offset * kind.itemsize)


def _check_kind(t: Tensor, kind: dtype) -> None:
    if t.meta.dtype is not kind:
        raise RuntimeError(
            f"Could not set tensor of type {kind.torch_name} to a tensor of type {t.meta.dtype.torch_name}"
        )


def _point(t: Tensor, other: Tensor) -> Tensor:
    t.meta, t.memory, t.ptr, t.counter = other.meta, other.memory, other.ptr, other.memory
    return t
