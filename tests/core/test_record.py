"""Records: what a frozen dataclass of the same fields does, they do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from flambeau.core.frozen import Record, Value


def double(x: int) -> int:
    return 2 * x


class Ours(Value):
    name: str
    size: int = 3
    rule: Callable[[int], int] = double
    LIMIT = 7


@dataclass(frozen=True)
class Theirs:
    name: str
    size: int = 3
    rule: Callable[[int], int] = double
    LIMIT = 7


class Plain(Record):
    name: str


class Longer(Plain, kw_only=True):
    more: tuple[int, ...] = ()


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("a",), {}), (("a", 4), {}), ((), {"name": "a", "size": 4}), (("a",), {"rule": abs}), ((), {}), ((), {"size": 4}),
    (("a", 4, abs, 5), {}), (("a",), {"name": "b"}), (("a",), {"other": 1}), (("a",), {"LIMIT": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("values", "named"), CALLS)
def test_it_is_made_as_a_dataclass_is(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    try:
        there = Theirs(*values, **named)
    except TypeError:
        with pytest.raises(TypeError):
            Ours(*values, **named)
    else:
        here = Ours(*values, **named)
        assert repr(here) == repr(there).replace("Theirs", "Ours")
        assert (here.rule(5), here.LIMIT) == (there.rule(5), 7)  # a function that is a value is no method


def test_values_are_equal_where_their_fields_are() -> None:
    assert Ours("a", 4) == Ours("a", size=4)
    assert hash(Ours("a", 4)) == hash(Ours("a", size=4))
    assert Ours("a") != Ours("a", 4)
    assert Ours("a") != Theirs("a")
    assert Plain("a") != Plain("a")


def test_it_stays_as_it_was_made() -> None:
    made = Ours("a")
    with pytest.raises(AttributeError, match="cannot assign to field 'size'"):
        made.size = 4  # type: ignore[misc]
    with pytest.raises(AttributeError, match="cannot delete field 'size'"):
        del made.size
    with pytest.raises(AttributeError, match="cannot assign to field 'new'"):
        made.new = 4  # type: ignore[attr-defined]
    assert made == Ours("a")


def test_changes_make_another() -> None:
    made = Ours("a", 4)
    assert made.with_(name="b") == Ours("b", 4)
    assert made == Ours("a", 4)
    with pytest.raises(TypeError):
        made.with_(other=1)


def test_a_longer_record_begins_with_its_bases_fields() -> None:
    made = Longer("a", more=(1, 2))
    assert (made.name, made.more, made._fields) == ("a", (1, 2), ("name", "more"))
    assert Plain("a")._fields == ("name",)


def test_copies_and_pickles_equal_it() -> None:
    made = Ours("a", 4)
    assert copy.copy(made) == copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made
