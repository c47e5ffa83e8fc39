"""`flambeau memory`: what a memory snapshot holds, as a page; and what other settings would have made of its trace."""

from __future__ import annotations

import argparse
import io
import json
import pickle
import re
import sys
from pathlib import Path
from typing import Any

from flambeau.cli.memory_page import page
from flambeau.runtime.policy import Policy, from_environment, policy_of
from flambeau.runtime.replay import Outcome, events_of, play
from flambeau.runtime.statistics import format_size

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
    if len(options.words) > 1 and not replays:
        return _refuse(f"one snapshot at a time, not {' '.join(options.words)}")
    try:
        found = load(Path(options.words[-1]))
        return _replay(options, found) if replays else _report(options, found)
    except (OSError, ValueError) as error:
        return _refuse(str(error))


def load(path: Path) -> dict[str, Any]:
    """A snapshot from a pickle or a JSON file. ValueError: it is none."""
    content = path.read_bytes()
    try:
        found = json.loads(content) if content[:1] == b"{" else _Unpickler(io.BytesIO(content)).load()
    except (pickle.UnpicklingError, EOFError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(f"{path} is no memory snapshot: {error}") from None
    if isinstance(found, list):  # memory_snapshot() gives segments alone
        found = {"segments": found, "device_traces": []}
    if not isinstance(found, dict) or "segments" not in found:
        raise ValueError(f"{path} is no memory snapshot: it has no segments")
    found.setdefault("device_traces", [])
    return found


class _Unpickler(pickle.Unpickler):
    """Reads plain containers, numbers and texts. A file from elsewhere must not run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and a snapshot is plain data")


def _report(options: argparse.Namespace, found: dict[str, Any]) -> int:
    source = Path(options.words[-1])
    output = options.output or source.with_suffix(".html")
    if output.suffix == ".json":
        output.write_text(json.dumps(found))
    else:
        output.write_text(page(found, source.name), encoding="utf-8")
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
    capacity = 1 << 62 if options.capacity is None else size_of(options.capacity)
    policies = [policy_of(text) for text in options.conf] or [from_environment()]
    outcomes = [play(events, capacity, policy) for policy in policies]
    most = "unlimited memory" if options.capacity is None else format_size(capacity)
    print(f"{len(events)} events of device {device}, replayed on {most}:")
    for outcome in outcomes:
        print(_told(outcome))
    return 0 if all(outcome.fits for outcome in outcomes) else 1


def size_of(text: str) -> int:
    """ "24GiB", "16 GB" or "1073741824" in bytes. ValueError: it is no size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if found is None or found[2].upper() not in _UNITS:
        raise ValueError(f"--capacity {text!r} is no size; write it as 24GiB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


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
