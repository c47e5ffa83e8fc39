"""`RankProgress`: the rank progress of a communicator, which ranks publish in the store."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from flambeau.distributed.backends import rank_processes

_SILENT = "is unknown: the store does not answer"


class RankProgress:
    """The rank progress of one communicator.

    Only the watchdog thread uses it, over its own connection to the store, which no wait of the program blocks.

    Args:
        ranks: The members' global numbers.
        me: This rank's number.
    """

    def __init__(self, store: Any, key: str, ranks: Sequence[int], me: int, addresses: Sequence[str]) -> None:
        self._key = key
        self._me = me
        self._others = [rank for rank in ranks if rank != me]
        seen = zip(ranks, map(rank_processes.near, addresses), strict=True)
        self._near = {rank: process for rank, process in seen if process and rank != me}
        self._number = 0
        try:
            self._store = store.clone()
        except RuntimeError:  # a custom store without clone()
            self._store = None

    def publish_progress(self, number: int, words: str) -> None:
        """Publish that this rank has issued call `number`."""
        if self._store is None or number == self._number:
            return
        try:
            self._store.set(f"{self._key}/at/{self._me}", json.dumps([number, words]))
            self._number = number
        except (RuntimeError, OSError):  # the store ended with its rank
            self._store = None

    def describe_ended_processes(self, ranks: Collection[int]) -> list[str]:
        """Return text about those of `ranks` whose processes have ended."""
        near = [(rank, process) for rank, process in self._near.items() if rank in ranks]
        return [
            f"the process of rank {rank}, {process}, has ended"
            for rank, process in near
            if rank_processes.has_ended(process)
        ]

    def others(self, number: int) -> list[str]:
        """Return text about the progress of each other rank, compared with call `number`."""
        lines = []
        for rank in self._others:
            process = self._near.get(rank)
            ended = (
                f"; its process, {process}, has ended"
                if process and rank_processes.has_ended(process)
                else ""
            )
            lines.append(f"rank {rank} {self._last_call_of(rank, number)}{ended}")
        return lines

    def _last_call_of(self, rank: int, number: int) -> str:
        key = f"{self._key}/at/{rank}"
        if self._store is None:
            return _SILENT
        try:
            if not self._store.check([key]):
                return "has not arrived: it has reported no call"
            last, words = json.loads(self._store.get(key))
        except (RuntimeError, OSError):
            self._store = None
            return _SILENT
        if last < number:
            return f"has not arrived: the last that it reported is call {last}, {words}"
        return f"has arrived at call {last}, {words}"
