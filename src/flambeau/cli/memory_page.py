"""The page of `flambeau memory`: one self-contained HTML file, from a snapshot.

The page draws what it is given; all that needs thought is decided here, and tested here: which pieces of memory lived
from when until when, where they lie in the picture, and how much was reserved and used at each event.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

_MOST_LIVES = 20_000  # rectangles in the picture; the smallest are left out, and the page says so
_MOST_POINTS = 4_000  # of the curves
_MOST_PLACES = 10  # of those that held most


def page(snapshot: dict[str, Any], name: str) -> str:
    """The whole HTML page."""
    template = files("flambeau.cli").joinpath("pages/memory.html").read_text(encoding="utf-8")
    data = json.dumps(picture(snapshot), separators=(",", ":")).replace("</", "<\\/")
    return template.replace("{{NAME}}", escape(name)).replace("{{DATA}}", data)


def picture(snapshot: dict[str, Any]) -> dict[str, Any]:
    """What the page draws: devices, and the stacks that they name by number. Sizes in bytes."""
    stacks = _Stacks()
    traces = snapshot["device_traces"]
    indices = sorted({*range(len(traces)), *[s.get("device", 0) for s in snapshot["segments"]]})
    devices = []
    for index in indices:
        segments = [s for s in snapshot["segments"] if s.get("device", 0) == index]
        trace = traces[index] if index < len(traces) else []
        if segments or trace:
            devices.append(_device(index, segments, trace, stacks))
    return {
        "devices": devices,
        "stacks": stacks.texts,
        "places": stacks.places(),
        "settings": snapshot.get("allocator_settings", {}),
    }


class _Stacks:
    """Stacks as lists of lines, each kept once; number 0 is the empty one."""

    def __init__(self) -> None:
        self.texts: list[list[str]] = [[]]
        self._numbers: dict[tuple[str, ...], int] = {(): 0}
        self._known: dict[int, int] = {}  # by the id of a list of the snapshot: most are shared

    def number(self, frames: Sequence[dict[str, Any]] | None) -> int:
        found = self._known.get(id(frames))
        if found is None:
            text = tuple(
                [f"{frame['filename']}:{frame['line']} in {frame['name']}" for frame in frames or ()]
            )
            found = self._known[id(frames)] = self._numbers.setdefault(text, len(self.texts))
            if found == len(self.texts):
                self.texts.append(list(text))
        return found

    def places(self) -> list[int]:
        """Of each stack, the first that has the same innermost line: it stands for that place."""
        firsts: dict[str, int] = {}
        return [firsts.setdefault(text[0] if text else "", i) for i, text in enumerate(self.texts)]


def _device(
    index: int, segments: Sequence[dict[str, Any]], trace: Sequence[dict[str, Any]], stacks: _Stacks
) -> dict[str, Any]:
    lives, spans = _lives(segments, trace, stacks)
    points = _points(segments, trace)
    top = max(points, key=lambda point: point[2])
    left_out = max(len(lives) - _MOST_LIVES, 0)
    chosen = sorted(range(len(lives)), key=lambda i: (-_area(lives[i]), _scattered(i)))[:_MOST_LIVES]
    holders = _holders(lives, top[0], stacks.places())
    lives = [lives[i] for i in chosen]
    return {
        "index": index,
        "events": len(trace),
        "ooms": [
            {"at": at, "size": entry["size"], "stack": stacks.number(entry.get("frames"))}
            for at, entry in enumerate(trace)
            if entry["action"] == "oom"
        ],
        "lives": sorted(lives, key=lambda life: life["begin"]),
        "spans": spans,
        "left_out": left_out,
        "curves": _curves(points),
        "top": {"at": top[0], "used": top[2], "holders": holders, "reserved": max(p[1] for p in points)},
        "segments": [_segment(segment, stacks) for segment in segments],
    }


def _area(life: dict[str, Any]) -> int:
    """How much of the picture it takes."""
    area: int = life["size"] * (life["end"] - life["begin"])
    return area


def _scattered(number: int) -> int:
    """Of many lives alike, what is left out then lies evenly over the trace: Fibonacci hashing."""
    return number * 0x9E3779B1 & 0xFFFFFFFF


def _lives(
    segments: Sequence[dict[str, Any]], trace: Sequence[dict[str, Any]], stacks: _Stacks
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Each piece of memory with its first and last event, and the same of segments: in use before counts from 0."""
    lives: list[dict[str, Any]] = []
    open_lives: dict[int, dict[str, Any]] = {}
    end = max(len(trace), 1)
    spans = _Spans(end)
    for at, entry in enumerate(trace):
        action, addr = entry["action"], entry.get("addr", 0)
        if action == "alloc":
            life = _life(addr, entry["size"], entry["stream"], at, end, stacks.number(entry.get("frames")))
            open_lives[addr] = life
            lives.append(life)
        elif action == "free_requested":
            if addr in open_lives:
                open_lives[addr]["freed"] = at
        elif action == "free_completed":
            found = open_lives.pop(addr, None)
            if found is None:
                found = _life(addr, entry["size"], entry["stream"], 0, at, 0)
                lives.append(found)
            found["end"] = at
            found["freed"] = min(found["freed"], at)
        elif action in ("segment_alloc", "segment_map"):
            spans.begin(addr, entry["size"], at, entry["stream"])
        elif action in ("segment_free", "segment_unmap"):
            spans.end(addr, entry["size"], at, entry["stream"])
    for segment in segments:
        if not spans.within(segment["address"]):
            spans.begin(segment["address"], segment["total_size"], 0, segment["stream"])
        for addr, block in _placed(segment):
            if block["state"] != "inactive" and addr not in open_lives:
                number = stacks.number(block.get("frames"))
                lives.append(_life(addr, block["requested_size"], segment["stream"], 0, end, number))
                if block["state"] != "active_allocated":
                    lives[-1]["freed"] = 0
    return lives, spans.found


