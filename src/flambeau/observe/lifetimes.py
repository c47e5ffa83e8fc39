"""`Lifetimes`: when memory is allocated and freed, and which uses of freed memory a later allocation may meet.

# Note [Reuse by contract]
Problem: a tensor is freed while another stream uses it, without record_stream. Whether that hurts depends on where the
allocator puts the next tensors, so a run whose placement happens to avoid the block says nothing of other runs.
Rule: memory that was freed to a pool (of one stream, one kind and one MemPool) may be part of any later allocation of
that pool. So the first write of each stream to a new tensor must come after every use of all memory that was freed to
its pool before. If one is not, that is a race, wherever this run put the tensors.
Why it is exact: the allocator joins, splits and grows, so no size and no address excludes a reuse; and a later access
of the new tensor comes after its first write, or races with that. Nothing is reported of a tensor that is never used,
nor where the order is established before its first use.
Consequences: a pool remembers, for each stream, its latest use of freed memory (`FreedMemory`), which stands for the
earlier ones. An allocation takes a snapshot of that. Only a stream that writes a tensor for the first time is compared
with the snapshot, and its own stream only while a use is open, so the common launch pays nothing.

# Note [What orders reuse]
A recorded use (record_stream) is waited for by the allocator: it is no use of freed memory. What the allocator learns
from polls orders the lifetimes of that one block and nothing else (`Cell.polled`), since another schedule answers
otherwise. `empty_cache`, a retry after out of memory and a collection of idle segments order nothing by themselves:
they give back segments that are wholly free, and whether a block lies in such a one depends on the placement. Only when
all memory of a pool has gone back is there nothing to reuse (`forget`).

# Note [Reuse by other streams]
Flambeau's allocator also hands a freed block to a stream that waits for the work of the block's own (Note [Reuse by
order] in `runtime/memory/cross_stream_reuse.py`). The stream that allocates comes after that work, so only a stream
that uses the new tensor without waiting for the allocating one is concerned. Which blocks there were then is not
kept, so that withholds the certificate, and is no race.
"""

from __future__ import annotations

import itertools
import math
import threading
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence, Set
from functools import reduce
from operator import itemgetter

from flambeau.core.callsite import Site, caller, place
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
from flambeau.observe.clocks import NOBODY, NOTHING, Clock, LogicalThread, join_clock, without
from flambeau.observe.findings import Findings
from flambeau.observe.layouts import Extent
from flambeau.observe.order import Order
from flambeau.observe.race_builder import READ, WRITE

_FREES = 4096  # that a pool keeps


