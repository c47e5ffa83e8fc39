"""`Philox`: the position of a CUDA generator in its random numbers. `Draws`: the draws of a captured graph.

# Note [Random numbers of graphs]
Kernels that draw get a seed and an offset by value. In a capture they get the number of their generator's state among
those that the graph has drawn from, and the offset since the capture began; each launch of the graph takes as much of
each state as all its kernels draw, and fills in what it got (`Driver.graph_launch`). So a launch draws what the same
calls outside of a graph would have drawn. States belong to a graph from the first number that is drawn on, as in
today's PyTorch; it is states, not generators, since a generator may go from one to another in the middle of a capture
(`graphsafe_set_state`).
"""

from __future__ import annotations

import threading


def _round_up(increment: int) -> int:
    return -(-increment // 4) * 4


class Philox:
    """A seed, and how many numbers of each subsequence are used up: a multiple of 4. Generators may share it."""

    __slots__ = ("lock", "offset", "seed")

    def __init__(self, seed: int, offset: int = 0) -> None:
        self.seed = seed
        self.offset = offset
        self.lock = threading.Lock()

    def take(self, increment: int) -> tuple[int, int]:
        """Return (seed, offset) for a kernel that uses `increment` numbers of each subsequence."""
        with self.lock:
            offset = self.offset
            self.offset = offset + _round_up(increment)
        return self.seed, offset

    def copy(self) -> Philox:
        """Return a separate state that continues with the same numbers."""
        return Philox(self.seed, self.offset)


class Draws:
    """The random states from which a graph capture has drawn, with the amount of numbers drawn from each."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._offsets: dict[Philox, int] = {}  # state -> offset, in the order of the states' numbers

    def take(self, state: Philox, increment: int) -> tuple[int, int]:
        """Reserve random numbers for a kernel of the captured graph.

        Returns:
            The number of the random state, and how much the graph's kernels before this one draw from it.
        """
        offset = self.offset(state)
        self._offsets[state] = offset + _round_up(increment)
        return list(self._offsets).index(state), offset

    def offset(self, state: Philox) -> int:
        """Return the amount drawn from a state since the capture began."""
        return self._offsets.setdefault(state, 0)

    def set_offset(self, state: Philox, offset: int) -> None:
        """Set the amount drawn from a state since the capture began."""
        self._offsets[state] = offset

    def totals(self) -> list[tuple[Philox, int]]:
        """Return the amounts that each launch of the graph draws from its states, in the order of their numbers."""
        return list(self._offsets.items())