class _Spans:
    """Memory that was reserved, from when until when; a part of it may go back earlier than the rest."""

    def __init__(self, end: int) -> None:
        self.found: list[dict[str, Any]] = []
        self._open: dict[int, dict[str, Any]] = {}
        self._end = end

    def begin(self, addr: int, size: int, at: int, stream: int) -> None:
        span = {"addr": addr, "size": size, "begin": at, "end": self._end, "stream": stream}
        self._open[addr] = span
        self.found.append(span)

    def end(self, addr: int, size: int, at: int, stream: int) -> None:
        touched = [self._open[addr]] if addr in self._open and self._open[addr]["size"] == size else []
        touched = touched or [
            s for s in self._open.values() if s["addr"] < addr + size and addr < s["addr"] + s["size"]
        ]
        if not touched:  # reserved before the trace begins
            self.begin(addr, size, 0, stream)
            touched = [self._open[addr]]
        for span in touched:
            del self._open[span["addr"]]
            span["end"] = at
            for first, last in ((span["addr"], addr), (addr + size, span["addr"] + span["size"])):
                if first < last:
                    self.begin(first, last - first, at, span["stream"])

    def within(self, addr: int) -> bool:
        return any(span["addr"] <= addr < span["addr"] + span["size"] for span in self._open.values())


def _life(addr: int, size: int, stream: int, begin: int, end: int, stack: int) -> dict[str, Any]:
    """`freed`: from which event on it waits for other streams, until its end."""
    return {
        "addr": addr, "size": size, "stream": stream, "begin": begin, "freed": end, "end": end, "stack": stack,
    }  # fmt: skip


def _placed(segment: dict[str, Any]) -> Iterable[tuple[int, dict[str, Any]]]:
    """The blocks of a segment with their addresses, which older snapshots leave to be added up."""
    addr = segment["address"]
    for block in segment["blocks"]:
        yield block.get("address", addr), block
        addr += block["size"]


def _holders(lives: Sequence[dict[str, Any]], at: int, places: Sequence[int]) -> list[dict[str, int]]:
    """What each place had in use after an event, the most first: bytes, and pieces of memory.

    The place -1 stands for all that was freed, but waits for other streams.
    """
    sums: dict[int, dict[str, int]] = {}
    for life in lives:
        if life["begin"] <= at < life["end"]:
            place = places[life["stack"]] if at < life["freed"] else -1
            found = sums.setdefault(place, {"place": place, "size": 0, "count": 0})
            found["size"] += life["size"]
            found["count"] += 1
    return sorted(sums.values(), key=lambda holder: -holder["size"])[:_MOST_PLACES]


def _points(
    segments: Sequence[dict[str, Any]], trace: Sequence[dict[str, Any]]
) -> list[tuple[int, int, int]]:
    """(event, bytes reserved, bytes in use after it), in order. In use is what was asked for: traces say no more."""
    reserved = sum(segment["total_size"] for segment in segments)
    blocks = [block for segment in segments for block in segment["blocks"]]
    used = sum(block["requested_size"] for block in blocks if block["state"] == "active_allocated")
    points = [(len(trace), reserved, used)]
    for at in range(len(trace) - 1, -1, -1):  # backward: the end is what is known
        entry = trace[at]
        action, size = entry["action"], entry.get("size", 0)
        points.append((at, max(reserved, 0), max(used, 0)))
        used += {"alloc": -size, "free_requested": size}.get(action, 0)
        reserved += {
            "segment_alloc": -size,
            "segment_map": -size,
            "segment_free": size,
            "segment_unmap": size,
        }.get(action, 0)
    points.reverse()
    return points


def _curves(points: Sequence[tuple[int, int, int]]) -> dict[str, list[int]]:
    """Points thinned out: of each stretch the event with the most in use."""
    stretch = -(-len(points) // _MOST_POINTS)
    kept = [max(points[i : i + stretch], key=lambda p: (p[2], p[1])) for i in range(0, len(points), stretch)]
    return {
        "at": [p[0] for p in kept],
        "reserved": [p[1] for p in kept],
        "used": [p[2] for p in kept],
    }


def _segment(segment: dict[str, Any], stacks: _Stacks) -> dict[str, Any]:
    return {
        "addr": segment["address"],
        "size": segment["total_size"],
        "used": segment["allocated_size"],
        "stream": segment["stream"],
        "kind": segment["segment_type"],
        "pool": list(segment.get("segment_pool_id", (0, 0))),
        "blocks": [
            [block["size"], block["requested_size"], block["state"], stacks.number(block.get("frames"))]
            for block in segment["blocks"]
        ],
    }
