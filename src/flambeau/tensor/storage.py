"""`Storage`: the memory of one or more tensors, which is freed with the last of them."""

from __future__ import annotations

from typing import Any, TypeGuard

from flambeau.runtime import system
from flambeau.runtime.device_context import AllocatedBlock, Context
from flambeau.runtime.memory.pinned import PinnedBlock
from flambeau.tape.mode import shared_mode
from flambeau.tensor.tensor_core import NO_STREAM, StorageCore, new_storage
from flambeau.tensor.tensor_core import first_version as first_version


class Storage(StorageCore):
    """The `nbytes` bytes at `ptr` on a device: a block of the device's allocator, or the memory of a foreign owner.

    `version` counts in-place changes: it is the version counter of the tensors that view this storage. `stream`
    is the handle of the stream that the memory belongs to, or `NO_STREAM`.
    """

    __slots__ = ("__weakref__",)

    def __del__(self) -> None:
        # here, because compiled finalizers do not set aside an exception that is being raised
        block = self.block
        if block is not None:
            self.context.allocator.free(block)


class DeferredStorage(Storage):
    """The storage of a result that a pending launch will write. It has no address before that.

    Its slots `ptr` and `block` are empty, as is `ptr` of its tensor: reading one issues the pending launches.

    Attributes:
        call: The pending call that computes the result; None once it is issued.
    """

    __slots__ = ("call",)

    call: Any

    def __getattr__(self, name: str) -> Any:
        if name in ("ptr", "block") and self.call is not None:
            self.call.issue(self)
            return getattr(self, name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def used_on(self, stream: int) -> None:
        """Issue the pending launches, and notify the allocator as other storages do."""
        if stream != self.block.stream:  # type: ignore[union-attr]
            self.share()

    def share(self) -> None:
        """Issue the pending launches, and notify the allocator of a use on another stream."""
        self.context.allocator.share(self.block)

    def receive(self, block: AllocatedBlock) -> None:
        """Take the memory that the launch writes."""
        self.block = block
        self.ptr = block.ptr
        self.call = None

    def __del__(self) -> None:
        if self.call is None:
            super().__del__()


class GraphStorage(DeferredStorage):
    """Memory of a CUDA graph's pool that a compiled function returned, until the graph runs again.

    Then `call` is an object whose `issue` raises, and so does every use of the address.

    Attributes:
        owner: The storage that holds the block of the pool.
    """

    __slots__ = ()

    def used_on(self, stream: int) -> None:
        """Raise if the graph ran again, otherwise notify the owner as other storages notify the allocator."""
        if self.call is not None:
            self.call.issue(self)
        Storage.used_on(self, stream)

    def share(self) -> None:
        """Record a use on another stream, which the next run of the graph must wait for."""
        self.owner.is_used_elsewhere = True  # type: ignore[attr-defined]

    def __del__(self) -> None:
        """Leave the memory to `owner`."""


def graph_storage(owner: Any, captured: Storage, stream: int) -> GraphStorage:
    """Return the storage of a result of a graph's run.

    Args:
        owner: What keeps the memory; notified of uses on other streams.
        captured: The storage that the capture allocated for the result.
        stream: The stream of the run.
    """
    memory: GraphStorage = new_storage(GraphStorage)
    memory.ptr, memory.nbytes, memory.context, memory.stream = (
        captured.ptr, captured.nbytes, captured.context, stream,
    )  # fmt: skip
    memory.block = memory.call = None
    memory.owner, memory.pinned = owner, False
    memory.version = captured.version
    return memory


def defer_storage(call: Any, nbytes: int, context: Context) -> DeferredStorage:
    """Return the storage of a pending call's result."""
    memory: DeferredStorage = new_storage(DeferredStorage)
    memory.call = call
    memory.nbytes = nbytes
    memory.context = context
    memory.stream = NO_STREAM
    memory.owner = None
    memory.pinned = False
    memory.version = 0 if not shared_mode.inference_blocks else first_version()
    return memory


def is_pending(memory: Storage) -> TypeGuard[DeferredStorage]:
    """Return True if a pending launch will write the storage, which has no address."""
    return memory.__class__ is DeferredStorage and memory.call is not None


class PinnedStorage(Storage):
    """Host memory of the pinned allocator, which reuses a block only after the copies that use it have finished."""

    __slots__ = ("_allocator", "_pinned")

    def __init__(self, nbytes: int) -> None:
        self._pinned: PinnedBlock | None = None  # what __del__ sees if there is no memory
        self._allocator = system.pinned_allocator()
        block = self._pinned = self._allocator.allocate(nbytes)
        super().__init__(block.ptr, nbytes, system.host, None, pinned=True)

    def __del__(self) -> None:
        if self._pinned is not None:
            self._allocator.free(self._pinned)

    def part_with(self) -> PinnedStorage:
        """Return a new storage that owns the pinned memory. This one does not own it any more."""
        former: PinnedStorage = new_storage(PinnedStorage)
        former._pinned, former._allocator = self._pinned, self._allocator
        Storage.__init__(former, self.ptr, self.nbytes, self.context, None, pinned=True)
        self._pinned = None
        return former

    def record_copy(self, ptr: int, stream: Any) -> None:
        """Record that an asynchronous copy on `stream` uses this memory."""
        if self._pinned is not None:
            self._allocator.record_use(self._pinned, stream)


class WrapperStorage(Storage):
    """The storage of a tensor without memory, which a subclass with `__torch_dispatch__` wraps around others."""

    __slots__ = ()


class ForeignStorage(Storage):
    """Memory that belongs to another library's object, which it keeps alive. It cannot grow."""

    __slots__ = ()
