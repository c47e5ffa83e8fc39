"""Pointwise operators with arguments of their own, and records without a public name, against PyTorch's values."""

from __future__ import annotations

import operator
import warnings

import numpy as np
import pytest
from support import from_torch, same, torch

import flambeau
from flambeau.ops.op import table
from flambeau.ops.pointwise import pointwise_arithmetic as arithmetic
from flambeau.ops.pointwise import pointwise_functions as functions
from flambeau.ops.pointwise import pointwise_logic as logic
from flambeau.ops.pointwise.pointwise import Pointwise
from flambeau.tensor.call import call

F = torch.nn.functional
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
NUMBERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, *FLOATS]
COMPLEX = [torch.complex64, torch.complex128]
by_float = pytest.mark.parametrize("kind", FLOATS, ids=str)
by_number = pytest.mark.parametrize("kind", NUMBERS, ids=str)


def sample(kind, seed=0, shape=(4, 6), low=-6):
    generator = torch.Generator().manual_seed(seed)
    if kind.is_complex:
        return torch.randn(shape, generator=generator, dtype=kind)
    if not kind.is_floating_point:
        return torch.randint(0 if kind is torch.uint8 else low, 9, shape, generator=generator).to(kind)
    return (torch.rand(shape, generator=generator, dtype=torch.float64) * 12 + low).to(kind)


def special(kind):
    values = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0, 30.0, -30.0, 0.5, 1e-4]
    return torch.tensor(values, dtype=kind)


def halves(kind, seed):
    """Multiples of a half, so small that sums and products are exact: fused or not makes no difference."""
    return sample(torch.int64, seed).to(kind) / 2 if kind.is_floating_point else sample(kind, seed)


