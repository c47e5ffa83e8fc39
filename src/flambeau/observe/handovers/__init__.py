"""Synchronization between host threads as race detectors see it; see Note [Host threads].

While a detector listens, the standard library's means of synchronization report to it. Each does one of three things:

- It orders the same calls in every run: `Thread.start` and `join`, `Event.set` and `wait`, what goes through a queue,
  `Barrier.wait`, an executor's tasks and their `Future.result`. These are edges of the strict order.
- It answers a question: `Event.is_set`, `Queue.empty`, `Thread.is_alive`, `Future.done`, any wait with a timeout. An
  answer depends on timing unless each change by another thread comes before the question, or after it, in every run
  (`words.Polled`). The line of such a question is named.
- It lets through whoever comes first: locks, semaphores. These order nothing.

What the standard library and Flambeau itself ask for their own ends is not named; edges count whoever uses them.
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
