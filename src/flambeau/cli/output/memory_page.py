"""The page of `flambeau memory`: one self-contained HTML file, from a snapshot.

The page draws what it is given; all that needs thought is decided here, and tested here: which pieces of memory lived
from when until when, where they lie in the picture, and how much was reserved and used at each event. A trace may have
a million events, so it is worked on in columns, and the page gets columns.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from flambeau.cli.output.page_data import progress_and_data
from flambeau.core.status_line import Meter

_MOST_LIVES = 400_000  # rectangles in the picture; the smallest are omitted, and the page says so
_MOST_SPANS = 50_000
_MOST_POINTS = 20_000  # points of the curves
_MOST_PLACES = 10  # the lines that held the most memory
_MOST_SEGMENTS = 400  # segments in the map, the largest ones
_MOST_PIECES = 500  # parts in which a segment is drawn
_MOST_OOMS = 1_000

Array = np.ndarray[Any, Any]


def page(snapshot: dict[str, Any], name: str) -> str:
    """Return the whole HTML page."""
    template = files("flambeau.cli").joinpath("pages/memory.html").read_text(encoding="utf-8")
    progress, data = progress_and_data(picture(snapshot))
    before, rest = (
        template.replace("{{NAME}}", escape(name)).replace("{{PROGRESS}}", progress).split("{{DATA}}")
    )
    return f"{before}{data}{rest}"


def picture(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Return the data that the page draws: devices, and the stacks that they refer to by number. Sizes are in bytes."""
    stacks = _Stacks()
    traces = snapshot["device_traces"]
    of_device: dict[int, list[dict[str, Any]]] = {index: [] for index in range(len(traces))}
    for segment in snapshot["segments"]:
        of_device.setdefault(segment.get("device", 0), []).append(segment)
    devices = []
    for index, segments in sorted(of_device.items()):
        trace = traces[index] if index < len(traces) else []
        if segments or trace:
            devices.append(_device(index, segments, _events(trace, stacks), stacks))
    return {
        "devices": devices,
        "frames": list(stacks.frames),
        "stacks": list(stacks.numbers),
        "places": stacks.places(),
        "settings": snapshot.get("allocator_settings", {}),
    }


class _Stacks:
    """The table of distinct call stacks, by number; stack 0 is empty. A stack is a tuple of line numbers, innermost
    first.
    """

    def __init__(self) -> None:
        self.frames: dict[str, int] = {}
        self.numbers: dict[tuple[int, ...], int] = {(): 0}
        self._known: dict[int, int] = {}  # id of a list of the snapshot -> stack; most lists are shared
        self._firsts: dict[tuple[int, ...], int] = {}  # innermost line -> number of the first stack
        self._places: list[int] = []

    def number(self, frames: Sequence[dict[str, Any]] | None) -> int:
        found = self._known.get(id(frames))
        if found is None:
            texts = [f"{frame['filename']}:{frame['line']} in {frame['name']}" for frame in frames or ()]
            lines = tuple([self.frames.setdefault(text, len(self.frames)) for text in texts])
            found = self._known[id(frames)] = self.numbers.setdefault(lines, len(self.numbers))
        return found

    def places(self) -> list[int]:
        """Return, for each stack, the first stack with an equal innermost line. It represents that line."""
        for lines in islice(self.numbers, len(self._places), None):
            self._places.append(self._firsts.setdefault(lines[:1], len(self._places)))
        return self._places


# Event kinds that the page distinguishes; all others are OTHER.
ALLOC, REQUESTED, COMPLETED, BEGUN, ENDED, OOM, OTHER = range(7)
_ACTIONS = {
    "alloc": ALLOC, "free_requested": REQUESTED, "free_completed": COMPLETED, "segment_alloc": BEGUN,
    "segment_map": BEGUN, "segment_free": ENDED, "segment_unmap": ENDED, "oom": OOM,
}  # fmt: skip


class _Events(NamedTuple):
    """The events of a memory trace, one list for each field."""

    action: Array
    addr: Array
    size: Array
    stream: Array
    stack: Array

    def __len__(self) -> int:
        return len(self.action)


