"""`load`: a memory snapshot from a file, checked. The file is not trusted.

# Note [What is checked of a snapshot]
The page and the replay rely on this: every field that they read has its type, and every number 64 bits. Parts that a
pickle may share are not shared where that would multiply the work: each segment, list of blocks and trace occurs once.
Stacks are shared, and each is checked only once.
"""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from flambeau.core.brief import brief
from flambeau.core.host.gc_pause import without_collections
from flambeau.core.ipc.pickle_reader import read_plain
from flambeau.core.status_line import Meter

_LIMIT = 1 << 63
_MIB = 1 << 20
_MOST_DEVICES = 1024
_PART = 1 << 14  # events that are checked together
_LONGEST = 100  # the maximum number of letters in the name of a block's state, an action or a segment's kind
_DEEPEST = 20  # nesting levels of settings
_MOST_SETTINGS = 10_000
_MOST_PARTS, _PARTS_PER_BYTE = 1 << 20, 200  # the maximum number of parts of JSON data, and of parts per byte
_TEXT, _PER_BYTE = 1 << 24, 64  # the maximum number of letters in stacks, and of letters per byte of the file


def load(path: Path, as_json: bool = False) -> dict[str, Any]:
    """Return a snapshot from a pickle or a JSON file.

    Args:
        path: The file.
        as_json: Also check that its JSON form, which repeats shared parts, is not too large for the file.

    Raises:
        ValueError: If it is not a valid snapshot.
    """
    try:
        with without_collections():  # the file may contain a million dictionaries
            data = path.read_bytes()
            is_json = data[:1] in (b"{", b"[")
            found = json.loads(data) if is_json else _read_pickle(data)
    except (UnpicklingError, EOFError, RecursionError, ValueError) as error:
        raise ValueError(f"{path} is not a memory snapshot: {error}") from None
    if isinstance(found, list):  # memory_snapshot() returns only segments
        found = {"segments": found, "device_traces": []}
    if not isinstance(found, dict) or "segments" not in found:
        raise ValueError(f"{path} is not a memory snapshot: it has no segments")
    found.setdefault("device_traces", [])
    try:
        if is_json:
            _share_stacks(found["device_traces"])
        _Checker(len(data)).check(found)
        if as_json:
            _count(found, _MOST_PARTS + _PARTS_PER_BYTE * len(data))
    except ValueError as error:
        raise ValueError(f"{path} is not a memory snapshot: {error}") from None
    return found


def _read_pickle(data: bytes) -> Any:
    with Meter("read", len(data) / _MIB, "MiB") as meter:
        return read_plain(data, lambda nbytes: meter.update(nbytes / _MIB))


def _share_stacks(traces: Any) -> None:
    """Replace equal stacks by one list, since JSON repeats each stack for each event."""
    known: dict[tuple[Any, ...], Any] = {}
    for event in chain.from_iterable(
        _require_list("a trace", trace) for trace in _require_list("device_traces", traces)
    ):
        try:
            frames = event["frames"]
            key = tuple([(frame["filename"], frame["line"], frame["name"]) for frame in frames])
            event["frames"] = known.setdefault(key, frames)
        except (LookupError, TypeError):
            continue


_SEGMENT = {
    "address": int, "total_size": int, "allocated_size": int, "stream": int, "segment_type": str, "blocks": list,
}  # fmt: skip
_BLOCK = {"size": int, "requested_size": int, "state": str}


class _Checker:
    """The check of a snapshot's form, for a file of a given size. See Note [What is checked of a snapshot]."""

    def __init__(self, nbytes: int) -> None:
        self._letters = _TEXT + _PER_BYTE * nbytes
        self._stacks: set[int] = set()  # ids of checked lists; most lists of a file are shared
        self._once: set[int] = set()  # ids of objects that must not be shared

    def check(self, found: dict[str, Any]) -> None:
        """Raise ValueError for data without a snapshot's form."""
        sizes = 0
        for segment in _require_list("segments", found["segments"]):
            _check_fields("a segment", segment, _SEGMENT)
            _check_device("the device of a segment", segment.get("device", 0))
            _check_pool("a segment", segment.get("segment_pool_id"))
            self._own("segment", segment)
            self._own("list of blocks", segment["blocks"])
            sizes += segment["total_size"]
            for block in segment["blocks"]:
                _fill_in(block)
                _check_fields("a block", block, _BLOCK)
                _check_number("a block", "address", block.get("address", 0))
                self._check_frames(block.get("frames"))
                sizes += block["size"]
        if sizes >= _LIMIT:
            raise ValueError("its sizes add up to more than 64 bits")
        traces = _require_list("device_traces", found["device_traces"])
        _check_device("the number of traces", len(traces))
        for trace in traces:
            self._own("trace", trace)
            events = _require_list("a trace", trace)
            with Meter("check", len(events), "events") as meter:
                for at in range(0, len(events), _PART):
                    meter.update(at)
                    self._check_events(events[at : at + _PART])
        for memory in _require_list("device_memory", found.get("device_memory", [])):
            _check_fields("the memory of a device", memory, {"total": int, "usable": int})
        _count(found.get("allocator_settings", {}), _MOST_SETTINGS)

    def _own(self, what: str, part: Any) -> None:
        if id(part) in self._once:
            raise ValueError(f"it has one {what} twice")
        self._once.add(id(part))

    def _check_events(self, trace: list[Any]) -> None:
        """Check a part of a trace field by field, and each pool and stack once: there may be a million events."""
        for kind in {*map(type, trace)} - {dict}:
            raise ValueError(f"an event should be a dictionary, not {kind.__name__}")
        orders = [event for event in trace if event.get("action") == "order"]
        others = [event for event in trace if event.get("action") != "order"] if orders else trace
        for events, own in ((others, "size"), (orders, "after")):
            for name, kind in (("action", str), ("stream", int), (own, int)):
                _check_column(name, kind, [event.get(name) for event in events])
            _check_column("addr", int, [event.get("addr", 0) for event in events])
        pools, frames = ([event.get(name) for event in trace] for name in ("pool_id", "frames"))
        for pool in dict(zip(map(id, pools), pools, strict=True)).values():
            _check_pool("an event", pool)
        for found in dict(zip(map(id, frames), frames, strict=True)).values():
            self._check_frames(found)

    def _check_frames(self, frames: Any) -> None:
        if frames and id(frames) not in self._stacks:
            self._stacks.add(id(frames))
            for frame in _require_list("frames", frames):
                _check_fields("a frame", frame, {"filename": str, "line": int, "name": str}, longest=None)
                self._letters -= len(frame["filename"]) + len(frame["name"])
            if self._letters < 0:
                raise ValueError("its stacks have more letters than the size of the file explains")


