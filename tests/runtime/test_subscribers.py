"""Subscribers: their order, and changes while they are notified."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flambeau.runtime.hooks.subscribers import Subscribers


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4))))
def test_subscribers_are_those_added_and_not_removed(changes: list[tuple[bool, int]]) -> None:
    found: Subscribers[int] = Subscribers()
    expected: list[int] = []
    for adds, number in changes:
        if adds:
            found.add(number)
            expected.append(number)
        else:
            found.remove(number)
            expected = [other for other in expected if other != number]
        assert list(found.members) == expected


def test_subscriber_that_leaves_during_an_event_does_not_hide_others() -> None:
    found: Subscribers[int] = Subscribers()
    for number in range(3):
        found.add(number)
    notified = []
    for number in found.members:
        found.remove(0)
        found.add(3)
        notified.append(number)
    assert notified == [0, 1, 2] and found.members == (1, 2, 3, 3, 3)


def test_subscriber_is_removed_by_identity() -> None:
    found: Subscribers[list[int]] = Subscribers()
    first: list[int] = []
    second: list[int] = []  # equal to the first
    found.add(first)
    found.add(second)
    found.remove(second)
    assert len(found.members) == 1 and found.members[0] is first
