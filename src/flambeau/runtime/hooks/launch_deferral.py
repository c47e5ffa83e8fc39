"""Launches that were called for and not issued yet. Owner of that state.

# Note [Deferred launches]
Problem: Inside of a compiled function, pointwise calls are collected to be issued as one kernel. What the program can
observe must be as if each had been launched at its call.
Rule: At most one group is pending in the process. Whatever depends on the order of work, or on memory, calls `settle`
first, which issues the group. Results of pending calls have no address: reading it issues the group as well (see
`DeferredStorage`).
Consequences: Code that makes driver calls need not know of this: while a region is open, the contexts' drivers are
`SettlingDriver`s. Only what changes memory without a driver call names `settle`.

# Note [Small calls]
Problem: Collecting a call costs the host more than launching it. Kernels of small tensors take the device less time
than the host needs to launch them, so fusing them gains nothing.
Rule: A call is launched immediately if none of its operands has `least_nbytes` bytes, unless it reads a pending result.
Why: The rule depends on layouts alone, so a program launches the same kernels in each run.
Consequences: Calls that are never collected take the fast path of eager code while nothing is pending. Functions that
become CUDA graphs collect calls of all sizes, because a replay costs the host nothing for each kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
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
least_nbytes = 0  # of an operand of a call that is collected: see Note [Small calls]
lock = threading.RLock()
_subscribers: list[Callable[[], None]] = []


def settle(why: str) -> None:
    """Issue the pending launches, if there are any.

    Args:
        why: What needs them, for logs.
    """
    if pending is not None:
        with lock:
            if pending is not None:
                pending.issue(why)


def subscribe(changed: Callable[[], None]) -> None:
    """Call `changed()` after `open_regions`, `least_nbytes` or `pending` changed."""
    _subscribers.append(changed)


def open_region(nbytes: int) -> int:
    """Begin a compiled function in this thread.

    Args:
        nbytes: The value of `least_nbytes` for it. An enclosing function's remains if it is smaller.

    Returns:
        The value of `least_nbytes` to which `close_region` returns.
    """
    global open_regions, least_nbytes
    with lock:
        before = least_nbytes
        least_nbytes = min(before, nbytes) if open_regions else nbytes
        open_regions += 1
        _notify()
    local.depth += 1
    return before


def close_region(nbytes: int) -> None:
    """End a compiled function in this thread. `nbytes` is what `open_region` returned."""
    global open_regions, least_nbytes
    local.depth -= 1
    with lock:
        open_regions -= 1
        least_nbytes = nbytes
        _notify()


def replace(group: PendingLaunches | None) -> None:
    """Set the pending group of launches; None for none. The caller holds `lock`."""
    global pending
    pending = group
    _notify()


def _notify() -> None:
    for changed in _subscribers:
        changed()


def note_recording(happened: bool = True) -> None:
    """Set whether backward passes may collect launches, because a compiled function recorded calls for backward."""
    global has_recorded
    has_recorded = happened
