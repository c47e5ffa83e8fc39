"""`Stalls`: what the launcher of one node says about ranks that wait: for how long, for whom, and when in vain.

# Note [Waits that nothing ends]
Problem: a rank that waits for a key which no rank will set hangs until its timeout, half an hour, without a word.
Rule: when every rank that has not ended waits for keys in the launcher's store, none of them can set a key: each wait
raises, with the line of every rank. A rank counts as waiting if it has no other thread and no child process that could
set the key, if its wait lasts for some seconds more, and if no other process has a connection to the store.
Why: each of these may set the key. Consequences: with one of them the rank waits until its timeout. Every wait of more
than 30 seconds, for keys or in collectives, is named on stderr with what the other ranks' processes do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from flambeau.distributed.backends.wait_reports import key_of, said_by
from flambeau.distributed.launching.workers import Worker
from flambeau.distributed.stores.coordinator import children_of
from flambeau.distributed.stores.store_server import StoreServer

_EVERY_S = 30.0  # between two lines about one wait
_SHORT_S = 10.0  # a wait that ends by itself within this time is not given up
_SURE = 3  # looks at which nothing has changed
_STATES = {"R": "runs", "D": "runs", "S": "sleeps", "T": "is stopped", "t": "is stopped", "Z": "has ended"}


class _Wait:
    """A rank's wait, as seen from look to look; it may be absent for a moment where the rank asks again and again."""

    def __init__(self, words: str, which: object, since: float) -> None:
        self.words = words
        self.which = which
        self.since = self._said = since
        self._absent = 0

    def ends(self) -> bool:
        """Note that the rank is not seen in this wait. Return True if it is over."""
        self._absent += 1
        return self._absent >= _SURE or not self.words

    def is_long(self, now: float) -> bool:
        """Note that the rank is seen in this wait. Return True if a line about it is due."""
        self._absent = 0
        due = now - self._said >= _EVERY_S
        if due:
            self._said = now
        return due


class Stalls:
    """Looks at the ranks of one attempt. `report` is called with each line to print."""

    def __init__(self, server: StoreServer, workers: Sequence[Worker], report: Callable[[str], None]) -> None:
        self._server = server
        self._workers = workers
        self._report = report
        self._waits: dict[int, _Wait] = {}  # process -> its wait at the last look
        self._seen: object = None
        self._looks = 0

    def look(self) -> None:
        """Let the serving thread look at who waits."""
        self._server.call(self._look)

    def _look(self) -> None:
        alive = [worker for worker in self._workers if worker.code is None]
        waits = self._in_mpi() | self._server.waits()
        self._give_up(alive, {process: words for process, (words, _) in waits.items()})
        now = time.monotonic()
        for worker in alive:
            process = worker.process.pid
            words, which = waits.get(process, ("", None))
            wait = self._waits.get(process)
            if wait is None or (which != wait.which and wait.ends()):
                self._waits[process] = _Wait(words, which, now)
            elif which == wait.which and words and wait.is_long(now):
                others = [_state(other) for other in self._workers if other is not worker]
                told = f"rank {worker.rank} has waited {now - wait.since:.0f} s for {words}"
                self._report("; ".join([told, *others]))

    def _in_mpi(self) -> dict[int, tuple[str, object]]:
        """Return what ranks wait for in MPI, as they say in the store after a moment, and the number of the wait."""
        found: dict[int, tuple[str, object]] = {}
        for worker in self._workers:
            wait = said_by(self._server.value_of(key_of(worker.rank)))
            if wait is not None:
                words = wait.text.removeprefix(f"rank {worker.rank} at ")
                found[worker.process.pid] = f"others at {words}", wait.mark
        return found

    def _give_up(self, alive: Sequence[Worker], waits: dict[int, str]) -> None:
        """See Note [Waits that nothing ends]."""
        blocked = self._server.blocked(_SHORT_S)
        processes = {worker.process.pid for worker in alive}
        stuck = bool(alive) and processes == set(blocked) == self._server.processes()
        if not stuck or any(children_of(process) for process in processes):
            blocked = {}
        self._looks = self._looks + 1 if blocked == self._seen else 0
        self._seen = blocked
        if blocked and self._looks >= _SURE:
            lines = [_line(worker, waits) for worker in sorted(self._workers, key=lambda w: w.rank)]
            self._server.give_up("\n  ".join(["deadlock: no rank can go on", *lines]))


def _line(worker: Worker, waits: dict[int, str]) -> str:
    words = waits[worker.process.pid] if worker.code is None else ""
    return f"rank {worker.rank} (process {worker.process.pid}): " + (
        f"waits for {words}" if words else f"has ended, {worker.ended}"
    )


def _state(worker: Worker) -> str:
    """What a rank's process does, as far as the system says."""
    if worker.code is not None:
        return f"rank {worker.rank} has ended ({worker.ended})"
    state = "R"
    with suppress(OSError):
        state = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    return f"rank {worker.rank} (process {worker.process.pid}) {_STATES.get(state, 'runs')}"
