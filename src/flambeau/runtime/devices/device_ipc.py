"""Device memory shared with other processes. Owner of the blocks that were sent and received.

# Note [Sharing CUDA tensors]
What is sent is a block of the caching allocator: the handle of the whole segment that it lies in, as CUDA has
it, and its place there. Each sending has a counter, a slot of memory that both processes map: the sender sets it, the
receiver writes its process id there, and zero once its tensors are gone and its work with them is done. A block that
the sender frees meanwhile goes to no pool: it waits in limbo until all slots of its sendings are zero, or name a
process that has ended. It is looked after at each sending, when memory runs out, and by `collect`.
An event goes with each sending, recorded on the sender's current stream: the receiver's current stream waits for it.

# Note [Dead tensors of others]
A destructor may interrupt any other code, so it only notes that the tensor is dead. The driver calls that follow (waits
for the streams that used it, unmapping of the segment) run in the destructor if no other call is doing such work.
Otherwise that call does them, or the next sending, receiving or `collect`.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple, get_type_hints
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from flambeau.core.brief import brief
from flambeau.core.errors import DriverError, NotSupportedError
from flambeau.core.ipc.shared_memory import Door, Mapping, birth
from flambeau.core.ipc.shared_slots import Receipt, Senders, Slots, finish, is_slot
from flambeau.runtime import current, system
from flambeau.runtime.device_context import Context
from flambeau.runtime.devices.machine import Machine
from flambeau.runtime.memory.blocks import Block
from flambeau.runtime.memory.pending_frees import UseEvent
from flambeau.runtime.memory.reentrant_lock import AllocatorLock
from flambeau.runtime.streams.wait_reason import wait_reason

_UUID = 16  # bytes of a UUID
_EVENTS = 1000  # messages with a separate event; further ones wait for their stream instead
_MANY = 1000  # blocks in IPC limbo from which on their receivers are checked

FROM_ANOTHER = (
    "Attempted to send CUDA tensor received from another process; this is not currently supported. Consider cloning "
    "before sending."
)
_EXPANDABLE = (
    "memory of an expandable segment cannot be sent to another process: a CUDA IPC handle stands for a whole segment "
    "of cudaMalloc. Send a tensor that was allocated with expandable_segments:False"
)
_TOO_EARLY = (
    "Producer process has been terminated before all shared CUDA tensors released. "
    "See Note [Sharing CUDA tensors]"
)
_TOO_MANY = (
    "Producer process tried to deallocate over 1000 memory blocks referred by consumer processes. Deallocation might "
    "be significantly slowed down. We assume it will never going to be the case, but if it is, please file but to "
    "https://github.com/pytorch/pytorch"
)


class Parcel(NamedTuple):
    """The data that another process needs to open a block, in the order of PyTorch's `_share_cuda_`.

    Attributes:
        device: The index of the sender's device.
        handle: The 16 bytes of the device's uuid, then the driver's handle of the segment, 64 bytes.
        nbytes: Size of the storage in bytes.
        offset: Offset of the storage in the segment.
        counter: The door of the shared memory with the sender's counters.
        slot: The position of this sending's counter.
        event: The IPC handle of the event to wait for; b"" if there is none.
        must_wait: True if the receiver must wait for the event.
    """

    device: int
    handle: bytes
    nbytes: int
    offset: int
    counter: bytes
    slot: int
    event: bytes
    must_wait: bool

    @classmethod
    def from_fields(cls, *fields: Any) -> Parcel:
        """Return a parcel with these fields of another process, after checking them."""
        if len(fields) != len(_FIELDS):
            raise TypeError(f"a CUDA storage of another process has {len(_FIELDS)} fields, not {len(fields)}")
        for (name, kind), value in zip(_FIELDS, fields, strict=True):
            if type(value) is not kind:
                raise TypeError(f"{name} of a CUDA storage must be {kind.__name__}, not {brief(value)}")
            if kind is int and not 0 <= value < 1 << 63:
                raise ValueError(f"{name} of a CUDA storage must not be {brief(value)}")
        found = cls(*fields)
        if len(found.handle) < _UUID or not is_slot(found.slot):
            raise ValueError(
                "the handle of a CUDA storage is too short, or the place of its counter is not one"
            )
        Door.unpack(found.counter)
        return found

    @property
    def key(self) -> tuple[bytes, int]:
        """Return a key that identifies the block among all shared blocks."""
        return self.handle, self.offset


_FIELDS = tuple(get_type_hints(Parcel).items())


class Sent:
    """A block that was sent, with the messages that are still in use: counter slots and the events sent with them."""

    __slots__ = ("block", "context", "key", "nbytes", "sendings")

    def __init__(self, key: tuple[bytes, int], context: Context, block: Block, nbytes: int) -> None:
        self.key = key
        self.context = context
        self.block = block
        self.nbytes = nbytes
        self.sendings: dict[int, UseEvent | None] = {}

    def is_over(self, thoroughly: bool = False) -> bool:
        """Return True if no other process maps the memory any more."""
        for slot in list(self.sendings):
            if _state.counters().is_over(slot, thoroughly):
                with suppress(KeyError):  # another thread has removed the block already
                    if self.sendings.pop(slot) is not None:
                        _state.events -= 1
                    _state.counters().give_back(slot)
        return not self.sendings


class Segment:
    """A segment of another process that is mapped here while `holders` tensors from that process are in it."""

    __slots__ = ("__weakref__", "context", "holders", "key", "nbytes", "ptr")

    def __init__(self, context: Context, parcel: Parcel) -> None:
        self.context = context
        self.key = (context, parcel.handle)
        self.holders = 0
        self.ptr, self.nbytes = context.driver.ipc_open(context.driver_index, parcel.handle[_UUID:])


class Received(Receipt):
    """A message that this process holds, with the segment that it refers to."""

    __slots__ = ("segment",)

    def __init__(self, segment: Segment, memory: Mapping, slot: int) -> None:
        super().__init__(memory, slot)
        self.segment = segment


class _SharedBlocks:
    """The blocks that this process has sent and received. A forked child begins with an empty state."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.sent: dict[int, Sent] = {}  # address -> sent block
        self.limbo: dict[int, Sent] = {}
        self.own: Slots | None = None
        self.segments: WeakValueDictionary[tuple[Context, bytes], Segment] = WeakValueDictionary()
        self.senders = Senders()
        self.uuids: WeakKeyDictionary[Context, bytes] = WeakKeyDictionary()
        self.receipts: WeakSet[Received] = WeakSet()
        self.dead: deque[tuple[Received, Iterable[int]]] = deque()
        self.later: list[tuple[Received, Iterable[int]]] = []  # releases that could not be done immediately
        self.turn = AllocatorLock(self.dead, lambda: _bury())
        self.events = 0  # events of messages that their receivers have not finished with
        self.watching = False
        self.warned = False

    def counters(self) -> Slots:
        if self.own is None:
            self.own = Slots()
        return self.own

    def watch(self) -> None:
        """Subscribe to machines that close."""
        if not self.watching:
            self.watching = True
            system.watch(_Closing())


