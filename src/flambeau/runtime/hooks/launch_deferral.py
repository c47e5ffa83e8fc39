"""Launches that were called for and not issued yet. Owner of that state.

# Note [Deferred launches]
Problem: Inside of a compiled function, pointwise calls are collected to be issued as one kernel. What the program can
observe must be as if each had been launched at its call.
Rule: At most one group is pending in the process. Whatever depends on the order of work, or on memory, calls `settle`
first, which issues the group. Results of pending calls have no address: reading it issues the group as well (see
`DeferredStorage`).
Consequences: Code that makes driver calls need not know of this: while a region is open, the contexts' drivers are
`SettlingDriver`s. Only what changes memory without a driver call names `settle`.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol


class PendingLaunches(Protocol):
    """A group of launches that a compiled function requested and that are not issued yet."""

    def issue(self, why: str, /) -> None:
        """Issue the launches. `why` names what needs their results, for logs."""


class _Regions(threading.local):
    """The compiled functions that are running in one thread, nested in each other."""

    depth = 0


local = _Regions()
open_regions = 0  # number of running compiled functions, in all threads
pending: PendingLaunches | None = None
collecting: Any = None  # the module `collecting`; None until a program has compiled a function
has_recorded = False  # a compiled function recorded calls for backward, which then collects launches as well
lock = threading.RLock()


def settle(why: str) -> None:
    """Issue the pending launches, if there are any.

    Args:
        why: What needs them, for logs.
    """
    if pending is not None:
        with lock:
            if pending is not None:
                pending.issue(why)


def add_region(change: int) -> None:
    """Add `change` to the number of running compiled functions of this thread: 1 at the beginning of one, -1 at its
    end.
    """
    global open_regions
    with lock:
        open_regions += change
    local.depth += change


def replace(group: PendingLaunches | None) -> None:
    """Set the pending group of launches; None for none."""
    global pending
    pending = group


def note_recording(happened: bool = True) -> None:
    """Set whether backward passes may collect launches, because a compiled function recorded calls for backward."""
    global has_recorded
    has_recorded = happened
