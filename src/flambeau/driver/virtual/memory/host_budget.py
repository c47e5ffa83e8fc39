"""The host memory that the data of a machine's virtual GPUs, and its pinned memory, may still take.

# Note [Memory of the host] Problem: A virtual GPU of 80 GB runs on a host of 16 GB. Its address space costs
nothing, but each written page costs memory, and a host without memory kills processes. Rule: The budget
grants memory in chunks when a command that accesses it is enqueued, before the memory is committed. A grant
that the host cannot meet raises HostMemoryError at that call, and nothing was enqueued. Pinned memory is
granted as a whole when it is allocated, because the program may write to it at any time. Cost: Launches in
memory that was granted before cost nothing. A grant is taken from a lease. Only when the lease is used up
does the budget ask the system how much is left and count the granted pages that are not committed yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flambeau.core.errors import HostMemoryError
from flambeau.core.host import host_memory
from flambeau.core.host.host_memory import UNASKED, count_without_page

if TYPE_CHECKING:
    from flambeau.driver.virtual.memory.arena import Arena

_MARGIN = 1 << 32  # bytes that are left to other programs, at most; on small hosts less
_UNLIMITED = 1 << 62


class HostBudget:
    """The budget of one machine; see Note [Memory of the host]."""

    def __init__(self) -> None:
        self._arenas: list[Arena] = []
        self._pinned: dict[int, int] = {}  # address -> bytes
        self._lease = UNASKED  # bytes that may be granted before the operating system is queried again

    def add(self, arena: Arena) -> None:
        """Add a device, whose memory counts toward the budget from now on."""
        self._arenas.append(arena)

    def add_pinned(self, ptr: int, nbytes: int) -> None:
        """Grant pinned memory that was allocated and not written to.

        Raises:
            HostMemoryError: If the host has less.
        """
        self.take("host_alloc", None, nbytes)
        self._pinned[ptr] = nbytes

    def remove_pinned(self, ptr: int) -> None:
        """Return bytes that `add_pinned` granted to the budget."""
        self.give_back(self._pinned.pop(ptr))

    def take(self, what: str, index: int | None, nbytes: int) -> None:
        """Grant host memory to a device, or to pinned memory if `index` is None.

        Raises:
            HostMemoryError: If the host has less.
        """
        if nbytes > self._lease:
            self._lease = max(
                nbytes,
                self._remaining(what, index, nbytes) // 4,
                # the system is queried again after each lease, because other programs use memory too
            )
        self._lease -= nbytes

    def grant_array(self, nbytes: int) -> bool:
        """Return True if the host has memory for an array that a kernel allocates while it runs.

        Nothing returns the grant. The memory is written and freed soon, so what the operating system reports when it
        is queried again includes it.
        """
        try:
            self.take("array", None, nbytes)
        except HostMemoryError:
            return False
        return True

    def give_back(self, nbytes: int) -> None:
        """Return granted bytes whose pages were returned to the system."""
        self._lease += nbytes

    def require(self, what: str, index: int, nbytes: int) -> None:
        """Raise HostMemoryError if the host has too little for memory that is committed immediately."""
        if nbytes > UNASKED:
            self._remaining(what, index, nbytes)

    def _remaining(self, what: str, index: int | None, nbytes: int) -> int:
        """Return how many bytes may be granted.

        Raises:
            HostMemoryError: If these are less than `nbytes`.
        """
        available = host_memory.available()
        if available is None:
            return _UNLIMITED
        promised = sum(count_uncommitted(arena) for arena in self._arenas)
        promised += sum(count_without_page(ptr, size) for ptr, size in self._pinned.items())
        left = available - min(_MARGIN, available // 8) - promised
        if nbytes > left:
            place = "" if index is None else f"cuda:{index}: "
            raise HostMemoryError(
                f"{place}'{what}' needs {nbytes:,} more bytes of host memory, which holds the data of virtual GPUs and "
                f"pinned tensors, and the host has {max(left, 0):,} left for that ({available:,} available to this "
                f"process, {promised:,} of that promised before). This is a limit of the host, not of the simulated "
                "GPU. Fix: simulate without data (virtual(data=False), FLAMBEAU_VIRTUAL_DATA=0: shapes, memory and "
                "times alone), take a smaller problem or a larger host."
            )
        return left


def count_uncommitted(arena: Arena) -> int:
    """Return the number of granted bytes of a device that have no page yet."""
    granted = np.array(sorted(arena.granted), np.int64)
    runs = np.split(granted, np.flatnonzero(np.diff(granted) != 1) + 1) if len(granted) else []
    ends = [
        (int(run[0]) * arena.chunk, min((int(run[-1]) + 1) * arena.chunk, len(arena.bytes))) for run in runs
    ]
    return sum(count_without_page(arena.bytes.ctypes.data + start, end - start) for start, end in ends)
