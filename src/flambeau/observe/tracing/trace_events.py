"""A trace in the Trace Event Format."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from flambeau.core.callsite import Site, place
from flambeau.observe.reports import Race
from flambeau.observe.tracing.chrome import PROGRAM, ChromeTrace
from flambeau.observe.tracing.driver_calls import NOWHERE
from flambeau.observe.tracing.trace import Arrow, TraceData, TraceSlice


def chrome_trace(trace: TraceData) -> ChromeTrace:
    """Return a run as rows for host threads and streams, calls with their call sites, commands, arrows, memory
    and ranges.

    The arrows are "launch" from a call to its command, "wait" of a stream, "sync" of the host, and "race"
    between two unordered accesses.
    """
    made, line = ChromeTrace(), cache(place)
    if not trace.slices:
        return made
    made.process(PROGRAM, "program")
    for index, name in trace.devices.items():
        made.process(index, f"cuda:{index} {name}")
    for order, lane in enumerate(trace.lanes):
        made.thread(lane.index, lane.number, lane.name, order)
    # Ranges precede the calls inside of them: of slices that begin together the first is the outer one.
    for said in trace.ranges:
        lane = trace.lanes[said.thread]
        made.range(lane.index, lane.number, said)
    for found in trace.slices:
        lane = trace.lanes[found.lane]
        made.slice(
            lane.index,
            lane.number,
            found.name,
            _category(found),
            found.begin_ns,
            found.end_ns,
            _args(found, line),
        )
    for arrow in trace.arrows:
        _add_arrow(made, trace, arrow, line)
    for found in trace.slices:
        if found.cause >= 0:
            made.arrow("launch", "launch", _begin(trace, trace.slices[found.cause]), _begin(trace, found))
    for race, first, second in trace.races:
        if first is not None and second is not None:
            ends = _begin(trace, trace.slices[first]), _begin(trace, trace.slices[second])
            made.arrow("race", "race", *ends, args=_race(race))
    for time_ns, index, used, reserved in trace.memory:
        of = "pinned memory" if index == NOWHERE else "memory"
        made.counter(index, f"{of} allocated", time_ns, used)
        made.counter(index, f"{of} reserved", time_ns, reserved)
    return made


def _category(found: TraceSlice) -> str:
    return {"give": "call"}.get(found.kind, found.kind)


def _args(found: TraceSlice, line: Callable[[Site], str]) -> dict[str, Any]:
    args: dict[str, Any] = {"line": line(found.site)} if found.site else {}
    if found.nbytes:
        args["bytes"] = found.nbytes
    if found.detail:
        args["operands"] = found.detail
    if found.reason:
        args["why"] = found.reason
    return args


def _add_arrow(made: ChromeTrace, trace: TraceData, arrow: Arrow, line: Callable[[Site], str]) -> None:
    earlier, later = trace.slices[arrow.earlier], trace.slices[arrow.later]
    args = {"line": line(later.site)} if later.site else None
    start, (pid, tid, time_ns) = _end(trace, earlier), _end(trace, later)
    made.arrow(arrow.kind, arrow.text, start, (pid, tid, max(time_ns, start[2])), args)


def _begin(trace: TraceData, found: TraceSlice) -> tuple[int, int, float]:
    lane = trace.lanes[found.lane]
    return lane.index, lane.number, found.begin_ns


def _end(trace: TraceData, found: TraceSlice) -> tuple[int, int, float]:
    """Return the last time that is still inside of a slice."""
    lane = trace.lanes[found.lane]
    return lane.index, lane.number, max(found.begin_ns, found.end_ns - 1)


def _race(race: Race) -> dict[str, str]:
    return {"what": race.headline, "fix": race.fix.text}
