"""`flambeau memory`: what a memory snapshot holds, as a page; and what other settings would have made of its trace."""

from __future__ import annotations

import argparse
import json
import pickle
import re
import sys
from itertools import chain
from pathlib import Path
from typing import Any

from flambeau.cli.environment import why_not_readable, why_not_writable
from flambeau.cli.memory_page import page
from flambeau.core.collector import without_collections
from flambeau.core.files import replace_file
from flambeau.runtime.policy import Policy, from_environment, policy_of
from flambeau.runtime.replay import Outcome, events_of, play
from flambeau.runtime.statistics import format_size

_UNLIMITED = 1 << 62
_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "memory",
        help="show a memory snapshot as a page, or replay its trace with other settings",
        description="Read what torch.cuda.memory._dump_snapshot wrote, Flambeau's or PyTorch's, or JSON. "
        "`flambeau memory SNAPSHOT -o report.html` writes one self-contained page; "
        "`flambeau memory replay SNAPSHOT` plays its trace in Flambeau's allocator.",
        usage="flambeau memory [-h] [-o FILE] SNAPSHOT\n"
        "       flambeau memory replay [--device N] [--capacity SIZE] [--conf SETTINGS] SNAPSHOT",
        epilog="replay's exit status is 0 if the trace fits, and 1 if it runs out of memory.",
    )
    parser.add_argument("words", metavar="[replay] SNAPSHOT", nargs="+", help="a snapshot file")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="the page to write (or a .json file)"
    )
    parser.add_argument(
        "--device", metavar="N", type=int, help="replay this device's trace (default: the longest)"
    )
    parser.add_argument(
        "--capacity", metavar="SIZE", help="replay: memory of the device, as 24GiB (default: no limit)"
    )
    parser.add_argument(
        "--conf",
        metavar="SETTINGS",
        action="append",
        default=[],
        help="replay: PYTORCH_ALLOC_CONF to try, as max_split_size_mb:128; may be repeated",
    )
    parser.set_defaults(do=run)


def run(options: argparse.Namespace) -> int:
    """Do as `options` say; the exit status."""
    replays = options.words[0] == "replay" and len(options.words) == 2
    if options.words == ["replay"] and not Path("replay").exists():
        return _refuse("replay of which snapshot?")
    if len(options.words) > 1 and not replays:
        return _refuse(f"one snapshot at a time, not {' '.join(options.words)}")
    for name in ("output",) if replays else ("device", "capacity", "conf"):
        if getattr(options, name) not in (None, []):
            return _refuse(f"--{name} is {'of pages' if replays else 'of replay'} alone")
    path = Path(options.words[-1])
    if why := why_not_readable(path):
        return _refuse(f"can't open file {options.words[-1]!r}: {why}")
    if options.output is not None and (why := why_not_writable(options.output)):
        return _refuse(f"can't write {str(options.output)!r}: {why}")
    try:
        found = load(path)
        return _replay(options, found) if replays else _report(options, found)
    except (OSError, ValueError) as error:
        return _refuse(str(error))


# What a damaged pickle raises.
_DAMAGED = (pickle.UnpicklingError, EOFError, AttributeError, LookupError, TypeError, MemoryError)


def load(path: Path) -> dict[str, Any]:
    """A snapshot from a pickle or a JSON file. ValueError: it is none."""
    try:
        with path.open("rb") as file, without_collections():  # a million dictionaries
            is_json = file.peek(1)[:1] in b"{["
            found = json.load(file) if is_json else _Unpickler(file).load()
    except (*_DAMAGED, ValueError) as error:
        raise ValueError(f"{path} is no memory snapshot: {error}") from None
    if isinstance(found, list):  # memory_snapshot() gives segments alone
        found = {"segments": found, "device_traces": []}
    if not isinstance(found, dict) or "segments" not in found:
        raise ValueError(f"{path} is no memory snapshot: it has no segments")
    found.setdefault("device_traces", [])
    try:
        if is_json:
            _share_stacks(found["device_traces"])
        _check_form(found)
    except ValueError as error:
        raise ValueError(f"{path} is no memory snapshot: {error}") from None
    return found


def _share_stacks(traces: Any) -> None:
    """JSON has every stack anew at each event: equal ones become one list. What is malformed is told of later."""
    known: dict[tuple[Any, ...], Any] = {}
    for event in chain.from_iterable(_listed("a trace", trace) for trace in _listed("device_traces", traces)):
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


def _check_form(found: dict[str, Any]) -> None:
    """ValueError: what there is of it is not as snapshots have it."""
    checked: set[int] = set()
    for segment in _listed("segments", found["segments"]):
        _check_fields("a segment", segment, _SEGMENT)
        if not isinstance(segment.get("device", 0), int):
            raise ValueError(f"the device of a segment is {segment['device']!r}")
        _check_pool("a segment", segment.get("segment_pool_id"))
        for block in segment["blocks"]:
            _fill_in(block)
            _check_fields("a block", block, _BLOCK)
            _check_frames(block.get("frames"), checked)
    for trace in _listed("device_traces", found["device_traces"]):
        _check_trace(_listed("a trace", trace), checked)


def _check_trace(trace: list[Any], checked: set[int]) -> None:
    """A trace may have a million events: it is looked at field by field, and each pool and stack once."""
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
        _check_frames(found, checked)


