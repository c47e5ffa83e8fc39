"""Public storage objects: `Tensor.untyped_storage()`, `Tensor.set_`."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from flambeau.core import dtype as dtypes
from flambeau.core.device import CPU, META, device
from flambeau.core.dtype import dtype
from flambeau.core.errors import argument_type, type_name
from flambeau.core.flags import flags
from flambeau.core.host_arrays import array_at
from flambeau.core.layout import contiguous_strides
from flambeau.core.meta import Meta
from flambeau.tape.mode import mode
from flambeau.tensor.arguments import public
from flambeau.tensor.arguments.extents import int_of, ints_of, require_within
from flambeau.tensor.arguments.options import integer, place
from flambeau.tensor.arguments.public import method
from flambeau.tensor.arguments.typing import parse_type, strided
from flambeau.tensor.autograd.autograd_meta import edge_of, requires_grad
from flambeau.tensor.autograd.in_place import NotImplementedNode, replace_node
from flambeau.tensor.autograd.inplace_checks import refuse_inference, require_changeable
from flambeau.tensor.call import empty
from flambeau.tensor.exchange.data import new as made_of
from flambeau.tensor.exchange.data import over
from flambeau.tensor.exchange.transfer import CASTS, copy_, cuda, is_pinned, item, pin_memory, to, tolist
from flambeau.tensor.storage import ForeignStorage, PinnedStorage, Storage
from flambeau.tensor.storage_resize import resize_storage
from flambeau.tensor.tensor import Tensor, make


class Face:
    """A storage viewed as a one-dimensional array of elements of one dtype."""

    __slots__ = ("_held",)
    _held: Tensor
    is_sparse = False

    @property
    def _row(self) -> Tensor:
        """Return all of the storage, which may have been resized since."""
        held = self._held
        if held.meta.nbytes != held.memory.nbytes or held.ptr != held.memory.ptr:
            held = self._held = row_as(held, held.meta.dtype)
        return held

    @property
    def device(self) -> device:
        """Return the device of the memory."""
        return self._row.meta.device

    @property
    def is_cuda(self) -> bool:
        """Return True if the storage is on a CUDA device."""
        return self.device.type == "cuda"

    def nbytes(self) -> int:
        """Return the number of bytes."""
        return self._row.memory.nbytes

    def size(self) -> int:
        """Return the number of elements."""
        return self._row.meta.numel

    def data_ptr(self) -> int:
        """Return the address of its first byte."""
        return self._row.data_ptr()

    def element_size(self) -> int:
        """Return bytes per element."""
        return self._row.meta.itemsize

    def get_device(self) -> int:
        """Return the index of its CUDA device; -1 on the CPU."""
        return -1 if self.device.index is None else self.device.index

    def is_pinned(self, device: Any = None) -> bool:
        """Return True if the storage is pinned host memory. `device`: see `Tensor.is_pinned`."""
        return is_pinned(self._row, device)

    def pin_memory(self, device: Any = None) -> Any:
        """Return a copy in pinned host memory, or the storage itself if it is pinned. `device`: see
        `Tensor.pin_memory`.

        Raises:
            TypeError: If it is not the CPU's memory.
            RuntimeError: If `device` is not a CUDA device.
        """
        if self.device is not CPU:
            raise TypeError(f"cannot pin '{self.type()}' only CPU memory can be pinned")
        return self._of(pin_memory(self._row, device))

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Any:
        """Return a copy on a CUDA device, or the storage itself if it is there."""
        return self._of(cuda(self._row, device, non_blocking))

    def cpu(self) -> Any:
        """Return a copy on the CPU, or the storage itself if it is there."""
        return self._of(to(self._row, CPU))

    def to(self, *, device: Any, non_blocking: bool = False) -> Any:
        """Return a copy on a device, or the storage itself if it is there."""
        return self._of(to(self._row, place(device), non_blocking=non_blocking))

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:
        """Return the type's name, "torch.cuda.FloatStorage", or the elements converted to a storage of another type.

        Returns itself if it has that type.

        Raises:
            ValueError: If there is no such type.
        """
        if dtype is None:
            return self._type_name()
        name = dtype if isinstance(dtype, str) else getattr(dtype, "torch_type_name", dtype.__name__)
        kind, where = parse_type(
            f"{name.removesuffix('Storage')}Tensor" if name.endswith("Storage") else name
        )
        at = self.device if where.type == self.device.type else place(where)
        row = to(self._row, at, kind, non_blocking=non_blocking)
        return self if row is self._row else face(TypedStorage, row)

    def _type_name(self) -> str:
        return "torch.storage.UntypedStorage"

    def clone(self) -> Any:
        """Return a copy."""
        return self._of(to(self._row, copy=True))

    __copy__ = clone

    def copy_(self, source: Face, non_blocking: bool = False) -> Any:
        """Copy the elements of another storage of this size. Returns itself."""
        copy_(self._row, source._row, non_blocking)
        return self

    def tolist(self) -> list[Any]:
        """Return the elements as Python numbers."""
        found: list[Any] = tolist(self._row)
        return found

    def resizable(self) -> bool:
        """Return True if `resize_` works: the memory is not owned by another library or process."""
        return type(self._row.memory) in (Storage, PinnedStorage)

    def resize_(self, size: int) -> Any:
        """Resize the storage, in elements; added elements are uninitialized. All its tensors follow. Returns itself.

        A smaller storage on a CUDA device frees the rest of its memory, so tensors that reach beyond it are out of
        bounds.

        Raises:
            RuntimeError: If another library or process owns the memory.
        """
        if type(size) is bool or not hasattr(size, "__index__"):
            raise RuntimeError(f"resize_ expects an int, but got {type_name(size)}")
        if not self.resizable():
            raise RuntimeError("Trying to resize storage that is not resizable")
        count = index(size)
        if count < 0:
            raise RuntimeError(f"resize_ expects a size of 0 or more, but got {count}")
        resize_storage(self._row, count * self.element_size())
        return self

    def fill_(self, value: Any) -> Any:
        """Set every element. Returns itself."""
        self._row.fill_(value)
        return self

    def untyped(self) -> UntypedStorage:
        """Return an UntypedStorage over the same memory."""
        return untyped_storage(self._row)

    def _of(self, row: Tensor) -> Any:
        return self if row is self._row else face(self.__class__, row)

    def __len__(self) -> int:
        return self.size()

    def __getitem__(self, at: int) -> Any:
        return item(self._element(at))

    def __setitem__(self, at: Any, value: Any) -> None:
        if isinstance(at, slice):
            self._row[at].fill_(value)
        else:
            self._element(at).fill_(value)

    def _element(self, at: Any) -> Tensor:
        if isinstance(at, slice):
            raise RuntimeError("slices are only supported in UntypedStorage.__getitem__")
        if not hasattr(at, "__index__"):
            raise RuntimeError(f"can't index a {type(self)} with {type(at)}")
        n = self.size()
        if not -n <= at < n:
            raise IndexError(f"index {at} out of range for storage of size {n}")
        row = self._row
        return make(row.meta.with_(shape=(), strides=()), row.memory, row.ptr + at % n * row.meta.itemsize)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Face) and self._row.ptr == other._row.ptr and self.nbytes() == other.nbytes()

    def __hash__(self) -> int:
        return hash((self._row.ptr, self.nbytes()))

    def _format(self, what: str) -> str:
        elements = "...\n" if self.device is META else "".join(f" {x}\n" for x in self.tolist())
        return f"{elements}[torch.storage.{what} of size {self.size()}]"


def _define_cast(name: str, kind: dtype) -> None:
    def cast(self: Face) -> TypedStorage:
        made: TypedStorage = face(TypedStorage, to(self._row, kind, copy=True))
        return made

    cast.__name__ = name
    cast.__qualname__ = f"Face.{name}"
    cast.__doc__ = f"A copy of its elements as {kind!r}."
    setattr(Face, name, cast)


for _name, _kind in {
    **CASTS, "complex_float": dtypes.complex64, "complex_double": dtypes.complex128,
}.items():  # fmt: skip
    _define_cast(_name, _kind)


class UntypedStorage(Face):
    """The bytes of a tensor. `UntypedStorage(nbytes, device=)` allocates new bytes; `UntypedStorage([1, 2])` has these
    values.
    """

    __slots__ = ()

    def __init__(self, size: Any = 0, *, device: Any = None) -> None:
        if isinstance(size, Sequence):
            self._held = made_of(_bytes_of(size), dtypes.uint8, place(device))
        else:
            count = integer(size, "UntypedStorage", "size", 1)
            self._held = empty(Meta.contiguous_of((count,), dtypes.uint8, place(device)))

    def __getitem__(self, at: Any) -> Any:
        """Return one byte, or for a slice, a storage over the same memory, which cannot be resized."""
        if not isinstance(at, slice):
            return super().__getitem__(at)
        start, stop, step = at.indices(self.size())
        if step != 1:
            raise RuntimeError(f"Trying to slice with a step of {step}, but only a step of 1 is supported")
        memory = self._row.memory
        memory.share()  # streams that the memory's owner cannot see may use the slice
        nbytes = max(stop - start, 0)
        part = ForeignStorage(memory.ptr + start, nbytes, memory.context, None, memory, memory.pinned)
        return face(type(self), make(self._row.meta.with_(shape=(nbytes,)), part, part.ptr))

    @classmethod
    def from_file(cls, filename: Any, shared: bool = False, nbytes: int = 0) -> UntypedStorage:
        """Return a storage over the first bytes of a file, which is mapped and not read.

        Args:
            filename: The path of the file.
            shared: True if changes go to the file, which is created and made longer as needed.
            nbytes: The size of the storage.

        Raises:
            RuntimeError: If the file cannot be opened, or is shorter than `nbytes` and not shared.
        """
        made: UntypedStorage = face(
            cls, map_file(filename, bool(shared), integer(nbytes, "from_file", "nbytes", 3))
        )
        return made

    @classmethod
    def from_buffer(
        cls, buffer: Any, byte_order: str | None = None, count: int = -1, offset: int = 0, *, dtype: Any
    ) -> UntypedStorage:
        """Return the bytes of the elements that a buffer holds, as `TypedStorage.from_buffer` reads them."""
        return TypedStorage.from_buffer(buffer, byte_order, count, offset, dtype=dtype).untyped()

    def __repr__(self) -> str:
        return self._format(f"UntypedStorage(device={self.device})")


def map_file(filename: Any, shared: bool, nbytes: int) -> Tensor:
    """Return the first bytes of a file as a tensor over a mapping of it. See `UntypedStorage.from_file`."""
    path = os.fspath(filename)
    if nbytes < 0:
        raise RuntimeError(f"unable to mmap {nbytes} bytes from file <{path}>: the size is negative")
    try:
        with open(path, "r+b" if shared and os.path.exists(path) else "w+b" if shared else "rb") as file:
            held = os.fstat(file.fileno()).st_size
            if held < nbytes and not shared:
                raise RuntimeError(
                    f"file <{path}> size <{held}> is smaller than the required mapping size <{nbytes}>"
                )
            if held < nbytes:
                file.truncate(nbytes)
            if not nbytes:
                return empty(Meta.contiguous_of((0,), dtypes.uint8, CPU))
            access = mmap.ACCESS_WRITE if shared else mmap.ACCESS_COPY
            window = mmap.mmap(file.fileno(), nbytes, access=access)
    except OSError as error:
        how = "read-write" if shared else "read-only"
        raise RuntimeError(
            f"unable to open file <{path}> in {how} mode: {error.strerror} ({error.errno})"
        ) from error
    except (ValueError, OverflowError) as error:  # a device, or more bytes than there are addresses
        raise RuntimeError(f"unable to mmap {nbytes} bytes from file <{path}>: {error}") from error
    return over(np.frombuffer(window, np.uint8), dtypes.uint8, ForeignStorage)


def _bytes_of(values: Sequence[Any]) -> list[int]:
    for value in values:
        if not isinstance(value, int):
            raise RuntimeError(
                f"torch.UntypedStorage(): tried to construct a storage from a sequence ({type_name(values)}), but one "
                f"of the items was of type {type_name(value)} instead of int"
            )
    return [value & 0xFF for value in values]


class TypedStorage(Face):
    """A storage seen as elements of one dtype. It is new, or shares the memory of an `UntypedStorage`.

    Args:
        *args: Nothing, a size or a sequence.
        device: The device (default: the CPU).
        dtype: The dtype of the elements (default: the default dtype).
        wrap_storage: An UntypedStorage whose memory it shares. It requires `dtype`.

    Raises:
        RuntimeError, TypeError: If arguments are unknown or do not fit together.
    """

    __slots__ = ()

    def __init__(self, *args: Any, device: Any = None, dtype: Any = None, wrap_storage: Any = None) -> None:
        if wrap_storage is not None:
            if args or dtype is None or device is not None:
                raise no_storage(
                    "TypedStorage.__init__", "'wrap_storage' goes with 'dtype', and nothing else"
                )
            self._held = wrapped_row(wrap_storage, dtype, "TypedStorage.__init__")
            return
        kind = flags.default_dtype if dtype is None else dtype
        if not isinstance(kind, dtypes.dtype):
            raise RuntimeError(f"expected torch.dtype, but got {type(kind)}")
        self._held = new_row(args, kind, CPU if device is None else place(device), "TypedStorage.__init__")

    @classmethod
    def from_buffer(
        cls, buffer: Any, byte_order: str | None = None, count: int = -1, offset: int = 0, *, dtype: Any
    ) -> TypedStorage:
        """Return a copy of the elements in a buffer.

        Args:
            byte_order: "native", "little" or "big"; optional for elements of one byte.
            count: Number of elements; -1 for all.
            offset: The first byte.

        Raises:
            ValueError: If the buffer is too small, or does not hold whole elements.
            RuntimeError: If the byte order is missing.
        """
        made: TypedStorage = face(cls, _row_of_buffer(buffer, dtype, byte_order, count, offset))
        return made

    @property
    def dtype(self) -> dtype:
        """Return the element type."""
        return self._row.meta.dtype

    def pickle_storage_type(self) -> str:
        """Return the name of its old type: "FloatStorage"."""
        return f"{self.dtype.torch_name}Storage"

    def _type_name(self) -> str:
        return f"torch.{'cuda.' if self.is_cuda else ''}{self.pickle_storage_type()}"

    def __repr__(self) -> str:
        return self._format(f"TypedStorage(dtype={self.dtype}, device={self.device})")


def no_storage(function: str, why: str) -> RuntimeError:
    return RuntimeError(f"{function} received an invalid combination of arguments: {why}")


def new_row(args: tuple[Any, ...], kind: dtype, where: device, function: str) -> Tensor:
    """Return the elements of a new storage from nothing, a size or a sequence."""
    if len(args) > 1:
        raise no_storage(function, "Too many positional arguments")
    given = args[0] if args else 0
    if isinstance(given, str):
        raise TypeError("new(): invalid data type 'str'")
    if isinstance(given, Sequence | np.ndarray):
        return made_of(list(given), kind, where)
    if not hasattr(given, "__index__"):
        raise TypeError(f"{function}: Argument type not recognized: {type(given)}")
    return empty(Meta.contiguous_of((integer(given, function, "size", 1),), kind, where))


def wrapped_row(storage: Any, kind: dtype, function: str) -> Tensor:
    if not isinstance(storage, UntypedStorage):
        raise TypeError(f"{function}: 'wrap_storage' must be UntypedStorage, but got {type(storage)}")
    return row_as(storage._row, kind)


def _row_of_buffer(buffer: Any, kind: dtype, byte_order: str | None, count: int, offset: int) -> Tensor:
    view = memoryview(buffer).cast("B")
    size, itemsize = view.nbytes, kind.itemsize
    count, offset = int_of(count, "from_buffer", "count"), int_of(offset, "from_buffer", "offset")
    if byte_order is None and itemsize > 1:
        raise RuntimeError("function missing required argument 'byte_order' (pos 2)")
    if byte_order not in (None, "native", "little", "big"):
        raise ValueError(f"invalid byte_order '{byte_order}' (expected 'big', 'little', or 'native')")
    if not 0 <= offset <= size:
        raise ValueError(
            f"offset must be non-negative and no greater than buffer length ({size}), but got {offset}"
        )
    if count < 0 and (size - offset) % itemsize:
        raise ValueError(f"buffer size ({size - offset}) must be a multiple of element size ({itemsize})")
    n = (size - offset) // itemsize if count < 0 else count
    if n * itemsize > size - offset:
        raise ValueError(
            f"buffer has only {(size - offset) // itemsize} elements after offset {offset}, but specified a size of {n}"
        )
    made = empty(Meta.contiguous_of((n,), kind, CPU))
    units = np.frombuffer(view[offset : offset + n * itemsize], _unit(kind))
    swapped = units.byteswap() if byte_order == "big" else units
    array_at(made.ptr, units.shape, units.dtype)[...] = swapped != 0 if kind is dtypes.bool_ else swapped
    return made


def _unit(kind: dtype) -> np.dtype[Any]:
    """Return an unsigned integer dtype of the width that byte swapping needs; complex numbers are swapped by parts."""
    return np.dtype(f"u{kind.itemsize // (2 if kind.is_complex else 1)}")


public.functions.update(UntypedStorage=UntypedStorage, TypedStorage=TypedStorage)


def face(cls: Any, row: Tensor) -> Any:
    """Return the public object for a row's storage: a `TypedStorage` or an `UntypedStorage`."""
    made = object.__new__(cls)
    made._held = row
    return made


