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
    return {"devices": devices, "stacks": stacks.texts, "settings": snapshot.get("allocator_settings", {})}


class _Stacks:
    """Stacks as lists of lines, each kept once; number 0 is the empty one."""

    def __init__(self) -> None:
        self.texts: list[list[str]] = [[]]
        self._numbers: dict[tuple[str, ...], int] = {(): 0}

    def number(self, frames: Iterable[dict[str, Any]]) -> int:
        text = tuple(
            [f"{frame['filename']}:{frame['line']} in {frame['name']}" for frame in frames or () if frame]
        )
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.texts)
            self.texts.append(list(text))
        return found


def _device(
    index: int, segments: Sequence[dict[str, Any]], trace: Sequence[dict[str, Any]], stacks: _Stacks
) -> dict[str, Any]:
    lives, spans = _lives(segments, trace, stacks)
    left_out = max(len(lives) - _MOST_LIVES, 0)
    chosen = sorted(range(len(lives)), key=lambda i: (-_area(lives[i]), _scattered(i)))[:_MOST_LIVES]
    lives = [lives[i] for i in chosen]
    return {
        "index": index,
        "events": len(trace),
        "ooms": [i for i, entry in enumerate(trace) if entry["action"] == "oom"],
        "lives": sorted(lives, key=lambda life: life["begin"]),
        "spans": spans,
        "left_out": left_out,
        "curves": _curves(segments, trace),
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
    spans: list[dict[str, Any]] = []
    open_lives: dict[int, dict[str, Any]] = {}
    open_spans: dict[int, dict[str, Any]] = {}
    end = max(len(trace), 1)
    for at, entry in enumerate(trace):
        action, addr = entry["action"], entry.get("addr", 0)
        if action == "alloc":
            life = _life(
                addr, entry["size"], entry["stream"], at, end, stacks.number(entry.get("frames", ()))
            )
            open_lives[addr] = life
            lives.append(life)
        elif action == "free_completed":
            found = open_lives.pop(addr, None)
            if found is None:
                found = _life(addr, entry["size"], entry["stream"], 0, at, 0)
                lives.append(found)
            found["end"] = at
        elif action in ("segment_alloc", "segment_map"):
            span = {"addr": addr, "size": entry["size"], "begin": at, "end": end, "stream": entry["stream"]}
            open_spans[addr] = span
            spans.append(span)
        elif action in ("segment_free", "segment_unmap"):
            known = open_spans.pop(addr, None)
            if known is None:
                known = {
                    "addr": addr,
                    "size": entry["size"],
                    "begin": 0,
                    "end": at,
                    "stream": entry["stream"],
                }
                spans.append(known)
            known["end"] = at
    for segment in segments:
        if segment["address"] not in open_spans:
            spans.append(
                {
                    "addr": segment["address"], "size": segment["total_size"], "begin": 0, "end": end,
                    "stream": segment["stream"],
                }
            )  # fmt: skip
        for addr, block in _placed(segment):
            if block["state"] != "inactive" and addr not in open_lives:
                number = stacks.number(block.get("frames", ()))
                lives.append(_life(addr, block["requested_size"], segment["stream"], 0, end, number))
    return lives, spans


def _life(addr: int, size: int, stream: int, begin: int, end: int, stack: int) -> dict[str, Any]:
    return {"addr": addr, "size": size, "stream": stream, "begin": begin, "end": end, "stack": stack}


def _placed(segment: dict[str, Any]) -> Iterable[tuple[int, dict[str, Any]]]:
    """The blocks of a segment with their addresses, which older snapshots leave to be added up."""
    addr = segment["address"]
    for block in segment["blocks"]:
        yield block.get("address", addr), block
        addr += block["size"]


def _curves(segments: Sequence[dict[str, Any]], trace: Sequence[dict[str, Any]]) -> dict[str, list[int]]:
    """Bytes reserved and in use after each event, thinned out: of each stretch the event with the most in use."""
    reserved = sum(segment["total_size"] for segment in segments)
    used = sum(segment["allocated_size"] for segment in segments)
    points = [(len(trace), reserved, used)]
    for at in range(len(trace) - 1, -1, -1):  # backward: the end is what is known
        entry = trace[at]
        action, size = entry["action"], entry.get("size", 0)
        points.append((at, reserved, used))
        used += {"alloc": -size, "free_requested": size}.get(action, 0)
        reserved += {
            "segment_alloc": -size,
            "segment_map": -size,
            "segment_free": size,
            "segment_unmap": size,
        }.get(action, 0)
    points.reverse()
    stretch = -(-len(points) // _MOST_POINTS)
    kept = [max(points[i : i + stretch], key=lambda p: (p[2], p[1])) for i in range(0, len(points), stretch)]
    return {
        "at": [p[0] for p in kept],
        "reserved": [max(p[1], 0) for p in kept],
        "used": [max(p[2], 0) for p in kept],
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
            [block["size"], block["requested_size"], block["state"], stacks.number(block.get("frames", ()))]
            for block in segment["blocks"]
        ],
    }
