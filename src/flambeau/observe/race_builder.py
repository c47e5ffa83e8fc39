"""Construction of race reports: both accesses, the lifetimes of the memory, and the fix."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from flambeau.core.callsite import Site, line_of, place
from flambeau.core.vector_clock import join_clock
from flambeau.driver.protocol import AUTOCAST
from flambeau.observe.accesses import Cell, Command, FreedUse, Operation, ShadowBlock
from flambeau.observe.clocks import Clock, LogicalThread, snapshot
from flambeau.observe.layout_overlap import Extent, extent_of, span_of
from flambeau.observe.reporting.fixes import (
    Code,
    Proposer,
    Select,
    capture_wait,
    record_stream,
    synchronize_after,
)
from flambeau.observe.reporting.operator_names import public_name, reads_as_well, repetition
from flambeau.observe.reporting.suspended import selection_note
from flambeau.observe.reports import Fix, Race, RaceAccess

READ, WRITE, READ_WRITE = "reads", "writes", "reads and writes"
_UNCERTAIN = "It is not certain that each first use is before this line: run again."
_CACHED_CAST = (
    "note:   autocast keeps one cast of a weight for all streams. autocast(cache_enabled=False), or an autocast "
    "block for each stream, lets each stream cast it."
)


@dataclass(slots=True)
class GraphLaunch:
    """A graph launch: stream, call site, and range of command numbers (`begin` is excluded)."""

    agent: LogicalThread
    site: Site
    begin: int
    end: float = math.inf

    def has(self, command: Command) -> bool:
        return self.begin < command[1] <= self.end


Launches: TypeAlias = tuple[GraphLaunch | None, GraphLaunch | None]
"""The launches that the first and the second command of a race belong to."""


class Pair(NamedTuple):
    """The two accesses of a race, and their commands."""

    first: RaceAccess
    second: RaceAccess
    last: Command
    command: Command
    launches: Launches

    @property
    def earlier(self) -> LogicalThread:
        """Return the program's stream on which the first access, or its graph, was enqueued."""
        return self.last[0] if self.launches[0] is None else self.launches[0].agent

    @property
    def later(self) -> LogicalThread:
        """Return the program's stream on which the second access, or its graph, was enqueued."""
        return self.command[0] if self.launches[1] is None else self.launches[1].agent

    def orders(self, later: LogicalThread, earlier: LogicalThread) -> bool:
        """Return True if a wait of `later` for `earlier` orders the first access before later work of `later`."""
        return join_clock(later.clock, snapshot(earlier)).get(self.last[0], 0) >= self.last[1]


def build_race(
    old: Cell | FreedUse,
    before: str,
    last: Command,
    cell: Cell,
    kind: str,
    command: Command,
    launches: Launches,
    waited: LogicalThread | None,
    lifetime: tuple[int, Site | None],
    select: Select | None,
    record: bool = False,
) -> Race:
    """Return the race of `command` with the last access of its shadow cell, of a neighbouring cell, or of freed memory.

    Args:
        kind: The access of `command` to its cell: READ, WRITE or READ_WRITE.
        waited: Another stream that has waited for the last access, which is a process group's.
        lifetime: The number and call site at which the lifetime of `command`'s memory began.
        select: Returns the expressions of current streams.
        record: True if `old` is a use of freed memory that record_stream fixes.
    """
    block = cell.block
    born, site = lifetime
    reused = last[1] < born
    first = access_of(old.start, old.extent, before, last, launches[0])
    second = access_of(cell.start, cell.extent, kind, command, launches[1])
    first = replace(first, when=repetition(first.issued, second.issued))
    pair, proposer = Pair(first, second, last, command, launches), Proposer(select, second.issued)
    if isinstance(old, FreedUse):
        allocated, freed_number, freed, is_cast = old.allocated, last[1], old.freed_at, old.is_cast
    else:
        record, is_cast = reused and last[0] is not block.agent, _is_cached_cast(old, last, block)
        allocated, freed_number, freed = _lifetime(block, last[1]) if reused else (site, 0, None)
    note = ""
    if record and is_cast:
        fix = _wait_of_owner(pair, block.agent or pair.later, freed, proposer)
    elif record:
        code = record_stream(first.site, pair.earlier, _operand(old.extent, last), allocated)
        fix = _record_stream(pair, code, block.agent or pair.later, freed, freed_number >= last[1], proposer)
    elif launches[0] is not None and launches[0] is launches[1]:
        fix, note = _wait_in_capture(pair, launches[0])
    else:
        fix = _wait_stream(pair, waited, proposer)
        note = _early_wait_note(last, command, str(last[0])) or selection_note(pair.later)
    if is_cast:
        note = _CACHED_CAST
    if waited is not None:
        note = f"note:   the wait at {place(waited.waits[last[0]][1])} is on {waited}."
    if isinstance(old, FreedUse):
        new = f"the tensor allocated at {place(block.site)}" if block.site else "the second tensor"
        reuse = f"the first memory is free by then, and the allocator may use it for {new}."
        note = f"{note} Also, {reuse}" if note else f"note:   {reuse}"
    device = "pinned host memory" if block.host else f"cuda:{_device_of(command)}"
    return Race(first, second, device, fix, allocated, freed, record, note)


