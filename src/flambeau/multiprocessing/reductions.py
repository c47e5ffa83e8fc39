"""Pickling of tensors, storages and events for another process: their memory is shared, not copied.

The functions in the pickles are PyTorch's. Importing this module registers them with the standard library's pickler for
processes (queues, pipes, arguments of processes, managers), and with no other pickler.
"""

from __future__ import annotations

import weakref
from multiprocessing import reduction, resource_sharer  # noqa: F401 (so early: no thread may be in it when we fork)
from typing import Any, ClassVar

from flambeau.core.device import CPU, device
from flambeau.core.dtype import dtype
from flambeau.core.ipc.shared_memory import Anonymous, Door
from flambeau.core.meta import Meta
from flambeau.core.public_names import explain_absent_names
from flambeau.nn.parameter import Parameter
from flambeau.runtime import system
from flambeau.runtime.devices.device_ipc import Parcel
from flambeau.runtime.streams.event import Event
from flambeau.tensor.call import empty
from flambeau.tensor.exchange import sharing
from flambeau.tensor.exchange.pickling import NEW_KINDS, rebuild_as, row_of
from flambeau.tensor.storage import Storage
from flambeau.tensor.storages import Face, TypedStorage, UntypedStorage
from flambeau.tensor.tensor import Tensor

__all__ = [
    "StorageWeakRef", "init_reductions", "rebuild_cuda_tensor", "rebuild_event", "rebuild_storage_empty",
    "rebuild_storage_fd", "rebuild_storage_filename", "rebuild_tensor", "reduce_event", "reduce_storage",
    "reduce_tensor",
]  # fmt: skip


_SENDER_GONE = (
    "the process that sent this tensor has ended: with the file_descriptor strategy it must live until its tensors are "
    "received (file_system has no such rule, see set_sharing_strategy)"
)


# -- tensors ----------------------------------------------------------------------------------------------


def reduce_tensor(tensor: Tensor) -> tuple[Any, tuple[Any, ...]]:
    """Return the call that creates this tensor in another process, over the same memory. CPU memory moves to shared
    memory.

    Raises:
        RuntimeError: If it requires a gradient and is not a leaf, or is from another process by CUDA IPC.
    """
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(sharing.NON_LEAF)
    sharing.warn_if_has_hooks(tensor)
    if tensor.meta.device is not CPU:
        return _reduce_cuda(tensor)
    if tensor.memory.nbytes:
        sharing.move_to_shared_memory(tensor)
    kind = tensor.meta.dtype
    face: Any = tensor.untyped_storage() if kind in NEW_KINDS else tensor.storage()  # type: ignore[attr-defined]
    layout = (tensor.storage_offset(), tensor.meta.shape, tensor.meta.strides, tensor.requires_grad)
    return rebuild_tensor, (type(tensor), face, layout, kind)


def rebuild_tensor(cls: Any, storage: Face, metadata: Any, kind: dtype | None = None) -> Any:
    """Return a tensor, or Parameter, over a storage. `metadata` is (offset, size, stride, requires_grad)."""
    offset, size, stride, requires_grad = metadata
    if kind is None:
        assert isinstance(storage, TypedStorage)
        kind = storage.dtype
    return _as_parameter_or_tensor(
        cls, rebuild_as(storage, offset, size, stride, False, None, kind), requires_grad
    )


def _as_parameter_or_tensor(cls: Any, made: Tensor, requires_grad: bool) -> Any:
    if cls is Parameter:
        return Parameter(made, requires_grad)
    return made.requires_grad_(requires_grad)  # type: ignore[attr-defined]


def _reduce_cuda(tensor: Tensor) -> tuple[Any, tuple[Any, ...]]:
    meta = tensor.meta
    parcel: Any = Parcel(meta.device.index or 0, b"", 0, 0, b"", 0, b"", False)
    if tensor.memory.nbytes:
        parcel = sharing.send(tensor.memory)
    return rebuild_cuda_tensor, (
        type(tensor), meta.shape, meta.strides, tensor.storage_offset(), UntypedStorage, meta.dtype, parcel.device,
        parcel.handle or None, parcel.nbytes, parcel.offset, tensor.requires_grad, parcel.counter, parcel.slot,
        parcel.event, parcel.must_wait,
    )  # fmt: skip


def rebuild_cuda_tensor(
    tensor_cls: Any, tensor_size: Any, tensor_stride: Any, tensor_offset: int, storage_cls: Any, dtype: dtype,
    storage_device: int, storage_handle: bytes | None, storage_size_bytes: int, storage_offset_bytes: int,
    requires_grad: bool, ref_counter_handle: bytes, ref_counter_offset: int, event_handle: bytes,
    event_sync_required: bool,
) -> Any:  # fmt: skip
    """Return a CUDA tensor over another process's memory. The current stream waits for the sender's work on it.

    Raises:
        RuntimeError: If the sender has ended, its GPU is not visible here, or this is a fork of a process that used
            CUDA.
    """
    if storage_handle is None or not storage_size_bytes:
        where = system.resolve(device("cuda", storage_device))
        storage = empty(Meta.contiguous_of((0,), dtype, where)).memory
    else:
        storage = sharing.receive(
            Parcel.from_fields(
                storage_device, storage_handle, storage_size_bytes, storage_offset_bytes, ref_counter_handle,
                ref_counter_offset, event_handle, event_sync_required,
            )
        )  # fmt: skip
    size, stride = tuple(tensor_size), tuple(tensor_stride)
    made = rebuild_as(sharing.over(storage), tensor_offset, size, stride, False, None, dtype)
    return _as_parameter_or_tensor(tensor_cls, made, requires_grad)


