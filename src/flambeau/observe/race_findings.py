"""The results of a race detector: races, assumptions, and violated assumptions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from flambeau.core.callsite import Site, caller, line_of, place
from flambeau.core.errors import RaceError
from flambeau.observe.clocks import NOBODY, LogicalThread
from flambeau.observe.pinned.lines import UnseenUses
from flambeau.observe.reports import Certificate, Race, RaceWarning

Key: TypeAlias = tuple[object, ...]
"""The key that races of one report share."""

EMPTY: Mapping[Key, Race] = {}
_MANY_STREAMS = 8  # pairs of streams that one fix covers
_MANY_THREADS = 64  # threads of one query that are kept


_ORDERING = "Thread.start and join, Event, Barrier, Condition, executors' futures and queues"


class Findings:
    """The results for one machine.

    `mode` is "warn" (collect) or "error" (RaceError at the second access). With `strict`, accesses that the
    detector cannot see withhold the certificate; otherwise they are listed as assumptions.
    """

    def __init__(self, mode: str, strict: bool = False) -> None:
        if mode not in ("warn", "error"):
            raise ValueError(f"races must be 'warn' or 'error' here, not {mode!r}")
        self.mode = mode
        self.strict = strict
        self.reuses_polled = 0
        self._races: dict[Key, Race] = {}
        self._covered: dict[Key, set[Any]] = {}  # race -> pairs of streams that its fix covers
        self._early: dict[str, str] = {}  # call site -> memory that was freed too early
        self._unwritten: dict[str, str] = {}  # call site -> read of memory that was never written
        self._queries: dict[str, str] = {}  # call site -> query
        self._times: dict[str, None] = {}
        self._shared: dict[str, None] = {}  # call sites where memory was shared with other processes
        self._unordered: dict[str, None] = {}  # calls of host threads whose order may differ in another run
        # query of host threads about each other -> the threads that asked; NOBODY: it counts in any case
        self._polls: dict[str, set[LogicalThread]] = {}
        self._relied: dict[str, None] = {}  # assumptions about the program's own synchronization
        self.has_threads = False  # True if the program has started threads
        # call sites where a poll reported an earlier failure of a device
        self._late: dict[str, None] = {}
        self.unseen = UnseenUses()
        self.on_race: Callable[[int], None] | None = None  # called with the number of races at each new one
        self._reported = False
        # a race that was found after its second command was enqueued; the next call raises it
        self.due: Race | None = None

    @property
    def races(self) -> list[Race]:
        """Return the races, one for each pair of call sites, in the order of their discovery."""
        return list(self._races.values())

    def certificate(
        self, threads: int, ranks: bool, more: Mapping[Key, Race] = EMPTY, open_questions: Sequence[str] = ()
    ) -> Certificate:
        """Return the certificate of the run.

        Args:
            threads: The number of threads that called the driver.
            ranks: True if some of them took turns as ranks.
            more: Candidates that count as races until their commands have run.
            open_questions: Facts that are unknown until commands have run.
        """
        self._reported = True
        self.due = None
        assumptions = ["every operator computes the same result from the same input each time"]
        violated: list[str] = []
        violated += [*self._unordered, *self._effective_polls()]
        assumptions += self._assumptions_on_threads(threads, ranks)
        if self._shared:
            violated.append(
                f"memory is shared with other processes at {_some(self._shared)}: what they do with it is not visible"
            )
        if self._late:
            violated.append(
                f"work failed on a device, which the program learned at {_some(self._late)}: which call reports it "
                "depends on when the work has run"
            )
        violated += self._queries.values()
        if not self._queries:
            assumptions.append("the program never asked query(), so it cannot branch on timing (checked)")
        if self._times:
            assumptions.append(f"times read at {_some(self._times)} are only reported, they steer nothing")
        violated += self._early.values()
        violated += [*self._unwritten.values(), *open_questions]
        if not self._unwritten and not open_questions and not self._shared:
            assumptions.append("no operation read memory that was never written (checked)")
        violated += self.unseen.list_violations(self.strict)
        assumptions += [] if self.strict else self.unseen.assumptions()
        if self.reuses_polled:
            assumptions.append(
                f"{self.reuses_polled} reuses of memory followed the runtime's own polling: other schedules "
                "may change addresses, statistics and out-of-memory errors, not values"
            )
        races = [*self.races, *[race for key, race in more.items() if key not in self._races]]
        return Certificate(assumptions, violated, races, [*self._queries.values()], [*self._unordered])

    def _assumptions_on_threads(self, threads: int, ranks: bool) -> list[str]:
        assumptions = []
        if threads > 1:
            assumptions.append(
                f"{threads} host threads made driver calls, wherever it matters in an order that "
                f"{_ORDERING} give (checked); they share no Python objects and no CPU tensors without these"
            )
        elif not ranks:
            assumptions.append("one host thread made all driver calls (checked)")
            if self.has_threads:
                assumptions.append(
                    f"other host threads share Python objects and CPU tensors with it only through what {_ORDERING} "
                    "order (questions and timeouts checked)"
                )
        assumptions += self._relied
        if ranks:
            assumptions.append(
                "ranks meet in collectives and in the store alone, and what they do does not depend on their order of "
                "arrival"
            )
        return assumptions

    def mark_shown(self) -> None:
        """Mark the races so far as shown to the user, so that no RaceWarning is issued for them."""
        self._reported = True

    def warn(self) -> None:
        """Issue a RaceWarning for each race that was not shown to the user."""
        if not self._reported:
            self._reported = True
            for race in self._races.values():
                code, line = race.second.site[0], line_of(race.second.site)
                warnings.warn_explicit(RaceWarning(str(race)), RaceWarning, code.co_filename, line)

    def is_known(
        self,
        key: Key,
        before: str,
        kind: str,
        number: int | None,
        streams: tuple[int, int] | None = None,
    ) -> bool:
        """Return True if a race of two call sites needs no further report; count it if it was found before.

        If races raise, each is reported. Otherwise a race of two streams is reported that no fix covers
        yet.

        Args:
            number: The second command's number. Its read and its write of the same memory are one race.
            streams: The handles of both streams.
        """
        covered = self._covered.setdefault(key, set())
        is_new = streams is not None and streams not in covered and len(covered) < _MANY_STREAMS
        if is_new:
            covered.add(streams)
        found = self._races.get(key)
        if found is None:
            return False
        found.also(before, kind, number)
        return self.mode != "error" and not is_new

    def report(self, key: Key, race: Race, late: bool = False) -> None:
        """Add a race, or add its fix to the race of the same call sites.

        In mode "error" raise it; with `late`, the next call raises it.
        """
        known = self._races.setdefault(key, race)
        if known is not race:
            known.fix = known.fix.merge(race.fix)
        elif self.on_race is not None:
            self.on_race(len(self._races))
        if self.mode == "error":
            if not late:
                self._raise(race)
            self.due = self.due or race

    def raise_due(self) -> None:
        """Raise the RaceError of a race that was found after its second command was enqueued."""
        race, self.due = self.due, None
        if race is not None:
            self._raise(race)

    def _raise(self, race: Race) -> NoReturn:
        self._reported = True
        raise RaceError(str(race))

    # -- what withholds the certificate -------------------------------------------------------------------
    def note_query(self, what: str) -> None:
        """Record that the program polled for the completion of work, because its behaviour may depend on the result."""
        at = place(caller())
        text = f"the program asked {what} at {at}: its answer depends on timing and may steer the program"
        self._queries.setdefault(at, text)

    def on_failure(self, site: Site) -> None:
        """Record that a call reported the failure of earlier work to the program."""
        self._late[place(site)] = None

    def read_time(self) -> None:
        self._times[place(caller())] = None

    def shared_memory(self, site: Site) -> None:
        """Record that memory is shared with another process, which may write it without the detector's notice."""
        self._shared[place(site)] = None

    @property
    def shares_memory(self) -> bool:
        """Return True if memory was shared with other processes."""
        return bool(self._shared)

    def freed_early(self, site: Site, text: str) -> None:
        """Record that memory was freed that may still be in use; `site` is the use."""
        self._early.setdefault(place(site), text)

    def unwritten(self, site: Site, text: str) -> None:
        """Record a read of memory that was never written."""
        self._unwritten.setdefault(place(site), text)

    def threads_unordered(self, what: str, site: Site) -> None:
        """Record two calls of host threads whose order may be reversed in another run."""
        self._unordered[f"{what} at {place(site)}, and nothing orders the host threads that do so"] = None

    def thread_asked(self, what: str, site: Site, by: LogicalThread = NOBODY) -> None:
        """Record that a host thread queried the state of another one and that the answer depends on timing.

        Args:
            what: The query.
            site: Its call site.
            by: The thread. The query matters only if it acts: see Note [Host threads].
        """
        self.depends(f"the program calls {what} at {place(site)}: the result depends on timing", by)

    def _effective_polls(self) -> list[str]:
        """Return the queries that may have an effect on driver calls."""
        return [text for text, threads in self._polls.items() if any(t is NOBODY or t.acts for t in threads)]

    def take_up(self, other: Findings) -> None:
        """Add what another detector has recorded about host threads."""
        self._unordered |= other._unordered
        self._polls |= {text: {NOBODY} for text in other._effective_polls()}
        self._relied |= other._relied
        self.has_threads |= other.has_threads

    def depends(self, text: str, by: LogicalThread = NOBODY) -> None:
        """Record that the behaviour of host threads depends on timing, that of the thread `by` at first."""
        threads = self._polls.setdefault(text, set())
        threads.add(by if len(threads) < _MANY_THREADS else NOBODY)

    def relies(self, text: str) -> None:
        """Record an assumption that an order of host threads depends on."""
        self._relied[text] = None


def _some(places: dict[str, None]) -> str:
    names = list(places)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more places" if len(names) > 3 else "")