def row_as(t: Tensor, kind: dtype) -> Tensor:
    """Return all of a tensor's storage as a row of `kind`."""
    storage = t.memory
    meta = Meta.contiguous_of((storage.nbytes // kind.itemsize,), kind, t.meta.device)
    return make(meta, storage, storage.ptr)


@method
def untyped_storage(self: Tensor) -> UntypedStorage:
    """Return the bytes under this tensor, shared with all its views."""
    found: UntypedStorage = face(UntypedStorage, row_as(self, dtypes.uint8))
    return found


@method
def storage(self: Tensor) -> TypedStorage:
    """Return the elements under this tensor."""
    found: TypedStorage = face(TypedStorage, row_as(self, self.meta.dtype))
    return found


@method
def set_(
    self: Tensor, source: Any = None, storage_offset: int = 0, size: Any = None, stride: Any = None
) -> Tensor:
    """Let the tensor use the memory of another tensor, or of a storage (with offset, sizes and strides), or no memory.

    Raises:
        RuntimeError: If the memory is on another device, or the tensor is a leaf that requires a gradient.
    """
    if source is None:
        return _point(self, empty(Meta.contiguous_of((0,), self.meta.dtype, self.meta.device)))
    if isinstance(source, Tensor) and size is None:
        _check_kind(self, source.meta.dtype)
        _check_place(self, source)
        return _point(self, source)
    if isinstance(source, TypedStorage):
        _check_kind(self, source.dtype)
    if not isinstance(source, Face | Tensor):
        raise TypeError(argument_type("set_", "source", 1, "Storage or Tensor", source))
    row, kind = source._row if isinstance(source, Face) else source, self.meta.dtype
    _check_place(self, row)
    offset = int_of(storage_offset, "set_", "storage_offset", 2)
    if size is None:
        shape: tuple[int, ...] = (row.memory.nbytes // kind.itemsize - offset,)
    else:
        shape = ints_of(size, "set_", "size", 3)
    strides = contiguous_strides(shape) if stride is None else ints_of(stride, "set_", "stride", 4)
    return _point(self, over_storage(row, kind, offset, shape, strides))


def over_storage(
    row: Tensor, kind: dtype, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Tensor:
    """Return a tensor over a storage. Raises TypeError or RuntimeError unless the tensor lies within it."""
    storage = row.memory
    require_within(storage.nbytes, kind.itemsize, shape, strides, offset)
    meta = Meta.of(shape, strides, kind, row.meta.device)
    return make(meta, storage, storage.ptr + offset * kind.itemsize)


def _check_kind(t: Tensor, kind: dtype) -> None:
    if t.meta.dtype is not kind:
        raise RuntimeError(
            f"Could not set tensor of type {kind.torch_name} to a tensor of type {t.meta.dtype.torch_name}"
        )


def _check_place(t: Tensor, source: Tensor) -> None:
    if t.meta.device is not source.meta.device:
        raise RuntimeError(
            f'Attempted to set the storage of a tensor on device "{t.meta.device}" to a storage on different device '
            f'"{source.meta.device}".  This is no longer allowed; the devices must match.'
        )


def _point(t: Any, other: Tensor) -> Tensor:
    refuse_inference(t)
    node = None
    if mode.recording and (requires_grad(t) or requires_grad(other)):
        require_changeable(t)
        node = NotImplementedNode("set_", (edge_of(t), edge_of(other)), (other.meta,))
    t.counter.version += 1  # views of the former storage share the version counter
    t.data = other
    if node is not None:
        replace_node(t, node, 0)
    pointed: Tensor = t
    return pointed


StorageBase = UntypedStorage  # the base class of PyTorch's storages


def from_file(
    filename: str | os.PathLike[str], shared: bool | None = None, size: int | None = 0, *, dtype: Any = None,
    layout: Any = None, device: Any = None, pin_memory: bool | None = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Return a CPU tensor of one dimension whose memory is a file, which is mapped and not read.

    Args:
        filename: The path of the file.
        shared: True if changes go to the file, which is created and made longer as needed.
        size: The number of elements.
        dtype: The dtype of the elements; the default dtype if None.
        layout: Strided, or None.
        device: The CPU, or None.
        pin_memory: Not supported.
        requires_grad: True if autograd records operations on the tensor.

    Raises:
        RuntimeError: If the file cannot be opened or is too short, or another device, layout or pinned memory is asked
            for.
    """
    if (device is not None and place(device) is not CPU) or pin_memory or layout not in (None, strided):
        raise RuntimeError(
            f"torch.from_file(device={device!r}, layout={layout}, pin_memory={pin_memory}): a file is mapped into "
            "ordinary CPU memory; move the tensor afterwards, with `.to(device)` or `.pin_memory()`"
        )
    kind = flags.default_dtype if dtype is None else dtype
    count = integer(size or 0, "from_file", "size", 3)
    storage = UntypedStorage.from_file(filename, bool(shared), count * kind.itemsize)
    made = Tensor.set_(empty(Meta.contiguous_of((0,), kind, CPU)), storage, 0, (count,), (1,))
    return made.requires_grad_(requires_grad)
