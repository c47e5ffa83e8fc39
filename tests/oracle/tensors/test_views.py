"""Views against PyTorch: values, shapes, strides, offsets, aliasing, errors."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layouts import agree, outcome, twins
from support import same, torch

import flambeau

D = st.integers(-5, 4)
SIZES = st.lists(st.integers(-1, 6), max_size=4)
VIEWS = {
    "view": st.tuples(SIZES),
    "reshape": st.tuples(SIZES),
    "expand": st.tuples(SIZES),
    "permute": st.tuples(st.lists(D, max_size=4)),
    "transpose": st.tuples(D, D),
    "t": st.just(()),
    "squeeze": st.one_of(st.just(()), st.tuples(D), st.tuples(st.tuples(D, D))),
    "unsqueeze": st.tuples(D),
    "movedim": st.tuples(D, D),
    "flatten": st.tuples(D, D),
    "unflatten": st.tuples(D, SIZES),
    "unfold": st.tuples(D, st.integers(-1, 4), st.integers(0, 3)),
    "select": st.tuples(D, D),
    "narrow": st.tuples(D, D, st.integers(-1, 4)),
    "diagonal": st.tuples(D, D, D),
    "unbind": st.tuples(D),
    "split": st.tuples(st.one_of(st.integers(-1, 5), st.lists(st.integers(-1, 3), max_size=3)), D),
    "chunk": st.tuples(st.integers(-1, 5), D),
    "adjoint": st.just(()),
    "ravel": st.just(()),
    "tensor_split": st.tuples(st.one_of(st.integers(-1, 5), st.lists(D, max_size=3)), D),
    "hsplit": st.tuples(st.integers(-1, 4)),
    "vsplit": st.tuples(st.integers(-1, 4)),
    "dsplit": st.tuples(st.integers(-1, 4)),
    "broadcast_to": st.tuples(SIZES),
    "swapaxes": st.tuples(D, D),
    "as_strided": st.tuples(
        st.lists(st.integers(-1, 3), max_size=3), st.lists(st.integers(-1, 4), max_size=3)
    ),
    "clone": st.just(()),
    "contiguous": st.just(()),
    "stride": st.tuples(D),
    "size": st.tuples(D),
    "is_contiguous": st.just(()),
    "detach": st.just(()),
    "diag": st.tuples(D),
}


@pytest.mark.parametrize("name", VIEWS)
@given(data=st.data())
def test_view_is_pytorchs(name: str, data: st.DataObject) -> None:
    ours, theirs = data.draw(twins())
    args = data.draw(VIEWS[name])
    mine = outcome(lambda: getattr(ours, name)(*args))
    expected = outcome(lambda: getattr(theirs, name)(*args))
    if isinstance(expected, torch.Tensor) and -1 in expected.shape:
        assert isinstance(mine, RuntimeError)  # PyTorch expands a 0-dim tensor to size -1
        return
    agree(mine, expected, offsets=not isinstance(expected, bool | int))


@pytest.mark.parametrize("name", [n for n in VIEWS if n not in ("stride", "size", "is_contiguous", "split")])
@given(data=st.data())
def test_writing_through_a_view_changes_what_pytorchs_changes(name: str, data: st.DataObject) -> None:
    ours, theirs = data.draw(twins(dense=True))
    args = data.draw(VIEWS[name])
    mine, expected = (
        outcome(lambda: getattr(ours, name)(*args)),
        outcome(lambda: getattr(theirs, name)(*args)),
    )
    if isinstance(expected, torch.Tensor) and -1 not in expected.shape:
        shared = (
            expected.numel() and expected.untyped_storage().data_ptr() == theirs.untyped_storage().data_ptr()
        )
        version = ours._version
        outcome(lambda: expected.fill_(-1))
        outcome(lambda: mine.fill_(-1))
        same(ours, theirs)
        if shared:
            assert mine.memory is ours.memory
            assert ours._version == version + 1


@pytest.mark.parametrize("name", ["T", "mT", "H", "mH", "shape", "real", "imag"])
@given(pair=twins((0, 3)))
def test_property_is_pytorchs(name: str, pair: tuple) -> None:
    ours, theirs = (outcome(lambda t=t: getattr(t, name)) for t in pair)
    if name == "shape":
        assert tuple(ours) == tuple(theirs)
        assert repr(ours) == repr(theirs)
    else:
        agree(ours, theirs, offsets=True)


@given(pair=twins((0, 3), "complex64", dense=True))
def test_parts_of_complex_numbers_are_views(pair: tuple) -> None:
    ours, theirs = pair
    for name in ("real", "imag"):
        agree(getattr(ours, name), getattr(theirs, name), offsets=True)
    agree(flambeau.view_as_real(ours), torch.view_as_real(theirs), offsets=True)
    agree(flambeau.view_as_complex(flambeau.view_as_real(ours)), theirs, offsets=True)
    ours.imag.fill_(3)
    theirs.imag.fill_(3)
    same(ours, theirs)


@pytest.mark.parametrize("kind", ["int8", "int16", "float32", "float64", "bfloat16"])
@given(pair=twins((0, 3)))
def test_view_as_another_dtype(kind: str, pair: tuple) -> None:
    ours, theirs = pair
    mine = outcome(lambda: ours.view(getattr(flambeau, kind)))
    expected = outcome(lambda: theirs.view(getattr(torch, kind)))
    if isinstance(expected, Exception):
        assert type(mine) is type(expected), (mine, expected)
    else:
        assert mine.shape == tuple(expected.shape)
        assert mine.stride() == expected.stride()
        assert not expected.numel() or mine.storage_offset() == expected.storage_offset()


@given(pair=twins((0, 3)), other=twins((0, 3)))
def test_broadcast_tensors(pair: tuple, other: tuple) -> None:
    mine = outcome(lambda: flambeau.broadcast_tensors(pair[0], other[0]))
    agree(mine, outcome(lambda: torch.broadcast_tensors(pair[1], other[1])), offsets=True)


@pytest.mark.parametrize(
    "expression",
    [
        "x.view(5)",
        "x.view(-1, 5)",
        "x.view(-1, -1)",
        "x.t().view(6)",
        "x.select(0, 5)",
        "x.narrow(0, 1, 2)",
        "x.expand(3, 3)",
        "x.transpose(0, 5)",
        "x.as_strided((2,), (100,))",
        "x[5]",
        "x[0, 0, 0]",
        "x[::-1]",
        "x[[0, 5]]",
        "x[[0, 1], [0, 1, 2]]",
        "x.split([1, 2])",
        "x.squeeze((0, 0))",
        "x.diagonal(0, 1, 1)",
        "x.imag",
        "x.unfold(0, 5, 1)",
        "x.movedim((0, 0), (1, 0))",
        "x.H.mT.reshape(4)",
    ],
)
def test_error_texts_are_pytorchs(expression: str) -> None:
    texts = []
    for module in (flambeau, torch):
        with pytest.raises((RuntimeError, IndexError, ValueError)) as raised:
            eval(expression, {"x": module.ones(2, 3)})
        texts.append((raised.type, str(raised.value).split("\nException raised")[0]))
    assert texts[0] == texts[1]


def test_views_share_storage_counter_and_base() -> None:
    x = flambeau.zeros(4, 3)
    v = x[1:].t()
    assert v._is_view() and v._base is x and v[0]._base is x and not x._is_view()
    assert v.data_ptr() == x.data_ptr() + 3 * x.element_size()
    v.fill_(1)
    assert x._version == v._version == 1
    x.data.fill_(2)
    assert x._version == 1
    x.detach().fill_(3)
    assert x._version == 2 and x.tolist() == [[3.0] * 3] * 4
    with pytest.raises(RuntimeError, match="detach"):
        v.detach_()


def test_sizes_add_and_slice_to_sizes() -> None:
    size = flambeau.ones(2, 3).shape
    for result in (size + size, size.__radd__((4,)), size[:1], size * 2):
        assert repr(result).startswith("torch.Size([")
    assert size.numel() == 6 and size == (2, 3) and size[0] == 2
    with pytest.raises(TypeError, match="iterable of 'int'"):
        type(size)([1.5])


def test_reversing_other_than_matrices_warns() -> None:
    with pytest.warns(UserWarning, match="x.T"):
        assert flambeau.ones(2, 3, 4).T.shape == (4, 3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert flambeau.ones(2, 3).T.shape == (3, 2)


@pytest.mark.parametrize("size", ["nan", "inf", "-inf", "2.0", "2.5", "-1.0"])
@pytest.mark.parametrize("name", ["split", "chunk", "tensor_split", "narrow"])
def test_float_tensors_as_sizes_are_refused_or_taken_as_pytorch_does(name: str, size: str) -> None:
    def outcome_of(m):
        number = m.tensor(float(size))
        x = m.arange(6.0)
        try:
            parts = getattr(x, name)(0, number, 1) if name == "narrow" else getattr(x, name)(number)
        except Exception as error:
            return type(error).__name__
        return [tuple(part.shape) for part in parts]

    assert outcome_of(flambeau) == outcome_of(torch)