# -- storages ---------------------------------------------------------------------------------------------


def reduce_storage(storage: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the call that maps a CPU storage in another process.

    Raises:
        RuntimeError: If it is a CUDA storage.
    """
    memory: Storage = storage._row.memory if isinstance(storage, Face) else storage
    if memory.device is not CPU:
        raise RuntimeError("Cannot pickle CUDA storage; try pickling a CUDA tensor instead")
    if not memory.nbytes:
        return rebuild_storage_empty, ()
    owner = sharing.move_to_shared_memory(row_of(memory))
    if isinstance(owner, Anonymous):
        if Door.opens():
            return rebuild_storage_door, (*sharing.sharing.post(owner), memory.nbytes)
        return rebuild_storage_fd, (reduction.DupFd(owner.fd), memory.nbytes)
    try:
        owner.hold()
    except FileNotFoundError:
        raise RuntimeError(
            f"the shared memory {owner.name} cannot be sent: this process has it by fork, and its owner has given it "
            "back. Consider cloning before sending."
        ) from None
    return rebuild_storage_filename, (owner.name, memory.nbytes)


def rebuild_storage_door(door: bytes, counter: bytes, slot: int, size: int) -> Storage:
    """Return the storage over memory that another process sent. `door` is the address of its file descriptor there.

    Raises:
        FileNotFoundError: If the sending process has ended.
    """
    try:
        return sharing.storage_of_door(door, counter, slot, size)
    except ProcessLookupError:
        raise FileNotFoundError(_SENDER_GONE) from None


def rebuild_storage_fd(df: Any, size: int) -> Storage:
    """Return the storage of a descriptor that was sent with the message, because this process hides its doors.

    Raises:
        EOFError, ConnectionError, FileNotFoundError: If the sender has ended.
    """
    try:
        fd = df.detach()
    except (EOFError, ConnectionError, FileNotFoundError) as error:
        raise type(error)(_SENDER_GONE) from error
    return sharing.storage_of_descriptor(fd, size)


def rebuild_storage_filename(name: str, size: int) -> Storage:
    """Return the storage of a name.

    Raises:
        RuntimeError: If all who used it have ended.
    """
    try:
        return sharing.storage_of_name(name, size)
    except FileNotFoundError:
        raise RuntimeError(
            f"unable to open shared memory object <{name}> in read-write mode: No such file or directory (2)"
        ) from None


def rebuild_storage_empty() -> Storage:
    """Return a storage of no bytes."""
    return UntypedStorage(0)._row.memory


class _MemoryNumber:
    """The number of a memory, shared by its living references.

    Attributes:
        reference: A weak reference to the memory.
    """

    __slots__ = ("__weakref__", "reference")
    living: ClassVar[weakref.WeakValueDictionary[int, _MemoryNumber]] = weakref.WeakValueDictionary()

    def __init__(self, reference: weakref.ref[Storage]) -> None:
        self.reference = reference
        self.living[id(reference)] = self


class StorageWeakRef:
    """A weak reference to the memory of a storage, whichever objects show it. Of equal memory they are equal.

    Args:
        storage: The storage.

    Attributes:
        cdata: A number of the memory, which no other memory gets while a reference of it lives.
    """

    __slots__ = ("_number", "cdata")

    def __init__(self, storage: Any) -> None:
        memory: Storage = storage._row.memory if isinstance(storage, Face) else storage
        reference = weakref.ref(memory)  # one object for each memory
        self.cdata = id(reference)
        self._number = _MemoryNumber.living.get(self.cdata) or _MemoryNumber(reference)

    @classmethod
    def from_weakref(cls, cdata: int) -> StorageWeakRef:
        """Return a reference to the memory that has the number `cdata`.

        Args:
            cdata: The attribute of a living reference. A number alone keeps nothing alive, unlike PyTorch's pointer.

        Raises:
            ValueError: If no living reference has this number.
        """
        number = _MemoryNumber.living.get(cdata)
        if number is None:
            raise ValueError(
                f"from_weakref(): no StorageWeakRef with cdata {cdata!r} lives in this process: keep the reference "
                "that has the number"
            )
        made = cls.__new__(cls)
        made._number, made.cdata = number, cdata
        return made

    def expired(self) -> bool:
        """Return True if the memory has been freed."""
        return self._number.reference() is None

    def __hash__(self) -> int:
        return self.cdata

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageWeakRef) and self.cdata == other.cdata


# -- events -----------------------------------------------------------------------------------------------


def reduce_event(event: Event) -> tuple[Any, tuple[Any, ...]]:
    """Return the call that opens an interprocess event in another process."""
    handle = event.ipc_handle()
    return rebuild_event, (event.device, handle)


def rebuild_event(device: device, handle: bytes) -> Event:
    """Return another process's event."""
    return Event.from_ipc_handle(device, handle)


REDUCERS: dict[type, Any] = {
    Event: reduce_event, Tensor: reduce_tensor, Parameter: reduce_tensor,
} | dict.fromkeys(sharing.STORAGES, reduce_storage)  # fmt: skip
"""Class -> the function that pickles its instances. Subclasses of tensors have none, but their storages do."""


def init_reductions() -> None:
    """Register the reductions with the standard library's pickler for processes. Idempotent."""
    for kind, reduce in REDUCERS.items():
        reduction.register(kind, reduce)


init_reductions()
explain_absent_names(globals(), "torch.multiprocessing.reductions")