def _check_column(name: str, kind: type, column: list[Any]) -> None:
    if not all(issubclass(found, kind) for found in {*map(type, column)}):
        raise ValueError(f"an event has no {name!r} of type {kind.__name__}")


def _check_frames(frames: Any, checked: set[int]) -> None:
    """`checked`: the ids of lists that are known to be right; a file has few that are not shared."""
    if frames and id(frames) not in checked:
        checked.add(id(frames))
        for frame in _listed("frames", frames):
            _check_fields("a frame", frame, {"filename": str, "line": int, "name": str})


def _fill_in(block: Any) -> None:
    """PyTorch 2.0 says only in a block's history what was asked for, and who did."""
    history = block.get("history") if isinstance(block, dict) else None
    if isinstance(block, dict) and "requested_size" not in block and isinstance(block.get("size"), int):
        first = history[0] if isinstance(history, list) and history and isinstance(history[0], dict) else {}
        block["requested_size"] = (
            0 if block.get("state") == "inactive" else first.get("real_size", block["size"])
        )
        block.setdefault("frames", first.get("frames", []))


def _check_pool(what: str, id: Any) -> None:
    if id is not None and not (
        isinstance(id, list | tuple) and len(id) == 2 and all(isinstance(n, int) for n in id)
    ):
        raise ValueError(f"the pool of {what} should be two numbers, not {id!r}")


def _listed(what: str, found: Any) -> list[Any]:
    if not isinstance(found, list | tuple):
        raise ValueError(f"{what} should be a list, not {type(found).__name__}")
    return list(found)


def _check_fields(what: str, found: Any, fields: dict[str, type]) -> None:
    if not isinstance(found, dict):
        raise ValueError(f"{what} should be a dictionary, not {type(found).__name__}")
    for name, kind in fields.items():
        if not isinstance(found.get(name), kind):
            raise ValueError(f"{what} has no {name!r} of type {kind.__name__}")


class _Unpickler(pickle.Unpickler):
    """Reads plain containers, numbers and texts. A file from elsewhere must not run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and a snapshot is plain data")


def _report(options: argparse.Namespace, found: dict[str, Any]) -> int:
    source = Path(options.words[-1])
    output = options.output or source.with_suffix(".html")
    if output.suffix == ".json":
        replace_file(output, json.dumps(found))
    else:
        replace_file(output, page(found, source.name))
    print(f"flambeau memory: wrote {output}")
    return 0


# -- replays ------------------------------------------------------------------------------------------------------


def _replay(options: argparse.Namespace, found: dict[str, Any]) -> int:
    traces = found["device_traces"]
    if not any(traces):
        raise ValueError(
            "the snapshot has no trace; record one with torch.cuda.memory._record_memory_history()"
        )
    device = options.device
    if device is None:
        device = max(range(len(traces)), key=lambda i: len(traces[i]))
    if not 0 <= device < len(traces):
        raise ValueError(f"the snapshot has no device {device}; it has {len(traces)}")
    live = [segment for segment in found["segments"] if segment.get("device", 0) == device]
    events = events_of(traces[device], live)
    capacity = _UNLIMITED if options.capacity is None else size_of(options.capacity)
    policies = [_policy(text) for text in options.conf] or [from_environment()]
    outcomes = [play(events, capacity, policy) for policy in policies]
    most = "unlimited memory" if options.capacity is None else format_size(capacity)
    print(f"{len(events)} events of device {device}, replayed on {most}:")
    for outcome in outcomes:
        print(_told(outcome))
    return 0 if all(outcome.fits for outcome in outcomes) else 1


def _policy(text: str) -> Policy:
    try:
        return policy_of(text)
    except ValueError as error:
        raise ValueError(f"--conf {text!r}: {error}") from None


def size_of(text: str) -> int:
    """ "24GiB", "16 GB" or "1073741824" in bytes. ValueError: it is no size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if found is None or found[2].upper() not in _UNITS:
        raise ValueError(f"--capacity {text!r} is no size; write it as 24GiB")
    size = float(found[1]) * _UNITS[found[2].upper()]
    if size > _UNLIMITED:
        raise ValueError(f"--capacity {text!r} is more than any device has")
    return int(size)


def _told(outcome: Outcome) -> str:
    """One outcome for people."""
    lines = [
        f"  {_name(outcome.policy)}",
        f"    {'fits' if outcome.fits else 'out of memory'}: at most {format_size(outcome.peak_allocated)} allocated, "
        f"{format_size(outcome.peak_reserved)} reserved ({_waste(outcome)}); {outcome.device_calls} calls of "
        f"cudaMalloc and cudaFree, {outcome.retries} retries",
    ]
    if outcome.failed is not None:
        where = f", at {outcome.failed.where}" if outcome.failed.where else ""
        lines.append(
            f"    event {outcome.failed_at} of {outcome.events} asked for {format_size(outcome.failed.nbytes)} and "
            f"found no memory{where}"
        )
    return "\n".join(lines)


def _name(policy: Policy) -> str:
    if not policy.caching:
        return "no caching"
    return policy.text or "the default settings"


def _waste(outcome: Outcome) -> str:
    if not outcome.peak_allocated:
        return "nothing"
    return f"{outcome.peak_reserved / outcome.peak_allocated:.3f} times that"


def _refuse(why: str) -> int:
    print(f"flambeau memory: {why}", file=sys.stderr)
    return 2
