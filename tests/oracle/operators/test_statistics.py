"""Covariance, gradients of samples, histograms and renorm against PyTorch."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layouts import agree, outcome, twins
from support import from_torch, same, to_torch, torch

import flambeau

ULPS = 64


def close(ours, theirs, ulps=ULPS):
    if isinstance(theirs, Exception):
        assert type(ours) is type(theirs), (ours, theirs)
    else:
        assert not isinstance(ours, Exception), ours
        same(ours, theirs, ulps, strides=False)


def matrix(kind=torch.float64, shape=(3, 7), seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(shape, generator=generator, dtype=torch.float64) * 4 - 2
    return (x * 3).to(kind) if not kind.is_complex else torch.complex(x, x.flip(-1)).to(kind)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int64, torch.complex128, torch.bool])
@pytest.mark.parametrize("shape", [(3, 7), (5,), (), (2, 1), (2, 3, 4)])
def test_cov_and_corrcoef(kind, shape):
    x = matrix(kind, shape)
    ours = from_torch(x)
    for name in ("cov", "corrcoef"):
        want = outcome(lambda name=name: getattr(torch, name)(x))
        got = outcome(lambda name=name: getattr(flambeau, name)(ours))
        if isinstance(want, torch.Tensor) and not want.isfinite().all():
            assert (got.isfinite().numpy() == want.isfinite().numpy()).all()
        elif isinstance(want, Exception):
            close(got, want)
        else:
            assert repr(got.dtype) == repr(want.dtype)
            assert torch.allclose(
                to_torch(got), want, rtol=1e-4 if want.dtype is torch.float32 else 1e-10, atol=1e-6
            )


@pytest.mark.parametrize("correction", [0, 1, 3])
def test_cov_with_weights(correction):
    x, f, a = matrix(), torch.tensor([1, 2, 1, 3, 1, 1, 2]), torch.rand(7, dtype=torch.float64)
    for given_ in ({"fweights": f}, {"aweights": a}, {"fweights": f, "aweights": a}):
        ours = {name: from_torch(w) for name, w in given_.items()}
        close(
            flambeau.cov(from_torch(x), correction=correction, **ours),
            torch.cov(x, correction=correction, **given_),
            512,
        )


def test_cov_refuses_bad_weights():
    x = matrix()
    bad = [{"fweights": torch.ones(7)}, {"aweights": torch.ones(7).long()}, {"fweights": torch.ones(6).long()},
           {"fweights": -torch.ones(7).long()}, {"aweights": torch.zeros(7)}, {"aweights": torch.ones(7, 1)}]  # fmt: skip
    for given_ in bad:
        want = outcome(lambda given_=given_: torch.cov(x, **given_))
        assert isinstance(want, RuntimeError)
        got = outcome(
            lambda given_=given_: flambeau.cov(from_torch(x), **{n: from_torch(w) for n, w in given_.items()})
        )
        close(got, want)


def test_cov_warns_of_no_freedom():
    with pytest.warns(UserWarning, match="degrees of freedom"):
        flambeau.cov(flambeau.ones(2, 1))


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int64, torch.complex64])
def test_gradient_with_even_spacing(order, kind):
    x = matrix(kind, (4, 5))
    for given_ in ({}, {"dim": 1}, {"dim": (1, 0)}, {"spacing": 0.5}, {"spacing": [2.0, 0.25]}, {"spacing": 2.0, "dim": -1},
                   {"spacing": [1.0]}, {"dim": (0, 0)}, {"dim": 5}):  # fmt: skip
        want = outcome(lambda given_=given_: torch.gradient(x, edge_order=order, **given_))
        got = outcome(lambda given_=given_: flambeau.gradient(from_torch(x), edge_order=order, **given_))
        close(got, list(want) if isinstance(want, tuple) else want)


@pytest.mark.parametrize("order", [1, 2])
def test_gradient_with_coordinates(order):
    x = matrix(torch.float64, (4, 5))
    along = (
        torch.tensor([0.0, 1.0, 1.5, 4.0], dtype=torch.float64),
        torch.tensor([0.0, 2.0, 2.5, 3.0, 7.0], dtype=torch.float64),
    )
    ours = tuple(map(from_torch, along))
    close(
        flambeau.gradient(from_torch(x), spacing=ours, edge_order=order),
        torch.gradient(x, spacing=along, edge_order=order),
    )
    close(
        flambeau.gradient(from_torch(x), spacing=(ours[1],), dim=1, edge_order=order),
        torch.gradient(x, spacing=(along[1],), dim=1, edge_order=order),
    )


def test_gradient_of_too_few_samples_is_refused():
    close(
        outcome(lambda: flambeau.gradient(flambeau.ones(1))), outcome(lambda: torch.gradient(torch.ones(1)))
    )


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int64, torch.float16])
@pytest.mark.parametrize("density", [False, True])
def test_histogram(kind, density):
    x, w = matrix(kind, (6, 9)), matrix(kind, (6, 9), 1).abs()
    edges = torch.tensor([-5.0, -1.0, 0.0, 0.5, 3.0]).to(kind)
    ours, weight = from_torch(x), from_torch(w)
    for given_, theirs in (
        ({"bins": 7}, {"bins": 7}),
        ({"bins": 5, "range": (-1.0, 2.0)}, {"bins": 5, "range": (-1.0, 2.0)}),
        ({"bins": 5, "weight": weight}, {"bins": 5, "weight": w}),
        ({"bins": from_torch(edges)}, {"bins": edges}),
        ({"bins": 3, "range": (2.0, 2.0)}, {"bins": 3, "range": (2.0, 2.0)}),
    ):
        want = outcome(lambda theirs=theirs: torch.histogram(x, density=density, **theirs))
        got = outcome(lambda given_=given_: flambeau.histogram(ours, density=density, **given_))
        close(got, want, 8)


def test_histogram_forms_and_refusals():
    x = matrix(torch.float32, (4, 4))
    assert flambeau.histogram(from_torch(x), 4).bin_edges.numel() == 5
    close(from_torch(x).histogram(4), x.histogram(4), 4)
    out = flambeau.empty(4), flambeau.empty(5)
    assert flambeau.histogram(from_torch(x), 4, out=out)[0] is out[0]
    close(out, torch.histogram(x, 4), 4)
    close(flambeau.histogram(flambeau.empty(0), 3), torch.histogram(torch.empty(0), 3))
    for run in (
        lambda m: m.histogram(m.ones(3), 0),
        lambda m: m.histogram(m.ones(3), 3, range=(2.0, 1.0)),
        lambda m: m.histogram(m.ones(3), 3, weight=m.ones(2)),
        lambda m: m.histogram(m.ones(3), 3, weight=m.ones(3).double()),
        lambda m: m.histogram(m.ones(3) / 0, 3),
        lambda m: m.histogram(m.ones(3), m.ones(3).double()),
        lambda m: m.histogramdd(m.ones(3), 3),
        lambda m: m.histogramdd(m.ones(3, 2), [3]),
    ):
        want = outcome(lambda run=run: run(torch))
        assert isinstance(want, Exception)
        close(outcome(lambda run=run: run(flambeau)), want)


@pytest.mark.parametrize("density", [False, True])
def test_histogramdd(density):
    x = matrix(torch.float64, (5, 6, 2))
    edges = torch.tensor([-6.0, -1.0, 0.0, 6.0], dtype=torch.float64)
    w = matrix(torch.float64, (5, 6), 1).abs()
    for ours, theirs in (
        ({"bins": 3}, {"bins": 3}),
        ({"bins": [3, 4]}, {"bins": [3, 4]}),
        ({"bins": [3, 4], "range": [-1, 1, -2, 2]}, {"bins": [3, 4], "range": [-1, 1, -2, 2]}),
        ({"bins": (from_torch(edges),) * 2}, {"bins": (edges,) * 2}),
        ({"bins": 3, "weight": from_torch(w)}, {"bins": 3, "weight": w}),
    ):
        want = torch.histogramdd(x, density=density, **theirs)
        got = flambeau.histogramdd(from_torch(x), density=density, **ours)
        close(got.hist, want.hist, 16)
        close(got.bin_edges, list(want.bin_edges), 4)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16, torch.complex64, torch.int64])
@pytest.mark.parametrize("p", [1, 2, 0.5, float("inf"), 0, -1])
def test_renorm(kind, p):
    x = matrix(kind, (3, 4, 2))
    for dim, most in ((0, 1.0), (1, 3.5), (-1, 0), (2, -1), (5, 1.0)):
        want = outcome(lambda dim=dim, most=most: torch.renorm(x, p, dim, most))
        got = outcome(lambda dim=dim, most=most: flambeau.renorm(from_torch(x), p, dim, most))
        close(got, want, 8)
    close(
        outcome(lambda: flambeau.renorm(flambeau.ones(3), 2, 0, 1.0)),
        outcome(lambda: torch.renorm(torch.ones(3), 2, 0, 1.0)),
    )


def test_renorm_forms():
    x = matrix(torch.float32, (3, 4))
    close(from_torch(x).renorm(2, 0, 1.0), x.renorm(2, 0, 1.0), 4)
    close(from_torch(x).renorm_(2, 0, 1.0), x.clone().renorm_(2, 0, 1.0), 4)
    out = flambeau.empty(0)
    assert flambeau.renorm(from_torch(x), 2, 0, 1.0, out=out) is out
    close(out, torch.renorm(x, 2, 0, 1.0), 4)


# -- copies of views and what scatters into them ------------------------------------------------------------


def _sampled(draw, x):
    dim = draw(st.integers(-x.ndim - 1, x.ndim))
    return dim, draw(st.integers(-4, 4)), draw(st.integers(-4, 4)), draw(st.integers(0, 3))


@given(twins((0, 3)), st.data())
def test_copies_of_views(pair, data):
    ours, theirs = pair
    dim, a, b, n = _sampled(data.draw, theirs)
    for run in (
        lambda m, x: m.alias_copy(x),
        lambda m, x: m.detach_copy(x),
        lambda m, x: m.narrow_copy(x, min(dim, x.ndim - 1), a, n),
        lambda m, x: m.select_copy(x, dim, a),
        lambda m, x: m.slice_copy(x, dim, a, b, n),
        lambda m, x: m.slice_copy(x),
        lambda m, x: m.squeeze_copy(x),
        lambda m, x: m.squeeze_copy(x, dim),
        lambda m, x: m.unsqueeze_copy(x, dim),
        lambda m, x: m.transpose_copy(x, dim, a),
        lambda m, x: m.t_copy(x),
        lambda m, x: m.diagonal_copy(x, a, 0, dim),
        lambda m, x: m.unfold_copy(x, dim, n, 1),
        lambda m, x: m.split_copy(x, n, dim),
        lambda m, x: m.unbind_copy(x, dim),
        lambda m, x: m.expand_copy(x, (2, *x.shape)),
        lambda m, x: m.permute_copy(x, tuple(range(x.ndim))[::-1]),
        lambda m, x: m.view_copy(x, tuple(x.shape)),
        lambda m, x: m.as_strided_copy(x, (1,), (1,)),
        lambda m, x: m.unsafe_chunk(x, n, dim),
        lambda m, x: m.unsafe_split(x, n, dim),
    ):
        agree(outcome(lambda run=run: run(flambeau, ours)), outcome(lambda run=run: run(torch, theirs)))


@given(twins((0, 3)), st.data())
def test_scatters_into_views(pair, data):
    ours, theirs = pair
    dim, a, b, n = _sampled(data.draw, theirs)
    for view, scatter in (
        (lambda x: x.select(dim, a), lambda m, x, src: m.select_scatter(x, src, dim, a)),
        (
            lambda x: torch.slice_copy(x, dim, a, b, n),
            lambda m, x, src: m.slice_scatter(x, src, dim, a, b, n),
        ),
        (lambda x: x.diagonal(a, 0, dim), lambda m, x, src: m.diagonal_scatter(x, src, a, 0, dim)),
    ):
        part = outcome(lambda view=view: view(theirs))
        src = torch.ones_like(part) * 7 if isinstance(part, torch.Tensor) else torch.ones(2)
        want = outcome(lambda scatter=scatter, src=src: scatter(torch, theirs, src))
        agree(outcome(lambda scatter=scatter, src=src: scatter(flambeau, ours, from_torch(src))), want)


def test_as_strided_scatter_and_wrong_sizes():
    x, src = torch.arange(12.0).view(3, 4), torch.ones(2, 2)
    for args in (((2, 2), (4, 1)), ((2, 2), (1, 2), 3), ((2, 2), (0, 1))):
        want = outcome(lambda args=args: torch.as_strided_scatter(x, src, *args))
        agree(outcome(lambda args=args: from_torch(x).as_strided_scatter(from_torch(src), *args)), want)
    for name, args in (("select_scatter", (0, 1)), ("slice_scatter", (0, 1)), ("diagonal_scatter", ())):
        want = outcome(lambda name=name, args=args: getattr(x, name)(src, *args))
        assert isinstance(want, RuntimeError)
        agree(
            outcome(lambda name=name, args=args: getattr(from_torch(x), name)(from_torch(src), *args)), want
        )


def test_copies_into_out():
    x = torch.arange(6.0).view(2, 3)
    out = flambeau.empty(0)
    assert flambeau.transpose_copy(from_torch(x), 0, 1, out=out) is out
    same(out, x.t().contiguous())
    parts = flambeau.empty(3), flambeau.empty(3)
    assert flambeau.unbind_copy(from_torch(x), out=parts) is None
    same(list(parts), list(x.unbind()))
    assert (
        type(outcome(lambda: flambeau.t_copy(from_torch(x), out=flambeau.empty(0).double()))) is RuntimeError
    )


@given(twins((0, 3)), st.data())
def test_sum_to_size_and_dim_order(pair, data):
    ours, theirs = pair
    shape = list(theirs.shape)
    to = [1 if data.draw(st.booleans()) else n for n in shape[data.draw(st.integers(0, len(shape))) :]]
    agree(outcome(lambda: ours.sum_to_size(to)), outcome(lambda: theirs.sum_to_size(to)), strides=False)
    agree(outcome(lambda: ours.sum_to_size(5, 2)), outcome(lambda: theirs.sum_to_size(5, 2)))
    if all(n > 1 for n in shape) and 0 not in theirs.stride():
        assert ours.dim_order() == theirs.dim_order()


def test_dim_order_of_memory_formats():
    x = torch.empty(2, 3, 4, 5)
    for one in (x, x.to(memory_format=torch.channels_last), x.permute(3, 1, 0, 2)):
        assert from_torch(one).dim_order() == one.dim_order()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = outcome(lambda: torch.empty(1, 1).dim_order(ambiguity_check=True))
    assert type(outcome(lambda: flambeau.empty(1, 1).dim_order(ambiguity_check=True))) is type(want)