class Lifetimes(Order):
    """The lifetimes of all memory of one machine. Not locked, as `Order`, but for what allocators call."""

    __slots__ = ("_freed", "_pools", "shadow")

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self.shadow = Shadow()
        self._freed: list[ShadowBlock] = []  # whose uses are not collected yet
        self._pools: dict[tuple[LogicalThread, int], FreedMemory] = {}

    # -- a lifetime begins ------------------------------------------------------------------------------
    def begin_life(
        self, ptr: int, nbytes: int, stream: int, written: bool = False, pool: int = UNPOOLED
    ) -> None:
        """A piece of memory is handed out, to a stream (0: host memory). Takes the lock if it needs to.

        `written`: by the next launch, which says where: finding that out twice would be a tenth of what a call costs.
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
        ):
            with self.lock:
                if threading.get_ident() != self.running:
                    self.enter()
                self.own(ptr, nbytes, stream, None if written else caller(1), pool=pool)
            return
        block.last = (block.site, block.freed, block.freed_at)
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
        """A piece of memory begins a life with a new owner; its first life if that is no stream."""
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
        block.own_use, block.exposed = None, memory.exposed
        block.clock = NOTHING if agent is None else agent.clock
        for cell in block.cells:
            if memory.is_open or cell.sole is not agent:
                cell.sole = None  # its next command is compared with these

    def _pool_of(self, agent: LogicalThread, key: int) -> FreedMemory:
        if key == UNPOOLED:
            return FreedMemory(agent, key)
        return self._pools.setdefault((agent, key), FreedMemory(agent, key))

    def _close_uses(self, memory: FreedMemory) -> None:
        """Forget the uses that every host thread knows to be done, and note which the owner's stream comes after."""
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
        """A life ends; the runtime has seen these events of its uses done. Takes no lock: a destructor calls."""
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
        else:  # nobody else has used it: what its stream does next comes after all of that
            block.freed_at = None
            if last is not None:
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
            seen = [
                point for point in points if self.polled.get(point[0], 0) >= point[1]
            ]  # as it ought to be
            for cell in block.cells:
                for point in seen:
                    cell.polled = join_clock(cell.polled, point)
        if block.agent is not None:
            for cell in block.cells:
                cell.sole = None  # whoever uses its next life first is compared with this one
            if self.several or threading.get_ident() != self.running:
                with self.lock:
                    self._look_at_freed_by_thread(block, block.agent)
            self._freed.append(block)  # last: whoever has the lock may look at it from now on

    def _forget_frees(self, memory: FreedMemory) -> None:
        """Keep half of what was freed to a pool; of the rest, for each block in use, the latest use before it."""
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
        """The program ended a life; the memory is handed out again once these events of its uses are done.

        Whether this run sees that or not, another schedule may: what no event marks is in use then.
        """
        block = self.shadow.blocks.get(ptr)
        if block is not None:
            block.freed, block.freed_at = self.number, caller(2)
            points = [point for event in events if (point := self._events.get(event)) is not None]
            awaited = reduce(join_clock, points, NOTHING)
            if block.host:
                self._look_at_freed_pinned(block, awaited)
            else:
                self._collect_uses_of(block, awaited)

    def _collect_uses(self) -> None:
        while self._freed:
            self._collect_uses_of(self._freed.pop())

    def _collect_uses_of(self, block: ShadowBlock, awaited: Clock = NOTHING) -> None:
        """Note the uses of a freed block that its allocator does not wait for, as clock `awaited`, and has not.

        Those in earlier lives were noted when these ended.
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
                    own = (last, cell.start, cell.extent) if own is None or own[0][1] < number else own
                    continue
                if not (_covers(cell.polled, last) or _covers(awaited, last) or self.all_know(user, number)):
                    known = uses.get(user) or memory.exposed.get(user)
                    if known is None or known.number < number:
                        uses[user] = FreedUse(last, kind, cell.start, cell.extent, block)
        if own is not None:
            memory.frees.append((block.freed, *own, block.shared != block.born))
            if len(memory.frees) > _FREES:
                self._forget_frees(memory)
        if uses and self.agents.get(owner.handle) is owner:  # else no block is allocated from it any more
            memory.exposed = {**memory.exposed, **uses}
            self._close_uses(memory)

    def _look_at_freed_pinned(self, block: ShadowBlock, awaited: Clock) -> None:
        """Withhold the certificate if copies use a block of pinned memory that its allocator does not wait for."""
        for last in itertools.chain.from_iterable(cell.accesses() for cell in block.cells):
            if last[1] >= block.born and not (_covers(self.known, last) or _covers(awaited, last)):
                site = last[3], last[4]
                self.findings.freed_early(
                    site,
                    f"pinned memory that {last[2][0]} at {place(site)} uses on {last[0]} is freed while the copy may "
                    "run. The copy went through another object over a part of the memory, so PyTorch's allocator does "
                    "not wait for it and may hand the memory out again. Keep the pinned tensor until the host has "
                    "waited for the copy",
                )

    def _look_at_freed_by_thread(self, block: ShadowBlock, owner: LogicalThread) -> None:
        """Where threads free each other's memory, it may come back at any time: its uses must be known to be over.

        Those in earlier lives were looked at when these ended.
        """
        known = self.threads.clock_of(threading.get_ident(), self.known)
        alone = not owner.shared and owner.caller is not None and owner.caller[0] is self.threads.agent()
        for cell in block.cells:
            for last in cell.accesses():
                user = last[0]
                waited = known.get(user, 0) >= last[1] or cell.polled.get(user, 0) >= last[1]
                earlier = last[1] < block.born
                if user is owner or earlier or waited or (alone and owner.clock.get(user, 0) >= last[1]):
                    continue
                self._report_freed_by_thread(last, block)

    def _report_freed_by_thread(self, last: Command, block: ShadowBlock) -> None:
        site = last[3], last[4]
        freed = f"freed at {place(block.freed_at)}" if block.freed_at else "freed"
        self.findings.freed_early(
            site,
            f"memory that {last[2][0]} at {place(site)} uses on {last[0]} was {freed} without record_stream, by a host "
            "thread that has not waited for it: when another thread allocates it again depends on the host's "
            f"scheduler. Call tensor.record_stream(stream), with {last[0]}, there",
        )

    # -- uses that a new tensor may meet ----------------------------------------------------------------
    def unordered_uses(self, block: ShadowBlock, command: Command) -> Iterator[FreedUse]:
        """Yield the uses of freed memory that nothing orders before a stream's first write of a block."""
        owner, agent, site = block.agent, command[0], (command[3], command[4])
        clock = agent.clock
        if owner is None or block.freed:
            return
        if (
            agent is not owner and clock.get(owner, 0) < block.born
        ):  # it comes after no point of the owner's since
            known = clock.get(owner, 0)
            freed = block.pool.find(known, block.born) or block.own_use
            if freed is not None and known < freed[1][1]:
                yield FreedUse(freed[1], WRITE, freed[2], freed[3])
            elif self.several and block.pool.find(known, math.inf):
                what = f"memory of {owner} is freed, and allocated for use on {agent},"
                self.findings.threads_unordered(what, site)
            self._look_at_donors(block, owner, agent, site)
        for use in block.exposed.values():
            if use.agent is not agent and clock.get(use.agent, 0) < use.number:
                yield use

    def _look_at_donors(
        self, block: ShadowBlock, owner: LogicalThread, agent: LogicalThread, site: Site
    ) -> None:
        """Withhold the certificate if the owner may have taken the block over. See Note [Reuse by other streams]."""
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
        """Memory went back to the driver, after a wait for all that used it."""
        self._collect_uses()
        pools = {block.pool for block in self.shadow.blocks_within(ptr, ptr + nbytes)}
        self.shadow.forget(ptr, nbytes)
        for memory in pools:
            if not memory.blocks:  # nothing is left that could be allocated again
                self._pools.pop((memory.agent, memory.key), None)

    def remove_stream(self, handle: int) -> None:
        for (agent, _), memory in self._pools.items():
            if agent.handle == handle:
                memory.exposed, memory.is_open = NO_USES, False  # no block is allocated from it any more
        super().remove_stream(handle)

    def _begin_stream(self, device: int, handle: int, ordinal: int, site: Site | None) -> LogicalThread:
        agent = super()._begin_stream(device, handle, ordinal, site)
        self._drop_pools({agent})  # of the stream that it stood for before
        return agent

    def _drop_pools(self, gone: Collection[LogicalThread]) -> None:
        """No memory is allocated from the pools of these streams any more."""
        for agent, key in [name for name in self._pools if name[0] in gone]:
            self._pools.pop((agent, key)).key = UNPOOLED

    def _agents_in_lifetimes(self, retired: Set[LogicalThread]) -> set[LogicalThread]:
        """Return the agents that lifetimes remember, of which as few as can be are of streams that are gone.

        The use of a stream that is gone, which the owner's stream comes after, is one of the owner's from now on.
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
        """Nothing remembers these agents any more."""
        self._drop_pools(gone)
        clocks: dict[int, Clock] = {}  # most blocks share theirs
        for block in self.shadow.blocks.values():
            known = clocks.get(id(block.clock))
            if known is None:
                known = clocks[id(block.clock)] = without(block.clock, gone)
            block.clock = known
            block.compared -= gone


def _covers(clock: Clock, command: Command) -> bool:
    return clock.get(command[0], 0) >= command[1]
