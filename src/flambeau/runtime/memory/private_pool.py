"""`PrivatePool`: the part of a MemPool or a graph's pool on one device."""

from __future__ import annotations

import operator
from typing import Any

from flambeau.runtime.memory.resources import Resource

PoolId = tuple[int, int]
NOBODY: PoolId = (0, 0)  # the id that PyTorch gives to memory of no MemPool


def as_id(id: Any) -> PoolId:
    """Return a pool id from the program as a tuple.

    Raises:
        TypeError: If it is not a pair of ints.
        ValueError: If no pool has such numbers.
    """
    try:
        first, second = map(operator.index, id)
    except (TypeError, ValueError):
        raise TypeError(f"a memory pool's id is a pair of ints, as MemPool.id, not {id!r}") from None
    if not (0 <= first < 1 << 31 and 0 <= second < 1 << 32):
        raise ValueError(
            f"no memory pool has the id {id!r}: it must be from (0, 0) to (2**31 - 1, 2**32 - 1)"
        )
    return first, second


def pack_id(id: PoolId) -> int:
    """Return a pool id as one int."""
    return id[0] << 32 | id[1]


def unpack_id(owner: int) -> PoolId:
    """Return the pool id that an int of `pack_id` encodes."""
    return owner >> 32, owner & 0xFFFFFFFF


class PrivatePool:
    """Segments that serve only the requests that are routed to one MemPool.

    Attributes:
        source: The resource of the segments; None for the allocator's own.
        use_on_oom: True if its free blocks also serve other requests that would otherwise run out of memory.
        no_split: True if a block is always a whole segment.
        open: True while the MemPool lives. Afterwards its free segments are released like all others.
    """

    __slots__ = ("id", "no_split", "open", "source", "use_on_oom")

    def __init__(
        self, id: PoolId, source: Resource | None = None, use_on_oom: bool = False, no_split: bool = False
    ) -> None:
        self.id = id
        self.source = source
        self.use_on_oom = use_on_oom
        self.no_split = no_split
        self.open = True
