"""Short cuts of the host bodies give what the long way gives: bit by bit, or with the error that is promised."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr
from support import torch

import flambeau
from flambeau.core.dtype import float16, float32
from flambeau.ops.cache_blocks import (
    BLOCK,
    TILE,
    contiguous,
    copy_tiles,
    in_blocks,
    row_blocks,
    select,
    selectable,
    transposes,
)
from flambeau.ops.copy import caster
from flambeau.ops.index.ufunc_at import fold_at
from flambeau.ops.reduce.reduce_rows import pairwise_sum

KINDS = [np.float32, np.float64, np.complex64, np.int8, np.int64, np.bool_, ml_dtypes.bfloat16]


def numbers(shape: Any, kind: Any, seed: int) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(seed)
    return np.asarray(random.normal(size=shape) * 50).astype(kind)


# -- fold_at ------------------------------------------------------------------------------------------------


@given(
    kind=st.sampled_from(KINDS), ufunc=st.sampled_from([np.add, np.multiply, np.maximum]), dim=st.integers(0, 2),
    places=st.integers(1, 6), count=st.integers(0, 40), width=st.sampled_from([2, 20, 35]), seed=st.integers(0, 99),
)  # fmt: skip
def test_rows_fold_as_ufunc_at_would(
    kind: Any, ufunc: np.ufunc, dim: int, places: int, count: int, width: int, seed: int
) -> None:
    shape = [width, width, width]
    shape[dim] = places
    source_shape = shape.copy()
    source_shape[dim] = count
    out, source = numbers(shape, kind, seed), numbers(source_shape, kind, seed + 1)
    index = (*[slice(None)] * dim, np.random.default_rng(seed).integers(0, places, count))
    want = out.copy()
    with np.errstate(all="ignore"):
        ufunc.at(want, index, source)
        fold_at(ufunc, out, index, source)
    assert out.tobytes() == want.tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spread", ["one place", "ordered", "few have most", "transposed"])
def test_rows_whose_places_repeat_often(kind: Any, spread: str) -> None:
    random = np.random.default_rng(1)
    out, source = numbers((90, 32), kind, 2), numbers((1500, 32), kind, 0)
    places = np.minimum(random.zipf(1.3, 1500), 89)
    if spread == "one place":
        places[:] = 5
    elif spread == "ordered":
        places = np.sort(random.integers(0, 90, 1500))
    elif spread == "transposed":
        out, source = np.asfortranarray(out), np.asfortranarray(source)
    want = out.copy()
    with np.errstate(all="ignore"):
        np.add.at(want, places, source)
        fold_at(np.add, out, (places,), source)
    assert out.tobytes() == want.tobytes()


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_elements_fold_as_ufunc_at_would(layout: str) -> None:
    random = np.random.default_rng(3)
    out = numbers((30, 40), np.float32, 1)
    want = out.copy()
    if layout == "transposed":
        out, want = out.T, want.T
    places = tuple(random.integers(0, n, (7, 500)) for n in out.shape)
    source = numbers((7, 500), np.float32, 2)
    np.add.at(want, places, source)
    fold_at(np.add, out, places, source)
    assert (out == want).all()
    fold_at(np.add, out, (places[0][0], np.zeros(1, np.int64)), 1)  # places and a number that broadcast
    np.add.at(want, (places[0][0], np.zeros(1, np.int64)), 1)
    assert (out == want).all()


# -- topk ---------------------------------------------------------------------------------------------------


@given(
    shape=st.tuples(*[st.integers(1, 12)] * 3), dim=st.integers(0, 2), largest=st.booleans(), data=st.data(),
    kind=st.sampled_from(["float32", "float16", "int64", "uint8"]), values=st.sampled_from([3, 1000]),
    nan=st.booleans(),
)  # fmt: skip
def test_topk_is_the_beginning_of_a_stable_sort(
    shape: Any, dim: int, largest: bool, data: Any, kind: str, values: int, nan: bool
) -> None:
    k = data.draw(st.integers(0, shape[dim]))
    x = flambeau.from_numpy(np.random.default_rng(k).integers(0, values, shape)).to(getattr(flambeau, kind))
    if nan and x.is_floating_point():
        x[x == 1] = float("nan")
    found, places = flambeau.topk(x, k, dim, largest)
    ordered, order = flambeau.sort(x, dim=dim, descending=largest, stable=True)
    assert places.tolist() == order.narrow(dim, 0, k).tolist()
    assert np.array_equal(found.numpy(), ordered.narrow(dim, 0, k).numpy(), equal_nan=x.is_floating_point())


# -- sums of columns ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [15, 16, 17, 256, 4097])
@pytest.mark.parametrize("kind", [np.float32, np.complex64])
def test_sums_along_the_other_axis_are_pairwise_too(rows: int, kind: Any) -> None:
    x = (np.abs(numbers((rows, 50), np.float64, rows)) + 1).astype(kind)
    sums = pairwise_sum(x.T)
    exact = np.add.reduce(x.astype(np.complex128), axis=0)
    assert sums.dtype == kind
    assert (np.abs(sums - exact) / np.abs(exact)).max() < 16 * np.finfo(np.float32).eps


def test_long_columns_lose_nothing() -> None:
    """One after the other, 0.1 would lose a thousandth."""
    x = np.full((1 << 18, 16), 0.1, np.float32)
    one_by_one = np.add.reduce(x, axis=0)
    exact = float(np.float32(0.1)) * (1 << 18)
    assert abs(one_by_one[0] / exact - 1) > 1e-4
    assert abs(pairwise_sum(x.T)[0] / exact - 1) < 1e-6


# -- copies and blocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(300, 301), (2, 200, 260), (200, 3, 180)])
def test_copies_by_tiles(shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    for axes in [
        (*range(1, len(shape)), 0),
        (0, *reversed(range(1, len(shape)))),
        tuple(reversed(range(len(shape)))),
    ]:
        moved = x.transpose(axes)
        out = np.empty(moved.shape, x.dtype)
        if transposes(out, moved):
            copy_tiles(out, moved)
            assert (out == moved).all()
        assert (contiguous(moved) == moved).all()
        assert contiguous(moved).flags.c_contiguous
    assert transposes(np.empty(shape[::-1], x.dtype), x.T) == (shape[0] > TILE and shape[-1] > TILE)


def test_blocks_are_all_of_it() -> None:
    x = np.arange(2 * BLOCK + 7, dtype=np.float32)
    assert (in_blocks(lambda part: part + 1, x) == x + 1).all()
    out, apart = np.empty_like(x), np.empty(2 * x.size, np.float32)[::2]
    for target in (out, apart, out[:9], apart[:9]):
        in_blocks(lambda part: part + 1, x[: target.size], target)
        assert (target == x[: target.size] + 1).all()
    rows = np.zeros((1000, 100))
    for part in row_blocks(rows):
        rows[part] += 1
    assert (rows == 1).all() and len(list(row_blocks(rows))) > 1


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("dim", [0, 1])
def test_rows_do_not_know_of_the_blocks(kind: str, dim: int) -> None:
    x = flambeau.from_numpy(numbers((500, 300), np.float32, 5) / 50).to(getattr(flambeau, kind))
    line = flambeau.arange(300, dtype=x.dtype) / 100
    functional = flambeau.nn.functional
    for run in (
        lambda y: flambeau.softmax(y, dim),
        lambda y: flambeau.log_softmax(y, dim),
        lambda y: functional.layer_norm(y, (300,), line, line),
        lambda y: functional.rms_norm(y, (300,), line),
    ):
        whole = run(x)
        part = run(x[200:210]) if dim == 1 else run(x)[200:210]
        assert whole[200:210].tolist() == part.tolist()
        assert whole.tolist() == run(x.t().contiguous().t()).tolist()


@pytest.mark.parametrize("step", (4099, 65537))
def test_large_arrays_round_to_half_as_numpy_does(step: int) -> None:
    """All exponents, ties, what is no normal number, NaNs with their payloads."""
    x = np.arange(0, 1 << 32, step, dtype=np.uint64).astype(np.uint32)
    ties = (np.arange(1 << 16, dtype=np.uint32) << 16) + np.uint32(0x1000)
    numbers = np.concatenate([x, ties, ties - 1, ties + 1]).view(np.float32)
    out = np.empty(numbers.shape, np.float16)
    with np.errstate(all="ignore"):
        caster(float32, float16)(out, numbers)
        want = numbers.astype(np.float16)
    assert out.size > 2 * BLOCK and (out.view(np.uint16) == want.view(np.uint16)).all()


@pytest.mark.parametrize("other", [1.5, 1e-6, 1e9, np.nan])
def test_many_zeros_round_to_half_as_few_do(other: float) -> None:
    numbers = np.where(np.arange(2 * BLOCK + 9) % 3, np.float32(0), np.float32(other))
    numbers[::2] *= -1
    out = np.empty(numbers.shape, np.float16)
    with np.errstate(all="ignore"):
        caster(float32, float16)(out, numbers)
        want = numbers.astype(np.float16)
    assert (out.view(np.uint16) == want.view(np.uint16)).all()


def test_all_halves_are_the_floats_that_numpy_makes_of_them() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    numbers = np.concatenate([halves, halves[: BLOCK // 2 + 3]])  # the last block is not whole
    out = np.empty(numbers.shape, np.float32)
    with np.errstate(all="ignore"):
        caster(float16, float32)(out, numbers)
        assert (out.view(np.uint32) == numbers.astype(np.float32).view(np.uint32)).all()
        out[:] = 0
        caster(float16, float32)(out[:BLOCK], numbers[: 2 * BLOCK : 2])  # not contiguous
        assert (
            out[:BLOCK].view(np.uint32) == numbers[: 2 * BLOCK : 2].astype(np.float32).view(np.uint32)
        ).all()


# -- scans --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2 * BLOCK + 5,), (3, BLOCK + 1), (900, 50)])
@pytest.mark.parametrize("ufunc, name", [(np.add, "cumsum"), (np.multiply, "cumprod")])
def test_scans_by_blocks_are_one_scan(shape: Any, ufunc: np.ufunc, name: str) -> None:
    x = numbers(shape, np.float32, 3) / 50
    if ufunc is np.multiply:
        x = np.exp(x / 100)
    for each in (x, np.ascontiguousarray(x.T).T):
        want = ufunc.accumulate(each, axis=-1, dtype=np.float64).astype(np.float32)
        assert (getattr(flambeau, name)(flambeau.from_numpy(each), -1).numpy() == want).all()


# -- means of squares ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 100, 4096, 4097, 100_000])
def test_long_rows_are_normalized_as_exactly_as_short_ones(length: int) -> None:
    x = numbers((2, length), np.float32, length) + 300
    wide = x.astype(np.float64)
    functional = flambeau.nn.functional
    ours = functional.rms_norm(flambeau.from_numpy(x), (length,), eps=1e-5).numpy()
    np.testing.assert_allclose(ours, wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5), 1e-6)
    ours = functional.layer_norm(flambeau.from_numpy(x), (length,), eps=1e-2).numpy()
    away = wide - wide.mean(1, keepdims=True)
    np.testing.assert_allclose(ours, away / np.sqrt((away**2).mean(1, keepdims=True) + 1e-2), 1e-5, 1e-5)


# -- gelu ---------------------------------------------------------------------------------------------------


def test_gelu_is_near_the_exact_one() -> None:
    """Everywhere within 1e-6, above -1 within 5 units in the last place; where x^4 is beyond float32's range too."""
    random = np.random.default_rng(0)
    x = np.concatenate([np.linspace(-12, 12, 1 << 17), random.normal(size=1 << 16) * 1e-3]).astype(np.float32)
    x[::4097] = np.float32(1e30) * np.sign(x[::4097])
    ours = flambeau.nn.functional.gelu(flambeau.from_numpy(x)).numpy().astype(np.float64)
    exact = x * ndtr(x.astype(np.float64))
    error = np.abs(ours - exact)
    middle = (x > -1) & (x < 20)
    assert error[x < 20].max() < 1e-6
    assert (error[middle] / np.spacing(np.abs(exact[middle]).astype(np.float32))).max() < 5
    assert (error[x > 20] == 0).all()


