"""Layout rules on tuples, against NumPy's memory."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flambeau.core import layout

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@st.composite
def permuted(draw: st.DrawFn) -> np.ndarray:
    shape = draw(SHAPES)
    array = np.arange(layout.numel(shape), dtype=np.int64).reshape(shape)
    return array.transpose(draw(st.permutations(range(len(shape)))))


def elements(array: np.ndarray) -> tuple[int, ...]:
    return tuple(s // array.itemsize for s in array.strides)


@given(permuted(), SHAPES)
def test_view_strides_read_the_same_elements_in_the_same_order(
    array: np.ndarray, new: tuple[int, ...]
) -> None:
    if layout.numel(new) != array.size:
        return
    strides = layout.view_strides(array.shape, elements(array), new)
    if strides is None:
        assert not np.shares_memory(array, array.reshape(new))  # NumPy has to copy as well
    else:
        seen = np.lib.stride_tricks.as_strided(array, new, [s * array.itemsize for s in strides])
        assert np.array_equal(seen, array.reshape(new))


@given(permuted())
def test_a_permuted_layout_is_dense_and_kept(array: np.ndarray) -> None:
    strides = elements(array)
    assert layout.is_dense(array.shape, strides)
    assert layout.dense_strides(array.shape, strides) == strides
    assert layout.span(array.shape, strides) == array.size


@given(permuted())
def test_contiguity_is_numpys(array: np.ndarray) -> None:
    assert layout.is_contiguous(array.shape, elements(array)) == array.flags.c_contiguous


def test_an_expanded_layout_is_packed_in_its_own_order() -> None:
    assert layout.dense_strides((2, 3, 4), (1, 0, 2)) == (1, 2, 6)
    assert layout.result_strides((2, 3), (1, 2), (0, 1)) == (1, 2)
    assert layout.memory_order((2, 3), (1, 2)) == [1, 0]


def test_only_expanded_layouts_overlap_for_certain() -> None:
    assert layout.may_self_overlap((3, 2), (0, 1))
    assert not layout.may_self_overlap((1, 2), (0, 1))
    assert not layout.may_self_overlap((0, 3), (1, 0))
    assert not layout.may_self_overlap((2, 2), (1, 1))  # unfold: PyTorch lets it be written
