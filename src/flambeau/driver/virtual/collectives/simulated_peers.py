"""Simulated peers: absent ranks that are assumed to do the same as the one present rank at the same time.

Apart from its data, a training step is equal on all ranks, so one rank shows the time of all. Its collectives begin
when it arrives, as if the others arrived at the same time, and cost what the cluster's links determine. This omits
differences between ranks: slow nodes, other work on the network, noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flambeau.core.errors import NotSupportedError
from flambeau.core.host.host_wait import Awaited
from flambeau.driver.collective_rules import PAIRED, Key
from flambeau.driver.protocol import Collective
from flambeau.driver.virtual.collectives.collectives import Meanwhile, Offer, Outcome


class Mirrors:
    """The transport of a simulated cluster: it stands for all GPUs except rank 0, which this machine's device is.

    Implements `Outside`.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._sizes: dict[bytes, int] = {}
        self._met: list[Outcome] = []

    def join(
        self,
        unique: bytes,
        called: Sequence[int],
        members: Sequence[tuple[int, int]],
        site: str,
        meanwhile: Meanwhile,
    ) -> dict[int, int]:
        """Return the GPUs of all ranks, numbered node by node."""
        size = len(called)
        if list(members) != [(0, 0)] or size != self._size:
            raise NotSupportedError(
                f"a simulated cluster of {self._size} GPUs has collectives of all of them, seen by rank 0; this group "
                f"has {size} ranks, of which {list(members)} (rank, device) are here"
            )
        self._sizes[unique] = size
        return {rank: rank for rank in range(size)}

    def check(self, calls: Sequence[Collective]) -> None:
        """Raise NotSupportedError for messages, before anything is enqueued."""
        if any(call.kind in PAIRED for call in calls):
            raise NotSupportedError(
                "in a simulated cluster all ranks do the same: none receives what another sends"
            )

    def offer(self, unique: bytes, key: Key, place: int, offer: Offer) -> None:
        """Complete the collective instance: all ranks arrive when this one does."""
        self._met.append((unique, key, dict.fromkeys(range(self._sizes[unique]), offer)))

    def wait(self, why: Callable[[], str]) -> list[Outcome]:
        return self.look()

    def look(self) -> list[Outcome]:
        met, self._met = self._met, []
        return met

    def idle(self, other: Awaited) -> tuple[list[Outcome], bool]:
        return self.look(), True
