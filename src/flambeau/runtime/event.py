"""`Event`: a marker in a stream's queue, to wait for, to ask after, to measure time between."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from flambeau.core import errors
from flambeau.core.device import device
from flambeau.core.errors import NotSupportedError
from flambeau.core.names import lacks
from flambeau.runtime import current
from flambeau.runtime.context import Context

if TYPE_CHECKING:
    from flambeau.runtime.stream import Stream


class Event:
    """A synchronization marker of a device's progress.

    Args:
        enable_timing: whether the event measures time (default False).
        blocking: whether `synchronize` gives up the processor while it waits (default False).
        interprocess: whether other processes may use the event (default False).

    It is created when it is first recorded, and belongs to that stream's device from then on: only streams
    of that device may record it, streams of any device may wait for it. Before, it counts as complete.
    """

    __slots__ = ("__weakref__", "_blocking", "_context", "_handle", "_interprocess", "_timing")
    if not TYPE_CHECKING:  # a checker should find misspelt names
        __getattr__ = lacks

    _timing: bool
    _blocking: bool
    _interprocess: bool
    _context: Context
    _handle: int | None

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Event:
        self = super().__new__(cls)
        self._timing = bool(enable_timing)
        self._blocking = bool(blocking)
        self._interprocess = bool(interprocess)
        self._handle = None
        return self

    def record(self, stream: Stream | None = None) -> None:
        """Mark the point that `stream` (default: the current stream) has reached. Replaces an earlier mark.

        Raises RuntimeError: the stream is of another device than the event.
        """
        if stream is None:
            stream = current.stream_at(current.local.device)
        if self._handle is None:
            self._create(stream.context)
        elif self._context is not stream.context:
            self._require_machine_of(stream)
            raise RuntimeError(
                f"Event device {self._context.index} does not match recording stream's device "
                f"{stream.device_index}."
            )
        stream.context.driver.event_record(self._handle, stream.handle)  # type: ignore[arg-type]

    def wait(self, stream: Stream | None = None) -> None:
        """Make all later work of `stream` (default: the current) wait for the event; returns at once."""
        if self._handle is None:
            return
        if stream is None:
            stream = current.stream_at(current.local.device)
        self._require_machine_of(stream)
        stream.context.driver.stream_wait(stream.handle, self._handle)

    def query(self) -> bool:
        """Whether the work that the event marks is done; True if it was never recorded."""
        return self._handle is None or self._context.driver.event_query(self._handle)

    def synchronize(self) -> None:
        """Wait on the host for the work that the event marks. Returns at once if it was never recorded."""
        if self._handle is not None:
            self._context.driver.event_sync(self._handle)

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to `end_event`: of simulated time on virtual GPUs.

        Raises ValueError: one has no timing, or was never recorded.
        RuntimeError: one is not complete yet, or they are of two devices.
        """
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._handle is None or end_event._handle is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if self._context is not end_event._context:
            raise RuntimeError(
                f"CUDA error: invalid resource handle: the events are of {self._context.device} and "
                f"{end_event._context.device}; time is measured between events of one device"
            )
        driver = self._context.driver
        # The runtime's own look, not the program's poll: observers must not take it for an order.
        if not all(driver.event_query(e, internal=True) for e in (self._handle, end_event._handle)):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return driver.event_elapsed_ns(self._handle, end_event._handle) / 1e6

    def ipc_handle(self) -> bytes:
        """Not supported yet."""
        raise NotSupportedError("Flambeau's events cannot be exported to another process yet")

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> Event:
        """Not supported yet."""
        raise NotSupportedError("Flambeau's events cannot be imported from another process yet")

    @property
    def device(self) -> device | None:
        """The device that it belongs to; None before it is first recorded."""
        return None if self._handle is None else self._context.device

    @property
    def cuda_event(self) -> int:
        """The driver's handle; 0 before it is first recorded."""
        return self._handle or 0

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_event)

    def __repr__(self) -> str:
        return (
            f"<torch.cuda.Event {self.cuda_event:#x}>"
            if self.cuda_event
            else "<torch.cuda.Event uninitialized>"
        )

    def __del__(self) -> None:
        if self._handle is not None and not self._context.closed:
            self._context.backing.event_destroy(self._handle)

    def _require_machine_of(self, stream: Stream) -> None:
        """An event of a machine that was closed or left must not pass for one of the same handle here."""
        if self._context.driver is not stream.context.driver:
            raise RuntimeError(errors.MACHINE_CLOSED)

    def _create(self, context: Context) -> None:
        self._handle = context.driver.event_create(
            context.driver_index, self._timing, self._blocking, self._interprocess
        )
        self._context = context
