"""`StorageCore` and `TensorCore`: the fields of storages and tensors, with the functions that create new ones.

The compiled wheel compiles this module, so that compiled modules read the fields without a lookup. `Tensor` and
`Storage` are the classes of Python over them.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final, Protocol

from flambeau.core.device import device
from flambeau.core.host.native import mypyc_attr
from flambeau.core.meta import Meta
from flambeau.driver.protocol import HostMemory
from flambeau.runtime import system
from flambeau.runtime.device_context import AllocatedBlock, Context
from flambeau.runtime.hooks import launch_deferral
from flambeau.tape.mode import mode, shared_mode


class Counter(Protocol):
    """A counter of in-place changes. A tensor shares its storage's counter; `.data` has its own."""

    version: int


NO_STREAM: Final = -1
"""The stream of memory that a pending launch writes, or wrote: each use of it by a call is announced by `use_on`."""


@mypyc_attr(allow_interpreted_subclasses=True)
class StorageCore:
    """The fields of a storage: see `Storage`."""

    __deletable__ = ("ptr",)  # for the compiler
    __slots__ = ("block", "context", "nbytes", "owner", "pinned", "ptr", "stream", "version")

    def __init__(
        self,
        ptr: int,
        nbytes: int,
        context: Context,
        block: AllocatedBlock | None,
        owner: object = None,
        pinned: bool = False,
    ) -> None:
        self.ptr = ptr
        self.nbytes = nbytes
        self.context = context
        self.block = block
        self.owner = owner
        self.pinned = pinned
        self.stream = context.default_stream.handle if block is None else block.stream
        self.version = 0 if not shared_mode.inference_blocks else first_version()

    @property
    def device(self) -> device:
        """Return the device of the memory."""
        return self.context.device

    def used_on(self, stream: int) -> None:
        """Notify the allocator that work on `stream` uses this memory, unless the memory belongs to that stream."""
        if stream != self.stream:
            self.share()

    def share(self) -> None:
        """Notify the allocator of a use on another stream. See Note [Reuse by order] in cross_stream_reuse.py."""
        if self.block is not None:
            self.context.allocator.share(self.block)

    def expose(self) -> None:
        """Record that the program learns the storage's address."""
        launch_deferral.settle("the program reads an address")
        self.share()
        if self.block is None and self.context is system.host:
            self.context.driver.host_export(self.ptr, self.nbytes, "data_ptr()", None)

    def is_pinned(self, ptr: int, nbytes: int) -> bool:
        """Return True if these bytes of it are page-locked host memory, whichever object had them pinned."""
        return self.pinned or (self.context is system.host and system.host_pinned(ptr, nbytes))

    def host_memory(self, ptr: int, nbytes: int, awaited: bool = False) -> HostMemory:
        """Return `nbytes` bytes from `ptr` on for copies. This storage, which must be on the CPU, keeps them alive."""
        return HostMemory(ptr, nbytes, self, self.is_pinned(ptr, nbytes), awaited)

    def record_copy(self, ptr: int, stream: Any) -> None:
        """Record that an asynchronous copy on `stream` uses the CPU storage's bytes from `ptr` on."""
        if self.block is None:  # else it is the CPU allocator's: pageable, and the copy over
            system.pinned_allocator().record_use_at(ptr, stream)


INFERENCE_VERSION = -(1 << 62)  # however often such a storage is written, its count stays negative


def first_version() -> int:
    return INFERENCE_VERSION if mode.inference else 0


@mypyc_attr(allow_interpreted_subclasses=True)
class TensorCore:
    """The fields of a tensor.

    Attributes:
        meta: Shape, strides, dtype and device.
        memory: The storage, which holds the bytes; that of a sparse tensor is another class.
        ptr: The address of the first element, an int.
        deferred_offset: Bytes from the storage's start to `ptr`, of tensors made without an address.
        counter: The counter of in-place changes.
        history: The autograd state; None for most tensors.
    """

    __deletable__ = ("ptr",)  # for the compiler
    __slots__ = ("counter", "deferred_offset", "history", "memory", "meta", "ptr")

    meta: Any
    memory: Any
    ptr: Any
    deferred_offset: int
    counter: Any
    history: Any


_read_address = attrgetter("ptr")


def use_on(t: TensorCore, stream: int) -> None:
    """Notify the allocator that work on `stream` uses a tensor's memory, unless the memory belongs to that stream.

    The result of a pending call has its address afterwards: see `Tensor.__getattr__`.
    """
    memory = t.memory
    memory.used_on(stream)
    if memory.stream == NO_STREAM:
        t.ptr = _read_address(t)


new_tensor = TensorCore.__new__
new_storage = StorageCore.__new__
_tensor_class: type[Any] = TensorCore  # `Tensor`, which another module defines
_storage_class: type[Any] = StorageCore  # `Storage`, which another module defines


def use_classes(tensor: type[TensorCore], storage: type[StorageCore]) -> None:
    """Set the classes of new tensors and storages. `tensor/tensor.py` calls this once."""
    global _tensor_class, _storage_class
    _tensor_class, _storage_class = tensor, storage


def make(meta: Meta, storage: Any, ptr: Any) -> Any:
    """Return a tensor over a storage. All functions that create tensors call this, except `make_in`."""
    self: TensorCore = new_tensor(_tensor_class)
    self.meta = meta
    self.memory = storage
    self.ptr = ptr
    self.counter = storage
    self.history = None
    return self


def make_in(block: AllocatedBlock, meta: Meta, context: Context) -> Any:
    """Return a tensor alone in an allocator's block: `make` and `Storage` written out, for results of operators."""
    memory: StorageCore = new_storage(_storage_class)
    memory.ptr = ptr = block.ptr
    memory.nbytes = meta.nbytes
    memory.context = context
    memory.block = block
    memory.stream = block.stream
    memory.owner = None
    memory.pinned = False
    memory.version = 0 if not shared_mode.inference_blocks else first_version()
    self: TensorCore = new_tensor(_tensor_class)
    self.meta = meta
    self.memory = self.counter = memory
    self.ptr = ptr
    self.history = None
    return self
