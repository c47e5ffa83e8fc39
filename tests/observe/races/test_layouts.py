"""Overlap of strided layouts, against sets of bytes."""

from hypothesis import given
from hypothesis import strategies as st
from race_kit import meta
from test_races_by_reference import elements

from flambeau.observe.layout_overlap import covers, is_dense, overlap, span_of, touched_bytes

dims = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), max_size=3)
layouts = st.tuples(st.integers(0, 20), dims)


def extent(layout):
    at, dims = layout
    shape, strides = tuple(n for n, _ in dims), tuple(s for _, s in dims)
    places = elements((at, shape, strides))
    return 4096 + 4 * at, meta(shape, strides), {4 * p + 4096 + byte for p in places for byte in range(4)}


@given(layouts, layouts)
def test_overlap_is_exact(one, other):
    a, over, first = extent(one)
    b, under, second = extent(other)
    assert overlap(a, over, b, under) == bool(first & second)
    assert overlap(b, under, a, over) == bool(first & second)
    assert overlap(a, over, b, span_of(under)) == bool(first & set(range(b, b + span_of(under))))


@given(layouts, layouts)
def test_covers_is_never_wrong(one, other):
    a, over, first = extent(one)
    b, under, second = extent(other)
    if covers(a, over, b, under):
        assert second <= first
    if is_dense(over):
        assert first == set(range(a, a + span_of(over)))


@given(layouts)
def test_a_drawing_shows_each_byte(one):
    a, layout, touched = extent(one)
    picture = touched_bytes(4096, 4400, [(a, layout)])
    assert set((picture.nonzero()[0] + 4096).tolist()) == {byte for byte in touched if byte < 4400}


def test_columns_of_a_matrix_too_large_to_draw():
    column = meta((1 << 20,), (1 << 12,))
    assert not overlap(0, column, 4, column)
    assert not overlap(0, meta((1 << 20, 7), (1 << 12, 1)), 28, column)
    assert overlap(0, meta((1 << 20, 8), (1 << 12, 1)), 28, column)


def test_nothing_overlaps_an_empty_layout():
    assert not overlap(0, meta((0, 4)), 0, 16)
    assert not overlap(0, 0, 0, 16)
