"""`torch.cuda.Event`: a marker in a stream's queue, for waits, queries and elapsed times."""

from __future__ import annotations

import ctypes
from typing import Self

from flambeau.runtime.streams.accelerator_event import Event as AcceleratorEvent
from flambeau.runtime.streams.accelerator_event import create_event


class Event(AcceleratorEvent):
    """A synchronization marker of a device's progress.

    Args:
        enable_timing: True if the event measures time (default False).
        blocking: True if `synchronize` gives up the processor while it waits (default False).
        interprocess: True if other processes may use the event, which then cannot measure time (default False).
        external: Not supported; NotImplementedError.

    It is created when it is first recorded, and belongs to that stream's device from then on: only streams
    of that device may record it, streams of any device may wait for it. Before, it counts as complete.
    """

    __slots__ = ()

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Self:
        if external:
            raise NotImplementedError("torch.cuda.Event(external=True) is not supported")
        return create_event(cls, enable_timing, blocking, interprocess)

    @property
    def cuda_event(self) -> int:
        """Return the driver's handle of the event; 0 before it is first recorded."""
        return 0 if self._mark is None else self._mark.handle

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_event)

    def __repr__(self) -> str:
        return (
            f"<torch.cuda.Event {self.cuda_event:#x}>"
            if self.cuda_event
            else "<torch.cuda.Event uninitialized>"
        )
