"""`Waits`: published waits of ranks in separate processes over CPU transports, for deadlock reports.

# Note [Deadlocks of processes]
Problem: ranks that wait for each other hang until a timeout of half an hour, without a word.
Rule: each wait names the ranks that can end it, and whether one of them is enough: a collective needs all ranks of its
group, a message its other end, a message from any source or a key of the store any one of the others. Ranks of which
none can go on before another of them does are deadlocked (`stuck`). All are reported with their lines once each has
asked its transport again several times (`Confirmation`). A rank may have begun other operations, for which it does not
wait (`pending`): it does not block a rank that waits for one of them, because transports complete them meanwhile.
Who looks: a rank that waits in a transport publishes its wait in the store that all ranks share, and reads the others'.
Who serves the store also sees who waits for keys, and looks too (`stalls.py`).
Consequences: a rank that polls (`store.check`, `is_completed`) counts as going on, and so do those that wait for it.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from flambeau.core.ipc.codec import fits
from flambeau.distributed.dist_errors import DistError
from flambeau.distributed.stores.store import Store, job_store_of

# polls that must find all ranks of a cycle in the same waits, each having polled its transport again
_SURE = 3
MOST_PENDING = 256  # operations of one rank that it publishes
_FORM = {  # the schema of each field of a `Wait` in the store
    "mark": int, "text": str, "group": str, "number": int, "tag": int, "sends": bool, "peers": (int,), "any_peer": bool,
    "alone": bool, "looks": int, "report": str, "pending": ([str, int, int, bool, (int,)],),
}  # fmt: skip


class PendingOperation(NamedTuple):
    """An operation that a rank has begun and that has not ended.

    Attributes:
        group: Name of the group.
        number: Number of the collective in its group; 0 for messages and keys of the store.
        tag: Tag of a message.
        sends: True for the sending end of a message.
        peers: Ranks, by their global numbers, that must take part, or of which one must.
    """

    group: str
    number: int
    tag: int
    sends: bool
    peers: tuple[int, ...]


@dataclass(frozen=True)
class Wait:
    """A wait of one rank. Ranks are global numbers.

    Attributes:
        mark: Sequence number of the wait in its rank.
        text: The rank, the line of its program and what it waits for.
        group: Name of the group.
        number: Number of the collective in its group; 0 for messages and keys of the store.
        tag: Tag of a message.
        sends: True for the sending end of a message.
        peers: Ranks that can end the wait, without those that have ended.
        any_peer: True if one of them is enough; otherwise all are needed.
        alone: True if no other thread of the rank's process could help others.
        looks: How often the rank has looked since the wait began.
        report: The report of a deadlock that the rank has raised; "" if there is none.
        pending: Other operations that the rank has begun.
    """

    mark: int
    text: str
    group: str = ""
    number: int = 0
    tag: int = 0
    sends: bool = False
    peers: tuple[int, ...] = ()
    any_peer: bool = False
    alone: bool = True
    looks: int = 0
    report: str = ""
    pending: tuple[PendingOperation, ...] = ()

    def meets(self, other: Wait, me: int) -> bool:
        """Return True if the rank of `other` has begun the operation that rank `me` waits for, so it does not block
        `me`.
        """
        return any(self._is_joined_by(each, me) for each in (other, *other.pending))

    def _is_joined_by(self, other: Wait | PendingOperation, me: int) -> bool:
        if (self.group, self.number, self.tag) != (other.group, other.number, other.tag):
            return False
        return bool(self.number) or (self.sends != other.sends and me in other.peers)


def stuck(waits: Mapping[int, Wait]) -> set[int]:
    """Return the ranks of which none can continue before another of them does."""
    ranks = set(waits)
    while True:
        free = {rank for rank in ranks if not _is_kept(rank, waits, ranks)}
        if not free:
            return ranks
        ranks -= free


def _is_kept(rank: int, waits: Mapping[int, Wait], ranks: set[int]) -> bool:
    mine = waits[rank]
    others = [peer for peer in mine.peers if peer != rank or not (mine.number or mine.any_peer)]
    blocked = [peer in ranks and not mine.meets(waits[peer], rank) for peer in others]
    return all(blocked) if mine.any_peer else any(blocked)


class Confirmation:
    """A counter of polls that found the same ranks blocked in the same waits, each of which had polled again."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}  # rank -> number of its wait, its polls
        self._sure = 0

    def clear(self) -> None:
        self._seen, self._sure = {}, 0

    def confirm(self, circle: Mapping[int, Wait]) -> bool:
        """Count one poll that found the ranks of `circle` blocked. Returns True once enough polls agree."""
        now = {rank: (wait.mark, wait.looks) for rank, wait in circle.items()}
        same = {r: mark for r, (mark, _) in now.items()} == {r: mark for r, (mark, _) in self._seen.items()}
        if not now or not same:
            self._sure, self._seen = 0, now
        elif all(now[rank][1] > looks for rank, (_, looks) in self._seen.items()):
            self._sure, self._seen = self._sure + 1, now
        return self._sure >= _SURE


