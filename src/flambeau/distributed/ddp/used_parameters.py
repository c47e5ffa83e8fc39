"""`UsedParameters`: the parameters that received a gradient on any rank. See Note [Parameters without gradients]."""

from __future__ import annotations

from typing import Any

from flambeau.core.device import device
from flambeau.core.dtype import int32
from flambeau.distributed.ddp.replicas import reduce_in_place
from flambeau.tensor.exchange.data import tensor as new_tensor


class UsedParameters:
    """The parameters that this rank used since the last reduction, and those of all ranks after an exchange.

    Attributes:
        marks: For each parameter, 0 if it was not used.
        exchange: The pending sum of the ranks' marks with its tensor; None if there is none.
    """

    __slots__ = ("exchange", "marks")

    def __init__(self, count: int) -> None:
        self.marks = [0] * count
        self.exchange: tuple[Any, Any] | None = None

    def clear(self) -> None:
        self.marks = [0] * len(self.marks)

    def mark_all_but(self, absent: set[int]) -> None:
        self.marks = [int(mark or i not in absent) for i, mark in enumerate(self.marks)]

    def counts(self, where: device) -> Any:
        """Return the marks as an int32 tensor."""
        return new_tensor(self.marks, dtype=int32, device=where)

    def start_exchange(self, group: Any, where: device) -> None:
        """Start to sum the marks over the ranks of a group."""
        counts = self.counts(where)
        self.exchange = (reduce_in_place(group, counts, async_op=True), counts)

    def end_exchange(self) -> None:
        if self.exchange is not None:
            self.exchange[0].wait()
            self.exchange = None

    def is_used(self, index: int) -> bool:
        """Return True if any rank used a parameter. Waits for the other ranks' marks if this rank did not use it."""
        if not self.marks[index] and self.exchange is not None:
            work, counts = self.exchange
            work.wait()
            self.marks, self.exchange = counts.tolist(), None
        return bool(self.marks[index])
