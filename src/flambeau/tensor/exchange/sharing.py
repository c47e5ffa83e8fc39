"""Storages that several processes use: those of the CPU in shared memory, those of CUDA devices by IPC.

# Note [Moving to shared memory]
`share_memory_` copies a storage's bytes to memory that other processes can map. Tensors cache addresses, so all tensors
over the storage must get the new address. Usually the tensor at hand is the only one, which the storage's reference
count shows; otherwise `gc.get_referrers` finds the others. Other objects that use the storage (a NumPy array over it)
keep the old memory; PyTorch would free it.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from flambeau.core import dtype as dtypes
from flambeau.core.errors import NotSupportedError
from flambeau.core.host_arrays import bytes_at
from flambeau.core.ipc.shared_memory import Anonymous, Door, Mapping, anonymous, key_of
from flambeau.core.ipc.shared_slots import Senders, Slots, finish
from flambeau.core.meta import Meta
from flambeau.runtime import current, system
from flambeau.runtime.devices import device_ipc
from flambeau.runtime.streams.event import Event
from flambeau.tensor.storage import ForeignStorage, PinnedStorage, Storage
from flambeau.tensor.storage_resize import holders
from flambeau.tensor.storages import UntypedStorage, face
from flambeau.tensor.tensor import Tensor, make

_MANY = 16  # sendings that may have arrived before the next check
FILE_DESCRIPTOR, FILE_SYSTEM = "file_descriptor", "file_system"
_OTHER_STRATEGY = (
    ". Please increase the limit using `ulimit -n` in the shell or change the sharing strategy by calling "
    "`torch.multiprocessing.set_sharing_strategy('file_system')`"
)
NON_LEAF = (
    "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support crossing "
    "process boundaries.  If you just want to transfer the data, call detach() on the tensor before serializing "
    "(e.g., putting it on the queue)."
)


F = TypeVar("F", bound=Callable[..., Any])


class _Sharing:
    """The CPU memory that this process shares with others.

    Attributes:
        known: Identity -> memory that was sent or received. Memory that arrives again is the same storage.
        underway: Slot -> memory that was sent and has not arrived.
    """

    def __init__(self) -> None:
        self.strategy = FILE_DESCRIPTOR if sys.platform == "linux" else FILE_SYSTEM
        self.known: WeakValueDictionary[Any, Storage] = WeakValueDictionary()
        self.begin()

    def begin(self) -> None:
        """Reset the state at the start, and in a forked child, where the parent owns the sent memory and perhaps holds
        a lock.
        """
        self.lock = threading.RLock()
        self.slots: Slots | None = None
        self.underway: dict[int, Anonymous] = {}
        self.many = _MANY
        self.senders = Senders()

    def post(self, memory: Anonymous) -> tuple[bytes, bytes, int]:
        """Send anonymous memory: its door, and the slot that the receiver clears after mapping the memory."""
        if len(self.underway) >= self.many:
            self.settle(list(self.underway))
            self.many = 2 * len(self.underway) + _MANY  # looking costs as much as there is
        if self.slots is None:
            self.slots = Slots()
        slot = self.slots.take()
        self.underway[slot] = memory
        memory.slots.add(slot)
        return Door.of(memory.fd).pack(), self.slots.door, slot

    def settle(self, sent: Iterable[int]) -> None:
        """Drop memory that has arrived. Destructors may call this."""
        slots = self.slots
        for slot in sent:
            if (
                slots is not None
                and slots.is_over(slot)
                and (memory := self.underway.pop(slot, None)) is not None
            ):
                memory.slots.discard(slot)
                slots.give_back(slot)


sharing = _Sharing()
os.register_at_fork(after_in_child=sharing.begin)


class SharedStorage(ForeignStorage):
    """CPU memory that other processes may map; `owner` is its `Mapping`. It cannot grow."""

    __slots__ = ()

    def __del__(self, ending: Any = sys.is_finalizing) -> None:  # at the end this module may be gone
        if not ending() and isinstance(self.owner, Anonymous):
            sharing.settle(list(self.owner.slots))


class SentStorage(Storage):
    """CUDA memory that was sent to another process. Its block stays allocated until the receiver has finished with
    it.
    """

    __slots__ = ()

    def __del__(self, ending: Any = sys.is_finalizing) -> None:  # at the end this module may be gone
        if not ending():
            device_ipc.retire(self.ptr)


class ReceivedStorage(ForeignStorage):
    """CUDA memory of another process. It belongs to no stream here.

    It records each stream that uses it, whose work must finish before the memory is released.
    """

    __slots__ = ("_receipt", "_streams")

    def __init__(self, parcel: device_ipc.Parcel) -> None:
        self._receipt: device_ipc.Received | None = None  # for __del__, if nothing was received
        context, ptr, receipt = device_ipc.receive(parcel)
        super().__init__(ptr, parcel.nbytes, context, None)
        self.stream = 0
        self._streams = {current.stream_at(context.index).handle}
        self._receipt = receipt

    def used_on(self, stream: int) -> None:
        self._streams.add(stream)

    def share(self) -> None:
        self._streams.add(current.stream_at(self.context.index).handle)

    def __del__(self, ending: Any = sys.is_finalizing) -> None:  # at the end this module may be gone
        if not ending() and self._receipt is not None:
            device_ipc.release(self._receipt, self._streams)


# -- the CPU's --------------------------------------------------------------------------------------------


def move_to_shared_memory(row: Tensor) -> Any:
    """Return the shared memory of a CPU tensor's storage, which is moved there first if necessary.

    `Anonymous` or `Named`, as the strategy says. See Note [Moving to shared memory].

    Raises:
        RuntimeError: If there is no room.
    """
    with sharing.lock:
        if not isinstance(row.memory.owner, Mapping):
            made = _new_memory(row.memory.nbytes)
            _move(row, made)
            sharing.known[made.key] = row.memory
        return row.memory.owner


def _new_memory(nbytes: int) -> Any:
    size = max(nbytes, 1)  # nothing cannot be mapped
    try:
        if sharing.strategy == FILE_DESCRIPTOR:
            return Anonymous(anonymous(size), size)
        return import_module("flambeau.core.ipc.named_memory").Named.create(size)
    except OSError as error:
        raise RuntimeError(
            f"unable to allocate shared memory(shm) for {nbytes} bytes: {error.strerror} ({error.errno})"
            f"{_OTHER_STRATEGY if error.errno == errno.EMFILE else ''}"
        ) from None


def _move(row: Tensor, to: Mapping) -> None:
    looking, others = holders(row)
    memory = row.memory
    system.host.driver.host_touch(memory.ptr, memory.nbytes, write=False)
    bytes_at(to.ptr, memory.nbytes)[...] = bytes_at(memory.ptr, memory.nbytes)
    shift = to.ptr - memory.ptr
    former = _hand_over_memory(memory)
    for holder in looking:
        holder.ptr += shift
    memory.ptr, memory.owner = to.ptr, to
    if others:
        to.former = former


def _hand_over_memory(memory: Storage) -> Storage:
    """Move a storage's former memory into another storage, which cannot grow from then on."""
    if isinstance(memory, PinnedStorage):
        former: Storage = memory.part_with()
        memory.pinned = False
        return former
    former = Storage(memory.ptr, memory.nbytes, memory.context, memory.block, memory.owner)
    memory.block = None
    memory.__class__ = SharedStorage
    return former


