"""`PinnedTraffic`: which queued commands use pinned host memory; the targets of those that write it hold poison.

# Note [Poisoned targets]
On hardware a copy into pinned memory may land at any time until the host has waited for it: what the host reads there
earlier is undefined. Here commands run when the host waits, so the old bytes would show, and look right. So a target
holds poison from the call that queues the copy until the copy runs. Commands that were queued earlier and still read
these bytes, as a staging buffer is read and then written, must find them as they are: there poison is laid when the
last of them has run. While a host function is queued nothing is laid, for what it reads is unknown; nor is a target
that the host waits for before the call returns, so that a call that raises has changed nothing.
"""

from __future__ import annotations

from flambeau.core.memory import bytes_at
from flambeau.driver.api import HostMemory
from flambeau.driver.virtual.memory.arena import POISON
from flambeau.driver.virtual.scheduling.scheduler import COPY_IN, COPY_OUT, HOST_CALL, Command


class PinnedTraffic:
    """The queued commands of one machine that use pinned memory, or may."""

    def __init__(self) -> None:
        self._reads: dict[Command, HostMemory] = {}
        self._writes: dict[Command, HostMemory] = {}
        self._calls: set[Command] = set()

    def on_queue(self, command: Command) -> None:
        """Note a command that was just queued."""
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
        """Forget a command that has run, and poison the targets that it kept from being poisoned."""
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
