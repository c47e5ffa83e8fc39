"""The unordered conflicting commands of a graph, and the number of ways to order them.

# Note [Classes]
Suppose that two orders of one graph run each unordered conflicting pair in the same direction. Then exchanges of
adjacent commands that do not conflict turn one into the other, so both leave the same memory (Mazurkiewicz; the proof
is in docs/determinism.md). All legal orders fall into classes, one for each possible combination of directions, and one
order of a class represents all. A program without such pairs has one class.

Elements that indices select are those of the recorded run. A run of another class may select others, if the indices
depend on the race; each run is checked for that (`Orders._has_diverged`). If no class's run selects other elements, no
legal order does. Proof: take an order that does, and its first command that selects other elements. The commands
before it conflict as recorded, so it reads the same indices as in the run of the same class.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flambeau.observe.indexed.place_map import Named, meets
from flambeau.observe.layout_overlap import extent_of, overlap, span_of

Pair = tuple[int, int]
"""Two steps of a graph, the one requested earlier first."""

_COMPARED = 50_000  # pairs of which indices name the places
MOST_PAIRS = 400  # the largest number of pairs of which the exhaustive search tries all directions


class Conflicts:
    """The unordered conflicting pairs of a graph: `pairs`, at most `limit`; `cut` is True if there are more."""

    def __init__(self, graph: Any, limit: int = 20_000) -> None:
        self.graph = graph
        self._clocks, self._known = _clocks(graph)
        self._compared = 0
        self.pairs, self.cut = self._find(limit)

    def signature(self, order: Sequence[Any]) -> bytes:
        """Return the direction in which an order runs each pair. Equal signatures leave equal memory; see Note
        [Classes].
        """
        if not self.pairs:
            return b""
        place, end = _places(order)
        return bytes([place(first, end) < place(second, end) for first, second in self.pairs])

    def reversed_pairs(self, order: Sequence[Any]) -> list[Pair]:
        """Return the pairs that an order runs in the reverse order of their requests, the earlier one first."""
        place, end = _places(order)
        return [(b, a) for a, b in self.pairs if place(b, end) < place(a, end)]

    def is_ordered(self, first: int, second: int) -> bool:
        """Return True if the second step follows the first in every legal order."""
        step = self.graph.steps[first]
        return self._clocks[second].get(step.stream.handle, -1) >= step.place

    def is_answer_known(self, step: Any) -> bool:
        """Return True if the host can predict the answer to its poll from an earlier wait."""
        return step.at in self._known

    def classes(self) -> Iterator[list[Pair]]:
        """Yield, once each, the possible choices of an order for every pair, as forced orders, beginning with the
        recorded one.
        """
        steps = sorted({at for pair in self.pairs for at in pair})
        number = {at: i for i, at in enumerate(steps)}
        pairs = [(number[a], number[b]) for a, b in self.pairs]
        before = [sum(1 << j for j, b in enumerate(steps) if b != a and self.is_ordered(a, b)) for a in steps]
        stack: list[tuple[int, list[int], list[Pair]]] = [(0, before, [])]
        while stack:
            at, reach, forced = stack.pop()
            while (
                at < len(pairs)
                and (reach[pairs[at][0]] >> pairs[at][1] | reach[pairs[at][1]] >> pairs[at][0]) & 1
            ):
                at += 1  # the pairs that were forced before order this one
            if at == len(pairs):
                yield [(steps[a], steps[b]) for a, b in forced]
                continue
            a, b = pairs[at]
            # The recorded direction is pushed last, so it is tried first.
            for first, second in ((b, a), (a, b)):
                stack.append((at + 1, _order_after(reach, first, second), [*forced, (first, second)]))

    def _find(self, limit: int) -> tuple[list[Pair], bool]:
        found: dict[Pair, None] = {}
        for one, other in _overlapping(_cells(self.graph)):
            for pair in self._unordered_pairs(one, other):
                found[pair] = None
                if len(found) > limit:
                    return sorted(found)[:limit], True
        return sorted(found), False

    def _unordered_pairs(self, one: _Cell, other: _Cell) -> Iterator[Pair]:
        for handle, users in one.users.items():
            for stream, theirs in other.users.items():
                if stream == handle:
                    continue
                for at, writes, named in users:
                    for them, theirs_write, theirs_named in self._window(at, handle, stream, theirs):
                        conflicting = (writes or theirs_write) and (one is not other or at < them)
                        if conflicting and self._meet(one, named, other, theirs_named):
                            yield (at, them) if at < them else (them, at)

    def _meet(self, one: _Cell, named: Named | None, other: _Cell, others_named: Named | None) -> bool:
        """Return True if two uses of overlapping memory access a common byte.

        Also True if there are too many elements to compare.
        """
        if (named is None and others_named is None) or self._compared >= _COMPARED:
            return True
        self._compared += 1
        if named is None:
            return meets(others_named, (one.start, one.extent)) if others_named is not None else True
        return meets(named, others_named or (other.start, other.extent))

    def _window(self, at: int, handle: int, stream: int, theirs: list[_Use]) -> list[_Use]:
        """Return the uses by another stream that are ordered neither before nor after the step."""
        steps, clocks = self.graph.steps, self._clocks
        place = steps[at].place
        begin = bisect_right(theirs, clocks[at].get(stream, -1), key=lambda use: steps[use[0]].place)
        end = bisect_left(theirs, place, begin, key=lambda use: clocks[use[0]].get(handle, -1))
        return theirs[begin:end]


def _places(order: Sequence[Any]) -> tuple[Callable[[int, int], int], int]:
    """Return a function from a step to its position in an order, and the position of steps that never ran."""
    return {step.at: i for i, step in enumerate(order)}.get, len(order)


_Use = tuple[int, bool, "Named | None"]
"""A step, whether it writes, and the places that its indices name; None if it touches all."""


class _Cell:
    """The uses of one address and layout, by stream, in each stream's order."""

    def __init__(self, ptr: int, extent: Any) -> None:
        self.start, self.end, self.extent = ptr, ptr + span_of(extent), extent
        self.users: dict[int, list[_Use]] = {}


