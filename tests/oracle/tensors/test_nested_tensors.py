"""Tensors of nested values, as PyTorch's data parallelism finds them in the results of modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from support import torch as pytorch
from torch.nn.parallel.distributed import _find_tensors

import flambeau as torch
from flambeau.tensor.arguments.nested_tensors import tensors_in


@dataclass
class Record:
    """A value of two fields."""

    first: Any
    second: Any


class Pair(NamedTuple):
    """A tuple of two fields."""

    first: Any
    second: Any


class Number(NamedTuple):
    """The place of a tensor with this element."""

    value: int


LEAVES = st.one_of(st.builds(Number, st.integers(0, 99)), st.sampled_from([None, 1.5, "x", {1, 2}, int]))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner),
        st.builds(Record, inner, inner),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=12,
)


def _filled(value: Any, lib: Any) -> Any:
    """Return the value with a library's tensors in place of numbers."""
    if isinstance(value, Number):
        return lib.tensor(value.value)
    if isinstance(value, Record):
        return Record(_filled(value.first, lib), _filled(value.second, lib))
    if isinstance(value, Pair):
        return Pair(_filled(value.first, lib), _filled(value.second, lib))
    if isinstance(value, list | tuple):
        return type(value)([_filled(member, lib) for member in value])
    if isinstance(value, dict):
        return {key: _filled(member, lib) for key, member in value.items()}
    return value


@given(VALUES)
def test_tensors_are_found_in_pytorchs_order(value: Any) -> None:
    found = [t.item() for t in tensors_in(_filled(value, torch))]
    assert found == [t.item() for t in _find_tensors(_filled(value, pytorch))]


def test_slices_are_searched() -> None:
    first, last = torch.tensor(1), torch.tensor(2)
    found = list(tensors_in([slice(first, 3, last)]))
    assert found[0] is first and found[1] is last and len(found) == 2