_state = _SharedBlocks()


# -- sending ----------------------------------------------------------------------------------------------


def send(ptr: int, nbytes: int, context: Context, block: Block) -> Parcel:
    """Return the data that another process needs to open `nbytes` bytes at `ptr`, in a block of the caching allocator.

    The caller keeps the block until `retire`.

    Raises:
        NotSupportedError: If the memory cannot be shared.
    """
    system.require_open(context)
    allocator: Any = context.allocator
    if allocator.is_expandable(ptr):
        raise NotSupportedError(_EXPANDABLE)
    with _state.lock:
        _state.watch()
        collect(thoroughly=False)
        allocator.growth.before_retry = collect
        first = block
        while first.previous is not None:
            first = first.previous
        driver = context.driver
        handle = _uuid(context) + driver.ipc_memory(first.ptr)
        key = (handle, ptr - first.ptr)
        counters = _state.counters()
        mark = _mark(context)
        event = b"" if mark is None else driver.ipc_event(mark.handle)
        slot = counters.take()
        sent = _state.sent.get(ptr)
        if sent is None:
            sent = _state.sent[ptr] = Sent(key, context, block, nbytes)
        sent.sendings[slot] = mark
        _state.events += mark is not None
        return Parcel(context.index, handle, nbytes, key[1], counters.door, slot, event, mark is not None)