class Waits:
    """The waits of this process, published in the `store` of all its ranks.

    Attributes:
        watch: Called with this rank's wait at each look; None for nothing.
    """

    watch: Callable[[Wait], None] | None = None

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._marks = itertools.count(1)
        self._confirmation = Confirmation()
        self._has_reported = False
        store.set(key_of(rank), "{}")

    def mark(self) -> int:
        """Return the sequence number of a new wait."""
        return next(self._marks)

    def look(self, mine: Wait) -> str:
        """Publish that this rank still waits. Return the report of a deadlock; "" if none is known."""
        if self.watch is not None:
            self.watch(mine)
        if any(
            not thread.daemon for thread in threading.enumerate() if thread is not threading.current_thread()
        ):
            return ""  # another thread may end the wait
        self._say(mine)
        if not mine.alone:
            return ""
        waits = self._others() | {self._rank: mine}
        for rank, wait in waits.items():
            if wait.report and f"rank {self._rank} at" in wait.report and rank != self._rank:
                self._say(mine, wait.report)
                return wait.report
        circle = stuck({rank: wait for rank, wait in waits.items() if wait.alone and not wait.report})
        here = {rank: waits[rank] for rank in sorted(circle)} if self._rank in circle else {}
        if not self._confirmation.confirm(here):
            return ""
        lines = [wait.text for wait in here.values()]
        report = "\n  ".join(["deadlock: these ranks wait for each other", *lines])
        self._say(mine, report)
        return report

    def over(self) -> None:
        """Remove this rank's wait. A report stays in the store until the other ranks have read it."""
        self._confirmation.clear()
        if not self._has_reported:
            with suppress(DistError):
                self._store.set(key_of(self._rank), "{}")

    def _say(self, wait: Wait, report: str = "") -> None:
        self._has_reported = bool(report)
        self._store.set(key_of(self._rank), json.dumps({**asdict(wait), "report": report}))

    def _others(self) -> dict[int, Wait]:
        others: Iterable[int] = [rank for rank in range(self._size) if rank != self._rank]
        if not self._store.check([key_of(rank) for rank in others]):
            return {}  # a rank has not published a wait yet
        waits = map(said_by, self._store.multi_get([key_of(rank) for rank in others]))
        return {rank: wait for rank, wait in zip(others, waits, strict=True) if wait}


def waits_of(store: Store, rank: int, size: int) -> Waits:
    """Return the waits of this process, as rank `rank` of `size`, in the store that a store is a part of."""
    job = job_store_of(store)
    if job is None:
        return Waits(store, rank, size)
    if job.waits is None:
        job.waits = Waits(job, rank, size)
    waits: Waits = job.waits
    return waits


def key_of(rank: int) -> str:
    """Return the key in the ranks' store under which a rank publishes its wait."""
    return f"waits/{rank}"


def said_by(text: bytes) -> Wait | None:
    """Return the wait that a rank has published under its key; None if it is not waiting.

    A value that is not a valid wait, which another client may have written, counts as no wait.
    """
    try:
        wait = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(wait, dict) or wait.keys() != _FORM.keys():
        return None
    if not all(fits(wait[name], form) for name, form in _FORM.items()):
        return None
    pending = [PendingOperation(*each[:-1], tuple(each[-1])) for each in wait["pending"]]
    return Wait(**{**wait, "peers": tuple(wait["peers"]), "pending": tuple(pending)})
