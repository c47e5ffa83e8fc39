"""`build_race`: the race of two conflicting commands, with both accesses, the memory's lifetimes and the fix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from flambeau.core.sites import Site, line_of, place
from flambeau.driver.api import AUTOCAST
from flambeau.observe.accesses import Block, Cell, Command, FreedUse, Operation
from flambeau.observe.clocks import Agent, Clock, joined, snapshot
from flambeau.observe.layouts import Extent, extent_of, span_of
from flambeau.observe.reports import Access, Fix, Race

READ, WRITE = "reads", "writes"


@dataclass(slots=True)
class GraphLaunch:
    """A launch of a graph: the stream, where, and the numbers between which its commands are (`begin` excluded)."""

    agent: Agent
    site: Site
    begin: int
    end: float = math.inf

    def has(self, command: Command) -> bool:
        return self.begin < command[1] <= self.end


Launches: TypeAlias = tuple[GraphLaunch | None, GraphLaunch | None]
"""Those that the first command of a race and the second belong to."""


def build_race(
    old: Cell | FreedUse,
    before: str,
    last: Command,
    cell: Cell,
    kind: str,
    command: Command,
    launches: Launches,
    waited: Agent | None,
    lifetime: tuple[int, Site | None],
    record: bool = False,
) -> Race:
    """Return the race of `command` with the last access of its cell or of a neighbour of it, or of freed memory.

    Args:
        kind: What `command` does with its cell: READ or WRITE.
        waited: Another stream that has waited for the last access, which is a process group's.
        lifetime: The number at which the lifetime of the memory began that `command` uses, and where.
        record: `old` is a use of freed memory, and record_stream is its fix.
    """
    block = cell.block
    born, site = lifetime
    reused = last[1] < born
    first = access_of(old.start, old.extent, before, last, launches[0])
    second = access_of(cell.start, cell.extent, kind, command, launches[1])
    if isinstance(old, FreedUse):
        allocated, freed_number, freed = old.allocated, last[1], old.freed_at
    else:
        record = reused and last[0] is not block.agent
        allocated, freed_number, freed = _lifetime(block, last[1]) if reused else (site, 0, None)
    note = ""
    if record:
        fix = _record_stream(first, last[0], launches[0], freed, freed_number >= last[1])
    elif launches[0] is not None and launches[0] is launches[1]:
        fix, note = _wait_in_capture(second, last, command, launches[0])
    else:
        fix = _wait_stream(second, last, command, launches, waited)
        note = _early_wait_note(last, command, str(last[0]))
    if old.is_cast if isinstance(old, FreedUse) else _is_cached_cast(old, last, block):
        fix, note = _autocast_fix(fix, block.agent, last, freed if record else None)
    if waited is not None:
        note = f"note:   the wait at {place(waited.waits[last[0]][1])} is on {waited}."
    if isinstance(old, FreedUse):
        new = f"the tensor allocated at {place(block.site)}" if block.site else "the second tensor"
        reuse = f"the first memory is free by then, and the allocator may use it for {new}."
        note = f"{note} Also, {reuse}" if note else f"note:   {reuse}"
    device = "pinned host memory" if block.host else f"cuda:{_device_of(command)}"
    return Race(first, second, device, fix, allocated, freed, record, note)


def _is_cached_cast(cell: Cell, last: Command, block: Block) -> bool:
    """Return True if `last` used a weight's cast, which autocast keeps for all streams of its block."""
    casts = [c.write for c in (cell, *cell.neighbours) if c.write is not None and c.write[2][0] == AUTOCAST]
    return any(_life(block, cast[1]) == _life(block, last[1]) for cast in casts)


def _life(block: Block, number: int) -> tuple[Site | None, int, Site | None] | None:
    """Return what identifies the lifetime of the memory that command `number` belongs to; None: the present one."""
    return _lifetime(block, number) if number < block.born else None


def _autocast_fix(fix: Fix, owner: Agent | None, last: Command, freed: Site | None) -> tuple[Fix, str]:
    """Return the fix of a race of a weight's cast, whose tensor the program does not have, and the other ways."""
    if fix.call == "record_stream" and owner is not None and freed is not None:
        name = f"torch.cuda.default_stream({last[0].device})" if last[0].ordinal == 0 else str(last[0])
        text = (
            f"On {owner}, call stream.wait_stream({name}) before the autocast block ends at {place(freed)}."
        )
        fix = Fix("wait_stream", text, _orders(owner, last[0], last))
    return fix, (
        "note:   autocast keeps one cast of a weight for all streams. autocast(cache_enabled=False), or an autocast "
        "block for each stream, lets each stream cast it."
    )


def line_at(site: Site) -> tuple[str, int]:
    return site[0].co_filename, line_of(site)


