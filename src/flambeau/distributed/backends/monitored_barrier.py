"""`Monitored`: barriers over a group's store, in which rank 0 detects missing ranks, as in PyTorch."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from flambeau.distributed.backends.backend import Place
from flambeau.distributed.dist_errors import DeadlockError, DistError, DistStoreError
from flambeau.distributed.stores.store import part_of_wait

_LOOK_S = 0.3  # seconds between checks that a rank's process is alive
_GRACE_S = 2.0  # rank 0's answer arrives after the timeout


class Monitored:
    """The monitored barriers of one group.

    `dead` returns the reason why a rank, by its global number, will never join; "" if it may.
    """

    def __init__(self, place: Place, dead: Callable[[int], str]) -> None:
        self._place = place
        self._dead = dead
        self._number = 0

    def pass_through(self, timeout: timedelta, wait_all_ranks: bool) -> None:
        """Return when all ranks have joined.

        Raises:
            RuntimeError: If a rank has not joined; on rank 0 the message names all missing ranks, or the first.
        """
        self._number += 1
        place, head = self._place, f"monitored/{self._number}"
        until = time.monotonic() + timeout.total_seconds()
        if place.rank:
            place.store.set(f"{head}/{place.rank}", "1")
            self._await(f"{head}/over", until + _GRACE_S)
            return
        missing = []
        for rank in range(1, place.size):
            if (wait_all_ranks or not missing) and not self._came(f"{head}/{rank}", rank, until):
                missing.append(str(place.ranks[rank]))
        if missing:
            who = f"Rank{'s' * (len(missing) > 1)} {', '.join(missing)}"
            milliseconds = round(timeout.total_seconds() * 1000)
            text = f"{who} failed to pass monitoredBarrier in {milliseconds} ms"
            place.store.set(f"{head}/over", text)
            raise RuntimeError(f"[Rank {place.ranks[0]}]: {text}")
        place.store.set(f"{head}/over", "")
        # all ranks have arrived here, so they have read it
        place.store.delete_key(f"monitored/{self._number - 1}/over")
        for rank in range(1, place.size):
            place.store.delete_key(f"{head}/{rank}")

    def _await(self, key: str, until: float) -> None:
        """Wait for rank 0's answer."""
        place = self._place
        why = "it has not answered" if not self._came(key, 0, until) else place.store.get(key).decode()
        if why:
            raise RuntimeError(
                f"Rank {place.ranks[place.rank]} successfully reached monitoredBarrier, but received errors while "
                f"waiting for send/recv from rank {place.ranks[0]}. Please check rank {place.ranks[0]} logs for faulty "
                f"rank.\n Original exception: \n{why}"
            )

    def _came(self, key: str, rank: int, until: float) -> bool:
        """Return True if a rank joins before the timeout and before its process ends."""
        place = self._place
        while True:
            left_s = until - time.monotonic()
            is_lost = left_s <= 0 or bool(self._dead(place.ranks[rank]))
            try:
                place.store.wait([key], part_of_wait(_LOOK_S, until))
            except DeadlockError:
                raise
            except DistStoreError:
                if is_lost:
                    return False
            except DistError:  # the store ended with its rank
                return False
            else:
                return True
