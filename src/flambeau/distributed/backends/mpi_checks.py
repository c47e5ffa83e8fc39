"""`Comparison`: a check that all ranks of a group pass the same collective to MPI, made while it runs.

MPI does not check: ranks that call different collectives hang or compute garbage. Each collective is therefore
accompanied by a reduction of 16 bytes on a separate communicator, which finds the largest and smallest checksum of the
ranks' calls. It does not wait for the collective itself, so every waiting rank learns of a mismatch even if the
collective hangs.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from flambeau.distributed.backends.backend import Place
from flambeau.distributed.dist_errors import DistError

# the wait for a rank that does not report, because it does not wait for its work
_PATIENCE = timedelta(seconds=5)


class Comparisons:
    """The comparisons of one group, on the communicator `comm`."""

    def __init__(self, comm: Any, mpi: Any, place: Place) -> None:
        self.comm = comm
        self._mpi = mpi
        self.place = place
        self._number = 0

    def begin(self, alike: Sequence[str], text: str) -> Comparison:
        """Start to compare `alike`, a value that must be equal on all ranks.

        Args:
            text: The description of this rank's call for the error.
        """
        self._number += 1
        checksum = zlib.crc32(" ".join(alike).encode())
        sent = np.array([checksum, -checksum], np.int64)
        return Comparison(self, self._number, sent, text)

    def sum(self, sent: Any, received: Any) -> Any:
        kind = self._mpi.INT64_T
        return self.comm.Iallreduce([sent, kind], [received, kind], self._mpi.MAX)


class Comparison:
    """The comparison of one collective. `request` is the MPI request."""

    def __init__(self, all_of: Comparisons, number: int, sent: Any, text: str) -> None:
        self._all = all_of
        self.number = number
        self._sent = sent
        self._found = np.zeros_like(sent)
        self._text = text
        self.request = all_of.sum(sent, self._found)

    def differ(self, timeout_s: float = 0.0) -> bool:
        """Return True if ranks disagree, or if the comparison shows that they will."""
        end = time.monotonic() + timeout_s
        while not (over := self.request.Test()) and time.monotonic() < end:
            time.sleep(1e-4)
        return bool(over and self._found[0] != -self._found[1])

    def report(self) -> str:
        """Return every rank's call. Waiting ranks that differ publish theirs in the group's store."""
        place = self._all.place
        keys = [f"mismatch/{self.number}/{rank}" for rank in range(place.size)]
        place.store.set(keys[place.rank], self._text)
        calls = [
            self._read_report(key, f"rank {place.ranks[rank]} does not wait for it")
            for rank, key in enumerate(keys)
        ]
        head = f"collective mismatch: call {self.number} of group {place.name} is not the same for all"
        return "\n  ".join([head, *calls, "all ranks must give the same calls in the same order"])

    def _read_report(self, key: str, otherwise: str) -> str:
        store = self._all.place.store
        try:
            store.wait([key], _PATIENCE)
        except DistError:
            return otherwise
        text: bytes = store.get(key)
        return text.decode()
