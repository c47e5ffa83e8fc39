"""`Waits`: what ranks that are processes wait for in MPI, as they tell each other: a circle is told, and is no hang.

A rank that has waited for a while says so in the store all ranks share: for which of its group's collectives, or for
whose message; and says it again with each look. Whoever waits too reads what the others say. Ranks of which none can go
on before another of them does are told with all their lines, when each has asked MPI again several times since.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from flambeau.core.ipc.codec import fits
from flambeau.distributed.errors import DistError

_SURE = 3  # looks at which all of a circle were where they are, and had asked MPI again
_FORM = {  # the schema of each field of a `Wait` in the store
    "mark": int, "text": str, "group": str, "number": int, "sends": bool, "peers": (int,), "looks": int, "report": str,
}  # fmt: skip


@dataclass(frozen=True)
class Wait:
    """One rank's. Ranks are those of all. `number` of the group's collectives, 0: a message.

    peers: who must come, of a message its other end; none: anyone. looks: how often it has looked.
    """

    mark: int
    text: str
    group: str
    number: int
    sends: bool
    peers: tuple[int, ...]
    looks: int = 0
    report: str = ""  # it was told that it waits in vain

    def meets(self, other: Wait, me: int) -> bool:
        """Whether another rank waits for the same, so that neither keeps the other."""
        if self.group != other.group or self.number != other.number:
            return False
        return bool(self.number) or (self.sends != other.sends and (not other.peers or me in other.peers))


def stuck(waits: Mapping[int, Wait]) -> set[int]:
    """The ranks that cannot go on before another of them does, by what those that wait say."""
    left = set(waits)
    while True:
        free = {rank for rank in left if not _is_kept(rank, waits, left)}
        if not free:
            return left
        left -= free


def _is_kept(rank: int, waits: Mapping[int, Wait], left: set[int]) -> bool:
    mine = waits[rank]
    others = [peer for peer in mine.peers if peer != rank or not mine.number]  # of a message: itself, too
    return any(peer in left and not mine.meets(waits[peer], rank) for peer in others)


class Waits:
    """Of this process, in the `store` of all of its ranks."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._marks = itertools.count(1)
        self._seen: dict[int, tuple[int, int]] = {}  # of a circle: mark and looks of each rank
        self._sure = 0
        self._told = False
        store.set(key_of(rank), "{}")

    def mark(self) -> int:
        """The number of a wait that begins."""
        return next(self._marks)

    def look(self, mine: Wait) -> str:
        """Say that this rank waits, still. The report, if it waits in vain; "" as far as anyone knows."""
        if any(
            not thread.daemon for thread in threading.enumerate() if thread is not threading.current_thread()
        ):
            return ""  # another thread may do what somebody waits for
        self._say(mine)
        waits = self._others() | {self._rank: mine}
        for rank, wait in waits.items():
            if wait.report and f"rank {self._rank} at" in wait.report and rank != self._rank:
                self._say(mine, wait.report)
                return wait.report
        circle = stuck({rank: wait for rank, wait in waits.items() if not wait.report})
        here = {rank: waits[rank] for rank in sorted(circle)} if self._rank in circle else {}
        if not self._is_sure(here):
            return ""
        lines = [waits[rank].text for rank in sorted(circle)]
        report = "\n  ".join(["deadlock: these ranks wait for each other", *lines])
        self._say(mine, report)
        return report

    def over(self) -> None:
        """This rank's wait is over; what it was told stays, for those that have not heard it."""
        self._sure, self._seen = 0, {}
        if not self._told:
            with suppress(DistError):
                self._store.set(key_of(self._rank), "{}")

    def _is_sure(self, circle: Mapping[int, Wait]) -> bool:
        now = {rank: (wait.mark, wait.looks) for rank, wait in circle.items()}
        same = {r: mark for r, (mark, _) in now.items()} == {r: mark for r, (mark, _) in self._seen.items()}
        if not now or not same:
            self._sure, self._seen = 0, now
        elif all(now[rank][1] > looks for rank, (_, looks) in self._seen.items()):
            self._sure, self._seen = self._sure + 1, now
        return self._sure >= _SURE

    def _say(self, wait: Wait, report: str = "") -> None:
        self._told = bool(report)
        self._store.set(key_of(self._rank), json.dumps({**asdict(wait), "report": report}))

    def _others(self) -> dict[int, Wait]:
        others: Iterable[int] = [rank for rank in range(self._size) if rank != self._rank]
        if not self._store.check([key_of(rank) for rank in others]):
            return {}  # one has not begun
        told = map(said_by, self._store.multi_get([key_of(rank) for rank in others]))
        return {rank: wait for rank, wait in zip(others, told, strict=True) if wait}


def key_of(rank: int) -> str:
    """Return the key in the ranks' store under which a rank says what it waits for."""
    return f"waits/{rank}"


def said_by(text: bytes) -> Wait | None:
    """Return the wait that a rank has left under its key; None if it waits for nothing.

    The serving thread of a store reads it, too: a value that another client has put there counts as no wait.
    """
    try:
        wait = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(wait, dict) or wait.keys() != _FORM.keys():
        return None
    if not all(fits(wait[name], form) for name, form in _FORM.items()):
        return None
    return Wait(**{**wait, "peers": tuple(wait["peers"])})
