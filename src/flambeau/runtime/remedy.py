"""`remedy`: the setting under which a trace that ran out of memory would have fitted, found by replaying it."""

from __future__ import annotations

from dataclasses import replace

from flambeau.runtime.allocator import CachingAllocator
from flambeau.runtime.blocks import Pool
from flambeau.runtime.policy import MIB, Policy
from flambeau.runtime.replay import events_of, play
from flambeau.runtime.snapshot import segments, trace
from flambeau.runtime.statistics import format_size

_MOST = 8192  # events that are replayed, the latest: an error must not take long


def remedy(allocator: CachingAllocator, pool: Pool, size: int) -> str:
    """What would have helped, as a sentence; what was tried if nothing would."""
    events = events_of(trace(allocator, most=_MOST, orders=True), segments(allocator))
    free, _ = allocator.context.driver.mem_info(allocator.context.driver_index)
    capacity = allocator.limit or free + allocator.reserved_bytes()
    if events and play(events, capacity, allocator.policy).fits:
        return "Replayed from an empty device, the same requests fit: earlier ones left the memory in pieces."
    tried = []
    for what, policy in candidates(allocator.policy, capacity):
        if play(events, capacity, policy).fits:
            return f"With PYTORCH_ALLOC_CONF={what} this very trace would have fitted (replayed just now)."
        tried.append(what)
    if len({event.stream for event in events if event.action == "alloc"}) > 1:
        one = [replace(event, stream=0) for event in events]
        if play(one, capacity, allocator.policy).fits:
            return "On one stream this very trace would have fitted (replayed just now)."
        tried.append("one stream")
    needed = play(events, 1 << 60, allocator.policy).peak_reserved
    return (
        f"No setting would have made it fit; replayed with {', '.join(tried)}. With {format_size(needed)} in place of "
        f"{format_size(capacity)} it would have."
    )


def candidates(policy: Policy, capacity: int) -> list[tuple[str, Policy]]:
    """Settings worth a try, with the text that sets them."""
    found = [policy.with_(max_split=n * MIB) for n in (32, 128, 512) if n * MIB < capacity]
    found += [policy.with_(divisions=(steps,)) for steps in (8, 4, 2) if not policy.divisions]
    found.append(policy.with_(collect_above=0.6))
    if not policy.expandable:
        found.insert(0, policy.with_(expandable=True))
    return [(one.text, one) for one in found]