# -- where --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float32", "int64", "complex64", "float64"])
@pytest.mark.parametrize("number", ["none", "first", "second"])
def test_large_choices_are_those_of_numpy_by_bits(kind: str, number: str) -> None:
    size, random = 2 * BLOCK + 3, np.random.default_rng(0)
    mask = random.random(size) < 0.5
    a, b = numbers(size, kind, 1), numbers(size, kind, 2)
    if kind == "float32":
        a.view(np.uint32)[:: BLOCK // 4], b[:: BLOCK // 8] = 0x7FC01234, -0.0  # a NaN keeps its payload
    given_a: Any = a.dtype.type(3) if number == "first" else a
    given_b: Any = b.dtype.type(-0.0) if number == "second" else b
    out = np.empty_like(a)
    assert selectable(mask, given_a, given_b, out)
    select(mask, given_a, given_b, out)
    assert out.tobytes() == np.where(mask, given_a, given_b).tobytes()


def test_large_choices_go_into_transposed_memory() -> None:
    mask = flambeau.arange(2 * BLOCK).reshape(2, BLOCK) % 3 == 0
    out = flambeau.zeros(BLOCK, 2).t()
    flambeau.where(mask, flambeau.ones(2, BLOCK), flambeau.full((2, BLOCK), 2.0), out=out)
    assert (out.numpy() == np.where(mask.numpy(), 1, 2)).all()


def test_where_of_large_tensors_may_store_into_either() -> None:
    x = flambeau.arange(BLOCK, dtype=flambeau.float32)
    mask, want = x % 3 == 0, np.where(np.arange(BLOCK) % 3 == 0, np.arange(BLOCK), -1)
    for out in (x.clone(), flambeau.full((BLOCK,), -1.0)):
        flambeau.where(mask, x, flambeau.full((BLOCK,), -1.0), out=out)
        assert (out.numpy() == want).all()
    y = x.clone()
    flambeau.where(mask, y, -1, out=y)
    assert (y.numpy() == want).all()
    flambeau.where(mask, -1, x, out=x)
    assert (x.numpy() == np.where(mask.numpy(), -1, np.arange(BLOCK))).all()


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("how", ["sum", "prod", "mean", "amax", "amin"])
def test_an_expanded_index_moves_whole_lines_as_its_copy_would_elements(dim: int, how: str) -> None:
    """Also where it reaches less than all of the tensor along the other dimensions."""
    make = flambeau.Generator().manual_seed(0)
    x = flambeau.randn(9, 8, 70, generator=make)
    source = flambeau.randn(8, 7, 69, generator=make)
    shape = [1, 1, 1]
    shape[dim] = (8, 7, 69)[dim]
    vector = flambeau.randint(0, 8, shape, generator=make)
    lines, elements = vector.expand(8, 7, 69), vector.expand(8, 7, 69).contiguous()
    assert lines.gather(dim, lines.clamp(max=6)).equal(elements.gather(dim, elements.clamp(max=6)))
    assert x.gather(dim, lines).equal(x.gather(dim, elements))
    assert x.scatter(dim, lines, 2.5).equal(x.scatter(dim, elements, 2.5))
    for own in (True, False):
        found, wanted = (x.scatter_reduce(dim, i, source, how, include_self=own) for i in (lines, elements))
        assert found.equal(wanted)
    with pytest.raises(RuntimeError, match="index 9 is out of bounds for dimension 1 with size 8"):
        x.gather(1, flambeau.full((1, 1, 1), 9).expand(9, 8, 70))


@pytest.mark.parametrize("slope", [0.01, 1.0, 0.0, 3.0, -0.5])
def test_leaky_relu_is_a_choice_for_each_element(slope: float) -> None:
    x = numbers(1 << 15, np.float32, 0)
    x[:6] = np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45
    with np.errstate(invalid="ignore"):
        want = np.where(x > 0, x, x * np.float32(slope))
    found = flambeau.nn.functional.leaky_relu(flambeau.from_numpy(x), slope).numpy()
    assert found.tobytes() == want.tobytes()


def test_elu_is_a_choice_for_each_element() -> None:
    x = numbers(1 << 15, np.float32, 0)
    x[:6] = np.nan, np.inf, -np.inf, 0.0, -0.0, -1e-45
    want = torch.nn.functional.elu(torch.from_numpy(x), 0.7).numpy()
    found = flambeau.nn.functional.elu(flambeau.from_numpy(x), 0.7).numpy()
    assert np.array_equal(found[x > 0], x[x > 0])
    np.testing.assert_allclose(found, want, rtol=4 * np.finfo(np.float32).eps, atol=0)


@pytest.mark.parametrize("name", ["elu", "selu", "celu"])
@pytest.mark.parametrize("size", [1, 9, 490])
def test_zeros_keep_their_signs_through_elu(name: str, size: int) -> None:
    define = getattr(flambeau.nn.functional, name)
    assert define(flambeau.full((size,), -0.0)).signbit().all()
    assert not define(flambeau.zeros(size)).signbit().any()


def test_the_gradient_of_a_sum_is_chosen_as_any_other() -> None:
    x = flambeau.from_numpy(numbers((300, 200), np.float32, 0)).requires_grad_()
    x.relu().sum().backward()
    assert x.grad.equal((x > 0).float())


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.uint8])
@pytest.mark.parametrize("size", [1, 2, 9, 1000])
@pytest.mark.parametrize("nans", [0, 3])
def test_a_median_of_all_is_that_of_the_order(kind: Any, size: int, nans: int) -> None:
    x = numbers(size, kind, size)
    if nans and x.dtype.kind == "f":
        x[:nans] = np.nan
    there = np.sort(x[x == x])
    want = there[(len(there) - 1) // 2] if len(there) else np.nan
    t = flambeau.from_numpy(x)
    assert np.array_equal(t.nanmedian().item(), want, equal_nan=True)
    assert np.array_equal(t.median().item(), want if len(there) == size else np.nan, equal_nan=True)


def test_a_channel_of_its_own_is_one_that_meets_zeros_elsewhere() -> None:
    """The gradient of a convolution whose groups have one channel each sums nothing over channels."""
    weight, grad = flambeau.randn(6, 1, 3, 2), flambeau.randn(3, 6, 5, 4)
    how = {"stride": 2, "padding": 1, "dilation": (1, 2)}
    alone = flambeau.nn.grad.conv2d_input((3, 6, 9, 8), weight, grad, groups=6, **how)
    whole = flambeau.zeros(6, 6, 3, 2)
    whole[flambeau.arange(6), flambeau.arange(6)] = weight[:, 0]
    assert alone.equal(flambeau.nn.grad.conv2d_input((3, 6, 9, 8), whole, grad, **how))


@pytest.mark.parametrize("kind", ["float32", "float64", "int32", "float16", "complex64"])
@pytest.mark.parametrize("shape", [(5, 80), (3, 7, 70), (2, 0, 90), (6, 3)])
def test_scans_across_lines_take_the_steps_of_scans_along_them(kind: str, shape: Any) -> None:
    flambeau.manual_seed(0)  # in float16 some seeds give products of infinity and 0: NaN equals nothing
    x = flambeau.randn(shape).mul(3).to(getattr(flambeau, kind))
    for scan in (flambeau.cumsum, flambeau.cumprod):
        for dim in range(len(shape) - 1):
            along = scan(x.transpose(dim, -1).contiguous(), -1).transpose(dim, -1)
            assert scan(x, dim).equal(along)
    if not x.is_complex() and x.is_floating_point():
        assert x.logcumsumexp(0).equal(x.transpose(0, -1).contiguous().logcumsumexp(-1).transpose(0, -1))