def _mark(context: Context) -> UseEvent | None:
    """Record an event at the end of the current stream. With too many events, wait for the stream and return None."""
    stream = current.stream_at(context.index)
    if _state.events >= _EVENTS:
        stream.synchronize()
        return None
    driver = context.driver
    mark = UseEvent(context, driver.event_create(context.driver_index, False, True, True))
    driver.event_record(mark.handle, stream.handle)
    return mark


def retire(ptr: int) -> None:
    """Free a block that this process no longer uses: now, or once no other process uses it."""
    sent = _state.sent.pop(ptr, None)
    if sent is None or sent.context.closed:
        return
    if sent.is_over():
        sent.context.allocator.free(sent.block)
        return
    _state.limbo[ptr] = sent
    if len(_state.limbo) > _MANY and not _state.warned:
        _state.warned = True
        warnings.warn(_TOO_MANY, UserWarning, stacklevel=2)


def collect(thoroughly: bool = True) -> None:
    """Run deferred releases, and free blocks that no other process uses.

    Args:
        thoroughly: Also free blocks whose receiver has ended.
    """
    _state.dead.extend(_state.later)
    _state.later.clear()
    _bury()
    for ptr, sent in list(_state.limbo.items()):
        if sent.is_over(thoroughly) and _state.limbo.pop(ptr, None) is not None and not sent.context.closed:
            sent.context.allocator.free(sent.block)
    known = (*_state.sent.values(), *_state.limbo.values())
    if thoroughly and all(sent.is_over(thoroughly) for sent in known):
        _state.own = None  # no receiver uses the counters any more


def take_back(parcel: Parcel) -> Sent:
    """Return the block of a parcel that this same process sent, taken out of IPC limbo if it was freed since.

    The current stream waits for the work before the sending, which ends here.

    Raises:
        RuntimeError: If the memory was given back.
    """
    for ptr, sent in [*_state.sent.items(), *_state.limbo.items()]:
        if sent.key == parcel.key and parcel.slot in sent.sendings:
            _state.limbo.pop(ptr, None)
            _state.sent[ptr] = sent
            mark = sent.sendings[parcel.slot]
            if mark is not None:
                stream = current.stream_at(sent.context.index)
                sent.context.driver.stream_wait(stream.handle, mark.handle)
            finish(_counters_of(parcel), parcel.slot)
            sent.is_over()
            return sent
    raise RuntimeError(
        "CUDA error: invalid device context: the tensor's memory was given back since it was sent"
    )


# -- receiving --------------------------------------------------------------------------------------------


def is_own(parcel: Parcel) -> bool:
    """Return True if this process sent the parcel."""
    return Door.unpack(parcel.counter).pid == os.getpid()


def receive(parcel: Parcel) -> tuple[Context, int, Received]:
    """Return the local address of memory from another process, and the receipt to pass to `release` after its last
    use.

    The current stream waits for the sender's.

    Raises:
        RuntimeError: If the sender has ended, its device is not visible here, or this process is a fork
            of one that used CUDA.
    """
    with _state.lock:
        counters = _counters_of(parcel)
        try:
            return _receive_segment(parcel, counters)
        except BaseException as error:  # no tensor will use the parcel
            finish(counters, parcel.slot)
            if isinstance(error, DriverError) and not birth(Door.unpack(parcel.counter).pid):
                raise _producer_ended(parcel) from error  # CUDA reports only an invalid handle
            raise


def _receive_segment(parcel: Parcel, counters: Mapping) -> tuple[Context, int, Received]:
    context = _context_of(parcel)
    _state.watch()
    collect(thoroughly=False)
    segment = _state.segments.get((context, parcel.handle))
    if segment is None:
        segment = _state.segments[context, parcel.handle] = Segment(context, parcel)
    if parcel.offset + parcel.nbytes > segment.nbytes:
        raise RuntimeError(
            f"a CUDA tensor was received whose {parcel.nbytes} bytes at {parcel.offset} exceed the {segment.nbytes} "
            "bytes of its segment"
        )
    _order(context, parcel)
    segment.holders += 1
    receipt = Received(segment, counters, parcel.slot)
    _state.receipts.add(receipt)
    return context, segment.ptr + parcel.offset, receipt


def release_again(parcel: Parcel) -> None:
    """Release a second parcel of memory that is open here already, after ordering the current stream behind it."""
    _order(_context_of(parcel), parcel)
    finish(_counters_of(parcel), parcel.slot)