def is_mapped(memory: Storage) -> bool:
    """Return True if other processes may see CPU memory."""
    return isinstance(memory.owner, Mapping)


def storage_over(memory: Any, nbytes: int) -> Storage:
    """Return a storage over shared memory that another process has sent."""
    made = sharing.known[memory.key] = SharedStorage(memory.ptr, nbytes, system.host, None, memory)
    return made


def storage_of_descriptor(fd: int, nbytes: int) -> Storage:
    """Return the storage of a file descriptor, of which it takes ownership: an existing storage of that memory, or a
    new one.
    """
    with sharing.lock:
        found = sharing.known.get(key_of(fd))
        if found is None:
            return storage_over(Anonymous(fd, max(nbytes, 1)), nbytes)
    os.close(fd)
    return found


def storage_of_door(door: bytes, counter: bytes, slot: int, nbytes: int) -> Storage:
    """Return the storage of a descriptor that another process holds open until its slot is cleared.

    Raises:
        ProcessLookupError: If that process has ended.
    """
    there = Door.unpack(door)
    with sharing.lock:
        found = sharing.known.get((there.device, there.inode))
    if found is None:
        found = storage_of_descriptor(there.enter(), nbytes)
    finish(sharing.senders.find(counter), slot)
    return found


def storage_of_name(name: str, nbytes: int) -> Storage:
    """Return the storage of named memory, and take over the count of the message that carried the name."""
    named = import_module("flambeau.core.ipc.named_memory")
    with sharing.lock:
        found = sharing.known.get(name)
        if found is None:
            return storage_over(named.Named.take(name, max(nbytes, 1)), nbytes)
    named.change(name, -1)
    return found


