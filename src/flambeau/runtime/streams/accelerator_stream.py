"""`torch.Stream`: a queue of one accelerator.

# Note [Streams are not pooled]
PyTorch takes streams from pools of 32 per device and priority, so its 33rd stream is the first again.
Here each Stream is its own stream, given back when it is collected (its queued work still runs). So no
two streams of a program are in order by accident: an order that depends on how many streams other code has
made would hide races from the race detector.

# Note [Dead streams]
A tensor that a stream used knows that stream, and its memory waits for the stream when the tensor dies. The
garbage collector may find both in one piece of garbage, and finalizes its members in any order. So a stream's
finalizer destroys nothing: the native stream goes when the next one is made, or with its machine.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from flambeau.core.device import device
from flambeau.core.errors import argument_type
from flambeau.core.public_names import lacks, not_copied
from flambeau.runtime import current
from flambeau.runtime.device_context import Context
from flambeau.runtime.streams import sync_debug
from flambeau.runtime.streams.accelerator_event import Event, require_cuda
from flambeau.runtime.streams.guards import put_back, select
from flambeau.runtime.streams.stream_order import StreamActivity

S = TypeVar("S", bound="Stream")


class Stream:
    """A queue of the accelerator's commands: `torch.Stream`, the base class of `torch.cuda.Stream`.

    Args:
        device: A torch.device, int or str of CUDA; None means the current device.
        priority: -1 (high) or 0 (low); other ints count as the nearest of these.

    Raises:
        RuntimeError: If there is no such device.
        NotSupportedError: If the device is not CUDA's.
    """

    __slots__ = ("__weakref__", "_owned", "_saved", "context", "device_index", "handle", "priority", "queue")
    if not TYPE_CHECKING:  # otherwise a type checker would not find misspelled names
        __getattr__ = lacks
        __reduce_ex__ = not_copied

    context: Context
    device_index: int
    handle: int
    priority: int
    queue: StreamActivity
    _event_class: ClassVar[type[Event]] = Event  # the class of events that `record_event` creates
    _owned: bool
    _saved: list[tuple[Any, ...]]  # the saved selections of `with stream:`, see Note [What a guard saves]

    def __new__(cls, device: Any = None, *, priority: int = 0) -> Self:
        require_cuda("torch.Stream", device)
        return create_stream(cls, device, priority)

    def query(self) -> bool:
        """Return True if all the work submitted has been completed."""
        return self.context.driver.stream_query(self.handle)

    def synchronize(self) -> None:
        """Wait on the host for all the work of this stream."""
        sync_debug.announce()
        orders = self.context.orders
        point = orders.mark(self.queue)
        self.context.driver.stream_sync(self.handle)
        orders.host_wait(point)

    def wait_event(self, event: Event) -> None:
        """Make all later work of this stream wait for an event. Returns immediately.

        Raises:
            TypeError: If it is invalid.
        """
        if not isinstance(event, Event):
            raise TypeError(argument_type("wait_event", "event", 1, "Event", event))
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Make all later work of this stream wait for the work now enqueued on `stream`. Returns immediately.

        Raises:
            TypeError: If it is not a Stream.
        """
        if not isinstance(stream, Stream):
            raise TypeError(argument_type("wait_stream", "stream", 1, "Stream", stream))
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event on this stream, a new one by default, and return it.

        Raises:
            TypeError: If it is not an Event.
        """
        if event is None:
            event = self._event_class()
        elif not isinstance(event, Event):
            raise TypeError(argument_type("record_event", "event", 1, "Event", event))
        event.record(self)
        return event

    @property
    def device(self) -> device:
        """Return the stream's device."""
        return self.context.device

    @property
    def device_type(self) -> int:
        """Return PyTorch's number for the type of device: 1, CUDA."""
        return 1

    @property
    def stream_id(self) -> int:
        """Return a number that identifies the stream on its device; 0 for the default stream."""
        return self.native_handle

    @property
    def native_handle(self) -> int:
        """Return the native stream, a cudaStream_t as an int; 0 for the default stream."""
        return self.context.driver.stream_native(self.handle)

    def is_capturing(self) -> bool:
        """Return True if the stream is being captured into a graph."""
        return self.context.driver.capture_active(self.handle)

    def __enter__(self) -> Self:
        select(self, self._saved)
        return self

    def __exit__(self, *error: object) -> None:
        put_back(self._saved)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.context is other.context and self.handle == other.handle

    def __hash__(self) -> int:
        return hash((self.device_index, self.handle))

    def __repr__(self) -> str:
        return f"torch.Stream device_type=cuda, device_index={self.device_index}, stream_id={self._native_value()}"

    def _native_value(self) -> int:
        if self.context.closed:
            return self.handle if self._owned else 0
        return self.context.backing.stream_native(self.handle)

    def __del__(self) -> None:
        if getattr(self, "_owned", False) and not self.context.closed:  # False if the constructor raised
            self.context.dead_streams.append(self.handle)


def create_stream(cls: type[S], device: Any, priority: int, native: Any = None) -> S:
    """Return a stream of class `cls`: a new one, or one over a native handle."""
    if not isinstance(priority, int):
        raise TypeError(f"priority must be an int, not {type(priority).__name__}")
    index = current.index_of(device, optional=True)
    context = current.context_at(current.local.device if index < 0 else index)
    level = -1 if priority < 0 else 0
    _bury(context)
    if native is not None:
        return fill_stream(object.__new__(cls), context, _adopt_native(context, native), 0, owned=False)
    handle = context.driver.stream_create(context.driver_index, level)
    context.allocator.stream_created()
    return fill_stream(object.__new__(cls), context, handle, level, owned=True)


def _bury(context: Context) -> None:
    """Destroy the native streams of deleted Stream objects. A destructor may add another one meanwhile."""
    while context.dead_streams:
        with suppress(IndexError):
            handle = context.dead_streams.pop()
            context.driver.stream_destroy(handle)
            context.allocator.stream_destroyed(handle)


def _adopt_native(context: Context, native: Any) -> int:
    """Return the driver's handle of a native stream that another library created."""
    if not isinstance(native, int) or isinstance(native, bool):
        raise TypeError(f"stream_ptr must be an int, not {type(native).__name__}")
    return context.driver.stream_adopt(context.driver_index, native)


def fill_stream(self: S, context: Context, handle: int, priority: int, owned: bool) -> S:
    self.context = context
    self.device_index = context.index
    self.handle = handle
    self.priority = priority
    self.queue = context.orders.queue(handle)
    self._owned = owned
    self._saved = []
    return self
