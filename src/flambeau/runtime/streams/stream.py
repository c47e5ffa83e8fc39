"""`torch.cuda.Stream`: a queue of one CUDA device."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar, Self

from flambeau.core.errors import NotSupportedError
from flambeau.runtime.device_context import Context
from flambeau.runtime.streams.accelerator_stream import Stream as AcceleratorStream
from flambeau.runtime.streams.accelerator_stream import create_stream, fill_stream
from flambeau.runtime.streams.event import Event


class Stream(AcceleratorStream):
    """A linear sequence of execution on one device, independent of other streams.

    Args:
        device: A torch.device, int or str; None (default) or a negative int mean the current device.
        priority: -1 (high) or 0 (low, default); other ints count as the nearest of these.

    Two streams are equal if they are the same queue. `with stream:` selects it.

    Raises:
        RuntimeError: If there is no such device.
        TypeError: If `priority` is not an int.
        NotSupportedError: For other arguments.
    """

    __slots__ = ()

    _event_class: ClassVar[type[Event]] = Event

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Self:
        native = kwargs.pop("stream_ptr", None)
        if kwargs:
            raise NotSupportedError(
                f"Flambeau makes no Stream from {', '.join(kwargs)}, only from stream_ptr"
            )
        return create_stream(cls, device, priority, native)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return (lowest, highest) priority: a lower number is a higher priority."""
        return 0, -1

    @property
    def cuda_stream(self) -> int:
        """Return the native stream, a cudaStream_t as an int; 0 for the default stream."""
        return self.native_handle

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_stream)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self._native_value():#x}>"


def default_stream_of(context: Context) -> Stream:
    """Return a new Stream object for a context's default stream. The context keeps the object that programs see."""
    handle = context.driver.stream_default(context.driver_index)
    return fill_stream(object.__new__(Stream), context, handle, 0, owned=False)
