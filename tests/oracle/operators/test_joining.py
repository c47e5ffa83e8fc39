"""Joining, repeating and rearranging against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layouts import agree, of_torch, outcome, twins
from support import torch

import flambeau

D = st.integers(-4, 3)
DIMS = st.lists(D, max_size=3)


@given(data=st.data())
def test_cat_is_pytorchs(data: st.DataObject) -> None:
    _, first = data.draw(twins((0, 3)))
    others = [first]
    for kind in data.draw(
        st.lists(st.sampled_from(["float32", "int64", "bool", "bfloat16", "empty", "other"]), max_size=3)
    ):
        if kind == "empty":
            others.append(torch.empty(0))
        elif kind == "other":
            others.append(data.draw(twins((0, 3)))[1])
        else:
            others.append(first.to(getattr(torch, kind)))
    dim = data.draw(D)
    mine = outcome(lambda: flambeau.cat([of_torch(t) for t in others], dim))
    agree(mine, outcome(lambda: torch.cat(others, dim)))


@pytest.mark.parametrize("name", ["stack", "hstack", "vstack", "dstack", "column_stack"])
@given(data=st.data())
def test_stacks_are_pytorchs(name: str, data: st.DataObject) -> None:
    pairs = [data.draw(twins((0, 3)))]
    pairs += data.draw(st.lists(st.one_of(st.just(pairs[0]), twins((0, 2))), max_size=2))
    args = (data.draw(D),) if name == "stack" else ()
    mine = outcome(lambda: getattr(flambeau, name)([o for o, _ in pairs], *args))
    agree(mine, outcome(lambda: getattr(torch, name)([t for _, t in pairs], *args)))


REARRANGED = {
    "flip": st.tuples(DIMS), "fliplr": st.just(()), "flipud": st.just(()),
    "roll": st.one_of(st.tuples(D), st.tuples(D, D), st.tuples(DIMS, DIMS)),
    "rot90": st.tuples(D, st.tuples(D, D)), "tril": st.tuples(D), "triu": st.tuples(D), "diag": st.tuples(D),
    "diag_embed": st.one_of(st.tuples(D), st.tuples(D, D, D)), "diagflat": st.tuples(D),
    "tile": st.tuples(st.lists(st.integers(0, 3), max_size=4)),
    "repeat_interleave": st.one_of(st.tuples(st.integers(-1, 3)), st.tuples(st.integers(0, 3), D)),
}  # fmt: skip


@pytest.mark.parametrize("name", REARRANGED)
@given(data=st.data())
def test_rearranging_is_pytorchs(name: str, data: st.DataObject) -> None:
    ours, theirs = data.draw(twins((0, 3)))
    args = data.draw(REARRANGED[name])
    mine = outcome(lambda: getattr(flambeau, name)(ours, *args))
    expected = outcome(lambda: getattr(torch, name)(theirs, *args))
    empty = isinstance(expected, torch.Tensor) and not expected.numel()
    agree(mine, expected, strides=not empty)


@given(data=st.data())
def test_repeat_is_pytorchs(data: st.DataObject) -> None:
    ours, theirs = data.draw(twins((0, 3)))
    times = data.draw(st.lists(st.integers(-1, 3), max_size=4))
    agree(outcome(lambda: ours.repeat(*times)), outcome(lambda: theirs.repeat(*times)))


EXPRESSIONS = [
    "m.cat([])",
    "m.cat([f, x]).dtype == m.float32",
    "m.cat([f, m.empty(0)])",
    "m.cat([f, m.empty(0, 1)])",
    "m.cat([f, f[:, :2]])",
    "m.cat([m.tensor(1), m.tensor(2)])",
    "m.cat(f)",
    "m.cat([f, 1])",
    "m.cat([f, f], dim=3)",
    "m.cat([f, f], out=m.empty(0, dtype=m.int32))",
    "m.cat([f, f], 1, out=m.empty(0))",
    "m.concat([f, x], dim=-1)",
    "m.concatenate([x, x])",
    "m.cat([f, f], out=m.empty(0, dtype=m.float64))",
    "m.stack([])",
    "m.stack([f, f[0]])",
    "m.meshgrid(m.tensor([1, 2]), m.tensor([3, 4, 5]), indexing='ij')",
    "m.row_stack([f[0], f[1]])",
    "m.meshgrid(m.tensor([1, 2]), m.tensor([3, 4, 5]), indexing='xy')",
    "m.meshgrid(m.tensor([1, 2]), indexing='zz')",
    "m.meshgrid(m.tensor([1, 2]), m.tensor(3), indexing='ij')",
    "m.meshgrid([m.tensor([1, 2])], indexing='xy')",
    "m.meshgrid(m.tensor([[1, 2]]), indexing='ij')",
    "m.meshgrid(m.tensor([1]), m.tensor([1.]), indexing='ij')",
    "m.cartesian_prod(m.tensor([1, 2]), m.tensor([3, 4]))",
    "m.cartesian_prod(m.tensor([1, 2]))",
    "m.combinations(m.tensor([1, 2, 3]))",
    "m.combinations(m.tensor([1, 2, 3]), 2, True)",
    "m.combinations(m.tensor([1, 2, 3]), 4)",
    "m.combinations(m.tensor([1, 2, 3]), 0)",
    "m.combinations(m.tensor([1., 2, 3, 4]), 3)",
    "m.combinations(m.tensor([1, 2, 3]), 1)",
    "m.block_diag(m.tensor([1, 2]), m.tensor([[3.]]), m.tensor(1))",
    "m.block_diag(m.ones(2), m.tensor(1.5, dtype=m.float64))",
    "m.block_diag(m.ones(2, dtype=m.int8), m.tensor(2))",
    "m.block_diag(f)",
    "m.atleast_1d(m.tensor(1))",
    "m.atleast_2d(m.tensor(1), m.tensor([1, 2]))",
    "m.atleast_3d(m.tensor([1, 2]))",
    "m.atleast_3d(f[0])",
    "m.atleast_3d([m.tensor(1), f])",
    "m.tril_indices(3, 4, 1)",
    "m.triu_indices(3, 4, -1)",
    "m.tril_indices(0, 2)",
    "m.tril_indices(3, 0)",
    "m.tril_indices(5, 2, -2)",
    "m.triu_indices(5, 2, -2)",
    "m.triu_indices(2, 5, 9)",
    "m.tril_indices(2, 5, 9)",
    "m.tril_indices(-1, 2)",
    "m.triu_indices(3, 3, dtype=m.int32)",
    "f[0].clone().fill_diagonal_(9)",
    "m.zeros(7, 3).fill_diagonal_(1, wrap=True)",
    "m.zeros(3, 3, 3).fill_diagonal_(2)",
    "m.zeros(3, 3, 4).fill_diagonal_(1)",
    "m.zeros(3).fill_diagonal_(1)",
    "m.zeros(9, 2).fill_diagonal_(1, True)",
    "f.repeat_interleave(m.tensor([1, 2]), 0)",
    "f.repeat_interleave(m.tensor([1, 2]), 1)",
    "f.repeat_interleave(m.tensor([2]), 1)",
    "m.repeat_interleave(m.tensor([1, 0, 2]))",
    "m.repeat_interleave(m.tensor([1, 2]), output_size=3)",
    "f.repeat_interleave(m.tensor([1, -2]), 0)",
    "f.repeat_interleave(m.tensor([1., 2.]), 0)",
    "f.clone().tril_(1)",
    "f.clone().triu_(-1)",
    "f[0, 0].tril()",
    "f.bfloat16().tril(1)",
    "m.flip(f, (0, 0))",
    "m.roll(f, (1, 2))",
    "m.rot90(f, 1, (0, 3))",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expression_is_pytorchs(expression: str) -> None:
    results = []
    for m in (flambeau, torch):
        x = m.arange(24).reshape(2, 3, 4)
        names: dict[str, Any] = {"m": m, "x": x, "f": x.to(m.float32)}
        results.append(outcome(lambda names=names: eval(expression, names)))
    agree(*results)


@pytest.mark.parametrize("kind", ["uint8", "int8", "int16", "bool", "float16", "float64"])
def test_triangle_indices_of_other_dtypes_are_converted(kind: str) -> None:
    """PyTorch's CPU gives integers of 32 and 64 bits alone."""
    for name in ("triu_indices", "tril_indices"):
        rows = getattr(flambeau, name)(300, 301, 1)
        there = getattr(torch, name)(300, 301, 1).to(getattr(torch, kind))
        assert rows.to(getattr(flambeau, kind)).tolist() == there.tolist()
        assert getattr(flambeau, name)(300, 301, 1, dtype=getattr(flambeau, kind)).tolist() == there.tolist()
