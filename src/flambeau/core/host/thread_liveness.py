"""`alone`: whether the program's other threads, if there are any, could go on where this one waits."""

from __future__ import annotations

import threading

# Threads that only serve other processes, or pass on data of other threads.
_SERVANTS = ("flambeau", "QueueFeederThread")


def alone() -> bool:
    """Return True if no other thread of the program is there: Flambeau's own, and multiprocessing's feeders, do not
    count.
    """
    me = threading.current_thread()
    return all(thread is me or thread.name.startswith(_SERVANTS) for thread in threading.enumerate())
