"""`FileWatch`: reports of long waits and deadlocks among ranks that share a `FileStore`, which no server watches."""

from __future__ import annotations

import time
from collections.abc import Sequence

from flambeau.core.callsite import caller, place
from flambeau.core.host.long_waits import LongWait
from flambeau.core.host.process_state import children_of, describe_processes
from flambeau.core.host.thread_liveness import alone
from flambeau.distributed.backends import rank_processes
from flambeau.distributed.backends.wait_reports import Wait, waits_of
from flambeau.distributed.dist_errors import DeadlockError
from flambeau.distributed.stores.store import JobStore

_LOOK_S = 0.25  # seconds between two checks of one wait


class FileWatch:
    """The watch of one rank over its own waits. Every rank of the job has one.

    Args:
        store: The part of the ranks' store that this group of all ranks has.
        rank: This rank.
        size: Number of ranks.
    """

    def __init__(self, store: JobStore, rank: int, size: int) -> None:
        self._store = store
        self.rank = rank
        self._others = [other for other in range(size) if other != rank]
        self._pids: dict[int, int] = {}  # rank -> its process on this host
        self.waits = waits_of(store, rank, size)
        self.waits.watch = self._report_long_wait
        self._long_wait: tuple[int, LongWait] | None = None
        store.set(_key(rank), rank_processes.here())

    def begin(self, needs: Sequence[str]) -> KeyWait:
        """Return the watch of a wait for keys that begins now."""
        return KeyWait(
            self, f"wait for {', '.join(repr(key.removeprefix('/')) for key in needs)} of the store"
        )

    def pids(self) -> dict[int, int]:
        """Return the processes of the other ranks; fewer if some have not joined or are on other hosts."""
        for rank in self._others:
            if rank not in self._pids and self._store.check([_key(rank)]):
                self._pids[rank] = rank_processes.near(self._store.get(_key(rank)).decode())
        return {rank: pid for rank, pid in self._pids.items() if pid}

    def sees_all(self) -> bool:
        """Return True if all ranks have joined on this host."""
        return len(self.pids()) == len(self._others)

    def _report_long_wait(self, wait: Wait) -> None:
        """Print a line for each 30 seconds that a wait lasts, with the states of the other ranks' processes."""
        if self._long_wait is None or self._long_wait[0] != wait.mark:

            def describe() -> str:
                return (
                    f"as {wait.text}; other ranks: {describe_processes(self.pids().values()) or 'none here'}"
                )

            self._long_wait = wait.mark, LongWait(describe)
        self._long_wait[1].report()


class KeyWait:
    """A rank's wait for keys of a `FileStore`.

    Args:
        watch: The watch of the rank.
        words: What it waits for.
    """

    def __init__(self, watch: FileWatch, words: str) -> None:
        self._watch = watch
        self._text = f"rank {watch.rank} at {place(caller())}: {words}"
        self._mark = watch.waits.mark()
        self._looked = time.monotonic()
        self._looks = 0

    def look(self) -> None:
        """Publish the wait and look at the others', at most four times in a second.

        Raises:
            DeadlockError: If no rank can set the keys.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked, self._looks = now, self._looks + 1
        pids = self._watch.pids()
        ended = {rank: pid for rank, pid in pids.items() if rank_processes.has_ended(pid)}
        text = "; ".join([
            self._text, *[f"the process of rank {rank}, {pid}, has ended" for rank, pid in ended.items()]
        ])  # fmt: skip
        left = tuple([rank for rank in pids if rank not in ended])
        here = [rank_processes.near(rank_processes.here()), *pids.values()]
        blocks = alone() and self._watch.sees_all() and not any(map(children_of, here))
        report = self._watch.waits.look(
            Wait(self._mark, text, peers=left, any_peer=True, alone=blocks, looks=self._looks)
        )
        if report:
            raise DeadlockError(report)

    def end(self) -> None:
        """Remove the wait."""
        if self._looks:
            self._watch.waits.over()


def _key(rank: int) -> str:
    return f"member/{rank}"
