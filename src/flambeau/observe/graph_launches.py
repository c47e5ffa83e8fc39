"""Captures of graphs and their launches, for the race detector: it asks which memory a capture allocated."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from flambeau.core.callsite import Site, place
from flambeau.observe.accesses import NOWHERE, Command, ShadowBlock
from flambeau.observe.lifetimes import Lifetimes
from flambeau.observe.race_builder import GraphLaunch


class GraphLaunches:
    """The captures and launches of graphs of one machine, protected by the detector's lock.

    Attributes:
        launches: Graph -> its latest launch.
    """

    __slots__ = ("_captured_from", "_captured_to", "_capturing", "_detector", "_next_number", "launches")

    def __init__(self, detector: Lifetimes, next_number: Callable[[], int]) -> None:
        self.launches: dict[int, GraphLaunch] = {}
        self._capturing = 0  # captures under way
        # command numbers at which captures began; those at which they ended are in `_captured_to`
        self._captured_from: list[int] = []
        self._captured_to: list[int] = []
        self._detector, self._next_number = detector, next_number

    def begin_capture(self) -> None:
        """Begin a capture; captures of several streams may overlap."""
        if not self._capturing:
            self._captured_from.append(self._next_number())
        self._capturing += 1

    def end_capture(self) -> None:
        """End a capture."""
        self._capturing -= 1
        if not self._capturing:
            self._captured_to.append(self._next_number())

    @contextmanager
    def launching(self, graph: int, stream: int, site: Site) -> Iterator[None]:
        """Treat commands that are enqueued in this context as those of a graph that is launched on a stream."""
        launch = self.launches[graph] = GraphLaunch(
            self._detector.agents[stream], site, self._detector.number
        )
        try:
            yield
        finally:
            launch.end = self._detector.number

    def forget(self, graph: int) -> None:
        """Drop the launch of a destroyed graph."""
        self.launches.pop(graph, None)

    def captured_blocks(self, ptrs: Sequence[int]) -> list[ShadowBlock]:
        """Return the live blocks that a captured command uses, except those that belong to the graph."""
        blocks = dict.fromkeys([self._detector.shadow.owner(ptr) for ptr in ptrs])
        return [b for b in blocks if b is not NOWHERE and not b.freed and not self._is_captured(b)]

    def _is_captured(self, block: ShadowBlock) -> bool:
        at = bisect(self._captured_from, block.born) - 1
        return at >= 0 and (at == len(self._captured_to) or block.born < self._captured_to[at])

    def check_lent(self, lent: Mapping[ShadowBlock, int], site: Site) -> None:
        """Check that the blocks that a launched graph uses have not been freed since the capture.

        An access to other memory is checked as any access is. But if the block was freed, it depends on the
        schedule when, and for which allocation, its memory is reused.
        """
        for block, born in lent.items():
            if block.born != born or block.freed:
                freed = f" at {place(block.freed_at)}" if block.freed and block.freed_at else ""
                self._detector.findings.freed_early(
                    site,
                    f"the graph launched at {place(site)} uses memory that was there when it was captured, and was "
                    f"freed{freed}: whose it is now depends on the schedule. Keep the tensor while the graph is used",
                )

    def launch_of(self, command: Command) -> GraphLaunch | None:
        """Return the graph launch that a command belongs to; None if there is none or the graph has been launched
        again.
        """
        return next((launch for launch in self.launches.values() if launch.has(command)), None)