def access_of(
    start: int, extent: Extent, kind: str, command: Command, launch: GraphLaunch | None = None
) -> Access:
    agent, number, what, code, offset, ordinal = command
    end = start + span_of(extent)
    shape, dtype = shape_of(extent, kind, what)
    return Access(
        kind,
        what[0],
        str(agent),
        number,
        start,
        end,
        shape,
        dtype,
        (code, offset),
        agent.site,
        agent.handle,
        ordinal,
        launch.site if launch is not None else None,
    )


def shape_of(extent: Extent, kind: str, what: Operation) -> tuple[tuple[int, ...] | None, str | None]:
    """Shape and dtype of the operand that an extent belongs to; None of plain bytes."""
    _, metas, outputs = what
    for meta in metas[:outputs] + metas[outputs:] if kind is WRITE else metas[outputs:] + metas[:outputs]:
        if extent_of(meta) == extent:
            return meta.shape, repr(meta.dtype)
    return None, None


def _device_of(command: Command) -> int | None:
    metas = command[2][1]
    return metas[0].device.index if metas else command[0].device


def _lifetime(block: Block, number: int) -> tuple[Site | None, int, Site | None]:
    """Where the memory was allocated, when and where freed, in the life that an old command belongs to."""
    lives = [block.last] if block.last else []
    lives += [(b.site, b.freed, b.freed_at) for b in block.prior]
    for site, freed, freed_at in lives:
        if freed >= number:
            return site, freed, freed_at
    return block.site, 0, None


def synchronize_fix(
    first: Access, second: str, last: Command, launch: GraphLaunch | None, known: Clock
) -> Fix:
    """The host touches what a command uses: it must wait, and then knows all that the command's stream was given.

    Args:
        second: When the host touches it: the fix goes before that.
    """
    agent = last[0] if launch is None else launch.agent
    text = (
        f"Call synchronize() on {agent}, or on an event recorded there after {_issued_at(first)}, "
        f"before {second}."
    )
    return Fix("synchronize", text, joined(known, snapshot(agent)).get(last[0], 0) >= last[1])


def _issued_at(access: Access) -> str:
    """Where a stream of the program was given it: a graph's command with the whole graph."""
    return place(access.launched) if access.launched else access.place


def _record_stream(
    first: Access, agent: Agent, launch: GraphLaunch | None, freed: Site | None, verified: bool
) -> Fix:
    """The first stream's use outlived the tensor: `record_stream` makes the runtime wait before reuse."""
    end = f"at {place(freed)}" if freed else "later"
    user = agent if launch is None else launch.agent
    text = (
        f"Call tensor.record_stream(stream), with {user}, between the tensor's use at {_issued_at(first)} "
        f"and its end {end}."
    )
    return Fix("record_stream", text, verified)


def _wait_stream(
    second: Access, last: Command, command: Command, launches: Launches, waited: Agent | None
) -> Fix:
    """A wait just before the second access, or its graph, takes over all that the first one's stream was given.

    A graph is over on the stream that it was launched on when it is over on its own.
    """
    earlier = waited or (last[0] if launches[0] is None else launches[0].agent)
    later = command[0] if launches[1] is None else launches[1].agent
    name = f"torch.cuda.default_stream({earlier.device})" if earlier.ordinal == 0 else str(earlier)
    where = f"the stream that is current at {_issued_at(second)}" if later.grouped else str(later)
    when = f"before {'the launch at ' if second.launched else ''}{_issued_at(second)}"
    text = f"On {where}, call stream.wait_stream({name}) {when}."
    if earlier.grouped:
        begin = place((last[3], last[4]))
        text = f"Call wait() on the work that began at {begin}, {when}."
    return Fix("wait_stream", text, _orders(later, earlier, last))


def _wait_in_capture(second: Access, last: Command, command: Command, launch: GraphLaunch) -> tuple[Fix, str]:
    """Both are of one launch: the wait is missing where they were captured; and a note, if one is there too early."""
    earlier, later = (
        "the stream of the capture" if agent is launch.agent else agent.in_capture
        for agent in (last[0], command[0])
    )
    text = f"In the capture, on {later}, call stream.wait_stream({earlier}) before {second.place}."
    return Fix("wait_stream", text, _orders(command[0], last[0], last)), _early_wait_note(
        last, command, earlier
    )


def _orders(later: Agent, earlier: Agent, last: Command) -> bool:
    """Whether a wait of one stream for another would put the last command before what follows."""
    return joined(later.clock, snapshot(earlier)).get(last[0], 0) >= last[1]


def _early_wait_note(last: Command, command: Command, name: str) -> str:
    """Whether the second stream did wait for the first, called `name`, but for a point before the access."""
    waited = command[0].waits.get(last[0])
    if waited is None or not last[0].born <= waited[0] < last[1]:
        return ""
    if last[0].grouped:
        return f"note:   the wait at {place(waited[1])} is for an earlier work."
    return (
        f"note:   it waits for {name} at {place(waited[1])}, but for a point before this access: record "
        "the event, or call wait_stream, after it."
    )
