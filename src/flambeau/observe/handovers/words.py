"""Order of host threads at one object: `Word` and `ThreadRole` are edges, `Polled` reports answers that vary."""

from __future__ import annotations

from weakref import WeakKeyDictionary, ref

from flambeau.core.callsite import Site, program_site
from flambeau.observe.clocks import LogicalThread, Snapshot
from flambeau.observe.detector import Detector
from flambeau.observe.handovers.listeners import listening
from flambeau.observe.order import Caller

_QUESTIONS = 64  # queries of one state that are kept before those that all threads know are dropped


class ThreadRole:
    """A role of threads at an object, such as "puts into the queue". The threads of one role must be ordered.

    `broken` is True if they were not, in this run.
    """

    def __init__(self) -> None:
        self._last: WeakKeyDictionary[Detector, Caller] = WeakKeyDictionary()
        self.broken = False

    def step(self, what: str) -> None:
        """Record that this thread acts in the role. If nothing orders it after the role's last thread, report
        `what`.
        """
        for detector in listening():
            last = self._last.get(detector)
            if last is not None and not detector.knows(last):
                self.broken = True
                if what:
                    detector.findings.threads_unordered(what, program_site())
            self._last[detector] = detector.here()

    def is_known(self) -> bool:
        """Return True if this thread happens after the thread that had the role last."""
        return all(last is None or d.knows(last) for d in listening() for last in [self._last.get(d)])


class Word:
    """A message of one thread at an object: its position for each detector, and the thread that withdrew it, if any."""

    def __init__(self) -> None:
        self.points: list[tuple[ref[Detector], Snapshot]] = [(ref(d), d.publish()) for d in listening()]
        self.taken_back: WeakKeyDictionary[Detector, Caller] | None = None

    def announce(self) -> None:
        """Announce a host thread that will begin with this message."""
        for each, point in self.points:
            if (detector := each()) is not None:
                detector.expect_thread(self, point)

    def thread_begins(self) -> None:
        """End the announcement: the thread has begun, or never will."""
        for each, _ in self.points:
            if (detector := each()) is not None:
                detector.thread_begins(self)

    def take_back(self) -> None:
        self.taken_back = WeakKeyDictionary({d: d.here() for d in listening()})

    def receive(self) -> None:
        for each, point in self.points:
            if (detector := each()) is not None:
                detector.receive(point)

    def is_known(self) -> bool:
        """Return True if this thread happens after the message was sent."""
        return all(d.knows(point[:2]) for each, point in self.points if (d := each()) is not None)

    def is_over(self) -> bool:
        """Return True if this thread happens after the withdrawal of the message, and so waits for a later message."""
        return self.taken_back is not None and all(d.knows(who) for d, who in self.taken_back.items())

    def point_of(self, detector: Detector) -> Snapshot | None:
        return next((point for each, point in self.points if each() is detector), None)


class Polled:
    """A state that some threads change and others query.

    Queries and changes are treated as reads and writes of a variable. An answer is the same in every run if
    each change by another thread is ordered before the query, or after it.
    """

    def __init__(self) -> None:
        self._changes: WeakKeyDictionary[Detector, dict[LogicalThread, int]] = WeakKeyDictionary()
        self._questions: WeakKeyDictionary[Detector, dict[tuple[str, Site, LogicalThread], int]] = (
            WeakKeyDictionary()
        )

    def change(self) -> None:
        """Record that this thread changes the state."""
        for detector in listening():
            questions = self._questions.get(detector, {})
            for (what, site, agent), time in list(questions.items()):
                if not detector.knows((agent, time)):
                    detector.findings.thread_asked(what, site, agent)
                    del questions[what, site, agent]
            if len(questions) > _QUESTIONS:
                asked = [key for key, time in questions.items() if detector.all_come_after((key[2], time))]
                for key in asked:
                    del questions[key]
            before = self._changes.get(detector, {})
            unknown = {agent: time for agent, time in before.items() if not detector.knows((agent, time))}
            self._changes[detector] = unknown | dict([detector.here()])

    def begin(self) -> None:
        """Record that this thread makes the first change. Questions before it have the same answer in every run."""
        self.change()
        for detector in listening():
            self._questions.pop(detector, None)

    def ask(self, what: str, site: Site | None) -> None:
        """Record that this thread queries the state at call site `site`; None if the program does not query it."""
        for detector in listening() if site is not None else ():
            agent, time = detector.here()
            if all(detector.knows(change) for change in self._changes.get(detector, {}).items()):
                questions = self._questions.setdefault(detector, {})
                questions[what, site, agent] = time  # type: ignore[index]
            else:
                detector.findings.thread_asked(what, site, agent)  # type: ignore[arg-type]

    def name_open(self, detector: Detector) -> None:
        """Report the queries that no synchronization orders before a possible later change of the state."""
        for what, site, agent in self._questions.pop(detector, {}):
            detector.findings.thread_asked(what, site, agent)
