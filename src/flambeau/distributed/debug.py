"""`DebugLevel`, and `Agreement`: with TORCH_DISTRIBUTED_DEBUG=DETAIL ranks compare collectives before they begin.

Backends of virtual GPUs and CPU tensors detect mismatches themselves (`mpi_checks.py`); NCCL hangs. At level DETAIL
each rank therefore writes kind, size, dtype, operation, root and call site of its next collective to the group's store
and waits for the others. Each collective then costs a round trip to the store and a host wait, so it is for debugging.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from flambeau.core.callsite import caller, place
from flambeau.distributed.backend_names import NamedNumber
from flambeau.distributed.backends import rank_processes
from flambeau.distributed.backends.backend import Place
from flambeau.distributed.dist_errors import DistBackendError
from flambeau.distributed.stores.store import await_keys
from flambeau.driver.collective_rules import PAIRED, common_arguments, describe
from flambeau.driver.protocol import Collective


class DebugLevel(NamedNumber):
    """The level of checks of `torch.distributed`: OFF, INFO or DETAIL."""

    OFF = 0
    INFO = 1
    DETAIL = 2


def level_of(environment: Mapping[str, str]) -> DebugLevel:
    """Return the level that TORCH_DISTRIBUTED_DEBUG selects.

    Raises:
        ValueError: If the value is neither OFF, INFO nor DETAIL.
    """
    word = environment.get("TORCH_DISTRIBUTED_DEBUG", "OFF").upper()
    if word not in DebugLevel.__members__:
        raise ValueError("The value of TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL.")
    return DebugLevel[word]


class Agreement:
    """The check that the ranks of one group issue equal collectives."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.timeout = place.timeout
        self._number = 0

    def check(self, calls: Sequence[Collective]) -> None:
        """Publish the collectives that this rank will enqueue, and compare them with the other ranks'. Messages are
        skipped.

        Raises:
            DistBackendError: If ranks disagree, or a rank has not joined within the group's timeout.
        """
        mine = [call for call in calls if call.kind not in PAIRED]
        if mine:
            self.compare(
                [repr(common_arguments(call)) for call in mine],
                " and ".join([describe(call, self._place.ranks) for call in mine]),
            )

    def compare(self, what: Sequence[str], words: str) -> None:
        """Compare an action of all ranks: `what` must be equal. An error shows each rank's `words`."""
        rank, size, store = self._place.rank, self._place.size, self._place.store
        self._number += 1
        text = f"rank {self._place.ranks[rank]} at {place(caller())}: {words}"
        store.set(self._key(rank), json.dumps([what, text]))
        states = [json.loads(self._other(other, text)) for other in range(size)]
        if any(found != states[0][0] for found, _ in states):
            head = f"collective mismatch: call {self._number} of group {self._place.name} is not the same for all"
            raise DistBackendError("\n  ".join([head, *[line for _, line in states]]))
        if self._number > 1:  # a rank that has arrived here has read all of the former comparison
            store.delete_key(self._key(rank, self._number - 1))

    def _other(self, rank: int, text: str) -> bytes:
        store = self._place.store
        why = await_keys(
            store, [self._key(rank)], self.timeout, lambda: rank_processes.describe_ended(store, rank)
        )
        if why is not None:
            raise DistBackendError(
                f"rank {self._place.ranks[rank]} has not arrived at call {self._number} of group {self._place.name}"
                f"{why or f' within {self.timeout.total_seconds():g} s'}\n  {text}"
            )
        value: bytes = store.get(self._key(rank))
        return value

    def _key(self, rank: int, number: int | None = None) -> str:
        return f"agreement/{self._number if number is None else number}/{rank}"
