"""Allocations and frees of one pool by several host threads, which may happen in the other order in another run.

# Note [Reuse between threads] Problem: One host thread frees memory that a stream still uses, and another
thread allocates from the same pool. If nothing orders the two calls, the host's scheduler decides whether
the allocation may reuse the memory. A run in which the allocation is first shows no reuse. Rule: Such a pair
withholds the certificate, whichever is first in this run. A free counts only if the freeing thread has not
waited for the use. Why that is enough: An allocation that reuses memory follows the free, because the
allocator has a lock. So it follows all that the freeing thread has waited for. A use on the stream that
allocates matters only if another stream writes the new memory first, without a wait for that stream.
Consequences: Each pool keeps the last allocation of each thread and the last free of each thread and line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from typing import TypeAlias

from flambeau.core.callsite import Site, place
from flambeau.observe.accesses import UNPOOLED, Command, FreedMemory, ShadowBlock
from flambeau.observe.clocks import Clock, LogicalThread
from flambeau.observe.order import Order
from flambeau.observe.race_findings import Findings

_THREADS = 64  # threads of a pool that are kept before some are dropped

Finding: TypeAlias = tuple[Site, str]
"""The call site of a use, and what withholds the certificate."""


class ThreadReuse:
    """The allocations and frees of one pool, by host thread. Times are numbers of messages that a thread had sent.

    Attributes:
        allocations: Thread -> time of its last allocation.
        frees: Thread -> line of a use -> the last free that did not wait for it: time and finding.
        own_uses: Thread -> of the frees by other threads that may have been before some of its allocations in
            another run: those allocations' least time, and the last use on the pool's own stream.
        many: The number of threads at which those are dropped that all others know.
        unordered: Thread and line of the first write -> its last allocation there that another stream wrote before
            a wait for the pool's own stream: time, last use of that stream that the writer happens after, finding.
    """

    __slots__ = ("allocations", "frees", "many", "own_uses", "unordered")

    def __init__(self) -> None:
        self.many = _THREADS
        self.allocations: dict[LogicalThread, int] = {}
        self.frees: dict[LogicalThread, dict[str, tuple[int, Finding]]] = {}
        self.own_uses: dict[LogicalThread, tuple[int, int]] = {}
        self.unordered: dict[tuple[LogicalThread, str], tuple[int, int, Finding]] = {}

    def allocate(self, thread: LogicalThread, known: Clock) -> Iterator[Finding]:
        """Add an allocation of a thread with clock `known`. Yield the uses that it may overlap in some runs only."""
        self.allocations[thread] = thread.time
        for other, frees in self.frees.items():
            if other is not thread:
                yield from (finding for time, finding in frees.values() if known.get(other, 0) < time)

    def free(self, thread: LogicalThread, known: Clock, finding: Finding) -> bool:
        """Add a free without a wait for a use. Return True if another thread has allocated, and nothing orders both."""
        self.frees.setdefault(thread, {})[place(finding[0])] = thread.time, finding
        return any(self._unordered_allocations(thread, known))

    def free_own(self, thread: LogicalThread, known: Clock, last: int) -> Iterator[Finding]:
        """Add a free after the use `last` on the pool's own stream. Yield the unordered writes that it concerns."""
        for other in self._unordered_allocations(thread, known):
            least, use = self.own_uses.get(other, (known.get(other, 0), 0))
            self.own_uses[other] = min(least, known.get(other, 0)), max(use, last)
        for (other, _), (time, covered, finding) in self.unordered.items():
            if other is not thread and known.get(other, 0) < time and covered < last:
                yield finding

    def write(self, thread: LogicalThread, time: int, covered: int, finding: Finding) -> bool:
        """Add the first write, by another stream, of memory that a thread allocated at `time`.

        Args:
            covered: The last use of the pool's own stream that the write happens after.

        Returns:
            True if a free that the allocation may follow in some runs only has a later use.
        """
        key = thread, place(finding[0])
        before = self.unordered.get(key, (0, covered, finding))
        self.unordered[key] = time, min(covered, before[1]), finding
        least, use = self.own_uses.get(thread, (time, 0))
        return least < time and covered < use

    def forget(self, all_come_after: Callable[[tuple[LogicalThread, int]], bool]) -> None:
        """Drop the calls of threads that all calls from now on happen after."""
        gone = [item[0] for item in self.allocations.items() if all_come_after(item)]
        for thread in gone:
            del self.allocations[thread]
            self.own_uses.pop(thread, None)
        for thread, frees in list(self.frees.items()):
            if all_come_after((thread, max(time for time, _ in frees.values()))):
                del self.frees[thread]
        for (thread, line), (time, _, _) in list(self.unordered.items()):
            if all_come_after((thread, time)):
                del self.unordered[thread, line]
        self.many = _THREADS + 2 * len(self.allocations)

    def _unordered_allocations(self, thread: LogicalThread, known: Clock) -> Iterator[LogicalThread]:
        for other, time in self.allocations.items():
            if other is not thread and known.get(other, 0) < time:
                yield other


