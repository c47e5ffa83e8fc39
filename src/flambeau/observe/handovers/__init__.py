"""Synchronization between host threads as race detectors see it; see Note [Host threads].

While a detector is attached, the standard library's synchronization calls report to it. Each call is of one
of three kinds:

- It orders the same calls in every run: `Thread.start` and `join`, `Event.set` and `wait`, items of a
  queue, `Barrier.wait`, an executor's tasks and their `Future.result`. These are edges of the strict order.
- It is a query: `Event.is_set`, `Queue.empty`, `Thread.is_alive`, `Future.done`, any wait with a timeout.
  Its answer depends on timing unless each change by another thread is ordered before the query, or after it
  (`words.Polled`). The certificate names the call site of a query that depends on timing.
- It admits the first thread that arrives: locks, semaphores. These order nothing.

Queries of the standard library and of Flambeau itself are not named. Edges count for every caller.
"""

from flambeau.observe.handovers.listeners import (
    forget,
    listen,
    listening,
    unwatch_process,
    watch,
    watch_process,
)

__all__ = ["forget", "listen", "listening", "unwatch_process", "watch", "watch_process"]
