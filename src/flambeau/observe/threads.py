"""The host threads of a program, with their vector clocks.

# Note [Host threads] A host thread's clock covers what it has waited for and what messages from other
threads carry: `Thread.start` and `join`, `threading.Event`, items of a `queue.Queue`. These carry the same
in every run. The order in which threads acquire a lock does not repeat, so locks carry nothing. Each host
thread is a logical thread, like a stream; its number counts the messages that it has sent. `clock[thread]
>= n` means that everything before its n-th message happens before the owner of the clock.

Two orders are kept. The *strict* order follows from these messages alone. Accesses that it leaves unordered
may happen in another order in another run. The *loose* order assumes that all threads know what any thread
has waited for, as in this run. A conflict that only the loose order orders is not reported, because the
threads may have synchronized in a way that the detector cannot see (a lock, a pipe, a C library). No
certificate is given then.

The same holds for calls: a stream that two threads use, an event that one records and another waits for,
the random numbers of a device. If nothing orders the threads there, another run may reverse the order of
the calls.

# Note [Expected threads] Problem: `Thread.start` returns, and the new thread makes its first call later. What
others did meanwhile depends on the host's scheduler. Rule: A thread counts from the call of `start` on, and
a pool's task from its `submit`, with the clock of that call. So accesses that it does not know are kept.

A thread may poll without effect on the others: it uses no tensor, and no thread receives a message that it
has sent. Threads of progress bars and of monitors are such threads. Their polls are not named.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from threading import get_ident, local, main_thread
from typing import TypeAlias
from weakref import WeakKeyDictionary, WeakMethod

from flambeau.core.vector_clock import join_clock
from flambeau.observe.clocks import NOBODY, NOTHING, Clock, LogicalThread, Snapshot

_TRIED = 8  # logical threads of finished tasks that are considered for a new task

Outer: TypeAlias = "tuple[LogicalThread, Clock]"
"""A pool's thread outside of its task: its logical thread and its clock."""