def _events(trace: Sequence[dict[str, Any]], stacks: _Stacks) -> _Events:
    columns = [array("q") for _ in _Events._fields]
    action, addr, size, stream, stack = [column.append for column in columns]
    try:
        for entry in Meter("page", len(trace), "events").over(trace):
            action(_ACTIONS.get(entry["action"], OTHER))
            addr(entry.get("addr", 0))
            size(entry.get("size", 0))
            stream(entry["stream"])
            stack(stacks.number(entry.get("frames")))
    except OverflowError:
        raise ValueError("a number of the trace has more than 64 bits") from None
    return _Events(*[np.array(column, np.int64) for column in columns])


class _Lifetimes(NamedTuple):
    """Allocation lifetimes as columns. Memory that existed before the trace begins with its first event, 0.

    Attributes:
        freed: The event that freed the memory, which waits for other streams from then on.
        end: The event that ended the lifetime; the length of the trace if none did.
    """

    addr: Array
    size: Array
    stream: Array
    begin: Array
    freed: Array
    end: Array
    stack: Array

    def at(self, which: Any) -> _Lifetimes:
        return _Lifetimes(*[column[which] for column in self])


def _device(
    index: int, segments: Sequence[dict[str, Any]], events: _Events, stacks: _Stacks
) -> dict[str, Any]:
    lifetimes, spans = _lives(segments, events, stacks), _spans(segments, events)
    reserved, used = _amounts(segments, events)
    top = int(used.argmax())
    ooms = np.flatnonzero(events.action == OOM)
    shown = sorted(segments, key=lambda segment: -segment["total_size"])[:_MOST_SEGMENTS]
    return {
        "index": index,
        "events": len(events),
        "refused": len(ooms),
        "ooms": [
            {"at": at, "size": int(events.size[at]), "stack": int(events.stack[at])}
            for at in ooms[-_MOST_OOMS:].tolist()
        ],
        "lives": _pack_lifetimes(lifetimes, _MOST_LIVES),
        "spans": _pack_lifetimes(spans, _MOST_SPANS),
        "curves": _curves(reserved, used),
        "top": {
            "at": top,
            "used": int(used[top]),
            "holders": _holders(lifetimes, top, np.array(stacks.places())),
            "reserved": int(reserved.max()),
        },
        "segments": [_segment(segment, stacks) for segment in shown],
        "segments_left_out": len(segments) - len(shown),
    }


def _lives(segments: Sequence[dict[str, Any]], events: _Events, stacks: _Stacks) -> _Lifetimes:
    """Return the allocation lifetimes of a trace. The events at one address, in order, say when each begins and
    ends.
    """
    last = max(len(events), 1)
    found = np.flatnonzero(events.action <= COMPLETED)
    found = found[np.argsort(events.addr[found], kind="stable")]  # by address, then by time
    edges = found[events.action[found] != REQUESTED]
    is_alloc = events.action[edges] == ALLOC
    # True where the next event has an equal address
    same = np.append(events.addr[edges[1:]] == events.addr[edges[:-1]], False)
    ends = same & ~np.append(is_alloc[1:], False)  # True where the next event ends the lifetime
    end = np.where(ends, np.append(edges[1:], 0), last)
    freed = end.copy()
    # A request belongs to the edge before it, if that edge is an allocation at its address.
    asked = found[events.action[found] == REQUESTED]
    owner = np.cumsum(events.action[found] != REQUESTED)[events.action[found] == REQUESTED] - 1
    of_life = (owner >= 0) & (events.addr[edges[owner]] == events.addr[asked]) if len(edges) else owner >= 0
    freed[owner[of_life]] = asked[of_life]
    starts = np.flatnonzero(is_alloc)
    frees_without_alloc = np.flatnonzero(~is_alloc & ~np.append(False, (same & is_alloc)[:-1]))
    at, before = edges[starts], edges[frees_without_alloc]
    nothing = np.zeros_like(before)
    live = set(events.addr[edges[is_alloc & ~same]].tolist())
    columns = zip(
        (
            events.addr[at],
            events.size[at],
            events.stream[at],
            at,
            freed[starts],
            end[starts],
            events.stack[at],
        ),
        (events.addr[before], events.size[before], events.stream[before], nothing, before, before, nothing),
        _column_rows(_blocks_before(segments, live, last, stacks), 7),
        strict=True,
    )
    lifetimes = _Lifetimes(*map(np.concatenate, columns))
    return lifetimes.at(np.argsort(lifetimes.begin, kind="stable"))


