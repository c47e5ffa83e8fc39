"""How a conflict of two commands is told: the two accesses, the lives of the memory, the call that would order them."""

from __future__ import annotations

from flambeau.core.sites import Site, line_of, place
from flambeau.observe.accesses import Block, Cell, Command, Operation
from flambeau.observe.clocks import Agent, joined, snapshot
from flambeau.observe.layouts import Extent, extent_of, span_of
from flambeau.observe.reports import Access, Mend, Race

READ, WRITE = "reads", "writes"


def told(old: Cell, before: str, last: Command, cell: Cell, kind: str, command: Command) -> Race:
    """The race of `command`, which reads or writes (`kind`) a cell, with the `last` access of that cell or another."""
    block = cell.block
    reused = last[1] < block.born
    first = access_of(old.start, old.extent, before, last)
    second = access_of(cell.start, cell.extent, kind, command)
    record = reused and last[0] is not block.agent
    allocated, freed_number, freed = _life(block, last[1]) if reused else (block.site, 0, None)
    if record:
        mend = _record_stream(first, last[0], freed, freed_number >= last[1])
    else:
        mend = _wait_stream(second, last, command)
    device = "pinned host memory" if block.host else f"cuda:{_device_of(command)}"
    return Race(first, second, device, mend, allocated, freed, record, _late(last, command))


def line_at(site: Site) -> tuple[str, int]:
    return site[0].co_filename, line_of(site)


def access_of(start: int, extent: Extent, kind: str, command: Command) -> Access:
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


def _life(block: Block, number: int) -> tuple[Site | None, int, Site | None]:
    """Where the memory was allocated, when and where freed, in the life that an old command belongs to."""
    lives = [block.last] if block.last else []
    lives += [(b.site, b.freed, b.freed_at) for b in block.prior]
    for site, freed, freed_at in lives:
        if freed >= number:
            return site, freed, freed_at
    return block.site, 0, None


def _record_stream(first: Access, agent: Agent, freed: Site | None, verified: bool) -> Mend:
    """The first stream's use outlived the tensor: `record_stream` makes the runtime wait before reuse."""
    end = f"at {place(freed)}" if freed else "later"
    text = (
        f"Call tensor.record_stream(stream), with {agent}, between the tensor's use at {first.place} "
        f"and its end {end}."
    )
    return Mend("record_stream", text, verified)


def _wait_stream(second: Access, last: Command, command: Command) -> Mend:
    """A wait just before the second access takes over all that the first one's stream was given by then."""
    later, earlier = command[0], last[0]
    name = f"torch.cuda.default_stream({earlier.device})" if earlier.ordinal == 0 else str(earlier)
    where = f"the stream that is current at {second.place}" if later.grouped else str(later)
    text = f"On {where}, call stream.wait_stream({name}) before {second.place}."
    if earlier.grouped:
        begun = place((last[3], last[4]))
        text = f"Call wait() on the work that was begun at {begun}, before {second.place}."
    ordered = joined(later.clock, snapshot(earlier)).get(earlier, 0) >= last[1]
    return Mend("wait_stream", text, ordered)


def _late(last: Command, command: Command) -> str:
    """Whether the second stream did wait for the first, but for a point before the access."""
    waited = command[0].waits.get(last[0])
    if waited is None or not last[0].born <= waited[0] < last[1]:
        return ""
    if last[0].grouped:
        return f"note:   the wait at {place(waited[1])} is for an earlier work."
    return (
        f"note:   it waits for {last[0]} at {place(waited[1])}, but for a point before this access: record "
        "the event, or call wait_stream, after it."
    )