# -- CUDA's -----------------------------------------------------------------------------------------------


def send(storage: Storage) -> device_ipc.Parcel:
    """Return the data with which another process can use a CUDA storage.

    Raises:
        NotSupportedError: If its memory is not the allocator's.
    """
    if isinstance(storage, ReceivedStorage):
        raise RuntimeError(device_ipc.FROM_ANOTHER)
    block: Any = storage.block
    if block is None:
        raise NotSupportedError(
            "the CUDA memory of another library cannot be sent to another process. Consider cloning before sending."
        )
    with sharing.lock:
        parcel = device_ipc.send(storage.ptr, storage.nbytes, storage.context, block)
        storage.__class__ = SentStorage
        sharing.known[parcel.key] = storage
        return parcel


def receive(parcel: device_ipc.Parcel) -> Storage:
    """Return the storage that another process sent: the one that is already open here, or a new one."""
    with sharing.lock:
        found = sharing.known.get(parcel.key)
        if found is not None and found.context.closed:
            found = None
        if device_ipc.is_own(parcel):
            sent = device_ipc.take_back(parcel)
            made = found or SentStorage(sent.block.ptr, sent.nbytes, sent.context, sent.block)
        elif found is not None:
            device_ipc.release_again(parcel)
            made = found
        else:
            made = ReceivedStorage(parcel)
        sharing.known[parcel.key] = made
        return made


def receive_storage(*parcel: Any) -> UntypedStorage:
    """Return an UntypedStorage over the memory that another process has sent."""
    return over(receive(device_ipc.Parcel.from_fields(*parcel)))


# -- the standard library's pickler for processes ----------------------------------------------------------


STORAGES = (Storage, ForeignStorage, PinnedStorage, SharedStorage, SentStorage, ReceivedStorage)


def announce(reductions: Callable[[], Any], *kinds: type) -> None:
    """Register these types, tensors and storages with `multiprocessing`.

    Args:
        reductions: Returns the module whose REDUCERS pickle them; called when the first object is sent.
        kinds: Types in addition to those of tensors, events and storages.
    """

    def reduce_object(obj: Any) -> Any:
        return reductions().REDUCERS[type(obj)](obj)  # registers its own functions, too

    reduction = import_module("multiprocessing.reduction")
    for kind in (*kinds, Tensor, Event, *STORAGES):
        reduction.register(kind, reduce_object)


def unserializable_hook(f: F) -> F:
    """Decorate a hook so that sending its tensor to another process causes no warning."""
    f.__torch_unserializable__ = True  # type: ignore[attr-defined]
    return f


def warn_if_has_hooks(tensor: Tensor) -> None:
    """Warn of each hook that does not travel with a tensor to another process, unless it is marked."""
    history = tensor.history
    watchers = None if history is None or history.node is None else history.node.node_hooks
    if history is None or watchers is None:
        return
    for hook in watchers.tensor_hooks.get(history.index, {}).values():
        if not hasattr(hook, "__torch_unserializable__"):
            warnings.warn(
                f"backward hook {hook!r} on tensor will not be serialized.  If this is expected, you can decorate "
                "the function with @torch.utils.hooks.unserializable_hook to suppress this warning",
                UserWarning,
                stacklevel=3,
            )


def over(storage: Storage) -> UntypedStorage:
    """Return a storage as the UntypedStorage that programs use."""
    row = make(Meta.contiguous_of((storage.nbytes,), dtypes.uint8, storage.device), storage, storage.ptr)
    made: UntypedStorage = face(UntypedStorage, row)
    return made
