"""Vector clocks: logical thread -> the last of its times that happens before the owner of the clock.

A clock is never changed, only replaced, so that an event refers to the clock that it recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TypeVar

Thread = TypeVar("Thread")


def join_clock(
    clock: Mapping[Thread, int], position: tuple[Thread, int, Mapping[Thread, int]]
) -> Mapping[Thread, int]:
    """Return the clock joined with a position (thread, time, its clock); the same object if nothing changes."""
    thread, time, theirs = position
    if clock.get(thread, 0) >= time:
        return clock
    return merge_clocks(clock, {**theirs, thread: max(time, theirs.get(thread, 0))})


def merge_clocks(clock: Mapping[Thread, int], other: Mapping[Thread, int]) -> Mapping[Thread, int]:
    """Return the smallest clock that covers both."""
    if not clock:
        return other
    result = dict(clock)
    for thread, time in other.items():
        if result.get(thread, 0) < time:
            result[thread] = time
    return result


def without_threads(clock: Mapping[Thread, int], gone: Set[Thread]) -> Mapping[Thread, int]:
    """Return the clock without these logical threads; the same object if it contains none of them."""
    if gone.isdisjoint(clock):
        return clock
    return {thread: time for thread, time in clock.items() if thread not in gone}
