"""Reductions against PyTorch: values, dtypes, shapes, strides, errors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import from_torch, same, torch

import flambeau

DTYPES = ("bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64")


@st.composite
def tensors(draw: Any, kinds: tuple[str, ...] = DTYPES, least: int = 0, ndim: int = 3) -> Any:
    """A PyTorch tensor of few elements: 0-dim, empty, transposed, sliced, expanded."""
    kind = getattr(torch, draw(st.sampled_from(kinds)))
    shape = draw(st.lists(st.integers(least, 4), max_size=ndim))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    x = torch.from_numpy(np.asarray(rng.integers(-4, 5, shape) * 0.5)).to(kind)
    if kind.is_floating_point and draw(st.booleans()) and x.numel():
        x = torch.where(torch.from_numpy(np.asarray(rng.random(shape) < 0.15)), float("nan"), x).to(kind)
    form = draw(st.sampled_from(("plain", "transposed", "sliced", "expanded")))
    if form == "transposed" and x.ndim > 1:
        x = x.transpose(0, -1)
    if form == "sliced" and x.ndim:
        x = torch.stack([x, x], -1)[..., 0]
    if form == "expanded" and x.ndim:
        x = x.unsqueeze(0).expand(2, *x.shape)
    return x


def agree(run: Any, x: Any, *more: Any, ulps: float = 2, strides: bool = True) -> None:
    """Run the same call with both packages: the same result, or the same type of error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = run(torch, x, *more)
        except Exception as error:  # the oracle's refusal is the expectation
            with pytest.raises(type(error)):
                run(flambeau, *[from_torch(t) if isinstance(t, torch.Tensor) else t for t in (x, *more)])
            return
        ours = run(flambeau, *[from_torch(t) if isinstance(t, torch.Tensor) else t for t in (x, *more)])
    same(ours, theirs, ulps, strides=strides)


FOLDS = ("sum", "mean", "amax", "amin", "all", "any", "var", "std", "logsumexp", "nansum")


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin", "prod", "nansum"])
@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "complex64", "int32", "bool"])
def test_folds_over_dimensions_before_long_lines(name: str, kind: str) -> None:
    rng = np.random.default_rng(0)
    for shape, dim in (
        ((3, 50, 20), 1),
        ((40, 16), 0),
        ((2, 5, 7, 16), (1, 2)),
        ((2, 0, 16), 1),
        ((1, 7, 33), (0, 1)),
    ):
        x = torch.from_numpy(rng.integers(-4, 5, shape) * 0.25 + 1).to(getattr(torch, kind))
        if x.is_floating_point() and x.numel():
            x[0, 3] = float("nan")
        if name != "prod" or isinstance(dim, int):
            agree(lambda room, t, d=dim: getattr(room, name)(t, dim=d), x, ulps=8)


def test_sums_across_lines_have_errors_of_the_logarithm_of_their_number() -> None:
    x = flambeau.full((2, 1 << 17, 16), 0.1)
    assert abs(x.sum(1)[1, 3].item() / (float(np.float32(0.1)) * (1 << 17)) - 1) < 1e-6


@given(tensors(), st.sampled_from(FOLDS), st.sampled_from((None, 0, -1, 1, (0, -1), (0, 1))), st.booleans())
def test_folds_over_dims(x: Any, name: str, dim: Any, keepdim: bool) -> None:
    def run(room: Any, t: Any) -> Any:
        return getattr(room, name)(t, dim=dim, keepdim=keepdim)

    if name in ("amax", "amin", "logsumexp") and dim is None:
        return
    if name == "mean" and not (x.is_floating_point() or x.is_complex()):
        x = x.float()  # else which of two refusals comes first is the kernel's affair
    agree(run, x, ulps=4)


ONE_DIM = ("max", "min", "argmax", "argmin", "prod")


@given(tensors(), st.sampled_from(ONE_DIM), st.integers(-3, 2), st.booleans())
def test_reductions_of_one_dim(x: Any, name: str, dim: int, keepdim: bool) -> None:
    agree(lambda room, t: getattr(room, name)(t, dim, keepdim), x)


@given(
    tensors(),
    st.sampled_from(
        ("max", "min", "argmax", "argmin", "prod", "norm", "count_nonzero", "std_mean", "var_mean")
    ),
)
def test_reductions_of_all(x: Any, name: str) -> None:
    agree(lambda room, t: getattr(room, name)(t), x)


@given(tensors(("int32", "float16", "float32", "float64")), st.integers(-3, 2))
def test_medians(x: Any, dim: int) -> None:
    for name in ("median", "nanmedian"):
        agree(lambda room, t, name=name: getattr(room, name)(t), x)
        agree(lambda room, t, name=name: getattr(room, name)(t, dim)[0], x)


@given(tensors(("int32", "float32", "bool"), least=1))
def test_mode_is_the_smallest_most_frequent_value_and_its_place_holds_it(x: Any) -> None:
    if bool(torch.isnan(x).any()):
        return
    agree(lambda room, t: room.mode(t, -1)[0], x)
    values, places = flambeau.mode(from_torch(x), -1, keepdim=True)
    if x.ndim:
        same(values, torch.gather(x, -1, torch.tensor(places.tolist()).reshape(places.shape)), strides=False)


