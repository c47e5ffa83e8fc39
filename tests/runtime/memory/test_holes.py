"""`FreeList` against a list that is searched from end to end."""

from __future__ import annotations

import gc
import weakref

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flambeau.runtime.memory.free_list import FreeList, ListedBlock

SIZES = st.sampled_from([512, 1024, 1536, 4096, 8192])


class HolesMachine(RuleBasedStateMachine):
    """The model keeps what is free in the order in which it came."""

    def __init__(self) -> None:
        super().__init__()
        self.free_list: FreeList[ListedBlock] = FreeList()
        self.model: list[ListedBlock] = []
        self.out: list[ListedBlock] = []  # was a hole before

    def fitting(self, size: int) -> ListedBlock | None:
        found = [hole for hole in self.model if hole.size >= size]
        least = min((hole.size for hole in found), default=0)
        return [hole for hole in found if hole.size == least][-1] if found else None

    @rule(size=SIZES)
    def add(self, size: int) -> None:
        self.model.append(ListedBlock(size))
        self.free_list.add(self.model[-1])

    @precondition(lambda self: self.out)
    @rule(data=st.data(), size=SIZES)
    def add_again(self, data: st.DataObject, size: int) -> None:
        hole = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        hole.size = size  # it was split, or joined with another
        self.model.append(hole)
        self.free_list.add(hole)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        hole = self.model.pop(data.draw(st.integers(0, len(self.model) - 1)))
        self.free_list.remove(hole)
        self.out.append(hole)

    @rule(size=st.integers(1, 9000))
    def take(self, size: int) -> None:
        expected = self.fitting(size)
        assert self.free_list.best(size) is expected
        assert self.free_list.take(size) is expected
        if expected is not None:
            self.model.remove(expected)
            self.out.append(expected)

    @invariant()
    def each_is_found_newest_first_within_its_size(self) -> None:
        found = list(self.free_list)
        assert len(found) == len(self.model) and set(found) == set(self.model)
        for size in {hole.size for hole in self.model}:
            alike = [hole for hole in self.model if hole.size == size]
            assert [hole for hole in found if hole.size == size] == alike[::-1]
        assert bool(self.free_list) == bool(self.model)
        assert self.free_list.largest() == max((hole.size for hole in self.model), default=0)
        assert all(hole.is_free and hole.free_list is self.free_list for hole in self.model)

    @invariant()
    def what_is_out_refers_to_nothing(self) -> None:
        assert all(hole.free_list is hole.newer is hole.older is None for hole in self.out)


TestHolesMachine = HolesMachine.TestCase
TestHolesMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


class Witness:
    """What the newest hole refers to, and nothing else does."""


def test_a_chain_of_many_goes_without_recursion() -> None:
    holes: FreeList[ListedBlock] = FreeList()
    for _ in range(100_000):
        holes.add(ListedBlock(512))
    newest = holes.best(512)
    assert newest is not None
    newest.newer = Witness()
    gone = weakref.ref(newest.newer)
    del holes, newest
    gc.collect()
    assert gone() is None