def _clocks(graph: Any) -> tuple[list[dict[int, int]], set[int]]:
    """Return (vector clock of each step, answered polls).

    A step's clock has, for each stream, the last command that happens before it or is it. The clock of a step that does
    not access memory is dropped once its successors have theirs, because clocks are large with thousands of streams.
    """
    steps = graph.steps
    clocks: list[dict[int, int]] = [{}] * len(steps)
    followers = [len(step.followers) for step in steps]
    known: set[int] = set()
    for step in graph.in_order():
        poll = step.poll
        if (
            poll is not None
            and (clocks[poll.host] if poll.host >= 0 else {}).get(poll.stream, -1) >= poll.count - 1
        ):
            known.add(step.at)
        clock: dict[int, int] = {}
        for need in step.needs:
            followers[need] -= 1
            over = not followers[need] and not steps[need].accesses
            clock = _both(clock, clocks[need], over)
            if over:
                clocks[need] = {}
        if step.seq >= 0:
            clock[step.stream.handle] = step.place
        if step.accesses or step.followers:
            clocks[step.at] = clock
    return clocks, known


def _both(mine: dict[int, int], theirs: dict[int, int], over: bool) -> dict[int, int]:
    """Return the least clock that includes both. Modifies `mine`, and `theirs` too if `over` is True."""
    if not mine:
        return theirs if over else dict(theirs)
    if over and len(theirs) > len(mine):
        mine, theirs = theirs, mine
    for handle, place in theirs.items():
        if mine.get(handle, -1) < place:
            mine[handle] = place
    return mine


def _cells(graph: Any) -> list[_Cell]:
    cells: dict[tuple[int, Any], _Cell] = {}
    for step in graph.steps:
        for position, (ptr, layout, _, writes) in enumerate(step.accesses):
            named = _selected_elements(step.named, position)
            extent = layout if isinstance(layout, int) else extent_of(layout)
            cell = cells.get((ptr, extent))
            if cell is None:
                cell = cells[ptr, extent] = _Cell(ptr, extent)
            uses = cell.users.setdefault(step.stream.handle, [])
            if uses and uses[-1][0] == step.at:
                uses[-1] = (step.at, writes or uses[-1][1], None)
            else:
                uses.append((step.at, writes, named))
    return sorted(cells.values(), key=lambda cell: cell.start)


def _selected_elements(named: Any, position: int) -> Named | None:
    """Return the elements that a step's indices select for the access at a position, if they are known."""
    if named is None or named.position != position or named.indices is None:
        return None
    return named.ptr, named.meta, named.touches, named.indices


def _overlapping(cells: list[_Cell]) -> Iterator[tuple[_Cell, _Cell]]:
    """Yield each cell with itself and with later cells that share a byte with it."""
    open_: list[_Cell] = []
    for cell in cells:
        yield cell, cell
        open_ = [other for other in open_ if other.end > cell.start]
        for other in open_:
            if overlap(other.start, other.extent, cell.start, cell.extent):
                yield other, cell
        open_.append(cell)


def _order_after(reach: list[int], first: int, second: int) -> list[int]:
    """Return the transitive order of steps after adding that `first` is before `second`."""
    after = reach[second] | 1 << second
    return [r | after if i == first or r >> first & 1 else r for i, r in enumerate(reach)]