@given(tensors(("float32", "float64"), least=1), st.sampled_from((0.0, 0.3, 0.5, 1.0)), st.booleans())
def test_quantiles(x: Any, q: float, skip: bool) -> None:
    name = "nanquantile" if skip else "quantile"
    for how in ("linear", "lower", "higher", "midpoint", "nearest"):
        agree(lambda room, t, how=how: getattr(room, name)(t, q, -1, interpolation=how), x, strides=False)
    levels = torch.tensor([0.25, 0.75], dtype=x.dtype)
    agree(lambda room, t, q: getattr(room, name)(t, q, 0, True), x, levels, strides=False)


@given(
    tensors(("float32", "float64", "bfloat16", "complex64"), least=1),
    st.sampled_from((0, 1, 2, 3.5, float("inf"), -float("inf"))),
)
def test_norms(x: Any, p: float) -> None:
    agree(lambda room, t: room.norm(t, p), x, ulps=4)
    agree(lambda room, t: room.norm(t, p, dim=-1, keepdim=True), x, ulps=4)


@pytest.mark.parametrize("axis", (0, 1))
@pytest.mark.parametrize("kind", ("float32", "float16"))
def test_long_sums_stay_accurate_along_every_axis(axis: int, kind: str) -> None:
    x = torch.rand(*((20000, 3) if axis == 0 else (3, 20000)), generator=torch.Generator().manual_seed(1)).to(
        getattr(torch, kind)
    )
    exact = x.double().sum(axis)
    ours = flambeau.sum(from_torch(x), axis).tolist()
    limit = 3e-7 if kind == "float32" else 5e-4
    assert max(abs(a / b - 1) for a, b in zip(ours, exact.tolist(), strict=True)) < limit


@pytest.mark.parametrize("name", ("amax", "amin", "sum", "prod", "max", "argmax", "any"))
@pytest.mark.parametrize("kind", ("uint8", "int8", "int16"))
def test_rows_of_more_elements_than_their_dtype_counts(kind: str, name: str) -> None:
    x = (torch.arange(80_000) * 37 % 101).to(getattr(torch, kind)).reshape(2, -1)
    agree(lambda m, t: getattr(m, name)(t, 1), x)
    agree(lambda m, t: getattr(m, name)(t), x)
    if name in ("sum", "prod"):
        agree(lambda m, t: getattr(m, name)(t, 1, dtype=t.dtype), x)


def test_out_takes_the_result_and_refuses_other_dtypes() -> None:
    x = flambeau.tensor([[1.0, 2.0], [3.0, 4.0]])
    out = flambeau.empty(2)
    assert flambeau.sum(x, 0, out=out) is out and out.tolist() == [4.0, 6.0]
    values, places = flambeau.empty(2), flambeau.empty(2, dtype=flambeau.int64)
    assert flambeau.max(x, 1, out=(values, places)).values is values and places.tolist() == [1, 1]
    with pytest.raises(
        RuntimeError, match="Expected out tensor to have dtype long int, but got float instead"
    ):
        flambeau.argmax(x, 0, out=flambeau.empty(2))
    with pytest.raises(RuntimeError, match="Expected out tensor to have dtype double, but got float instead"):
        flambeau.sum(x, 0, dtype=flambeau.float64, out=out)


@pytest.mark.parametrize(
    "run",
    [
        lambda room, e: e.max(), lambda room, e: e.max(0), lambda room, e: e.argmax(), lambda room, e: e.argmin(0),
        lambda room, e: e.amax(), lambda room, e: e.amin(0), lambda room, e: e.aminmax(),
        lambda room, e: e.long().mean(), lambda room, e: e.long().std(), lambda room, e: e.sum((0, 0)),
        lambda room, e: e.sum(2), lambda room, e: e.median(0), lambda room, e: e.quantile(0.5),
        lambda room, e: e.long().norm(), lambda room, e: room.bincount(e), lambda room, e: e[0:0, 0].trace(),
    ],
)  # fmt: skip
def test_refusals_read_as_pytorchs(run: Any) -> None:
    e = torch.empty(0, 3)
    with pytest.raises(Exception) as theirs:
        run(torch, e)
    with pytest.raises(theirs.type) as ours:
        run(flambeau, from_torch(e))
    assert str(ours.value) == str(theirs.value)


def test_several_results_are_named_and_print_as_pytorchs() -> None:
    x = torch.tensor([[1.0, 5.0], [7.0, 3.0]])
    for name in ("max", "min", "median", "mode", "sort"):
        ours, theirs = getattr(from_torch(x), name)(1), getattr(x, name)(1)
        assert repr(ours) == repr(theirs)
        assert ours.values is ours[0] and ours.indices is ours[1]


def test_too_few_degrees_of_freedom_warn() -> None:
    with pytest.warns(UserWarning, match="degrees of freedom is <= 0"):
        assert np.isnan(flambeau.tensor([1.0]).std().item())


@pytest.mark.parametrize("name", ["amax", "amin", "aminmax", "max", "min", "median"])
@pytest.mark.parametrize("dim", [None, 1])
def test_gradients_of_extremes_that_are_nan(name: str, dim: int | None) -> None:
    found = []
    for room in (flambeau, torch):
        x = room.tensor([[1.0, float("nan"), 2.0], [3.0, 3.0, 1.0]], requires_grad=True)
        out = getattr(x, name)() if dim is None else getattr(x, name)(dim=dim)
        (out if isinstance(out, room.Tensor) else out[0]).sum().backward()
        found.append(repr(x.grad.tolist()))
    assert found[0] == found[1]
