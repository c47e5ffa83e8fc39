"""Guards: select a device or a stream for a block of code, and restore the previous selection.

# Note [What a guard saves]
A guard may be entered again while it is entered, by its own thread or by another (a module-level guard, a
stream used as a guard), so it keeps a list of what it saved and not one value. Each entry begins with the
thread's selection that it belongs to: every thread of every machine has its own, so its identity shows whose
entry it is. The last entry is nearly always the right one. When the machine was closed inside the block
there is none, and nothing to put back. A thread-local object is asked once, for its dict: each look at one
of its attributes would cost as much as all the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau.core import errors
from flambeau.core.device import device as torch_device
from flambeau.core.errors import type_name
from flambeau.runtime import current

if TYPE_CHECKING:
    from flambeau.runtime.streams.accelerator_stream import Stream


class device:  # PyTorch's public name
    """A context manager that changes the selected device.

    Args:
        device: A torch.device, int or str. None and negative ints make it a no-op.

    Raises, when entered: RuntimeError if there is no such device. The outer device is put back when it is
    left, also on exceptions and after `set_device` inside.
    """

    __slots__ = ("_saved", "idx")

    def __init__(self, device: Any) -> None:
        if device.__class__ is not int:
            device = -1 if device is None else current.index_of(device, optional=True)
        self.idx: int = device
        self._saved: list[tuple[Any, ...]] = []

    def __enter__(self) -> None:
        index = self.idx
        if index < 0:
            return
        here = current.local.__dict__
        if index >= len(here["streams"]) - 1:
            current.context_at(index)
            here = current.local.__dict__
        self._saved.append((here, here["device"]))
        here["device"] = index

    def __exit__(self, *error: object) -> None:
        if self.idx < 0:
            return
        entry = self._saved.pop()
        if entry[0] is not current.local.__dict__:
            entry = _own(self._saved, entry)
        if entry:
            entry[0]["device"] = entry[1]


class device_of(device):
    """A context manager that selects the device of a tensor or storage; a no-op if that is on the CPU.

    Raises:
        TypeError: If it has no device.
    """

    __slots__ = ()

    def __init__(self, obj: Any) -> None:
        where = getattr(obj, "device", None)
        if where.__class__ is not torch_device:
            raise TypeError(f"torch.cuda.device_of(): expected a tensor or a storage, not {type_name(obj)}")
        super().__init__(where.index if where.type == "cuda" else None)


class StreamContext:
    """A context manager that selects a stream and its device, and restores the previous ones on exit.

    Args:
        stream: The Stream to select. None makes it a no-op.
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
            put_back(self._saved)


def select(stream: Stream, saved: list[tuple[Any, ...]]) -> None:
    """Make a stream and its device the current ones of this thread, and push the former ones onto `saved`.

    Raises:
        TypeError: If `stream` is not a Stream.
        RuntimeError: If the stream's machine is not in use.
    """
    here = current.local.__dict__
    streams = here["streams"]
    try:
        index = stream.device_index
        selected = streams[index]
        if selected.context is not stream.context:
            raise IndexError
    except AttributeError:
        raise TypeError(f"torch.cuda.stream(): expected a Stream or None, not {stream!r}") from None
    except IndexError:
        raise RuntimeError(errors.MACHINE_CLOSED) from None
    outer = here["device"]
    saved.append((here, outer, streams[outer], index, selected))
    streams[index] = stream
    here["device"] = index


def put_back(saved: list[tuple[Any, ...]]) -> None:
    """Undo this thread's last `select`. As in PyTorch, the outer device's stream is restored as well."""
    entry = saved.pop()
    if entry[0] is not current.local.__dict__:
        entry = _own(saved, entry)
    if entry:
        here, outer, outer_stream, index, selected = entry
        streams = here["streams"]
        streams[index] = selected
        streams[outer] = outer_stream
        here["device"] = outer


def _own(saved: list[tuple[Any, ...]], popped: tuple[Any, ...]) -> tuple[Any, ...]:
    """Remove and return this thread's last entry; () if it has none. See Note [What a guard saves]."""
    here = current.local.__dict__
    saved.append(popped)
    for i in range(len(saved) - 1, -1, -1):
        if saved[i][0] is here:
            return saved.pop(i)
    return ()