def _is_cached_cast(cell: Cell, last: Command, block: ShadowBlock) -> bool:
    """Return True if `last` used the low-precision copy of a weight, which autocast shares among the streams of its
    block.
    """
    casts = [c.write for c in (cell, *cell.neighbours) if c.write is not None and c.write[2][0] == AUTOCAST]
    return any(_life(block, cast[1]) == _life(block, last[1]) for cast in casts)


def _life(block: ShadowBlock, number: int) -> tuple[Site | None, int, Site | None] | None:
    """Return a key of the lifetime that command `number` belongs to; None for the present lifetime."""
    return _lifetime(block, number) if number < block.born else None


def _wait_of_owner(pair: Pair, owner: LogicalThread, freed: Site | None, proposer: Proposer) -> Fix:
    """Return the fix for memory that was freed too early, if the program no longer has the tensor."""
    text = (
        f"On {owner}, call stream.wait_stream({_stream_expression(pair.earlier)}) before {pair.second.place}."
    )
    if freed is not None:
        text = f"{text[:-1]}, or before the memory is freed at {place(freed)}."
    code = proposer.wait_stream(pair.first.issued, pair.earlier, owner)
    return _fix("wait_stream", code, pair.orders(owner, pair.earlier), text)


def line_at(site: Site) -> tuple[str, int]:
    return site[0].co_filename, line_of(site)


def access_of(
    start: int, extent: Extent, kind: str, command: Command, launch: GraphLaunch | None = None
) -> RaceAccess:
    agent, number, what, code, offset, ordinal = command
    end = start + span_of(extent)
    shape, dtype = shape_of(extent, kind, what)
    site = (code, offset)
    if kind is WRITE and extent in map(extent_of, what[1][what[2] :]) and reads_as_well(what[0], site):
        kind = READ_WRITE
    return RaceAccess(
        kind,
        what[0],
        str(agent),
        number,
        start,
        end,
        shape,
        dtype,
        site,
        agent.site,
        agent.handle,
        ordinal,
        launch.site if launch is not None else None,
        public_name(what[0], site),
    )


def shape_of(extent: Extent, kind: str, what: Operation) -> tuple[tuple[int, ...] | None, str | None]:
    """Return shape and dtype of the operand that an extent belongs to; None for plain bytes."""
    _, metas, outputs = what
    for meta in metas[:outputs] + metas[outputs:] if kind is WRITE else metas[outputs:] + metas[:outputs]:
        if extent_of(meta) == extent:
            return meta.shape, repr(meta.dtype)
    return None, None


def _device_of(command: Command) -> int | None:
    metas = command[2][1]
    return metas[0].device.index if metas else command[0].device


def _lifetime(block: ShadowBlock, number: int) -> tuple[Site | None, int, Site | None]:
    """Return where the memory was allocated and where and when it was freed, in the lifetime of an old command."""
    lives = [block.last] if block.last else []
    lives += [(b.site, b.freed, b.freed_at) for b in block.prior]
    for site, freed, freed_at in lives:
        if freed >= number:
            return site, freed, freed_at
    return block.site, 0, None


def _operand(extent: Extent, command: Command) -> int:
    """Return the position of the input with a given layout; 0 if it is ambiguous."""
    _, metas, outputs = command[2]
    inputs = [extent_of(meta) for meta in metas[outputs:]]
    return inputs.index(extent) if extent in inputs else 0