def _blocks_before(
    segments: Sequence[dict[str, Any]], live: set[int], last: int, stacks: _Stacks
) -> Iterable[tuple[int, ...]]:
    """Yield the lifetimes of blocks that are in use at the end and whose allocation no event shows."""
    for segment in segments:
        for addr, block in _place_blocks(segment):
            if block["state"] != "inactive" and addr not in live:
                freed = last if block["state"] == "active_allocated" else 0
                number = stacks.number(block.get("frames"))
                yield addr, block["requested_size"], segment["stream"], 0, freed, last, number


def _column_rows(rows: Iterable[tuple[int, ...]], width: int) -> Array:
    return np.array([*rows], np.int64).reshape(-1, width).T


def _spans(segments: Sequence[dict[str, Any]], events: _Events) -> _Lifetimes:
    """Return the ranges of reserved memory, with the events at which each began and ended."""
    spans = _Spans(max(len(events), 1))
    for at in np.flatnonzero((events.action == BEGUN) | (events.action == ENDED)).tolist():
        where = int(events.addr[at]), int(events.size[at]), at, int(events.stream[at])
        if events.action[at] == BEGUN:
            spans.begin(*where)
        else:
            spans.end(*where)
    for segment in segments:
        if not spans.within(segment["address"]):
            spans.begin(segment["address"], segment["total_size"], 0, segment["stream"])
    rows = [(s["addr"], s["size"], s["stream"], s["begin"], s["end"], s["end"], 0) for s in spans.found]
    return _Lifetimes(*_column_rows(rows, 7))


class _Spans:
    """Ranges of reserved memory with their begin and end events. A part of a range may be released earlier."""

    def __init__(self, end: int) -> None:
        self.found: list[dict[str, Any]] = []
        self._open: dict[int, dict[str, Any]] = {}
        self._order: list[int] = []  # addresses of the open lifetimes, sorted
        self._end = end

    def begin(self, addr: int, size: int, at: int, stream: int) -> None:
        span = {"addr": addr, "size": size, "begin": at, "end": self._end, "stream": stream}
        if addr not in self._open:
            insort(self._order, addr)
        self._open[addr] = span
        self.found.append(span)

    def end(self, addr: int, size: int, at: int, stream: int) -> None:
        touched = self._find_overlapping(addr, size)
        if not touched:  # the segment was reserved before the trace began
            self.begin(addr, size, 0, stream)
            touched = [self._open[addr]]
        for span in touched:
            del self._open[span["addr"]]
            del self._order[bisect_left(self._order, span["addr"])]
            span["end"] = at
            for first, last in ((span["addr"], addr), (addr + size, span["addr"] + span["size"])):
                if first < last:
                    self.begin(first, last - first, at, span["stream"])

    def within(self, addr: int) -> bool:
        return bool(self._find_overlapping(addr, 1))

    def _find_overlapping(self, addr: int, size: int) -> list[dict[str, Any]]:
        """Return the open ranges that share bytes with a range. They do not overlap each other."""
        first = max(bisect_right(self._order, addr) - 1, 0)
        last = bisect_left(self._order, addr + size)
        found = [self._open[begin] for begin in self._order[first:last]]
        return [span for span in found if addr < span["addr"] + span["size"]]


def _place_blocks(segment: dict[str, Any]) -> Iterable[tuple[int, dict[str, Any]]]:
    """Yield the blocks of a segment with their addresses, which older snapshots omit."""
    addr = segment["address"]
    for block in segment["blocks"]:
        yield block.get("address", addr), block
        addr += block["size"]


def _pack_lifetimes(lifetimes: _Lifetimes, most: int) -> dict[str, Any]:
    """Return columns for the page: the lifetimes with the largest areas, ordered by their beginnings.

    "begin" is the distance from the previous beginning, "length" the number of events until the end, and "waits" the
    number of last events during which the memory waited for other streams.
    """
    area = lifetimes.size * (lifetimes.end - lifetimes.begin).astype(float)
    scattered = np.arange(len(area), dtype=np.uint64) * np.uint64(0x9E3779B1) & np.uint64(0xFFFFFFFF)
    # Omitted lifetimes are spread evenly over the trace, by Fibonacci hashing.
    chosen = np.sort(np.lexsort((scattered, -area))[:most]) if len(area) > most else slice(None)
    kept = lifetimes.at(chosen)
    kept = kept.at(np.argsort(kept.begin, kind="stable"))
    return {
        "addr": kept.addr.tolist(),
        "size": kept.size.tolist(),
        "stream": kept.stream.tolist(),
        "begin": np.diff(kept.begin, prepend=0).tolist(),
        "length": (kept.end - kept.begin).tolist(),
        "waits": (kept.end - np.clip(kept.freed, kept.begin, kept.end)).tolist(),
        "stack": kept.stack.tolist(),
        "left_out": len(area) - len(kept.addr),
    }


