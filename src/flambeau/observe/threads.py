"""`Threads`: the host threads of a program as a race detector sees them, and what each of them knows.

# Note [Host threads]
A thread knows what it has waited for, and what it was told by another thread: by `Thread.start` and `join`, by
`threading.Event`, by what comes out of a `queue.Queue`. These tell the same in every run. Who gets a lock first does
not repeat, so locks tell nothing. Each thread is an agent among the streams, whose number counts what it has told:
`known[thread] >= n` says that all which the thread did before its n-th telling came first.

Two orders are kept. The *strict* one is drawn from these alone. By it, accesses are looked for that another run could
make in another order. The *loose* one takes what any thread has waited for as known to all, as this run had it. A
conflict that the strict order leaves open and the loose one does not is no race, since threads may have met in a way
that cannot be seen from here (a lock, a pipe, a C library), but no certificate is given then.

The same goes for calls: a stream that two threads give work to, an event that one records and another waits for, the
random numbers of a device. Where nothing orders the threads there, another run may order the calls the other way round.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from threading import get_ident, local, main_thread
from typing import TypeAlias
from weakref import WeakMethod

from flambeau.observe.clocks import NOBODY, NOTHING, Clock, LogicalThread, Snapshot, join_clock

_TRIED = 8  # agents of ended tasks that a new task is compared with

Outer: TypeAlias = "tuple[LogicalThread, Clock]"
"""A thread of a pool outside of its task: its agent, and what it knew."""


class Threads:
    """What each host thread knows. `mine` is the agent of the thread that runs, whose knowledge its user keeps.

    A task of a thread pool is a thread of its own here: which of the pool's threads runs it differs from run to run.
    `thread_ends` is called in a thread that ends, and calls `end`. `count` is how many threads have called the driver,
    `logical` counts tasks too. Not locked: its detector is.
    """

    def __init__(self, thread_ends: Callable[[], None]) -> None:
        self._tokens = local()
        self._thread_ends = WeakMethod(thread_ends)
        self.mine = NOBODY
        self.count = 0
        self.logical = 0
        self._counted: set[int] = set()  # threads, in `count`
        self._outside: dict[int, Clock] = {}  # by thread that runs a task: what it knew before
        self._idle: deque[LogicalThread] = deque()  # of tasks that have ended, the first first
        self._running = 0
        self._agents: dict[int, LogicalThread] = {}  # by thread
        self._known: dict[int, Clock] = {}  # of those that do not run
        self._callers: set[LogicalThread] = set()

    def enter(self, known: Clock) -> Clock:
        """This thread calls the driver. `known` is what the last one that did knows; what this one knows."""
        ident = get_ident()
        self._known[self._running] = known
        self.mine, self._running = self._agent(ident), ident
        if self.mine not in self._callers:
            self._callers.add(self.mine)
            self.logical += 1
            if ident not in self._counted:
                self._counted.add(ident)
                self.count += 1
        return self._known.pop(ident, {})

    def publish(self, known: Clock) -> tuple[Snapshot, Clock]:
        """What this thread can tell another one; and what the one that runs knows from then on."""
        ident = get_ident()
        agent = self._agent(ident)
        point = agent, agent.time, self.clock_of(ident, known)
        agent.time += 1
        return point, dict(
            known
        ) if ident == self._running else known  # another object: streams look at it anew

    def receive(self, point: Snapshot, known: Clock) -> Clock:
        """Another thread has told this one. What the one that runs knows then."""
        ident = get_ident()
        received = join_clock(self.clock_of(ident, known), point)
        if ident == self._running:
            return received
        self._agent(ident)
        self._known[ident] = received
        return known

    def end(self) -> None:
        """This thread ends: its number may be another's soon."""
        ident = get_ident()
        self._callers.discard(self._agents.pop(ident, NOBODY))
        self._counted.discard(ident)
        self._known.pop(ident, None)
        if ident == self._running:
            self._running = 0

    def begin_task(self, point: Snapshot | None, known: Clock) -> Outer:
        """This thread begins a task that knows what `point` tells; what it was and knew before."""
        ident = get_ident()
        outer = self._agent(ident), self.clock_of(ident, known)
        if ident == self._running:
            self._running = 0
        task = NOTHING if point is None else join_clock(NOTHING, point)
        self._agents[ident], self._outside[ident] = self._agent_of_task(task), outer[1]
        self._known[ident] = task
        return outer

    def end_task(self, outer: Outer, known: Clock) -> None:
        """The task has ended. Who waits for the thread's end waits for all of its tasks."""
        ident = get_ident()
        agent, before = self._agents[ident], self.clock_of(ident, known)
        if ident == self._running:
            self._running = 0
        end = agent, agent.time, before
        agent.time += 1
        self._idle.append(agent)
        self._agents[ident] = outer[0]
        self._known[ident] = join_clock(self._outside.pop(ident), end)

    def _agent_of_task(self, known: Clock) -> LogicalThread:
        """An agent whose last task has ended before what the new one knows: as many agents as tasks at a time."""
        for agent in list(itertools.islice(self._idle, _TRIED)):
            if known.get(agent, 0) >= agent.time - 1:
                self._idle.remove(agent)
                return agent
        agent = LogicalThread(-1)
        agent.time = 1
        return agent

    def clock_of(self, ident: int, known: Clock) -> Clock:
        """What a thread knows; `known` is what the one that runs does."""
        return known if ident == self._running else self._known.get(ident, {})

    def agent(self) -> LogicalThread:
        """The agent of this thread."""
        return self._agent(get_ident())

    def others(self) -> list[Clock]:
        """What the threads know that do not run now."""
        inside = [self._known.get(ident, {}) for ident in self._agents if ident != self._running]
        return inside + list(self._outside.values())

    def _agent(self, ident: int) -> LogicalThread:
        found = self._agents.get(ident)
        if found is None:
            found = self._agents[ident] = LogicalThread(-1)
            found.time = 1
            if not hasattr(self._tokens, "token") and ident != main_thread().ident:
                self._tokens.token = _ThreadSentinel(self._thread_ends)
        return found


class _ThreadSentinel:
    """Lives as long as a thread, and reports its end: also of a thread whose start was not seen.

    Else a later thread with the same number would be taken for it.
    """

    __slots__ = ("_thread_ends",)

    def __init__(self, thread_ends: WeakMethod[Callable[[], None]]) -> None:
        self._thread_ends = thread_ends

    def __del__(self) -> None:
        thread_ends = self._thread_ends()
        if thread_ends is not None:
            thread_ends()
