"""`torch.Event`: a marker in a stream's queue, for waits, queries and elapsed times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar

from flambeau.core import errors
from flambeau.core.device import device
from flambeau.core.errors import NotReadyError, NotSupportedError, argument_type
from flambeau.core.public_names import lacks, not_copied
from flambeau.runtime import current
from flambeau.runtime.memory.pending_frees import UseEvent
from flambeau.runtime.streams.stream_order import RecordedTime

if TYPE_CHECKING:
    from flambeau.runtime.device_context import Context
    from flambeau.runtime.streams.accelerator_stream import Stream

_HANDLE_BYTES = 64
E = TypeVar("E", bound="Event")


class Event:
    """A synchronization marker of a device's progress: `torch.Event`, the base class of `torch.cuda.Event`.

    Args:
        device: A torch.device, int or str of CUDA; None means the current accelerator.
        enable_timing: True if the event measures time (default False).
        blocking: True if `synchronize` gives up the processor while it waits (default False).
        interprocess: True if other processes may use the event, which then cannot measure time (default False).

    It is created when it is first recorded, and belongs to that stream's device from then on: only streams
    of that device may record it, streams of any device may wait for it. Before, it counts as complete.
    """

    __slots__ = ("__weakref__", "_blocking", "_interprocess", "_lent", "_mark", "_point", "_timing")
    if not TYPE_CHECKING:  # otherwise a type checker would not find misspelled names
        __getattr__ = lacks
        __reduce_ex__ = not_copied

    _timing: bool
    _blocking: bool
    _interprocess: bool
    _mark: UseEvent | None  # the driver's event, after the first record
    _lent: bool  # True if a caller waits for the present record, so that the next record needs another event
    _point: RecordedTime | None  # the recorded time, see Note [Ticks] in stream_order.py

    def __new__(
        cls,
        device: Any = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> Self:
        require_cuda("torch.Event", device)
        return create_event(cls, enable_timing, blocking, interprocess)

    def record(self, stream: Stream | None = None) -> None:
        """Mark the point that `stream` (default: the current stream) has reached. Replaces an earlier mark.

        Raises:
            RuntimeError: If the stream is of another device than the event.
            TypeError: If it is not a Stream.
        """
        if stream is None:
            stream = current.stream_at(current.local.device)
        try:
            mark = self._mark_on(stream)
        except AttributeError:  # the constructor has not run
            raise _no_stream("record", stream) from None
        self._point = None  # other threads may wait for the event meanwhile
        point = stream.context.orders.mark(stream.queue)
        stream.context.driver.event_record(mark.handle, stream.handle)
        self._point = point
        if not self._interprocess:  # another process may record such events again
            mark.point = point

    def wait(self, stream: Stream | None = None) -> None:
        """Make all later work of `stream` (default: the current stream) wait for the event. Returns immediately.

        Raises:
            TypeError: If it is not a Stream.
        """
        mark, point = self._mark, self._point
        if stream is None:
            stream = current.stream_at(current.local.device)
        try:
            context = stream.context
        except AttributeError:
            raise _no_stream("wait", stream) from None
        if mark is None:
            return
        if context is not mark.context:
            _require_machine_of(stream, mark)
        context.driver.stream_wait(stream.handle, mark.handle)
        # None if another thread has recorded the event again
        context.orders.wait(stream.queue, point if self._point is point else None)

    def query(self) -> bool:
        """Return True if the work that the event marks is done; True if it was never recorded."""
        return self._mark is None or self._mark.context.driver.event_query(self._mark.handle)

    def synchronize(self) -> None:
        """Block the host until the work that the event marks is done. Returns immediately if it was never recorded."""
        mark, point = self._mark, self._point
        if mark is None:
            return
        mark.context.driver.event_sync(mark.handle)
        if point is not None and self._point is point:
            mark.context.orders.host_wait(point)

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this event to `end_event`, in simulated time on virtual GPUs.

        Raises:
            ValueError: If one has no timing, or was never recorded.
            RuntimeError: If one is not complete yet, or they are of two devices.
            TypeError: If `end_event` is not an Event.
        """
        if not isinstance(end_event, Event):
            raise TypeError(argument_type("elapsed_time", "end_event", 1, "Event", end_event))
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        start, end = self._mark, end_event._mark
        if start is None or end is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if start.context is not end.context:
            raise RuntimeError(
                f"CUDA error: invalid resource handle: the events are of {start.context.device} and "
                f"{end.context.device}; time is measured between events of one device"
            )
        driver = start.context.driver
        # The runtime's own query, not the program's poll: observers must not infer an order from it. Late errors
        # are raised here; the next call reports whether both are done.
        for mark in (start, end):
            driver.event_query(mark.handle, internal=True)
        try:
            return driver.event_elapsed_ns(start.handle, end.handle) / 1e6
        except NotReadyError:
            raise RuntimeError("Both events must be completed before calculating elapsed time.") from None

    def lend(self) -> UseEvent:
        """Return the event's last record, which stays valid if the event is recorded again or deleted.

        Raises:
            RuntimeError: If it was never recorded.
        """
        if self._mark is None:
            raise RuntimeError("the event was never recorded, so there is nothing to wait for")
        self._lent = True
        return self._mark

    def ipc_handle(self) -> bytes:
        """Return 64 bytes by which other processes can open the event while this process keeps it.

        If it was not recorded yet, it belongs to the current device from now on.

        Raises:
            RuntimeError: If it was not made with `interprocess=True`.
        """
        mark = self._mark
        if mark is None:
            mark = self._make(current.context_at(current.local.device))
        return mark.context.driver.ipc_event(mark.handle)

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> Self:
        """Open an event of another process on a device of this one. Both processes may record it and wait for it.

        Raises:
            RuntimeError: If it is no such handle, or not of this device, or its process has ended.
        """
        if len(handle) != _HANDLE_BYTES:
            raise RuntimeError(
                f"cudaIpcEventHandle_t expects byte-like object of size {_HANDLE_BYTES}, but got {len(handle)}"
            )
        context = current.context_at(current.index_of(device))
        self = create_event(cls, False, False, True)
        self._mark = UseEvent(context, context.driver.ipc_event_open(context.driver_index, bytes(handle)))
        return self

    @property
    def device(self) -> device | None:
        """Return the event's device; None before the event is first recorded."""
        return None if self._mark is None else self._mark.context.device

    @property
    def event_id(self) -> int:
        """Return the driver's handle of the event; 0 before it is first recorded."""
        return 0 if self._mark is None else self._mark.handle

    def __repr__(self) -> str:
        index = -1 if self._mark is None else self._mark.context.index
        return (
            f"torch.Event device_type=cuda, device_index={index}, event_flag={int(self._timing)}, "
            f"event_id={self.event_id}"
        )

    def _mark_on(self, stream: Stream) -> UseEvent:
        """Return the driver's event to record on a stream, a new one if there is none or a caller waits for its last
        record.
        """
        mark = self._mark
        if mark is not None and mark.context is not stream.context:
            _require_machine_of(stream, mark)
            raise RuntimeError(
                f"Event device {mark.context.index} does not match recording stream's device "
                f"{stream.device_index}."
            )
        if mark is None or (self._lent and not self._interprocess):  # interprocess events keep their handle
            mark = self._make(stream.context)
        return mark

    def _make(self, context: Context) -> UseEvent:
        handle = context.driver.event_create(
            context.driver_index, self._timing, self._blocking, self._interprocess
        )
        mark = self._mark = UseEvent(context, handle)
        self._lent = False
        return mark


def create_event(cls: type[E], enable_timing: bool, blocking: bool, interprocess: bool) -> E:
    """Return an event of a class that was never recorded."""
    self = object.__new__(cls)
    self._timing = bool(enable_timing)
    self._blocking = bool(blocking)
    self._interprocess = bool(interprocess)
    self._mark = self._point = None
    self._lent = False
    return self


def require_cuda(name: str, place: Any) -> None:
    """Check that the device of a `torch.Stream` or `torch.Event` is a CUDA device, an int or None.

    Raises:
        NotSupportedError: If it is a device of another kind.
    """
    if isinstance(place, str | device) and device(place).type != "cuda":
        raise NotSupportedError(
            f"{name}(device={str(device(place))!r}): Flambeau has streams and events of CUDA devices only. "
            "Calls on the CPU have finished when they return; torch.cpu.Stream stands for its queue."
        )


def _no_stream(function: str, got: object) -> TypeError:
    return TypeError(argument_type(function, "stream", 1, "Stream", got))


def _require_machine_of(stream: Stream, mark: UseEvent) -> None:
    """Raise RuntimeError if the event belongs to another machine, where its handle may denote another event."""
    if mark.context.driver is not stream.context.driver:
        raise RuntimeError(errors.MACHINE_CLOSED)