class ThreadReuses(Order):
    """The reuse of memory between host threads, for all pools of one machine."""

    __slots__ = ("_reuses",)

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._reuses: dict[
            tuple[LogicalThread, int], ThreadReuse
        ] = {}  # by pool; used with several host threads

    def _note_allocation(self, memory: FreedMemory, block: ShadowBlock) -> None:
        """Add an allocation by this thread. See Note [Reuse between threads]."""
        memory.allocator = block.allocator = self._caller()
        reuse = self._reuse_of(memory)
        if len(reuse.allocations) >= reuse.many:
            reuse.forget(self.all_come_after)
        for finding in reuse.allocate(self.threads.mine, self.known):
            self.findings.freed_early(*finding)

    def _has_noted(self, memory: FreedMemory) -> bool:
        """Return True if this thread's last allocation from the pool stands for one now."""
        return threading.get_ident() == self.running and memory.allocator == self._caller()

    def _reuse_of(self, memory: FreedMemory) -> ThreadReuse:
        reuse = self._reuses.get((memory.agent, memory.key))
        if reuse is None:
            reuse = self._reuses[memory.agent, memory.key] = ThreadReuse()
        return reuse

    def _drop_reuses(self, gone: Collection[LogicalThread]) -> None:
        for name in [name for name in self._reuses if name[0] in gone]:
            del self._reuses[name]

    def _has_waited_for_own(self, memory: FreedMemory, last: Command) -> bool:
        """Return True if the thread that frees memory has waited for its last use, on the stream that allocates it."""
        with self.lock:
            known = self.threads.clock_of(threading.get_ident(), self.known)
            if is_covered(known, last):
                return True
            for finding in self._reuse_of(memory).free_own(self.threads.agent(), known, last[1]):
                self.findings.threads_unordered(finding[1], finding[0])
            return False

    def _look_at_freed_by_thread(self, block: ShadowBlock, known: Clock) -> None:
        """Withhold the certificate if this thread frees a block whose uses may not be finished, and another thread
        allocates from the pool. See Note [Reuse between threads].

        `known` is the clock of what the thread and the allocator have waited for. Uses in earlier lifetimes were
        checked when those ended.
        """
        memory, mine = block.pool, self.threads.agent()
        if memory.key == UNPOOLED:
            return
        reuse, own = self._reuse_of(memory), 0
        for cell in block.cells:
            for last in cell.accesses():
                if last[1] < block.born or is_covered(known, last) or is_covered(cell.polled, last):
                    continue
                if last[0] is memory.agent:
                    own = max(own, last[1])
                    continue
                finding = (last[3], last[4]), _freed_early(last, block)
                if reuse.free(mine, known, finding) or not self.several:
                    self.findings.freed_early(*finding)
        for finding in reuse.free_own(mine, known, own) if own else ():
            self.findings.threads_unordered(finding[1], finding[0])


def _freed_early(last: Command, block: ShadowBlock) -> str:
    """Return why a use of freed memory withholds the certificate."""
    freed = f"freed at {place(block.freed_at)}" if block.freed_at else "freed"
    return (
        f"memory that {last[2][0]} at {place((last[3], last[4]))} uses on {last[0]} was {freed} without record_stream, "
        "by a host thread that has not waited for it: when another thread allocates it again depends on the host's "
        f"scheduler. Call tensor.record_stream(stream), with {last[0]}, there"
    )


def is_covered(clock: Clock, command: Command) -> bool:
    """Return True if a command happens before the owner of a clock."""
    return clock.get(command[0], 0) >= command[1]