def synchronize_fix(
    first: RaceAccess,
    when: str,
    last: Command,
    launch: GraphLaunch | None,
    known: Clock,
    proposer: Proposer | None,
    is_event: Callable[[Any], bool] | None = None,
) -> Fix:
    """Return the fix for a host access to memory of a command: the host must wait for the command's stream.

    Args:
        when: The call site of the host access; the fix goes before it.
        proposer: Proposes fixes at the host access. None if the access was not seen; the host must then
            wait after the command.
        is_event: Returns True for Event objects for which the host can wait instead of the stream.
    """
    agent = last[0] if launch is None else launch.agent
    verified = join_clock(known, snapshot(agent)).get(last[0], 0) >= last[1]
    code = proposer.synchronize(first.issued, agent, is_event) if proposer is not None else None
    if code is None:
        code = synchronize_after(first.issued, agent, f"A later line does, too, if it is before {when}.")
    text = f"Call synchronize() on {agent}, or on an event recorded there after {place(first.issued)}, before {when}."
    return _fix("synchronize", code, verified, text)


def _record_stream(
    pair: Pair,
    code: Code | None,
    owner: LogicalThread,
    freed: Site | None,
    recorded: bool,
    proposer: Proposer,
) -> Fix:
    """Return the fix for a use that lasted longer than the tensor: `record_stream` makes the allocator wait before
    reuse.

    If the program has no name for the tensor, the owner's stream waits instead.
    """
    if pair.launches[0] is None and code is not None:
        return _fix("record_stream", code, recorded)
    if (code := proposer.wait_stream(pair.first.issued, pair.earlier, owner)) is not None:
        return _fix("wait_stream", code, pair.orders(owner, pair.earlier))
    text = (
        f"Call tensor.record_stream(stream), with {pair.earlier}, between the tensor's use at "
        f"{place(pair.first.issued)} and its end {f'at {place(freed)}' if freed else 'later'}."
    )
    return _fix("record_stream", None, recorded, text)


def _wait_stream(pair: Pair, waited: LogicalThread | None, proposer: Proposer) -> Fix:
    """Return a wait just before the second access, or its graph, for the stream of the first one.

    Waiting for the stream on which a graph is launched waits for the graph's own streams.
    """
    earlier, first, second = waited or pair.earlier, pair.first, pair.second
    verified = pair.orders(pair.later, earlier)
    when = f"before {'the launch at ' if second.launched else ''}{place(second.issued)}"
    if earlier.grouped:
        text = f"Call wait() on the work that began at {place(first.site)}, {when}."
        return _fix("wait", proposer.wait_work(first.issued, earlier), verified, text)
    where = f"the stream that is current at {place(second.issued)}" if pair.later.grouped else str(pair.later)
    text = f"On {where}, call stream.wait_stream({_stream_expression(earlier)}) {when}."
    return _fix(
        "wait_stream",
        proposer.wait_stream(first.issued, earlier, pair.later, produces=first.kind != READ),
        verified,
        text,
    )


def _wait_in_capture(pair: Pair, launch: GraphLaunch) -> tuple[Fix, str]:
    """Return the missing wait between two captured accesses, and a note if there is a wait that is too early."""
    earlier, later = (
        "the stream of the capture" if agent is launch.agent else agent.in_capture
        for agent in (pair.last[0], pair.command[0])
    )
    text = f"In the capture, on {later}, call stream.wait_stream({earlier}) before {pair.second.place}."
    code = capture_wait(pair.first.site, pair.second.site)
    fix = _fix("wait_stream", code, pair.orders(pair.command[0], pair.last[0]), text)
    return fix, _early_wait_note(pair.last, pair.command, earlier)


def _stream_expression(agent: LogicalThread) -> str:
    return f"torch.cuda.default_stream({agent.device})" if agent.ordinal == 0 else str(agent)


def _fix(call: str, code: Code | None, verified: bool, text: str = "") -> Fix:
    """Return the fix that inserts `code`; without code, a fix described by the sentence `text`."""
    if code is None:
        return Fix(call, text, verified)
    hint = code.hint if code.certain else f"{code.hint} {_UNCERTAIN}".lstrip()
    return Fix(code.call, code.where, verified and code.certain, code.lines, code.edits, hint)


def _early_wait_note(last: Command, command: Command, name: str) -> str:
    """Return a note if the second stream waited for the first, called `name`, but only for work before the access."""
    waited = command[0].waits.get(last[0])
    if waited is None or not last[0].born <= waited[0] < last[1]:
        return ""
    if last[0].grouped:
        return f"note:   the wait at {place(waited[1])} is for an earlier work."
    return (
        f"note:   it waits for {name} at {place(waited[1])}, but for a point before this access: record "
        "the event, or call wait_stream, after it."
    )
