"""Lifetimes of memory, and the uses of freed memory that a later allocation may overlap.

# Note [Reuse by contract] Problem: A tensor is freed while another stream uses it, without record_stream.
The effect depends on where the allocator puts the next tensors. A run whose placement happens to avoid the
block proves nothing about other runs. Rule: Memory that was freed to a pool (of one stream, one kind and
one MemPool) may be part of any later allocation of that pool. The first write of each stream to a new
tensor must therefore happen after every use of memory that was freed to its pool before. Otherwise there is
a race, wherever this run put the tensors. Why it is exact: The allocator splits, coalesces and grows, so no
size and no address excludes a reuse. A later access of the new tensor happens after its first write, or
races with that. Nothing is reported for a tensor that is never used, nor if the order is established before
its first use. Consequences: A pool keeps the latest use of freed memory of each stream (`FreedMemory`),
which represents the earlier ones. An allocation takes a snapshot of it. Only a stream that writes a tensor
for the first time is compared with the snapshot, and its own stream only while a use is open. The common
launch pays nothing.

# Note [What orders reuse] The allocator waits for a recorded use (record_stream), so that is not a use of
freed memory. A poll of the allocator orders the lifetimes of that one block and nothing else
(`Cell.polled`), because the answer depends on the schedule. `empty_cache`, a retry after out of memory and
a collection of idle segments order nothing by themselves: they release segments that are wholly free, which
depends on the placement. Only when all memory of a pool was released is there nothing to reuse (`forget`).

# Note [Reuse by other streams] Flambeau's allocator also gives a freed block to a stream that waits for the
work of the block's own stream (Note [Reuse by order] in `runtime/memory/cross_stream_reuse.py`). The
allocating stream happens after that work, so only a stream that uses the new tensor without waiting for the
allocating stream is affected. The candidates for such reuse are not kept, so this case withholds the
certificate and is not reported as a race.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence, Set
from functools import reduce
from operator import itemgetter

from flambeau.core.callsite import Site, caller, place
from flambeau.core.vector_clock import join_clock, merge_clocks, without_threads
from flambeau.observe.accesses import (
    MANY,
    NO_POOL,
    NO_USES,
    UNPOOLED,
    Command,
    FreedMemory,
    FreedUse,
    Shadow,
    ShadowBlock,
)
from flambeau.observe.clocks import NOBODY, NOTHING, Clock, LogicalThread
from flambeau.observe.layout_overlap import Extent
from flambeau.observe.race_builder import READ, WRITE
from flambeau.observe.race_findings import Findings
from flambeau.observe.thread_reuse import ThreadReuses, is_covered

_MANY_RETIRED = 64  # logical threads of destroyed streams that are kept before they are dropped
_FREES = 4096  # frees that a pool keeps


class Lifetimes(ThreadReuses):
    """The lifetimes of all memory of one machine. Callers hold the lock, as for `Order`, except the
    allocators.
    """

    __slots__ = ("_freed", "_many_retired", "_pools", "shadow")

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self.shadow = Shadow()
        self._many_retired = _MANY_RETIRED
        # freed blocks whose uses are not collected yet, with the clock of the thread that freed them
        self._freed: list[tuple[ShadowBlock, Clock]] = []
        self._pools: dict[tuple[LogicalThread, int], FreedMemory] = {}

    # -- a lifetime begins ------------------------------------------------------------------------------
    def begin_life(
        self, ptr: int, nbytes: int, stream: int, written: bool = False, pool: int = UNPOOLED
    ) -> None:
        """Begin the lifetime of memory that was allocated to a stream (0: host memory). Takes the lock if
        necessary.

        `written` is True if the next launch, which knows the call site, writes it. Finding the call site
        twice would be a tenth of the cost of a call.
        """
        agent = self.agents.get(stream)
        block = self.shadow.blocks.get(ptr)
        if (
            block is None
            or block.end - ptr != nbytes
            or len(block.cells) > MANY
            or self._freed
            or (memory := block.pool).agent is not agent
            or memory.key != pool
            or memory.is_open
            or (self.several and not self._has_noted(memory))
        ):
            with self.lock:
                if threading.get_ident() != self.running:
                    self.enter()
                self.own(ptr, nbytes, stream, None if written else caller(1), pool=pool)
            return
        block.last = (block.site, block.freed, block.freed_at)
        block.allocator = memory.allocator
        block.born = self.number = self._next()
        block.site = None if written else caller(3)
        block.freed = 0
        block.exposed, block.clock = memory.exposed, memory.agent.clock

    def own(
        self,
        ptr: int,
        nbytes: int,
        stream: int | None,
        site: Site | None,
        host: bool = False,
        pool: int = UNPOOLED,
    ) -> None:
        """Begin a lifetime of memory with a new owner. Without a stream as owner it is the first lifetime."""
        self._collect_uses()
        agent = None if stream is None else self.agents.get(stream)
        self.number = self._next()
        block = self.shadow.own(ptr, nbytes, agent, self.number, site)
        block.host = block.host or host
        memory = NO_POOL if agent is None else self._pool_of(agent, pool)
        if memory.exposed:
            self._close_uses(memory)
        if memory is not block.pool:
            block.enter(memory)
        block.allocator = None
        if self.several and memory.key != UNPOOLED:
            self._note_allocation(memory, block)
        block.own_use, block.exposed = None, memory.exposed
        block.clock = NOTHING if agent is None else agent.clock
        for cell in block.cells:
            if memory.is_open or cell.sole is not agent:
                cell.sole = None  # so that the next command is compared with these accesses

    def _pool_of(self, agent: LogicalThread, key: int) -> FreedMemory:
        if key == UNPOOLED:
            return FreedMemory(agent, key)
        return self._pools.setdefault((agent, key), FreedMemory(agent, key))

    def _close_uses(self, memory: FreedMemory) -> None:
        """Drop the uses that every host thread has waited for, and mark those that the owner's stream happens after."""
        owner = memory.agent
        left = {user: use for user, use in memory.exposed.items() if not self.all_know(use.agent, use.number)}
        if len(left) < len(memory.exposed):
            memory.exposed = left or NO_USES
        for use in left.values():
            if not use.closed and owner.clock.get(use.agent, 0) >= use.number:
                use.closed = owner.time
        memory.is_open = not all(use.closed for use in left.values())

    # -- a lifetime ends --------------------------------------------------------------------------------
    def end_life(self, ptr: int, nbytes: int, stream: int, after: Sequence[int] = ()) -> None:
        """End a lifetime. The runtime has seen the events `after` of its uses complete.

        Destructors call it, so it takes the lock only if several host threads are in use.
        """
        block = self.shadow.blocks.get(ptr)
        if block is None:
            return
        outlived, block.freed = block.freed, self.number
        owner = block.agent or NOBODY
        last = None
        for cell in block.cells:
            if cell.sole is not owner or cell.partial is not None:
                break
            used = cell.read or cell.write
            if used is not None and (last is None or used[1] > last[1]):
                last, where = used, cell
        # Only the owner has used it: the stream's next command happens after all uses.
        else:
            block.freed_at = None
            if last is not None and not (self.several and self._has_waited_for_own(block.pool, last)):
                frees = block.pool.frees
                alone = block.shared != block.born
                frees.append((self.number, last, where.start, where.extent, alone))
                if len(frees) > _FREES:
                    self._forget_frees(block.pool)
            return
        if not outlived:
            block.freed_at = caller(1)
        if after:
            points = [point for event in after if (point := self._events.get(event)) is not None]
            # the events that polling found complete; usually all
            seen = [point for point in points if self.polled.get(point[0], 0) >= point[1]]
            for cell in block.cells:
                for point in seen:
                    cell.polled = join_clock(cell.polled, point)
        if block.agent is not None:
            for cell in block.cells:
                cell.sole = None  # so that the first access of the next lifetime is compared with these
            known = NOTHING
            if self.several or threading.get_ident() != self.running:
                with self.lock:
                    known = self.threads.clock_of(threading.get_ident(), self.known)
                    if not outlived:
                        self._look_at_freed_by_thread(block, known)
            self._freed.append(
                (block, known)
            )  # last, because a thread that holds the lock may read it from now on

    def _forget_frees(self, memory: FreedMemory) -> None:
        """Drop the older half of a pool's frees. Of these, each block keeps the latest use before its lifetime."""
        with self.lock:
            done = self.known.get(memory.agent, 0) if not self.several else 0
            old = [freed for freed in memory.frees[: _FREES // 2] if freed[1][1] > done]
            del memory.frees[: _FREES // 2]
            if not old:
                return
            latest = list(itertools.accumulate([freed[1][1] for freed in old], max))
            memory.forgotten = max(memory.forgotten, latest[-1])
            for block in self.shadow.blocks.values():
                before = bisect_left(old, block.born, key=itemgetter(0)) if block.pool is memory else 0
                if before and (block.own_use is None or block.own_use[1][1] < latest[before - 1]):
                    block.own_use = old[latest.index(latest[before - 1])]

    def outlive(self, ptr: int, events: Sequence[int]) -> None:
        """Mark a freed block whose reuse waits until these events of its uses are complete.

        Another schedule may find the events incomplete. So uses that no event covers count as still
        running.
        """
        block = self.shadow.blocks.get(ptr)
        if block is not None:
            block.freed, block.freed_at = self.number, caller(2)
            points = [point for event in events if (point := self._events.get(event)) is not None]
            awaited = reduce(join_clock, points, NOTHING)
            awaited = merge_clocks(awaited, self.threads.clock_of(threading.get_ident(), self.known))
            if block.host:
                self._look_at_freed_pinned(block, awaited)
            else:
                if self.several:
                    self._look_at_freed_by_thread(block, awaited)
                self._collect_uses_of(block, awaited)

    def _collect_uses(self) -> None:
        while self._freed:
            self._collect_uses_of(*self._freed.pop())

    def _collect_uses_of(self, block: ShadowBlock, awaited: Clock) -> None:
        """Add the uses of a freed block that neither its allocator nor the freeing thread has waited for.

        `awaited` is the clock of these waits. Uses in earlier lifetimes were added when those ended.
        """
        memory = block.pool
        owner = memory.agent
        if memory.key == UNPOOLED:
            return
        uses: dict[LogicalThread, FreedUse] = {}
        own: tuple[Command, int, Extent] | None = None
        for cell in block.cells:
            for last in cell.accesses():
                user, number = last[0], last[1]
                if number < block.born:
                    continue
                kind = WRITE if cell.writes(last) else READ
                if user is owner:
                    if not (self.several and is_covered(awaited, last)) and (
                        own is None or own[0][1] < number
                    ):
                        own = (last, cell.start, cell.extent)
                    continue
                if not (
                    is_covered(cell.polled, last) or is_covered(awaited, last) or self.all_know(user, number)
                ):
                    known = uses.get(user) or memory.exposed.get(user)
                    if known is None or known.number < number:
                        uses[user] = FreedUse(last, kind, cell.start, cell.extent, block)
        if own is not None:
            memory.frees.append((block.freed, *own, block.shared != block.born))
            if len(memory.frees) > _FREES:
                self._forget_frees(memory)
        # else no block is allocated from the pool any more
        if uses and self.agents.get(owner.handle) is owner:
            memory.exposed = {**memory.exposed, **uses}
            self._close_uses(memory)

    def _look_at_freed_pinned(self, block: ShadowBlock, awaited: Clock) -> None:
        """Withhold the certificate if copies use a block of freed pinned memory and its allocator does not wait for
        them.
        """
        for last in itertools.chain.from_iterable(cell.accesses() for cell in block.cells):
            if last[1] >= block.born and not is_covered(awaited, last):
                site = last[3], last[4]
                self.findings.freed_early(
                    site,
                    f"pinned memory that {last[2][0]} at {place(site)} uses on {last[0]} is freed while the copy may "
                    "run. The copy went through another object over a part of the memory, so PyTorch's allocator does "
                    "not wait for it and may hand the memory out again. Keep the pinned tensor until the host has "
                    "waited for the copy",
                )

    # -- uses that a new tensor may meet ----------------------------------------------------------------
    def unordered_uses(self, block: ShadowBlock, command: Command) -> Iterator[FreedUse]:
        """Yield the uses of freed memory that nothing orders before a stream's first write of a block."""
        owner, agent, site = block.agent, command[0], (command[3], command[4])
        clock = agent.clock
        if owner is None or block.freed:
            return
        # the writing stream happens after no command of the owner in this lifetime
        if agent is not owner and clock.get(owner, 0) < block.born:
            known = clock.get(owner, 0)
            freed = block.pool.find(known, block.born) or block.own_use
            if freed is not None and known < freed[1][1]:
                yield FreedUse(freed[1], WRITE, freed[2], freed[3])
            elif self.several and block.allocator is not None:
                finding = site, f"memory of {owner} is freed, and allocated for use on {agent},"
                if self._reuse_of(block.pool).write(*block.allocator, known, finding):
                    self.findings.threads_unordered(finding[1], site)
            self._look_at_donors(block, owner, agent, site)
        for use in block.exposed.values():
            if use.agent is not agent and clock.get(use.agent, 0) < use.number:
                yield use

    def _look_at_donors(
        self, block: ShadowBlock, owner: LogicalThread, agent: LogicalThread, site: Site
    ) -> None:
        """Withhold the certificate if the block may belong to a donor stream. See Note [Reuse by other streams]."""
        for (other, key), memory in self._pools.items():
            if key != block.pool.key or other.device != owner.device or other is agent or other is owner:
                continue
            if memory.has_lent(agent.clock.get(other, 0), block.clock.get(other, 0), block.born):
                block.reported = block.born
                at = f" at {place(block.site)}" if block.site else ""
                self.findings.freed_early(
                    site,
                    f"memory that {owner} allocates{at} is written at {place(site)} on {agent}, which does not wait "
                    f"for {owner}: {owner} waits for {other}, so it may be memory that {other} still uses. Call "
                    f"wait_stream on {agent} first, with {owner}",
                )

    # -- memory and streams that are gone ---------------------------------------------------------------
    def forget(self, ptr: int, nbytes: int) -> None:
        """Drop memory that was returned to the driver, after a wait for all its uses."""
        self._collect_uses()
        pools = {block.pool for block in self.shadow.blocks_within(ptr, ptr + nbytes)}
        self.shadow.forget(ptr, nbytes)
        for memory in pools:
            if not memory.blocks:  # all memory of the pool was released
                self._pools.pop((memory.agent, memory.key), None)

    def remove_stream(self, handle: int) -> None:
        for (agent, _), memory in self._pools.items():
            if agent.handle == handle:
                memory.exposed, memory.is_open = NO_USES, False  # the pool will allocate no block any more
        super().remove_stream(handle)
        if len(self._retired) >= self._many_retired:
            self._drop_retired()

    def _drop_retired(self) -> None:
        """Drop logical threads whose commands no memory and no event refers to, for programs that never wait
        on the host.
        """
        used = {access[0] for cell in self.shadow.cells.values() for access in cell.accesses()}
        used |= {point[0] for point in self._events.values()}
        used |= self._agents_in_lifetimes(set(self._retired))
        gone = set(self._retired) - used
        self._retired = [agent for agent in self._retired if agent in used]
        self._many_retired = _MANY_RETIRED + 2 * len(self._retired)
        for agents in self._on_device.values():
            agents[:] = [agent for agent in agents if agent not in gone]
        # blocks of ended lifetimes may refer to it; it must not keep other logical threads alive
        for agent in gone:
            agent.clock, agent.waits, agent.past = NOTHING, {}, []
        self.known, self.polled = without_threads(self.known, gone), without_threads(self.polled, gone)
        for agent in itertools.chain.from_iterable(self._on_device.values()):
            agent.clock = without_threads(agent.clock, gone)
            agent.waits = {other: wait for other, wait in agent.waits.items() if other not in gone}
        self._events = {
            event: (a, n, without_threads(clock, gone)) for event, (a, n, clock) in self._events.items()
        }
        for cell in self.shadow.cells.values():
            cell.polled = without_threads(cell.polled, gone)
        self._forget_agents(gone)

    def _begin_stream(self, device: int, handle: int, ordinal: int, site: Site | None) -> LogicalThread:
        agent = super()._begin_stream(device, handle, ordinal, site)
        self._drop_pools({agent})  # pools of the stream that the logical thread represented before
        return agent

    def _drop_pools(self, gone: Collection[LogicalThread]) -> None:
        """Drop the pools of destroyed streams, from which no memory is allocated any more."""
        for agent, key in [name for name in self._pools if name[0] in gone]:
            self._pools.pop((agent, key)).key = UNPOOLED
        self._drop_reuses(gone)

    def _agents_in_lifetimes(self, retired: Set[LogicalThread]) -> set[LogicalThread]:
        """Return the logical threads that lifetimes refer to, with as few destroyed streams as possible.

        A use by a destroyed stream that the owner's stream happens after is replaced by a use of the owner.
        """
        users: set[LogicalThread] = set()
        for memory in self._pools.values():
            self._close_uses(memory)
            left: dict[LogicalThread, FreedUse] = {}
            for user, use in memory.exposed.items():
                if use.closed and user in retired:
                    use.agent, use.number = memory.agent, use.closed
                last = left.get(use.agent)
                if last is None or last.number < use.number:
                    left[use.agent] = use
            memory.exposed = left or NO_USES
        for block in self.shadow.blocks.values():
            if block.freed:
                block.own_use, block.exposed, block.clock = None, NO_USES, NOTHING
            elif block.agent is not None:
                users.add(block.agent)
        holders: list[ShadowBlock | FreedMemory] = [*self._pools.values(), *self.shadow.blocks.values()]
        return users | {use.agent for holder in holders for use in holder.exposed.values()}

    def _forget_agents(self, gone: Set[LogicalThread]) -> None:
        """Drop logical threads that nothing refers to."""
        self._drop_pools(gone)
        clocks: dict[
            int, Clock
        ] = {}  # identity of a clock -> the clock without `gone`, because many blocks share one
        for block in self.shadow.blocks.values():
            known = clocks.get(id(block.clock))
            if known is None:
                known = clocks[id(block.clock)] = without_threads(block.clock, gone)
            block.clock = known
            block.compared -= gone
