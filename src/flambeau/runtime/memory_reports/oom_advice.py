"""Out-of-memory suggestions: finds the setting under which the event log replays without an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.runtime.memory.allocator import CachingAllocator
from flambeau.runtime.memory.allocator_config import MIB, Policy
from flambeau.runtime.memory.allocator_statistics import format_size
from flambeau.runtime.memory.blocks import Pool
from flambeau.runtime.memory_reports.replay import Event, ReplayResult, events_of, play
from flambeau.runtime.memory_reports.snapshot import pool_id, segments, trace

_MOST = 8192  # latest events that are replayed, which bounds the time that an error takes
_AMPLE = 1 << 50  # more bytes than any device has
_FULL = 0.95  # a setting whose replay needs a larger share of the memory would soon fail too


def suggest_settings(allocator: CachingAllocator, pool: Pool, size: int) -> str:
    """Return a sentence that names a setting with which the request would have succeeded, or the settings that were
    tried.
    """
    events = events_of(_until_refused(allocator, pool, size), segments(allocator))
    free, total = allocator.context.driver.mem_info(allocator.context.driver_index)
    capacity = allocator.limit or free + allocator.reserved_bytes()
    if size > total:
        return ""
    if _replay_with(events, capacity, total, allocator.policy).fits:
        return "Replayed from an empty device, the same requests fit: earlier ones left the memory in pieces."
    tried: list[str] = []
    for name, policy in candidates(allocator.policy, capacity):
        outcome = _replay_with(events, capacity, total, policy)
        if outcome.fits:
            return f"With PYTORCH_ALLOC_CONF={policy.text} {_describe_fit(outcome, capacity)}"
        tried.append(name)
    if len({event.stream for event in events if event.action == "alloc"}) > 1:
        outcome = _replay_with(
            [event._replace(stream=0) for event in events], capacity, total, allocator.policy
        )
        if outcome.fits:
            return f"On one stream {_describe_fit(outcome, capacity)}"
        tried.append("one stream")
    needed = format_size(_find_least_capacity(events, total, allocator.policy))
    return (
        f"No setting would have made it fit (replayed: {', '.join(dict.fromkeys(tried))}). With {needed} in place of "
        f"{format_size(capacity)} this request would have fitted."
    )


def candidates(policy: Policy, capacity: int) -> list[tuple[str, Policy]]:
    """Return settings that might help, each with the name of the changed setting."""
    splits = [n * MIB for n in (32, 128, 512) if n * MIB < capacity]
    found = [("max_split_size_mb", policy.with_(max_split=split)) for split in splits]
    if not policy.divisions:
        found += [("roundup_power2_divisions", policy.with_(divisions=(steps,))) for steps in (8, 4, 2)]
    found.append(("garbage_collection_threshold", policy.with_(collect_above=0.6)))
    if not policy.expandable:
        found.insert(0, ("expandable_segments", policy.with_(expandable=True)))
    return found


def _until_refused(allocator: CachingAllocator, pool: Pool, size: int) -> list[dict[str, Any]]:
    """Return the events up to the refused request, treating earlier refused requests as freed immediately.

    If only live memory is recorded, the history is older, and only live blocks are known.
    """
    recording = allocator.recording
    known = recording is None or recording.enabled == "all"
    entries = trace(allocator, most=_MOST, orders=True) if known else []
    stream = allocator.context.backing.stream_native(pool.stream)
    refused = {"action": "oom", "size": size, "stream": stream, "pool_id": pool_id(pool)}
    return [*[entry for entry in entries if entry["action"] != "oom"], refused]


def _replay_with(events: Sequence[Event], capacity: int, total: int, policy: Policy) -> ReplayResult:
    """Replay events on a device of `total` bytes of which `capacity` may be reserved.

    Expandable segments may reserve all of it.
    """
    share = (capacity + 0.5) / total  # half a byte more, so that rounding does not lose one
    return play(events, max(capacity, total), policy.with_(fraction=min(share, 1.0)))


def _describe_fit(outcome: ReplayResult, capacity: int) -> str:
    share = outcome.peak_allocated / capacity
    soon = f", with tensors in {share:.0%} of the memory: it will be short again soon" * (share > _FULL)
    return f"this very trace would have fitted (replayed just now){soon}."


def _find_least_capacity(events: Sequence[Event], total: int, policy: Policy) -> int:
    """Return the least capacity, up to a small error, with which the events replay, in bytes."""
    ample = _replay_with(events, _AMPLE, total, policy)
    least, most = ample.peak_allocated - 1, ample.peak_reserved
    while most - least > max(most >> 6, 2 * MIB):
        middle = (least + most) // 2
        if _replay_with(events, middle, total, policy).fits:
            most = middle
        else:
            least = middle
    return most