def agree(run, *tensors, ulps=0, **kwargs):
    """`run(module, *tensors)` here and there: the same values, or the same type of error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            want = run(torch, *[t.clone() for t in tensors])
        except (RuntimeError, TypeError, NotImplementedError) as error:
            with pytest.raises(type(error)):
                run(flambeau, *map(from_torch, tensors))
            return
        same(run(flambeau, *map(from_torch, tensors)), want, ulps, **kwargs)


# -- records that torch.nn.functional will be made of -----------------------------------------------------

ACTIVATIONS = [
    ("gelu", ("none",), (), lambda x: F.gelu(x)),
    ("gelu", ("tanh",), (), lambda x: F.gelu(x, approximate="tanh")),
    ("silu", (), (), F.silu),
    ("softplus", (), (1, 20), F.softplus),
    ("softplus", (), (2.5, 3), lambda x: F.softplus(x, 2.5, 3)),
    ("leaky_relu", (), (0.01,), F.leaky_relu),
    ("leaky_relu", (), (-0.5,), lambda x: F.leaky_relu(x, -0.5)),
    ("elu", (), (1.0, 1, 1), F.elu),
    ("elu", (), (0.3, 1, 1), lambda x: F.elu(x, 0.3)),
    ("elu", (), (1.6732632423543772, 1.0507009873554805, 1), F.selu),
    ("relu", (), (), F.relu),
]


@by_float
@pytest.mark.parametrize("name, params, scalars, theirs", ACTIVATIONS, ids=[a[0] for a in ACTIVATIONS])
def test_activations(name, params, scalars, theirs, kind):
    for x in (sample(kind, 1), sample(kind, 2, (3, 1, 5)).transpose(0, 2), special(kind), sample(kind)[0, 0]):
        absolute = 0.0
        if (
            name == "gelu"
        ):  # PyTorch's erf and tanh round 1 - 1e-16 to 1 far below 0, and its erf makes infinity NaN
            x = torch.where(torch.isinf(x), 2, x)
            absolute = {torch.float32: 1e-6, torch.float64: 1e-15}.get(kind, 1e-3)
        near(call(table[name], (from_torch(x), *scalars), params), theirs(x), 8, absolute)


def near(ours, theirs, ulps, absolute):
    """`same`, but differences below `absolute` count as none."""
    if not absolute:
        return same(ours, theirs, ulps)
    assert repr(ours.dtype) == repr(theirs.dtype)
    assert ours.meta.strides == theirs.stride()
    torch.testing.assert_close(
        torch.tensor(ours.double().tolist(), dtype=torch.float64), theirs.double(),
        rtol=ulps * torch.finfo(theirs.dtype).eps, atol=absolute, equal_nan=True,
    )  # fmt: skip


# -- combinations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*FLOATS, *COMPLEX], ids=str)
def test_lerp(kind):
    a, b, w = sample(kind, 1), sample(kind, 2), sample(kind, 3)
    ulps = 64 if kind.is_complex else 4
    for weight in (0.0, 0.25, 0.5, 0.75, 1.0, -2, 3):
        agree(lambda m, a, b, weight=weight: m.lerp(a, b, weight), a, b, ulps=ulps)
        agree(lambda m, a, b, weight=weight: a.lerp_(b, weight), a, b, ulps=ulps)
    agree(lambda m, a, b, w: m.lerp(a, b, w), a, b, w, ulps=ulps * 16)
    agree(lambda m, a, b, w: a.lerp(b, w), a, b[:1], w[:, :1], ulps=ulps * 16)
    agree(lambda m, a, b, w: m.lerp(a, b, w), a, b, w[0, 0], ulps=ulps * 16)


@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
@pytest.mark.parametrize("kind", [*NUMBERS, *COMPLEX], ids=str)
def test_addcmul_and_addcdiv(name, kind):
    x, a, b = (sample(kind, seed, low=1) for seed in range(3))
    ulps = 256 if kind.is_complex else 8
    for value in (1, 2, -3, 0.5):
        agree(lambda m, x, a, b, value=value: getattr(m, name)(x, a, b, value=value), x, a, b, ulps=ulps)
        agree(lambda m, x, a, b, value=value: getattr(x, name + "_")(a, b, value=value), x, a, b, ulps=ulps)
    agree(lambda m, x, a, b: getattr(x, name)(a, b), x[:1], a, b[:, :1], ulps=ulps)


@pytest.mark.parametrize("name", ["add", "sub", "rsub"])
@by_number
def test_alpha(name, kind):
    a, b = halves(kind, 1), halves(kind, 2)
    for alpha in (1, 2, -3, 0.5, True):
        agree(lambda m, a, b, alpha=alpha: getattr(m, name)(a, b, alpha=alpha), a, b)
        if name != "rsub":
            agree(lambda m, a, b, alpha=alpha: getattr(a, name + "_")(b, alpha=alpha), a, b)
            agree(lambda m, a, alpha=alpha: getattr(m, name)(a, 3, alpha=alpha), a)


# -- rounding and bounds --------------------------------------------------------------------------------


@by_number
def test_round_to_decimals(kind):
    x = sample(kind, 4) * (1 if not kind.is_floating_point else 13)
    for decimals in (0, 1, 3, -1, -2) if kind.is_floating_point else (1, -1):
        agree(lambda m, x, decimals=decimals: m.round(x, decimals=decimals), x, ulps=1)
        agree(lambda m, x, decimals=decimals: x.round_(decimals=decimals), x, ulps=1)


@by_number
def test_clamp_of_numbers(kind):
    for x in (sample(kind, 5), special(kind) if kind.is_floating_point else sample(kind)[0, 0]):
        for low, high in [
            (1, 4),
            (None, 3),
            (2, None),
            (4, 1),
            (1.5, 2.5),
            (None, None),
            (float("nan"), None),
        ]:
            agree(lambda m, x, low=low, high=high: m.clamp(x, low, high), x)
            agree(lambda m, x, low=low, high=high: m.clamp(x, min=low, max=high), x)
            agree(lambda m, x, low=low, high=high: x.clamp_(low, high), x)


@by_number
def test_clamp_of_tensors(kind):
    x, low, high = sample(kind, 6), sample(kind, 7), sample(kind, 8)
    agree(lambda m, x, low, high: m.clamp(x, low, high), x, low, high)
    agree(lambda m, x, low, high: m.clamp(x, low, high), x, low[:1], high[:, :1])
    agree(lambda m, x, low: m.clamp(x, min=low), x, low)
    agree(lambda m, x, high: x.clamp_(max=high), x, high)
    agree(lambda m, x, low: m.clamp_min(x, low), x, low[0, 0])
    agree(lambda m, x, high: m.clamp_max(x, high), x, high)
    agree(lambda m, x, low: m.clamp(x, low, 3), x, low)
    agree(lambda m, x, low: x.clamp(min=low), x, low.to(torch.float64))
    agree(lambda m, x, low: x.clamp_(min=low), x, low.to(torch.float64))


# -- logit, nan_to_num, where -----------------------------------------------------------------------------


@by_float
def test_logit(kind):
    x = torch.cat([(sample(kind, 9).double().flatten() + 6).div(12).to(kind), special(kind)])
    for eps in (None, 0.0, 1e-3, 0.25, 0.6):
        agree(lambda m, x, eps=eps: m.logit(x, eps), x, ulps=64)
        agree(lambda m, x, eps=eps: x.logit_(eps=eps), x, ulps=64)


@pytest.mark.parametrize("kind", [*NUMBERS, torch.bool, *COMPLEX], ids=str)
def test_nan_to_num(kind):
    x = special(kind) if kind.is_floating_point or kind.is_complex else sample(torch.int64).to(kind)
    for given in [{}, {"nan": 3.5}, {"posinf": 7.0}, {"neginf": -7.0}, {"nan": 1, "posinf": 2, "neginf": 3}]:
        agree(lambda m, x, given=given: m.nan_to_num(x, **given), x)
        agree(lambda m, x, given=given: x.nan_to_num_(**given), x)
    agree(lambda m, x: m.nan_to_num(x, 2.0, 9.0, -9.0), x)


@pytest.mark.parametrize("kind", [torch.bool, *NUMBERS, *COMPLEX], ids=str)
def test_where(kind):
    condition, x, y = sample(torch.int8) > 0, sample(torch.int64, 1).to(kind), sample(torch.int64, 2).to(kind)
    for scalar in (0, 2, -1.5, True, 1 + 2j):
        agree(lambda m, c, x, s=scalar: m.where(c, x, s), condition, x)
        agree(lambda m, c, x, s=scalar: m.where(c, s, x), condition, x)
        agree(lambda m, c, x, s=scalar: x.where(c, s), condition, x)
        agree(lambda m, c, s=scalar: m.where(c, s, 1), condition)
        agree(lambda m, c, s=scalar: m.where(c, 2.5, s), condition)
    agree(lambda m, c, x, y: m.where(c, x, y), condition, x, y)
    agree(lambda m, c, x, y: m.where(c, x, y), condition[:1], x, y[:, :1])
    agree(lambda m, c, x, y: m.where(c, x, y), condition, x, y[0, 0].real.to(torch.float64))
    agree(lambda m, c: m.where(c), condition)
    agree(lambda m, c, x, y: m.where(c, x, y), x, x, y)


@by_float
def test_complex_and_polar(kind):
    a, b = sample(kind, 1), sample(kind, 2)
    agree(lambda m, a, b: m.complex(a, b), a, b)
    agree(lambda m, a, b: m.polar(a, b), a, b, ulps=64)
    agree(lambda m, a, b: m.complex(a, b.double()), a, b)


@by_number
def test_isclose_and_its_tolerances(kind):
    a = sample(kind, 1)
    b = (a.double() * (1 + 1e-4)).to(kind)
    for rtol, atol, nan in [(1e-5, 1e-8, False), (1e-3, 0, True), (0, 0, False), (0, 0.5, True)]:
        agree(lambda m, a, b, rtol=rtol, atol=atol, nan=nan: m.isclose(a, b, rtol, atol, nan), a, b)
    agree(lambda m, a, b: m.allclose(a, b), a, b)
    agree(lambda m, a, b: m.isclose(a, b, rtol=-1.0), a, b)


@pytest.mark.parametrize("mode", [None, "floor", "trunc", "ceil"])
@by_number
def test_div_with_rounding(mode, kind):
    a, b = sample(kind, 1), sample(kind, 2, low=1)
    agree(lambda m, a, b: m.div(a, b, rounding_mode=mode), a, b, ulps=1)
    agree(lambda m, a, b: a.div_(b, rounding_mode=mode), a, b, ulps=1)
    agree(lambda m, a: m.div(a, 3, rounding_mode=mode), a, ulps=1)
    agree(lambda m, a: m.div(a, -2.5, rounding_mode=mode), a, ulps=1)
    agree(lambda m, a, b: m.div(a, b, rounding_mode=mode), a, torch.zeros_like(b), ulps=1)


# -- NumPy on either side ------------------------------------------------------------------------------

OPERATORS = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.lt,
    operator.eq, operator.ne, operator.and_, operator.iadd, operator.imul, np.add, np.maximum,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("apply", OPERATORS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "other",
    [np.arange(1.0, 4), np.arange(1, 4), np.array(2.5), np.array([2], np.int8), np.array([True, False, True]),
     np.float32(2.5), np.float64(2), np.int64(3), np.uint8(3), np.bool_(True), np.ones(2)],
    ids=lambda x: f"{x.dtype}{list(x.shape)}",
)  # fmt: skip
def test_numpys_arrays_and_scalars_on_either_side(apply, other):
    for kind in (torch.float32, torch.int64):
        x = torch.tensor([3, 1, 2], dtype=kind)
        for swap in (False, True):
            results = []
            for mine in (from_torch(x), x.clone()):
                try:
                    results.append(apply(other.copy(), mine) if swap else apply(mine, other))
                except (TypeError, RuntimeError, ValueError) as error:
                    results.append(error)
            ours, theirs = results
            if isinstance(theirs, torch.Tensor):
                same(ours, theirs, 4)
            else:
                assert type(ours) is type(theirs), (ours, theirs)


def test_records_without_a_public_name_are_tested_here():
    """Each has its values compared above, or through the name that calls it."""
    through = {
        "add.alpha",
        "sub.alpha",
        "div.floor",
        "div.trunc",
        "round.decimals",
        "batch_norm.moving_average",
        "where.kept",  # gradients of activations: test_functional_activation.py
        "gelu_backward",
        "relu_backward",
        "sigmoid_backward",
        "silu_backward",
        "tanh_backward",
    }
    records = [x for module in (arithmetic, functions, logic) for x in vars(module).values()]
    names = {x.name for x in records if isinstance(x, Pointwise)}
    unnamed = {n for n in names if not hasattr(flambeau, n) and not hasattr(flambeau.Tensor, n)}
    assert through <= unnamed
    assert unnamed <= through | {name for name, *_ in ACTIVATIONS}