def _holders(lifetimes: _Lifetimes, at: int, places: Array) -> list[dict[str, int]]:
    """Return the bytes and pieces of memory that each line had in use after an event, the most first.

    The place -1 stands for all that was freed, but waits for other streams.
    """
    there = lifetimes.at((lifetimes.begin <= at) & (at < lifetimes.end))
    found, number = np.unique(np.where(at < there.freed, places[there.stack], -1), return_inverse=True)
    sizes, counts = np.zeros(len(found), np.int64), np.bincount(number, minlength=len(found))
    np.add.at(sizes, number, there.size)
    most = np.argsort(-sizes, kind="stable")[:_MOST_PLACES]
    return [{"place": int(found[i]), "size": int(sizes[i]), "count": int(counts[i])} for i in most]


def _amounts(segments: Sequence[dict[str, Any]], events: _Events) -> tuple[Array, Array]:
    """Return the bytes reserved and in use after each event and at the end."""
    reserved = sum(segment["total_size"] for segment in segments)
    blocks = [block for segment in segments for block in segment["blocks"]]
    used = sum(block["requested_size"] for block in blocks if block["state"] == "active_allocated")
    return _amount(reserved, events, BEGUN, ENDED), _amount(used, events, ALLOC, REQUESTED)


def _amount(end: int, events: _Events, more: int, less: int) -> Array:
    """Return an amount after each event, computed backward from the known amount at the end."""
    action, size = events.action, events.size
    added = np.cumsum(np.where(action == more, size, np.where(action == less, -size, 0)))
    return np.maximum(np.append(end - added[-1:].sum() + added, end), 0)


def _curves(reserved: Array, used: Array) -> dict[str, Any]:
    """Return points of the curves: for each stretch the event with the most memory in use, then the most reserved."""
    stretch = -(-len(used) // _MOST_POINTS)
    missing = -len(used) % stretch
    rows = [np.append(column, np.full(missing, -1)).reshape(-1, stretch) for column in (used, reserved)]
    most = rows[0] == rows[0].max(axis=1, keepdims=True)
    kept = np.where(most, rows[1], -1).argmax(axis=1) + np.arange(len(most)) * stretch
    return {
        "at": kept.tolist(),
        "reserved": reserved[kept].tolist(),
        "used": used[kept].tolist(),
        "stretch": stretch,
    }


def _segment(segment: dict[str, Any], stacks: _Stacks) -> dict[str, Any]:
    return {
        "addr": segment["address"],
        "size": segment["total_size"],
        "used": segment["allocated_size"],
        "stream": segment["stream"],
        "kind": segment["segment_type"],
        "pool": list(segment.get("segment_pool_id") or (0, 0)),
        "blocks": _pieces(segment, stacks),
    }


def _pieces(segment: dict[str, Any], stacks: _Stacks) -> list[list[Any]]:
    """Return [size, requested, state, number of the stack] of each block.

    If there are many, neighbours too small to be distinguished are merged: [size, bytes in use, "several", count].
    """
    blocks = segment["blocks"]
    least = 0 if len(blocks) <= _MOST_PIECES else segment["total_size"] // _MOST_PIECES
    found: list[list[Any]] = []
    for block in blocks:
        used = block["size"] * (block["state"] != "inactive")
        if found and block["size"] < least and found[-1][0] < least:
            before = found[-1]
            before[:] = before[0] + block["size"], before[1] + used, "several", before[3] + 1
        elif block["size"] < least:
            found.append([block["size"], used, "several", 1])
        else:
            number = stacks.number(block.get("frames"))
            found.append([block["size"], block["requested_size"], block["state"], number])
    return found
