"""`torch.cuda`'s functions on streams."""

from __future__ import annotations

from typing import Any

from flambeau.ops.sleep import SLEEP
from flambeau.runtime import current, system
from flambeau.runtime.streams.event import Event
from flambeau.runtime.streams.guards import StreamContext, select
from flambeau.runtime.streams.stream import Stream
from flambeau.tensor.call import launch_sleep

__all__ = [
    "Event", "ExternalStream", "Stream", "StreamContext", "_sleep", "current_stream", "default_stream",
    "get_stream_from_external",
    "set_stream", "stream", "synchronize",
]  # fmt: skip


def stream(stream: Stream | None) -> Stream | StreamContext:
    """Return a context manager that selects a stream and its device; for None it does nothing.

    It is the Stream itself, so no object is created.

    Raises:
        RuntimeError: If the stream belongs to a closed machine.
    """
    return stream if stream.__class__ is Stream else StreamContext(stream)  # type: ignore[return-value]


class ExternalStream(Stream):
    """A stream that another library created, and keeps alive while it is used here.

    Args:
        stream_ptr: Its native value, a cudaStream_t as an int.
        device: As for a Stream.

    Raises:
        NotSupportedError: On virtual GPUs, if the stream is not one of theirs.
    """

    __slots__ = ()

    def __new__(cls, stream_ptr: int, device: Any = None, **kwargs: Any) -> ExternalStream:
        found = super().__new__(cls, device, stream_ptr=stream_ptr, **kwargs)
        assert isinstance(found, ExternalStream)
        return found


def get_stream_from_external(data_ptr: int, device: Any = None) -> Stream:
    """Return the Stream of a native stream (a cudaStream_t as an int) of another library. See `ExternalStream`."""
    return Stream(device, stream_ptr=data_ptr)


def current_stream(device: Any = None) -> Stream:
    """Return the current Stream of a device (torch.device, int or str; default: the current device).

    Raises:
        RuntimeError: If there is no such device.
    """
    if device is None:
        here = current.local.__dict__  # one look at the thread-local: this is called around every kernel
        index, streams = here["device"], here["streams"]
        if index < len(streams) - 1:
            return streams[index]
    return current.stream_at(_index(device))


def default_stream(device: Any = None) -> Stream:
    """Return the default Stream of a device (torch.device, int or str; default: the current device).

    Raises:
        RuntimeError: If there is no such device.
    """
    return current.context_at(_index(device)).default_stream


def set_stream(stream: Stream | None) -> None:
    """Make a stream current, and its device. None changes nothing.

    Prefer `with torch.cuda.stream(...)`.

    Raises:
        RuntimeError: If the stream belongs to a closed machine.
    """
    if stream is not None:
        select(stream, [])


def synchronize(device: Any = None) -> None:
    """Wait for all kernels in all streams of a device (torch.device, int or str; default: the current).

    Raises:
        RuntimeError: If there is no such device, or work that was queued there failed.
    """
    current.context_at(_index(device)).synchronize()


def _sleep(cycles: int) -> None:
    """Occupy the current stream for `cycles` clock cycles of the current device."""
    if not isinstance(cycles, int) or isinstance(cycles, bool):
        raise TypeError("torch.cuda._sleep(): expected 'int'")
    if not -(1 << 63) <= cycles < 1 << 63:
        raise RuntimeError("Overflow when unpacking long long")
    system.init()
    launch_sleep(SLEEP, current.stream_at(current.local.device).device, cycles)


def _index(device: Any) -> int:
    index = current.index_of(device, optional=True)
    return index if index >= 0 else current.local.device
