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

from threading import get_ident

from flambeau.observe.clocks import NOBODY, Agent, Clock, Snapshot, joined


class Threads:
    """What each host thread knows. `mine` is the agent of the thread that runs, whose knowledge its user keeps.

    `count` is how many have called the driver. Not locked: its detector is.
    """

    def __init__(self) -> None:
        self.mine = NOBODY
        self.count = 0
        self._running = 0
        self._agents: dict[int, Agent] = {}  # by thread
        self._known: dict[int, Clock] = {}  # of those that do not run
        self._callers: set[Agent] = set()

    def enter(self, known: Clock) -> Clock:
        """This thread calls the driver. `known` is what the last one that did knows; what this one knows."""
        ident = get_ident()
        self._known[self._running] = known
        self.mine, self._running = self._agent(ident), ident
        if self.mine not in self._callers:
            self._callers.add(self.mine)
            self.count += 1
        return self._known.pop(ident, {})

    def tell(self, known: Clock) -> tuple[Snapshot, Clock]:
        """What this thread can tell another one; and what the one that runs knows from then on."""
        ident = get_ident()
        agent = self._agent(ident)
        point = agent, agent.time, self.known(ident, known)
        agent.time += 1
        return point, dict(
            known
        ) if ident == self._running else known  # another object: streams look at it anew

    def hear(self, point: Snapshot, known: Clock) -> Clock:
        """Another thread has told this one. What the one that runs knows then."""
        ident = get_ident()
        heard = joined(self.known(ident, known), point)
        if ident == self._running:
            return heard
        self._agent(ident)
        self._known[ident] = heard
        return known

    def end(self) -> None:
        """This thread ends: its number may be another's soon."""
        ident = get_ident()
        self._callers.discard(self._agents.pop(ident, NOBODY))
        self._known.pop(ident, None)
        if ident == self._running:
            self._running = 0

    def known(self, ident: int, known: Clock) -> Clock:
        """What a thread knows; `known` is what the one that runs does."""
        return known if ident == self._running else self._known.get(ident, {})

    def agent(self) -> Agent:
        """The agent of this thread."""
        return self._agent(get_ident())

    def others(self) -> list[Clock]:
        """What the threads know that do not run now."""
        return [self._known.get(ident, {}) for ident in self._agents if ident != self._running]

    def _agent(self, ident: int) -> Agent:
        found = self._agents.get(ident)
        if found is None:
            found = self._agents[ident] = Agent(-1)
            found.time = 1
        return found
