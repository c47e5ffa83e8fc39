"""Guards: select a device or a stream for a block of code, and put back what was selected.

# Note [What a guard saves]
A guard may be entered again while it is entered, by its own thread or by another (a module-level guard, a
stream used as a guard), so it keeps a list of what it saved and not one value. Each entry begins with the
list of current streams that it belongs to: every thread of every machine has its own, so its identity tells
whose entry it is. The last entry is nearly always the right one. When the machine was closed inside the
block there is none, and nothing to put back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau.runtime import current

if TYPE_CHECKING:
    from flambeau.runtime.stream import Stream


class device:  # PyTorch's public name
    """Context manager that changes the selected device.

    Args:
        device: a torch.device, int or str. None and negative ints make it a no-op.

    Raises, when entered: RuntimeError if there is no such device. The outer device is put back when it is
    left, also on exceptions and after `set_device` inside.
    """

    __slots__ = ("_saved", "idx")

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else current.index_of(device, optional=True)
        self._saved: list[tuple[Any, ...]] = []

    def __enter__(self) -> None:
        index = self.idx
        if index < 0:
            return
        here = current.local
        if index >= len(here.streams) - 1:
            current.context_at(index)
            here = current.local
        self._saved.append((here.streams, here.device))
        here.device = index

    def __exit__(self, *error: object) -> None:
        if self.idx < 0:
            return
        here = current.local
        entry = self._saved.pop()
        if entry[0] is not here.streams:
            entry = _own(self._saved, entry, here.streams)
        if entry:
            here.device = entry[1]


class device_of(device):
    """Context manager that changes the selected device to a tensor's or storage's; a no-op if it is on the CPU."""

    __slots__ = ()

    def __init__(self, obj: Any) -> None:
        where = obj.device
        super().__init__(where.index if where.type == "cuda" else None)


class StreamContext:
    """Context manager that selects a stream, and its device with it; both are put back when it is left.

    Args:
        stream: the Stream to select. None makes it a no-op.
    """

    __slots__ = ("_saved", "stream")

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self._saved: list[tuple[Any, ...]] = []

    def __enter__(self) -> None:
        if self.stream is not None:
            select(self.stream, self._saved)

    def __exit__(self, *error: object) -> None:
        if self.stream is not None:
            put_back(self.stream, self._saved)


def select(stream: Stream, saved: list[tuple[Any, ...]]) -> None:
    """Make a stream and its device current, saving what was. Raises, with nothing changed, if its machine is not open."""
    try:
        index = stream.device_index
    except AttributeError:
        raise TypeError(f"torch.cuda.stream(): expected a Stream or None, not {stream!r}") from None
    here = current.local
    streams, outer = here.streams, here.device
    if index >= len(streams) - 1 or stream.context is not streams[index].context:
        raise RuntimeError(f"{stream!r} belongs to a machine that has been closed or left")
    saved.append((streams, outer, streams[outer], streams[index]))
    streams[index] = stream
    here.device = index


def put_back(stream: Stream, saved: list[tuple[Any, ...]]) -> None:
    """Undo the last `select` of this thread."""
    here = current.local
    entry = saved.pop()
    if entry[0] is not here.streams:
        entry = _own(saved, entry, here.streams)
    if entry:
        streams, outer, outer_stream, inner_stream = entry
        streams[stream.device_index] = inner_stream
        streams[outer] = outer_stream  # as PyTorch: it may have been changed inside as well
        here.device = outer


def _own(saved: list[tuple[Any, ...]], popped: tuple[Any, ...], streams: object) -> tuple[Any, ...]:
    """The last entry that belongs to these streams, taken out; () if there is none. See Note [What a guard saves]."""
    saved.append(popped)
    for i in range(len(saved) - 1, -1, -1):
        if saved[i][0] is streams:
            return saved.pop(i)
    return ()