class Threads:
    """The clocks of all host threads.

    A task of a thread pool counts as a separate thread, because which of the pool's threads runs it differs
    from run to run. Callers hold the detector's lock.

    Args:
        thread_ends: Called in a thread that ends; it calls `end`.

    Attributes:
        mine: The logical thread of the running thread. The caller keeps its clock.
        count: The number of threads that have called the driver.
        logical: The number of logical threads that have called the driver; each task of a pool is one.
        on_action: Called in a thread when it uses a tensor for the first time.
    """

    def __init__(self, thread_ends: Callable[[], None]) -> None:
        self._tokens = local()
        self._thread_ends = WeakMethod(thread_ends)
        self.on_action: Callable[[], None] = lambda: None
        self.mine = NOBODY
        self.count = 0
        self.logical = 0
        self._counted: set[int] = set()  # the threads in `count`
        self._outside: dict[int, Clock] = {}  # thread that runs a task -> its clock before
        self._idle: deque[LogicalThread] = deque()  # logical threads of finished tasks, oldest first
        self._running = 0
        self._agents: dict[int, LogicalThread] = {}  # thread -> logical thread
        self._known: dict[int, Clock] = {}  # thread -> clock, for threads that do not run
        self._callers: set[LogicalThread] = set()
        # message to a thread that has not begun -> the thread's clock; see Note [Expected threads]
        self._expected: WeakKeyDictionary[object, Clock] = WeakKeyDictionary()

    def enter(self, known: Clock) -> Clock:
        """Switch to this thread. `known` is the clock of the last caller; return this thread's clock."""
        ident = get_ident()
        self._known[self._running] = known
        self.mine, self._running = self._agent(ident), ident
        if self.mine not in self._callers:
            self._callers.add(self.mine)
            self.act()
            self.logical += 1
            if ident not in self._counted:
                self._counted.add(ident)
                self.count += 1
        return self._known.pop(ident, {})

    def act(self) -> None:
        """Note that this thread uses tensors."""
        mine = self.agent()
        if not mine.acts:
            mine.acts = True
            self.on_action()

    def publish(self, known: Clock) -> tuple[Snapshot, Clock]:
        """Return this thread's position, for a message, and the running thread's clock after it."""
        ident = get_ident()
        agent = self._agent(ident)
        point = agent, agent.time, self.clock_of(ident, known)
        agent.time += 1
        # The running thread gets a new clock object, so that streams take it over again.
        return point, dict(known) if ident == self._running else known

    def receive(self, point: Snapshot, known: Clock) -> Clock:
        """Add the position of a message to this thread's clock; return the running thread's clock."""
        ident = get_ident()
        if point[0] is not self._agents.get(ident):
            point[0].acts = True
        received = join_clock(self.clock_of(ident, known), point)
        if ident == self._running:
            return received
        self._agent(ident)
        self._known[ident] = received
        return known

    def end(self) -> None:
        """Remove this thread, which ends, because its identifier may be reused."""
        ident = get_ident()
        self._callers.discard(self._agents.pop(ident, NOBODY))
        self._counted.discard(ident)
        self._known.pop(ident, None)
        if ident == self._running:
            self._running = 0

    def begin_task(self, point: Snapshot | None, known: Clock) -> Outer:
        """Begin a task on this thread, with the clock that `point` carries. Return the thread's own state."""
        ident = get_ident()
        outer = self._agent(ident), self.clock_of(ident, known)
        if ident == self._running:
            self._running = 0
        task = NOTHING if point is None else join_clock(NOTHING, point)
        self._agents[ident], self._outside[ident] = self._agent_of_task(task), outer[1]
        self._known[ident] = task
        return outer

    def end_task(self, outer: Outer, known: Clock) -> None:
        """End the task. A wait for the end of the thread is a wait for all of its tasks."""
        ident = get_ident()
        agent, before = self._agents[ident], self.clock_of(ident, known)
        if ident == self._running:
            self._running = 0
        end = agent, agent.time, before
        agent.time += 1
        agent.acts = True  # the pool's thread receives the task's end
        self._idle.append(agent)
        self._agents[ident] = outer[0]
        self._known[ident] = join_clock(self._outside.pop(ident), end)

    def _agent_of_task(self, known: Clock) -> LogicalThread:
        """Return a logical thread whose last task happens before the new one, or a new logical thread.

        There are then as many logical threads as concurrent tasks.
        """
        for agent in list(itertools.islice(self._idle, _TRIED)):
            if known.get(agent, 0) >= agent.time - 1:
                self._idle.remove(agent)
                return agent
        agent = LogicalThread(-1)
        agent.time = 1
        return agent

    def clock_of(self, ident: int, known: Clock) -> Clock:
        """Return a thread's clock; `known` is that of the running thread."""
        return known if ident == self._running else self._known.get(ident, {})

    def agent(self) -> LogicalThread:
        """Return the logical thread of this thread."""
        return self._agent(get_ident())

    def others(self) -> list[tuple[LogicalThread, Clock]]:
        """Return the threads that do not run, and those that have not begun yet, with their clocks."""
        inside = [
            (a, self._known.get(ident, {})) for ident, a in self._agents.items() if ident != self._running
        ]
        outside = [(NOBODY, known) for known in self._outside.values()]
        return [*inside, *outside, *[(NOBODY, known) for known in self._expected.values()]]

    def expect(self, word: object, point: Snapshot) -> None:
        """Add a thread that will begin with the position that `word` carries."""
        self._expected[word] = join_clock(NOTHING, point)

    def begins(self, word: object) -> None:
        """Remove an expected thread, which has begun or never will."""
        self._expected.pop(word, None)

    def _agent(self, ident: int) -> LogicalThread:
        found = self._agents.get(ident)
        if found is None:
            found = self._agents[ident] = LogicalThread(-1)
            found.time = 1
            if not hasattr(self._tokens, "token") and ident != main_thread().ident:
                self._tokens.token = _ThreadSentinel(self._thread_ends)
        return found


class _ThreadSentinel:
    """A thread-local object that reports the end of its thread, even of a thread whose start was not seen.

    Otherwise a later thread with the same identifier would be taken for it.
    """

    __slots__ = ("_thread_ends",)

    def __init__(self, thread_ends: WeakMethod[Callable[[], None]]) -> None:
        self._thread_ends = thread_ends

    def __del__(self) -> None:
        thread_ends = self._thread_ends()
        if thread_ends is not None:
            thread_ends()
