"""`alone`: a check whether another thread of the program could run while this one waits."""

from __future__ import annotations

import threading

# Threads that only serve other processes, or pass on data of other threads.
_SERVANTS = ("flambeau", "QueueFeederThread")


def alone() -> bool:
    """Return True if the program has no other thread. Threads of Flambeau and feeders of multiprocessing do not
    count.
    """
    me = threading.current_thread()
    return all(thread is me or thread.name.startswith(_SERVANTS) for thread in threading.enumerate())