def _check_column(name: str, kind: type, column: list[Any]) -> None:
    if not all(issubclass(found, kind) for found in {*map(type, column)}):
        raise ValueError(f"an event has no {name!r} of type {kind.__name__}")
    if kind is int and column and not -_LIMIT <= min(column) <= max(column) < _LIMIT:
        raise ValueError(f"the {name!r} of an event has more than 64 bits")
    if name == "size" and column and min(column) < 0:
        raise ValueError("the 'size' of an event is negative")
    if kind is str and max(map(len, column), default=0) > _LONGEST:
        raise ValueError(f"the {name!r} of an event has more than {_LONGEST} letters")


def _fill_in(block: Any) -> None:
    """Add the requested size and stack to a block of PyTorch 2.0, which has them only in the block's history."""
    history = block.get("history") if isinstance(block, dict) else None
    if isinstance(block, dict) and "requested_size" not in block and isinstance(block.get("size"), int):
        first = history[0] if isinstance(history, list) and history and isinstance(history[0], dict) else {}
        block["requested_size"] = (
            0 if block.get("state") == "inactive" else first.get("real_size", block["size"])
        )
        block.setdefault("frames", first.get("frames", []))


def _check_device(what: str, number: Any) -> None:
    if not isinstance(number, int) or not 0 <= number <= _MOST_DEVICES:
        raise ValueError(f"{what} is {brief(number)}")


def _check_pool(what: str, id: Any) -> None:
    if id is not None and not (
        isinstance(id, list | tuple)
        and len(id) == 2
        and all(isinstance(n, int) and 0 <= n < 1 << 64 for n in id)
    ):
        raise ValueError(f"the pool of {what} should be two numbers, not {brief(id)}")


def _check_number(what: str, name: str, number: Any) -> None:
    if not isinstance(number, int):
        raise ValueError(f"{what} has no {name!r} of type int")
    if not -_LIMIT <= number < _LIMIT:
        raise ValueError(f"the {name!r} of {what} has more than 64 bits")
    if name.endswith("size") and number < 0:
        raise ValueError(f"the {name!r} of {what} is negative")


def _require_list(what: str, found: Any) -> list[Any]:
    if not isinstance(found, list | tuple):
        raise ValueError(f"{what} should be a list, not {type(found).__name__}")
    return list(found)


def _check_fields(what: str, found: Any, fields: dict[str, type], longest: int | None = _LONGEST) -> None:
    if not isinstance(found, dict):
        raise ValueError(f"{what} should be a dictionary, not {type(found).__name__}")
    for name, kind in fields.items():
        value = found.get(name)
        if not isinstance(value, kind):
            raise ValueError(f"{what} has no {name!r} of type {kind.__name__}")
        if kind is int:
            _check_number(what, name, value)
        elif longest is not None and isinstance(value, str) and len(value) > longest:
            raise ValueError(f"the {name!r} of {what} has more than {longest} letters")


def _count(value: Any, most: int) -> None:
    """Raise ValueError if a value has more parts than so many, each counted as often as it occurs."""
    if _parts(value, _DEEPEST, {}) > most:
        raise ValueError(f"a part of it, written out, has more than {most} parts")


def _parts(value: Any, depth: int, known: dict[int, int]) -> int:
    if not isinstance(value, list | tuple | dict):
        if not isinstance(value, str | int | float | None):
            raise ValueError(f"it has {brief(value)}, which JSON has not")
        return (
            1
            + (len(value) if isinstance(value, str) else value.bit_length() if isinstance(value, int) else 0)
            // 8
        )
    if not depth:
        raise ValueError(f"it has parts of more than {_DEEPEST} levels")
    if id(value) not in known:
        inner = value
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str | int | float | None):
                    raise ValueError(f"it has the key {brief(key)}, which JSON has not")
            inner = chain.from_iterable(value.items())
        known[id(value)] = 1 + sum(_parts(part, depth - 1, known) for part in inner)
    return known[id(value)]
