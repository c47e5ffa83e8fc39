"""Indexing against PyTorch: index expressions of every kind, gather and scatter families, masks, errors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layouts import agree, of_torch, outcome, twins
from support import same, torch

import flambeau


class Held:
    """An index tensor of an index expression, in the form of either library."""

    def __init__(self, array: Any, form: str) -> None:
        self.array, self.form = array, form

    def of(self, module: Any) -> Any:
        if self.form == "list":
            return self.array.tolist()
        return (
            self.array.copy()
            if self.form == "numpy"
            else module.tensor(self.array.tolist(), dtype=_kind(module, self.array))
        )

    def __repr__(self) -> str:
        return f"{self.form}({self.array.tolist()})"


def _kind(module: Any, array: Any) -> Any:
    return module.bool if array.dtype == bool else module.int64


@st.composite
def parts(draw: Any, shape: tuple[int, ...]) -> list[Any]:
    """An index for a tensor of `shape`: mostly in range, sometimes not."""
    index: list[Any] = []
    for n in shape[: draw(st.integers(0, len(shape)))]:
        kind = draw(st.sampled_from(["int", "slice", "slice", "tensor", "mask", "none", "bool"]))
        if kind == "int":
            index.append(draw(st.integers(-n, max(n - 1, 0))))
        elif kind == "slice":
            bound = st.one_of(st.none(), st.integers(-n - 1, n + 1))
            index.append(slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, 3]))))
        elif kind == "tensor":
            size = draw(st.sampled_from([(2,), (2,), (1,), (2, 2), (3, 1)]))
            values = draw(st.lists(st.integers(-n, max(n - 1, 0)), min_size=int(np.prod(size)), max_size=4))
            array = np.resize(np.array(values, np.int64), size)
            index.append(Held(array, draw(st.sampled_from(["tensor", "numpy", "list"]))))
        elif kind == "mask":
            values = draw(st.lists(st.booleans(), min_size=n, max_size=n))
            index.append(Held(np.array(values, bool), draw(st.sampled_from(["tensor", "numpy"]))))
        else:
            index += [None] if kind == "none" else [draw(st.booleans()), slice(None)]
    if draw(st.booleans()):
        index.insert(draw(st.integers(0, len(index))), Ellipsis)
    return index


def _index(index: list[Any], module: Any) -> Any:
    return tuple(p.of(module) if isinstance(p, Held) else p for p in index)


def _strides(shape: Any, strides: Any) -> list[int]:
    return [s for n, s in zip(shape, strides, strict=True) if n > 1]


@given(data=st.data())
def test_reading_is_pytorchs(data: st.DataObject) -> None:
    ours, theirs = data.draw(twins())
    index = data.draw(parts(tuple(theirs.shape)))
    mine = outcome(lambda: ours[_index(index, flambeau)])
    expected = outcome(lambda: theirs[_index(index, torch)])
    agree(mine, expected, strides=False)
    if (
        isinstance(expected, torch.Tensor) and expected.numel()
    ):  # a dimension of size 1 may stride as it likes
        assert _strides(mine.shape, mine.stride()) == _strides(expected.shape, expected.stride())
    if isinstance(expected, torch.Tensor) and not any(isinstance(p, Held | bool) for p in index):
        assert mine.memory is ours.memory
        assert not expected.numel() or mine.storage_offset() == expected.storage_offset()


@given(data=st.data())
def test_writing_a_number_is_pytorchs(data: st.DataObject) -> None:
    ours, theirs = data.draw(
        twins(dense=True, kind=data.draw(st.sampled_from(["float32", "int16", "bfloat16"])))
    )
    index, value = data.draw(parts(tuple(theirs.shape))), data.draw(st.sampled_from([7, -2.5, True]))
    mine = outcome(lambda: ours.__setitem__(_index(index, flambeau), value))
    expected = outcome(lambda: theirs.__setitem__(_index(index, torch), value))
    assert type(mine) is type(expected), (mine, expected)
    same(ours, theirs)


@given(data=st.data())
def test_writing_a_tensor_is_pytorchs(data: st.DataObject) -> None:
    ours, theirs = data.draw(twins(dense=True))
    index = data.draw(parts(tuple(theirs.shape)))
    place = outcome(lambda: theirs[_index(index, torch)])
    if isinstance(place, Exception):
        return
    shape = data.draw(
        st.sampled_from([place.shape, place.shape[1:], (1, *place.shape), place.shape[-1:], (5,)])
    )
    value = torch.full(tuple(shape), 9).to(data.draw(st.sampled_from([torch.float32, torch.int64])))
    mine = outcome(lambda: ours.__setitem__(_index(index, flambeau), of_torch(value)))
    expected = outcome(lambda: theirs.__setitem__(_index(index, torch), value))
    assert type(mine) is type(expected), (mine, expected)
    same(ours, theirs)


ASSIGNMENTS = [
    "x[1:] *= 2",
    "x[None] += 1",
    "x[:1] += x[1]",
    "x[:] = x[0]",
    "x[:] = x[0, 0]",
    "x[:] = x[0, 0, 0]",
    "x[..., :1] = x[..., :1] * 2",
    "x[0] = x[1]",
    "x[1:, :1] -= x[0, 0]",
    "x[1:] = x[1]",
    "x[:, 0] = x[0, 0]",
    "x.mT[..., :1] *= 3",
    "x[0] = x[:1]",
    "x[0] = x[:1].mT",
    "x.fill_(x[1, 1, 1])",
    "x[0].fill_(x[1, 1, 1])",
    "x.index_fill_(0, m.tensor([0], device=x.device), x[1, 1, 1])",
    "x.masked_fill_(x > 5, x[1, 1, 1])",
    "x.masked_fill_(x > 5, x[0, 0, 3])",
]


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("statement", ASSIGNMENTS)
def test_assigning_a_tensor_of_its_own_memory_is_pytorchs(statement: str, history: bool) -> None:
    results = []
    with flambeau.virtual(devices=1):
        for m, device in ((torch, "cpu"), (flambeau, "cpu"), (flambeau, "cuda")):
            start = m.arange(24, dtype=m.float32, device=device).reshape(2, 3, 4).requires_grad_(history)
            x = start.clone()
            failed = outcome(lambda m=m, x=x: exec(statement, {"m": m, "x": x}))
            if history:
                (x * x).sum().backward()
            results.append((type(failed), x.tolist(), start.grad.tolist() if history else None))
    assert results[1] == results[0]
    assert results[2] == results[0]


EXPRESSIONS = [
    "x[1.5]",
    "x['a']",
    "x[5]",
    "x[0, 0, 0, 0]",
    "x[::0]",
    "x[::-1]",
    "m.tensor(1)[0]",
    "m.tensor(1)[0:1]",
    "x[m.tensor(1.5)]",
    "x[[0, 5]]",
    "x[[0, 1], [0, 1, 2]]",
    "x[m.ones(2, 2, dtype=m.bool)]",
    "x[m.ones(9, dtype=m.bool)]",
    "x[m.tensor([0], dtype=m.int16)]",
    "x[:0][[0]]",
    "x[...]",
    "x[()]",
    "x[[]]",
    "x[True]",
    "x[False, 0]",
    "x[range(2)]",
    "x[m.tensor(1)]",
    "x[m.tensor(True)]",
    "x[[True, False]]",
    "x[m.ones(2, 3, dtype=m.bool), 1:3]",
    "x[m.tensor([0], dtype=m.int32)]",
    "x[[[0, 1], [1, 0]]]",
    "x[m.ones(2, dtype=m.uint8)]",
    "x[None, ..., [0, 1]]",
    "x[:, [0, 1], ..., None, [1, 2]]",
    "x[True, [0, 1]]",
    "x[[0, 1], :, [0, 1]]",
    "x[[slice(None), 0]]",
    "x[[None, 0]]",
    "x[..., ...]",
    "x[[1.5]]",
    "x.permute(2, 1, 0)[:, m.tensor([0, 1])]",
    "x.permute(2, 0, 1)[m.tensor([0, 1])]",
    "x.__setitem__(0, [1, 2])",
    "x.__setitem__(0, m.ones(7))",
    "x.__setitem__([0, 5], 1)",
    "x.gather(0, m.tensor([[0, 1]]))",
    "x.gather(0, m.tensor([[[0, 5]]]))",
    "x.gather(0, m.tensor([[[0, 1.0]]]))",
    "x.gather(0, m.zeros(5, 1, 9, dtype=m.int64))",
    "x.gather(0, m.tensor([[[0, 1]]], dtype=m.int32))",
    "x.gather(0, m.zeros(5, 1, 3, dtype=m.int64))",
    "m.tensor(5.).gather(0, m.tensor([0]))",
    "x.index_select(0, m.tensor([0, 5]))",
    "x.index_select(0, m.tensor([[0, 1]]))",
    "x.index_select(1, m.tensor(1))",
    "x.index_select(0, m.tensor([-1]))",
    "x.index_select(0, m.tensor([1.]))",
    "x.index_select(-1, m.tensor([3, 0, 3]))",
    "m.tensor(5.).index_select(0, m.tensor([0]))",
    "m.tensor(5.).index_select(0, m.tensor([0, 0]))",
    "x.take(m.tensor([0, -1, 30]))",
    "x.take(m.tensor([[0, -1]]))",
    "x.take(m.tensor([0], dtype=m.int32))",
    "x.masked_select(m.tensor([1, 0]))",
    "x.masked_select(m.tensor([True, False, True, False]))",
    "m.tensor(3.).masked_select(m.tensor(True))",
    "x.t().shape",
    "x[0].t().masked_select(m.tensor([True, False, True]))",
    "x.masked_fill(m.tensor([True, False, True, False]), 1.5)",
    "x.masked_fill(m.tensor([1, 0, 1, 0]), 1)",
    "x.masked_fill(m.tensor([True, False, True, False]), m.tensor([1., 2.]))",
    "x[0, 0].masked_fill(m.ones(2, 4, dtype=m.bool), 3)",
    "x.masked_fill(x.to(m.bool), m.tensor(7))",
    "x.index_fill(0, m.tensor([0]), 2)",
    "x.index_fill(0, m.tensor([-1]), 3)",
    "x.index_fill(0, m.tensor([4]), 3)",
    "x.index_fill(0, m.tensor([0]), m.tensor([2.]))",
    "x.index_copy(0, m.tensor([0]), x)",
    "x.index_copy(0, m.tensor([1, 0]), x)",
    "x.index_copy(0, m.tensor([0, 0]), x.to(m.int64))",
    "x.index_add(0, m.tensor([0, 0]), x, alpha=2)",
    "x.index_add(0, m.tensor([0, 1]), x[:, :2])",
    "x.index_add(0, m.tensor([0, 7]), x)",
    "x.index_add(2, m.tensor([1, 1, 1, 3]), x)",
    "x.index_reduce(0, m.tensor([0, 0]), x, 'amax')",
    "x.index_reduce(0, m.tensor([0, 0]), x, 'mean')",
    "x.index_reduce(1, m.tensor([0, 0, 2]), x, 'prod', include_self=False)",
    "x.scatter(0, m.tensor([[[0, 1]]]), 2.5)",
    "x.scatter(0, m.tensor([[[0, 1]]]), x)",
    "x.scatter(0, m.tensor([[[0, 1]]]), x.to(m.int64))",
    "x.scatter(0, m.tensor([[[0, 9]]]), x)",
    "x.scatter(0, m.tensor([[0, 1]]), x)",
    "x.scatter(0, m.tensor([[[1, 1]]]), 3.0, reduce='multiply')",
    "x.scatter(0, m.tensor([[[0, 1]]]), x, reduce='add')",
    "x.scatter(0, m.tensor([[[0, 1]]]), x, reduce='mean')",
    "x.scatter_add(2, m.tensor([[[0, 1, 1]]]), x)",
    "x.scatter_reduce(2, m.tensor([[[0, 1, 1]]]), x, 'mean')",
    "x.scatter_reduce(2, m.tensor([[[0, 1, 1]]]), x, 'mean', include_self=False)",
    "x.to(m.int64).scatter_reduce(2, m.tensor([[[0, 1, 1]]]), x.to(m.int64), 'mean')",
    "x.scatter_reduce(2, m.tensor([[[0, 1, 1]]]), x, 'amin', include_self=False)",
    "x.scatter_reduce(2, m.tensor([[[0, 1, 1]]]), x, 'prod')",
    "x.scatter_reduce(2, m.tensor([[[0, 1, 1]]]), x, 'max')",
    "x.scatter_reduce(2, m.tensor([[[0, 1, 1]]]), x, 'min', include_self=False)",
    "x.scatter_reduce(0, m.tensor([[[0, 1]]]), x, 'foo')",
    "x.put(m.tensor([0, -1]), m.tensor([1., 2.]))",
    "x.put(m.tensor([0, -1]), m.tensor([1.]))",
    "x.put(m.tensor([3, 3]), m.tensor([1., 2.]), accumulate=True)",
    "x.put(m.tensor([99]), m.tensor([1.]))",
    "x.index_put((m.tensor([0]),), m.tensor(3.))",
    "x.index_put((m.tensor([0]),), m.tensor([3]))",
    "x.index_put((m.tensor([0, 0]),), x, accumulate=True)",
    "x.index_put((m.tensor([0, 0]),), m.ones(7))",
    "x.clone().index_put_((None, m.tensor([0, 2])), m.tensor(1.))",
    "x.masked_scatter(m.tensor([True, False, True, True]), x)",
    "x.masked_scatter(m.tensor([True, False, True, True]), x[0])",
    "x.nonzero()",
    "x.nonzero(as_tuple=True)",
    "m.tensor(1).nonzero()",
    "m.tensor(1).nonzero(as_tuple=True)",
    "m.tensor(0).nonzero()",
    "x.permute(2, 0, 1).nonzero()",
    "m.take_along_dim(x, m.tensor([[[0]]]), 0)",
    "m.take_along_dim(x, m.tensor([0]))",
    "m.take_along_dim(x, m.tensor([[0]]), 0)",
    "m.argwhere(x)",
    "x.bfloat16().index_add(0, m.tensor([0, 0]), x.bfloat16())",
    "x.clone().index_add_(0, m.tensor([0, 0]), x)",
    "x.clone().scatter_(1, m.tensor([[[0, 2, 1]]]), 5)",
    "x.clone().masked_fill_(m.ones(3, 2, 3, 4, dtype=m.bool), 1)",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expression_is_pytorchs(expression: str) -> None:
    results = []
    for m in (flambeau, torch):
        x = m.arange(24).reshape(2, 3, 4).to(m.float32)
        results.append(outcome(lambda m=m, x=x: eval(expression, {"m": m, "x": x})))
    agree(*results)


@pytest.mark.parametrize(
    "expression",
    [
        "x[5]",
        "x[0, 0, 0, 0]",
        "x[[0, 5]]",
        "x[[0, 1], [0, 1, 2]]",
        "x[1.5]",
        "m.tensor(1)[0]",
        "x[::-1]",
        "x[m.ones(2, 2, dtype=m.bool)]",
        "x[m.tensor(1.5)]",
        "x.index_select(0, m.tensor([5]))",
        "x.gather(0, m.tensor([[[0, 5]]]))",
        "x.take(m.tensor([30]))",
        "x.scatter(0, m.tensor([[[9]]]), x)",
        "x.index_put((m.tensor([0]),), m.tensor([3]))",
        "x[0, 0].index_add(0, m.tensor([0, 5]), m.ones(2))",
        "x[0, 0, 0].index_add(0, m.tensor([-1]), m.tensor(1.0))",
        "x[0].index_add(1, m.tensor([4]), m.ones(3, 1))",
        "x[0].index_copy(1, m.tensor([-1]), m.ones(3, 1))",
        "x[0].index_copy(0, m.tensor([0]), m.ones(4))",
        "x[0].index_copy(0, m.tensor([0]), m.ones(1, 5))",
        "x[0].index_reduce(1, m.tensor([-1]), m.ones(3, 1), 'amax')",
        "x[0].index_fill(0, m.tensor([3]), 1.0)",
    ],
)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_error_texts_are_pytorchs(expression: str) -> None:
    texts = []
    for m in (flambeau, torch):
        x = m.arange(24).reshape(2, 3, 4).to(m.float32)
        error = outcome(lambda m=m, x=x: eval(expression, {"m": m, "x": x}))
        texts.append((type(error), str(error).split("\nException raised")[0]))
    assert texts[0] == texts[1]


def test_an_index_out_of_range_changes_nothing() -> None:
    x = flambeau.arange(6)
    before, version = x.tolist(), x._version
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 0 with size 6"):
        x[[0, 9]] = 7
    assert x.tolist() == before and x._version == version


def test_byte_masks_are_deprecated() -> None:
    with pytest.warns(UserWarning, match="torch.uint8 is now deprecated"):
        assert flambeau.arange(3)[flambeau.tensor([1, 0, 1], dtype=flambeau.uint8)].tolist() == [0, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert flambeau.arange(3)[flambeau.tensor([True, False, True])].tolist() == [0, 2]


def test_writing_counts_as_one_change_of_the_base() -> None:
    x = flambeau.zeros(3, 3)
    for index in (0, (0, [1, 2]), flambeau.eye(3).to(flambeau.bool)):
        version = x._version
        x[index] = 1
        assert x._version == version + 1


@pytest.mark.parametrize(
    "kind", ("float8_e4m3fn", "float8_e5m2", "bool", "complex64", "uint16", "uint64", "int8")
)
@pytest.mark.parametrize("how", ("prod", "mean", "amax", "amin"))
def test_index_reduce_refuses_dtypes_that_pytorch_does(kind: str, how: str) -> None:
    outcomes = []
    for lib in (torch, flambeau):
        x, y = lib.zeros(4, 3).to(getattr(lib, kind)), lib.ones(3, 3).to(getattr(lib, kind))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outcomes.append(x.index_reduce(0, lib.tensor([0, 1, 1]), y, how).to(lib.complex64).tolist())
        except NotImplementedError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
