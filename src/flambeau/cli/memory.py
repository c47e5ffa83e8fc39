"""`flambeau memory`: the contents of a memory snapshot as a page, and the effect of other settings on its trace."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from flambeau.cli.environment import why_not_readable, why_not_writable
from flambeau.cli.output.memory_page import page
from flambeau.cli.snapshot_file import load
from flambeau.core.files import replace_file
from flambeau.core.status_line import Meter
from flambeau.runtime.memory.allocator_config import Policy, from_environment, policy_of
from flambeau.runtime.memory.allocator_statistics import format_size
from flambeau.runtime.memory_reports.replay import ReplayResult, events_of, play

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


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], summary: str) -> None:
    parser = commands.add_parser(
        "memory",
        help=summary,
        description="Read a snapshot that torch.cuda.memory._dump_snapshot of Flambeau or PyTorch wrote, or its JSON. "
        "`flambeau memory SNAPSHOT -o report.html` writes one self-contained page; "
        "`flambeau memory replay SNAPSHOT` repeats the recorded requests in Flambeau's allocator.",
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
        "--capacity",
        metavar="SIZE",
        help="replay: memory of the device, such as 24GiB, or unlimited (default: that of the recorded program)",
    )
    parser.add_argument(
        "--conf",
        metavar="SETTINGS",
        action="append",
        default=[],
        help="replay: settings of PYTORCH_ALLOC_CONF, such as max_split_size_mb:128; may be repeated",
    )
    parser.set_defaults(do=run)


def run(options: argparse.Namespace) -> int:
    """Run the command with these options. Returns the exit status."""
    replays = options.words[0] == "replay" and len(options.words) == 2
    if options.words == ["replay"] and not Path("replay").exists():
        return _refuse("replay needs a snapshot: flambeau memory replay SNAPSHOT")
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
        found = load(path, as_json=options.output is not None and options.output.suffix == ".json")
        return _replay(options, found) if replays else _report(options, found)
    except BrokenPipeError:  # the program that reads stdout has closed it
        raise
    except (OSError, ValueError) as error:
        return _refuse(str(error))


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
    if options.capacity is None:
        usable = _usable_memory(found, device, live)
    else:
        usable = None if options.capacity == "unlimited" else size_of(options.capacity)
    capacity = _UNLIMITED if usable is None else usable
    policies = [_policy(text) for text in options.conf] or [from_environment()]
    outcomes = [
        play(events, capacity, policy, watch=Meter("replay", len(events), "events").over)
        for policy in policies
    ]
    most = "unlimited memory" if usable is None else format_size(capacity)
    if options.capacity is None:
        most += (
            ", for the snapshot has no size of it"
            if usable is None
            else ", which the recorded program could use"
        )
    print(f"{len(events)} events of device {device}, replayed on {most}:")
    for outcome in outcomes:
        print(_describe_outcome(outcome))
    return 0 if all(outcome.fits for outcome in outcomes) else 1


def _usable_memory(found: dict[str, Any], device: int, live: list[dict[str, Any]]) -> int | None:
    """Return the number of bytes that the recorded program could reserve on a device; None if the snapshot lacks it.

    Flambeau's snapshots have the number. For PyTorch's it is the sum of what was free at the latest refused request
    and what was reserved then: the reservation at the end, less the changes of segments after the request.
    """
    memory = found.get("device_memory", [])
    if device < len(memory):
        return int(memory[device]["usable"])
    reserved = sum(segment["total_size"] for segment in live)
    for event in reversed(found["device_traces"][device]):
        if event["action"] in ("segment_alloc", "segment_map"):
            reserved -= event["size"]
        elif event["action"] in ("segment_free", "segment_unmap"):
            reserved += event["size"]
        elif event["action"] == "oom" and isinstance(event.get("device_free"), int):
            return max(reserved + event["device_free"], 0)
    return None


def _policy(text: str) -> Policy:
    try:
        return policy_of(text)
    except ValueError as error:
        raise ValueError(f"--conf {text!r}: {error}") from None


def size_of(text: str) -> int:
    """Return a size in bytes from text such as "24GiB", "16 GB" or "1073741824".

    Raises:
        ValueError: If it is not a size.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if found is None or found[2].upper() not in _UNITS:
        raise ValueError(f"--capacity {text!r} is not a size; write it as 24GiB")
    size = float(found[1]) * _UNITS[found[2].upper()]
    if size > _UNLIMITED:
        raise ValueError(f"--capacity {text!r} is more than any device has")
    return int(size)


def _describe_outcome(outcome: ReplayResult) -> str:
    """Return the lines that describe the outcome of one replay."""
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


def _waste(outcome: ReplayResult) -> str:
    if not outcome.peak_allocated:
        return "nothing"
    return f"{outcome.peak_reserved / outcome.peak_allocated:.3f} times that"


def _refuse(why: str) -> int:
    print(f"flambeau memory: {why}", file=sys.stderr)
    return 2
