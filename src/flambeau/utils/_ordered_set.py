"""torch.utils._ordered_set: a set that keeps the order in which its elements were added."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSet
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from flambeau.core.public_names import explain_absent_names

T = TypeVar("T")
__all__ = ["OrderedSet"]
explain_absent_names(globals(), "torch.utils._ordered_set")


class OrderedSet(MutableSet[T]):
    """A set whose iteration, repr and `pop` follow the order of insertion. Two are equal if their elements are."""

    __slots__ = ("_dict",)

    def __init__(self, iterable: Iterable[T] | None = None) -> None:
        self._dict = dict.fromkeys(iterable if iterable is not None else ())

    def __contains__(self, elem: object) -> bool:
        return elem in self._dict

    def __iter__(self) -> Iterator[T]:
        return iter(self._dict)

    def __len__(self) -> int:
        return len(self._dict)

    def __reversed__(self) -> Iterator[T]:
        return reversed(self._dict)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self),)

    def add(self, elem: T) -> None:
        """Add an element at the end; one that is present keeps its place."""
        self._dict[elem] = None

    def discard(self, elem: T) -> None:
        self._dict.pop(elem, None)

    def pop(self) -> T:
        """Remove and return the element that was added last. Raises KeyError if there is none."""
        if not self._dict:
            raise KeyError("pop from an empty set")
        return self._dict.popitem()[0]

    def copy(self) -> OrderedSet[T]:
        return type(self)(self)

    def update(self, *others: Iterable[T]) -> None:
        """Add the elements of each iterable."""
        for other in others:
            self |= _as_set(other)

    def union(self, *others: Iterable[T]) -> OrderedSet[T]:
        """Return a set of the elements of this set, then those of each iterable."""
        result = self.copy()
        result.update(*others)
        return result

    def difference_update(self, *others: Iterable[T]) -> None:
        """Remove the elements of each iterable."""
        for other in others:
            self -= _as_set(other)

    def difference(self, *others: Iterable[T]) -> OrderedSet[T]:
        """Return a set of the elements that no iterable has."""
        result = self.copy()
        result.difference_update(*others)
        return result

    def intersection_update(self, *others: Iterable[T]) -> None:
        """Keep only elements that each iterable has."""
        for other in others:
            self &= _as_set(other)

    def intersection(self, *others: Iterable[T]) -> OrderedSet[T]:
        """Return a set of the elements that each iterable has."""
        result = self.copy()
        result.intersection_update(*others)
        return result

    def symmetric_difference_update(self, other: Iterable[T]) -> None:
        """Keep the elements that are in exactly one of the two sets."""
        self ^= _as_set(other)

    def symmetric_difference(self, other: Iterable[T]) -> OrderedSet[T]:
        """Return a set of the elements that one of both has."""
        result = self.copy()
        result.symmetric_difference_update(other)
        return result

    def issubset(self, other: Iterable[T]) -> bool:
        return self <= _as_set(other)

    def issuperset(self, other: Iterable[T]) -> bool:
        return self >= _as_set(other)


def _as_set(other: Iterable[T]) -> AbstractSet[T]:
    return other if isinstance(other, AbstractSet) else OrderedSet(other)
