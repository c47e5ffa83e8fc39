"""The queued commands that use pinned host memory, and the poison in the targets of those that write it.

# Note [Poisoned targets] On hardware a copy into pinned memory may be performed at any time until the host
has waited for it; what the host reads there earlier is undefined. Here commands run when the host waits, so
the old bytes would be visible and look right. A target therefore holds poison from the call that enqueues
the copy until the copy runs. Commands that were enqueued earlier and still read these bytes, such as a copy
from a staging buffer that is then overwritten, must find them unchanged. In that case the poison is written
after the last of them has run. No poison is written while a host function is queued, because its reads are
unknown. A target that the host waits for within the call gets none either, so that a call that raises has
changed nothing.
"""

from __future__ import annotations

from flambeau.core.host_arrays import bytes_at
from flambeau.driver.protocol import HostMemory
from flambeau.driver.virtual.memory.arena import POISON
from flambeau.driver.virtual.scheduling.scheduler import COPY_IN, COPY_OUT, HOST_CALL, Command


class PinnedTraffic:
    """The queued commands of one machine that use, or may use, pinned memory."""

    def __init__(self) -> None:
        self._reads: dict[Command, HostMemory] = {}
        self._writes: dict[Command, HostMemory] = {}
        self._calls: set[Command] = set()

    def on_queue(self, command: Command) -> None:
        """Add a command that was just enqueued."""
        if command.done:
            return
        if command.kind == HOST_CALL:
            self._calls.add(command)
        elif command.kind == COPY_IN and (source := command.args[2]).pinned:
            self._reads[command] = source
        elif command.kind == COPY_OUT and (target := command.args[0]).pinned:
            self._writes[command] = target
            if not target.awaited:
                self._poison(target.ptr, target.ptr + target.nbytes)
                if target.watch is not None:
                    target.watch.on_change(target)

    def on_finish(self, command: Command) -> None:
        """Remove a command that has run. Poison the targets that could not be poisoned because it read them."""
        self._calls.discard(command)
        memory = self._reads.pop(command, None) or self._writes.pop(command, None)
        if memory is None:
            return
        start, end = memory.ptr, memory.ptr + memory.nbytes
        for target in self._writes.values():
            if not target.awaited:
                self._poison(max(start, target.ptr), min(end, target.ptr + target.nbytes))
        if memory.watch is not None:
            memory.watch.on_change(memory)

    def _poison(self, start: int, end: int) -> None:
        """Poison the bytes from `start` to `end` that no queued command reads."""
        if self._calls:
            return
        for source in sorted(self._reads.values(), key=_start):
            if source.ptr < end and start < source.ptr + source.nbytes:
                _lay(start, source.ptr)
                start = source.ptr + source.nbytes
        _lay(start, end)


def _start(memory: HostMemory) -> int:
    return memory.ptr


def _lay(start: int, end: int) -> None:
    if start < end:
        bytes_at(start, end - start)[...] = POISON
