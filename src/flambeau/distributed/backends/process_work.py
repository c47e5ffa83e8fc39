"""`ProcessWork`: a work of CPU tensors between ranks that are processes, and the host's wait for it.

MPI and the TCP transport share it. A wait ends early, with an error that names the ranks, if a rank that it needs has
ended or if ranks wait for each other (`wait_reports.py`).
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from socket import socket
from typing import Any, NoReturn, Protocol

from flambeau.core.callsite import Site, place
from flambeau.core.host.host_wait import readable
from flambeau.core.host.long_waits import LongWait
from flambeau.core.host.thread_liveness import alone
from flambeau.distributed.backends.backend import Place
from flambeau.distributed.backends.wait_reports import MOST_PENDING, PendingOperation, Wait, Waits
from flambeau.distributed.dist_errors import DistBackendError, DistError
from flambeau.distributed.work import Work
from flambeau.driver.driver_registry import ask_around, go_on

_LAST_TRIES = 100
_yield = getattr(os, "sched_yield", lambda: time.sleep(0))  # macOS lacks sched_yield
# seconds that a wait only polls; seconds between checks that the other ranks live
_SPIN_S, _LOOK_S = 2e-3, 0.25
_LONGEST_PAUSE_S = 1e-3  # the longest pause between two polls, in seconds
ANY = -1  # the peer of a message from any source


class Transport(Protocol):
    """The process-wide state of a transport.

    Attributes:
        waits: Reports of what the ranks wait for.
    """

    waits: Waits

    def dead(self, rank: int) -> str:
        """Return the reason why a rank, by its global number, will never answer; "" if it may."""
        ...

    def pending_besides(self, work: ProcessWork) -> list[PendingOperation]:
        """Return the operations, except that of `work`, that this rank has begun and that have not ended."""
        ...


class WaitingBackend(Protocol):
    """A backend whose works are `ProcessWork`."""

    place: Place
    timeout: timedelta
    transport: Transport
    aborted: bool

    def why_gone(self, rank: int) -> str:
        """Return the reason why a member, by its number in the group, will not answer; "" if it may."""
        ...


class ProcessWork(Work):
    """A work of CPU tensors between processes.

    Attributes:
        calls: Description and peer of each message or collective. Peer None stands for all ranks, ANY for any one rank.
        tag: Tag of a message.
        number: Number of the collective in its group; 0 for messages.
        site: Line of the program that began the work.
    """

    def __init__(
        self,
        results: list[Any],
        backend: WaitingBackend,
        calls: Sequence[tuple[str, int | None]],
        number: int,
        site: Site,
        tag: int = 0,
    ) -> None:
        super().__init__(results)
        self._backend = backend
        self.calls = calls
        self.number = number
        self.site = site
        self.tag = tag

    @abstractmethod
    def _complete(self) -> None:
        """Finish after the transfer: store results, release memory."""

    def is_completed(self) -> bool:
        if not super().is_completed() and alone():
            ask_around()  # other ranks may wait for this rank's GPUs before they join this work
        return self._over

    def _finish(self, timeout: timedelta | None) -> None:
        go_on()  # others may need this rank's GPUs before they join this work
        waiting = _Waiting(self, self._backend.timeout if timeout is None else timeout)
        try:
            while not waiting.over():
                if waiting.lasts and alone():
                    go_on(waiting)
                self._pause(waiting)
        finally:
            waiting.end()
        self._complete()

    def _pause(self, waiting: _Waiting) -> None:
        """Sleep between two polls."""
        if waiting.lasts:
            time.sleep(waiting.pause_s)
            waiting.pause_s = min(2 * waiting.pause_s, _LONGEST_PAUSE_S)
        else:
            _yield()

    @property
    def words(self) -> str:
        """Return the descriptions of all calls, each once."""
        return ", ".join(dict.fromkeys([what for what, _ in self.calls]))

    @property
    def pending_operation(self) -> PendingOperation:
        """Return what this work is for the deadlock detection of other ranks."""
        what, peer = self.calls[0]
        ranks = self._backend.place.ranks
        peers = (ranks[peer],) if not self.number and peer not in (None, ANY) else ranks
        sends = what.startswith("send")
        return PendingOperation(self._backend.place.name, self.number, self.tag, sends, peers)

    @property
    def me(self) -> str:
        return f"rank {self._backend.place.ranks[self._backend.place.rank]}"

    def _report_wait(self, mark: int, looks: int) -> str:
        """Publish a long wait.

        Returns:
            Why it could not be published; "" if it was.

        Raises:
            DistBackendError: For a deadlock.
        """
        transport, place_ = self._backend.transport, self._backend.place
        what, peer = self.calls[0]
        of_tag = f" with tag {self.tag}" if self.tag else ""
        text = f"{self.me} at {place(self.site)}: {what}{of_tag} in group {place_.name}"
        any_peer = not self.number and peer == ANY
        joins = self.pending_operation
        if any_peer:
            whys = [self._backend.why_gone(rank) for rank in range(place_.size)]
            left = [rank for rank, why in zip(joins.peers, whys, strict=True) if not why]
            joins = joins._replace(peers=tuple(left))
            text = "; ".join([text, *filter(None, whys)])
        others = tuple(transport.pending_besides(self))
        blocks = alone() and len(others) <= MOST_PENDING
        mine = Wait(mark, text, *joins, any_peer, blocks, looks, pending=others[:MOST_PENDING])
        try:
            report = transport.waits.look(mine)
        except DistError as error:  # the store may have ended with its rank
            return str(error)
        if report:
            raise DistBackendError(report)
        return ""

    def _check_others(self) -> None:
        """Raise DistBackendError if a rank that this work needs will never answer."""
        if self._backend.aborted:
            self._fail("the process group was aborted")
        why = self._why_hopeless()
        # it may have done its part before it ended
        if why and not any(self._test() for _ in range(_LAST_TRIES)):
            self._fail(why)

    def _why_hopeless(self) -> str:
        """Return which rank will never answer; "" if every needed rank may."""
        ranks, own = self._backend.place.ranks, self._backend.place.rank
        needed = [peer for _, peer in self.calls]
        if needed == [ANY]:
            whys = [self._backend.transport.dead(of_all) for rank, of_all in enumerate(ranks) if rank != own]
            return f"no other rank of the group is left: {whys[0]}" if whys and all(whys) else ""
        everyone = None in needed
        whys = [
            self._backend.transport.dead(of_all)
            for rank, of_all in enumerate(ranks)
            if everyone or rank in needed
        ]
        return next(filter(None, whys), "")

    def _fail(self, why: str) -> NoReturn:
        raise DistBackendError(f"{self.me} at {place(self.site)}: {self.words}: {why}") from None


class _Waiting:
    """The host's wait for a work: an `Awaited` of its virtual GPUs."""

    def __init__(self, work: ProcessWork, timeout: timedelta) -> None:
        self._work = work
        self._waits = work._backend.transport.waits
        self._limit_s = timeout.total_seconds()
        self._start = self._looked = time.monotonic()
        self._looks, self._mark = 0, self._waits.mark()
        self._obstacle = ""  # why the wait could not be published, so that only this process can report it
        self._long_wait = LongWait(lambda: self._obstacle and f"and {self.words}; {self._obstacle}")
        self.pause_s = 2e-5

    @property
    def words(self) -> str:
        work = self._work
        return (
            f"waits for {work.words} of CPU tensors in group {work._backend.place.name} at {place(work.site)}"
        )

    @property
    def lasts(self) -> bool:
        """Return True if the wait is too long to poll all the time."""
        return time.monotonic() - self._start >= _SPIN_S

    def over(self) -> bool:
        """Return True if the work is done. Raises DistBackendError if it never will be."""
        if self._work._test():
            return True
        now = time.monotonic()
        if now - self._looked > _LOOK_S:
            self._looked, self._looks = now, self._looks + 1
            self._work._check_others()
            why = self._work._report_wait(self._mark, self._looks)
            self._obstacle = why and (self._obstacle or why)
            self._long_wait.report()
        if self._limit_s and now - self._start > self._limit_s:
            self._work._fail(f"timed out after {round(self._limit_s * 1000)}ms")
        return False

    def look(self, other: socket) -> tuple[bool, bool]:
        return self.over(), bool(readable(_LONGEST_PAUSE_S, other))

    def end(self) -> None:
        if self._looks:
            self._waits.over()
