"""`RankCommunicator`: one communicator of a rank on one device, with its pending collectives.

On real GPUs each group of collectives adds a `PendingCollective` with an event of its stream, which the watchdog polls
(watchdog.py). Virtual GPUs detect missing ranks themselves, so nothing is recorded there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from flambeau.core.callsite import Site, caller, place, source
from flambeau.core.errors import DriverError
from flambeau.distributed.backends.rank_progress import RankProgress
from flambeau.distributed.backends.watchdog import Handling
from flambeau.driver.collective_rules import PAIRED, describe
from flambeau.driver.protocol import Collective
from flambeau.runtime import system
from flambeau.runtime.device_context import Context
from flambeau.runtime.memory.pending_frees import UseEvent
from flambeau.runtime.streams.event import Event
from flambeau.runtime.streams.stream import Stream

Pair = tuple[int, int]
_KEPT = 256  # pending collectives stored; a host that is further ahead of its device detects a hang later
_SHOWN = 3  # collectives of one group that a report shows


class PendingCollective:
    """An entry for collectives that the program issued together and that have not finished.

    Attributes:
        calls: The collectives.
        number: Sequence number in the communicator.
        site: Call site.
        mark: Event recorded after them.
        since: Time in seconds when the watchdog first saw no pending collective before this one.
        ended: Time in seconds when the watchdog first saw that a needed process has ended.
        error: The error with which the watchdog failed them.
    """

    __slots__ = ("calls", "ended", "error", "mark", "number", "since", "site")

    def __init__(self, number: int, calls: Sequence[Collective], site: Site, mark: UseEvent) -> None:
        self.number = number
        self.calls = calls
        self.site = site
        self.mark = mark
        self.since: float | None = None
        self.ended: float | None = None
        self.error: Exception | None = None


class RankCommunicator:
    """One communicator with its pending collectives.

    Attributes:
        pair: The two ranks of a communicator for messages; None if it is for all ranks of the group.
    """

    def __init__(
        self,
        backend: Any,
        context: Context,
        comm: int,
        pair: Pair | None,
        progress: RankProgress | None,
    ) -> None:
        self.backend = backend
        self.context = context
        self.comm = comm
        self.pair = pair
        self.stream = Stream(context.device, backend.place.priority)
        self.ready = Event()  # marks the caller's stream; recorded again for each collective
        self.progress = progress
        # The last pending collectives. The program appends, the watchdog removes.
        self.pending: deque[PendingCollective] = deque(maxlen=_KEPT)
        self.newest: PendingCollective | None = None
        self.count = 0  # number of all collectives so far
        self.error: Exception | None = None  # why the communicator was given up
        if progress is not None:
            # without observers, which must not see the runtime's own events
            self._driver: Any = system.bare_driver()
            index = context.driver_index
            marks = [UseEvent(context, self._driver.event_create(index, timing=False)) for _ in range(_KEPT)]
            self._marks = cycle(marks)

    @property
    def title(self) -> str:
        place = self.backend.place
        ranks = place.ranks if self.pair is None else [place.ranks[rank] for rank in self.pair]
        kind = "group" if self.pair is None else "the messages of group"
        return f"{kind} {place.name} (ranks {', '.join(map(str, ranks))})"

    def peer(self, rank: int) -> int:
        """Return the communicator's number of a rank of the group."""
        return rank if self.pair is None else self.pair.index(rank)

    def note(
        self, calls: Sequence[Collective], stream: Stream, event: Event | None
    ) -> PendingCollective | None:
        """Record collectives that were just enqueued on `stream`, followed by `event` if there is one.

        Returns:
            The entry for the watchdog; None if a graph captures the collectives.
        """
        if self.context.orders.capturing:
            return None
        if event is not None:
            mark = event.lend()
        else:
            mark = next(self._marks)
            self._driver.event_mark(mark.handle, stream.handle)
        self.count = number = self.count + 1
        self.newest = entry = PendingCollective(number, calls, caller(2), mark)
        self.pending.append(entry)
        entry.error = self.error  # the communicator may have failed meanwhile
        return entry

    # -- what the watch asks, from its thread -----------------------------------------------------------------
    @property
    def rank(self) -> int:
        """Return this rank's global number."""
        return self.backend.place.ranks[self.backend.place.rank]

    @property
    def handling(self) -> Handling:
        return self.backend.handling

    @property
    def limit_s(self) -> float:
        return self.backend.timeout.total_seconds()

    def head(self) -> PendingCollective | None:
        """Return the first pending collective. Collectives of one communicator finish in order, on whatever streams
        they run.
        """
        entry = self.pending
        over, unknown = 0, len(entry)  # the number of finished entries, and of those not known to be finished
        # The number of the last entry: a host that is far ahead may drop the first meanwhile, which shifts
        # positions.
        last = 0
        index = unknown - 1  # the last one first, because usually all have finished
        while over < unknown:
            one = entry[index]
            if self._driver.event_ended(one.mark.handle):
                over, last = index + 1, one.number
            else:
                unknown = index
            index = (over + unknown) // 2
        while entry and entry[0].number <= last:
            entry.popleft()
        return entry[0] if entry else None

    def failure(self) -> str | None:
        """Return NCCL's text for a communicator that failed, or an error of the query itself."""
        try:
            return self.context.backing.comm_error(self.comm)
        except DriverError as error:
            return str(error)

    def publish_progress(self) -> None:
        """Publish this rank's progress."""
        newest = self.newest
        if newest is not None and self.progress is not None:
            self.progress.publish_progress(newest.number, self.words(newest))

    def describe_ended_processes(self) -> list[str]:
        """Return text about processes that have ended and that pending collectives need. For messages these are the
        peers.
        """
        if self.progress is None:
            return []
        ranks = self.backend.place.ranks
        calls = [call for entry in list(self.pending)[:1] for call in entry.calls]
        messages = bool(calls) and all(call.kind in PAIRED for call in calls)
        return self.progress.describe_ended_processes(
            [ranks[call.peer] for call in calls] if messages else ranks
        )

    def lines(self) -> list[str]:
        """Return the lines of a report: this rank's pending collective and the known progress of other ranks."""
        lines = []
        for head in list(self.pending)[:1]:
            lines.append(f"rank {self.rank} queued it {self.words(head)}")
            if self.progress is not None:
                lines += self.progress.others(head.number)
        return lines

    def words(self, entry: PendingCollective) -> str:
        """Return text that names the pending collectives and their call site."""
        shown = [describe(call, self.backend.place.ranks) for call in entry.calls[:_SHOWN]]
        more, text = len(entry.calls) - len(shown), source(entry.site)
        what = f"{', '.join(shown)}{f' and {more} more' if more else ''}"
        return f"at {place(entry.site)}{f' ({text})' if text else ''}: {what}"

    # -- the end ----------------------------------------------------------------------------------------------
    def settle(self) -> None:
        """Block the host until pending work is done, while the watchdog still polls. Raises the communicator's
        error.
        """
        for entry in list(self.pending)[-1:]:
            entry.mark.context.driver.event_sync(entry.mark.handle)
        if self.error is not None:
            raise self.error

    def fail(self, error: Exception) -> bool:
        """Abort the group's communicators immediately. Returns True if that ended all pending collectives."""
        return self.backend.fail(error)  # type: ignore[no-any-return]

    def give_up(self, error: Exception) -> None:
        """Fail all pending collectives with an error, and accept no more."""
        self.error = error
        for entry in list(self.pending):
            entry.error = error
        self.pending.clear()

    def forget(self) -> None:
        """Drop the communicator at the end of the process. Closing it would wait for ranks that may never call."""
        self._driver.comm_forget(self.comm)

    def close(self, abort: bool) -> None:
        """Leave the communicator. NCCL may wait until the other ranks of the node leave, too."""
        if not self.context.closed:
            self.context.backing.comm_destroy(self.comm, abort)