def release(receipt: Received, streams: Iterable[int]) -> None:
    """Release received memory after its last use, on `streams`. Destructors may call it."""
    _state.dead.append((receipt, streams))
    _bury()


def _context_of(parcel: Parcel) -> Context:
    for context in system.contexts():
        if _uuid(context) == parcel.handle[:_UUID]:
            return context
    raise RuntimeError(
        f"a CUDA tensor was received that lies on a device which this process does not see: cuda:{parcel.device} of "
        f"process {Door.unpack(parcel.counter).pid}, GPU {parcel.handle[:_UUID].hex()}"
    )


def _counters_of(parcel: Parcel) -> Mapping:
    try:
        return _state.senders.find(parcel.counter)
    except ProcessLookupError:
        raise _producer_ended(parcel) from None


def _producer_ended(parcel: Parcel) -> RuntimeError:
    return RuntimeError(
        f"a CUDA tensor was received from process {Door.unpack(parcel.counter).pid}, which has ended: the producer of "
        "a CUDA tensor must live for as long as others use it. See Note [Sharing CUDA tensors]"
    )


def _order(context: Context, parcel: Parcel) -> None:
    """Make the current stream wait for the sender's stream."""
    if not parcel.must_wait:
        return
    driver = context.driver
    event = driver.ipc_event_open(context.driver_index, parcel.event)
    with wait_reason(str, "a tensor of another process: this stream waits for its sender's"):
        driver.stream_wait(current.stream_at(context.index).handle, event)
    driver.event_destroy(event)


def _bury() -> None:
    """Release received memory whose destructors could not. See Note [Dead tensors of others]."""
    while _state.dead and _state.turn.try_enter():
        try:
            while _state.dead:
                receipt, streams = _state.dead.popleft()
                if not _try_end(receipt, streams):
                    _state.later.append((receipt, streams))
        finally:
            _state.turn.leave()


def _try_end(receipt: Received, streams: Iterable[int]) -> bool:
    segment = receipt.segment
    if not segment.context.closed:
        context = segment.context
        if context.orders.capturing:
            return False
        try:
            if segment.holders > 1:
                _wait(context, streams)
            else:
                context.backing.ipc_close(segment.ptr)  # this waits for the device
                _state.segments.pop(segment.key, None)
        except DriverError:  # the driver refused, because another of its calls is running
            return False
        segment.holders -= 1
    receipt.end()
    _state.receipts.discard(receipt)
    return True


def _wait(context: Context, streams: Iterable[int]) -> None:
    """Block the host until these streams are idle. The runtime calls this for itself, not for the program."""
    driver = context.backing
    event = driver.event_create(context.driver_index, False)
    try:
        for stream in streams:
            try:
                driver.event_record(event, stream)
            except DriverError:  # the stream was destroyed, but its work may not be done
                driver.device_sync(context.driver_index)
            driver.event_sync(event, internal=True)
    finally:
        driver.event_destroy(event)


# -- the rest ---------------------------------------------------------------------------------------------


class _Closing:
    """A `Watcher` that releases shared memory when a machine closes."""

    def before_open(self, machine: Machine) -> None:
        pass

    def after_open(self, machine: Machine) -> None:
        pass

    def before_close(self, machine: Machine) -> None:
        """Release received memory of a machine that closes, and warn of memory that others still use."""
        for receipt in list(_state.receipts):
            if receipt.segment.context in machine.contexts:
                receipt.end()
                _state.receipts.discard(receipt)
        collect()
        left = [s for s in (*_state.sent.values(), *_state.limbo.values()) if s.context in machine.contexts]
        underway = [sent for sent in left if not sent.is_over(thoroughly=True)]
        for sent in left:
            _state.sent.pop(sent.block.ptr, None)
            _state.limbo.pop(sent.block.ptr, None)
        if underway:
            warnings.warn(_TOO_EARLY, UserWarning, stacklevel=2)


def _uuid(context: Context) -> bytes:
    found = _state.uuids.get(context)
    if found is None:
        text = context.driver.device_properties(context.driver_index).uuid
        found = _state.uuids[context] = bytes.fromhex(text.removeprefix("GPU-").replace("-", ""))
    return found


def _begin_anew() -> None:
    """Clear the state in a forked child, because the blocks belong to the parent process."""
    global _state
    watching = _state.watching
    _state = _SharedBlocks()
    _state.watching = watching


os.register_at_fork(after_in_child=_begin_anew)
