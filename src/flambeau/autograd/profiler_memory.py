"""`MemoryNotes`: the allocations and frees during a profile of memory, with the events that made them.

Sizes are PyTorch's: of the CPU what was asked for, of CUDA devices the allocator's blocks, which are multiples of 512
bytes. As in PyTorch, the profile omits pinned memory and the frees of CPU memory that was allocated before it began.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from flambeau.autograd.profiler_events import DeviceType, FunctionEvent, Interval
from flambeau.runtime import system
from flambeau.runtime.device_context import AllocatedBlock, Context


@dataclass(frozen=True)
class MemoryNote:
    """An allocation or a free.

    Attributes:
        time: The time in microseconds.
        device_index: The index of the device; -1 for the CPU.
        ptr: The address.
        nbytes: The size in bytes, negative for a free.
        allocated: The bytes allocated on the device afterwards; for the CPU, those that the profile has seen.
        reserved: The bytes reserved on the device afterwards; 0 for the CPU.
    """

    time: float
    thread: int
    device_index: int
    ptr: int
    nbytes: int
    allocated: int
    reserved: int

    @property
    def device_type(self) -> DeviceType:
        return DeviceType.CPU if self.device_index < 0 else DeviceType.CUDA


class MemoryNotes(list[MemoryNote]):
    """All notes of allocations and frees, in the order of the calls."""

    def __init__(self, contexts: list[Context]) -> None:
        super().__init__()
        self._allocated: dict[Context, int] = {c: _allocator_of(c).allocated_bytes() for c in contexts}
        self._sizes: dict[int, int] = {}  # of CPU memory, by address
        self._requested: dict[int, list[MemoryNote]] = {}  # by thread: for its next launch
        self._top_level: list[MemoryNote] = []  # outside of all events

    def note_request(
        self, time: float, thread: int, context: Context, block: AllocatedBlock, nbytes: int
    ) -> None:
        """Record an allocation for the next launch of this thread."""
        self._requested.setdefault(threading.get_ident(), []).append(
            self._allocation(time, thread, context, block, nbytes)
        )

    def assign_requests(self, event: FunctionEvent) -> None:
        """Assign this thread's pending requests to a launch."""
        for note in self._requested.pop(threading.get_ident(), ()):
            _add_to_event(event, note)

    def note_allocation(
        self, event: FunctionEvent, time: float, context: Context, block: AllocatedBlock, nbytes: int
    ) -> None:
        """Record an allocation of an event."""
        _add_to_event(event, self._allocation(time, event.thread, context, block, nbytes))

    def note_free(
        self, event: FunctionEvent | None, time: float, thread: int, context: Context, block: AllocatedBlock
    ) -> None:
        """Record a free, inside an event or outside of all events. Takes no lock, because destructors call it."""
        nbytes = self._sizes.pop(block.ptr, 0) if context is system.host else block.size
        if not nbytes:
            return
        note = self._note(time, thread, context, block.ptr, -nbytes)
        if event is None:
            self._top_level.append(note)
        else:
            _add_to_event(event, note)

    def top_level(self) -> list[FunctionEvent]:
        """Return the memory that was allocated and freed outside of all events, as separate events."""
        left = [note for notes in self._requested.values() for note in notes]  # no launch claimed them
        found = []
        for note in self._top_level + left:
            event = FunctionEvent("[memory]", Interval(note.time, note.time), note.thread)
            _add_to_event(event, note)
            found.append(event)
        return found

    def _allocation(
        self, time: float, thread: int, context: Context, block: AllocatedBlock, nbytes: int
    ) -> MemoryNote:
        if context is system.host:
            self._sizes[block.ptr] = nbytes
            return self._note(time, thread, context, block.ptr, nbytes)
        return self._note(time, thread, context, block.ptr, block.size)

    def _note(self, time: float, thread: int, context: Context, ptr: int, nbytes: int) -> MemoryNote:
        self._allocated[context] = total = self._allocated.get(context, 0) + nbytes
        reserved = 0 if context is system.host else _allocator_of(context).reserved_bytes()
        note = MemoryNote(time, thread, context.index, ptr, nbytes, total, reserved)
        self.append(note)
        return note


def _add_to_event(event: FunctionEvent, note: MemoryNote) -> None:
    if note.device_index < 0:
        event.self_cpu_memory_usage += note.nbytes
    else:
        event.self_device_memory_usage += note.nbytes


def _allocator_of(context: Context) -> Any:
    """Return a CUDA device's allocator: it knows more than storages ask."""
    return context.allocator
