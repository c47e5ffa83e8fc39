"""torch.special and its kin against PyTorch: values, dtypes, refusals, forms."""

from __future__ import annotations

import numpy as np
import pytest
from layouts import outcome
from support import from_torch, same, torch

import flambeau
from flambeau.core.dtype import DTYPES
from flambeau.ops.pointwise import pointwise_special as records
from flambeau.ops.pointwise.pointwise import Pointwise

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:.*experimental")

ORACLE_DTYPES = [getattr(torch, d.name) for d in DTYPES if d.name != "complex32"]
OPS = [op for op in vars(records).values() if isinstance(op, Pointwise)]
NAMES = {op: op.name.removeprefix("special_") for op in OPS}
UNARY = [op for op in OPS if op.arity == 1 and op.name != "polygamma" and "." not in op.name]
POLYNOMIALS = [op for op in OPS if "polynomial" in op.name]
BINARY = [op for op in OPS if op.arity == 2 and op not in POLYNOMIALS]
# PyTorch's own rational approximations are off by 1e-6 near zeros of these, its trigamma by 1e-10.
ROUGH = {"bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "airy_ai", "polygamma"}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, 20.0, -20.0, 0.5]


def ours_of(name):
    return getattr(flambeau.special, name, None) or getattr(flambeau, name)


def theirs_of(name):
    return getattr(torch.special, name, None) or getattr(torch, name)


def sample(kind, seed, special=SPECIAL):
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.normal(0, 3, 60), special])
    if not kind.is_floating_point:
        x = np.abs(np.nan_to_num(x, nan=1, posinf=3, neginf=2)).round()
    return torch.from_numpy(x).to(kind)


def close(ours, theirs, name, ulps=64):
    assert repr(ours.dtype) == repr(theirs.dtype)
    if name not in ROUGH:
        same(ours, theirs, ulps)
        return
    a, b = ours.double().numpy(), theirs.double().numpy()
    rtol = max(1e-5, 4 * torch.finfo(theirs.dtype).eps)
    assert np.allclose(a, b, rtol=rtol, atol=2e-6, equal_nan=True), a - b


def agree(name, args, ulps=64):
    want = outcome(lambda: theirs_of(name)(*args))
    got = outcome(lambda: ours_of(name)(*[from_torch(x) if isinstance(x, torch.Tensor) else x for x in args]))
    if isinstance(want, Exception):
        assert type(got) is type(want), (args, got, want)
    else:
        assert not isinstance(got, Exception), (args, got)
        close(got, want, name, ulps)


@pytest.mark.parametrize("op", UNARY, ids=NAMES.get)
def test_functions_of_one_number_in_every_dtype(op):
    for kind in ORACLE_DTYPES:
        x = sample(kind, 1)
        agree(NAMES[op], (x,), 256)
        agree(NAMES[op], (x[:1].reshape(()),))
        agree(NAMES[op], (x[:0],))


@pytest.mark.parametrize("op", BINARY, ids=NAMES.get)
def test_functions_of_two_numbers_in_every_dtype(op):
    for kind in ORACLE_DTYPES:
        if kind.itemsize > 1 and "uint" in str(kind):
            continue  # refused by both, as a sum of them is
        x, y = sample(kind, 1), torch.from_numpy(sample(torch.float64, 2).numpy()[::-1].real.copy()).to(kind)
        if op.name == "special_zeta":
            y = torch.where(torch.isinf(y), 2, y) if kind.itemsize > 1 and kind.is_floating_point else y
        agree(NAMES[op], (x, y), 256)
        if not kind.is_complex:
            agree(NAMES[op], (x, y[:1].to(torch.float64)), 256)


@pytest.mark.parametrize("op", POLYNOMIALS, ids=NAMES.get)
def test_polynomials_of_every_degree(op):
    x = torch.linspace(-1.5, 1.5, 61, dtype=torch.float64)[:, None]
    n = torch.arange(-1, 24, dtype=torch.float64)
    want, got = theirs_of(NAMES[op])(x, n), ours_of(NAMES[op])(from_torch(x), from_torch(n))
    assert torch.allclose(torch.from_numpy(got.numpy()), want, rtol=1e-9, atol=1e-9)
    assert ours_of(NAMES[op])(from_torch(x), 3).dtype is flambeau.float64
    for kind in (torch.int64, torch.float16, torch.complex64, torch.bool):
        pair = torch.ones(3).to(kind), torch.ones(3).to(kind)
        agree(NAMES[op], pair)
    agree(NAMES[op], (torch.tensor([0.25, 2.0]), 4))
    agree(NAMES[op], (0.25, torch.tensor([1, 4])))
    agree(NAMES[op], (0.25, 4))


@pytest.mark.parametrize("op", POLYNOMIALS, ids=NAMES.get)
def test_polynomials_of_high_degree_that_overflow(op):
    x = torch.tensor([1.5, 3.0, -2.5, -7.0, float("inf"), -float("inf")], dtype=torch.float64)
    degrees = [741, 3000] if "laguerre" in NAMES[op] else [741, 3000, 1 << 40]
    for n in degrees:
        agree(NAMES[op], (x, n), 1 << 20)


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_polygamma(n):
    for kind in ORACLE_DTYPES:
        x = torch.tensor([0.5, 1.0, 2.5, 7.0, 30.0]).to(kind)
        agree("polygamma", (n, x), 4096)
    x = torch.tensor([-0.5, -2.25], dtype=torch.float64)
    agree("polygamma", (n, x), 4096)
    close(from_torch(x + 3).polygamma_(n), (x + 3).polygamma_(n), "polygamma")
    close(from_torch(x + 3).polygamma(n), (x + 3).polygamma(n), "polygamma")


def test_polygamma_of_a_negative_order_is_refused():
    agree("polygamma", (-1, torch.ones(2)))


@pytest.mark.parametrize("p", [1, 2, 4])
def test_mvlgamma(p):
    for kind in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
        agree("multigammaln", (torch.tensor([3.0, 4.0, 9.0]).to(kind), p), 64)
    x = torch.tensor([3.5, 4.0])
    same(from_torch(x).mvlgamma_(p), x.clone().mvlgamma_(p), 16)
    agree("mvlgamma", (x, 0))
    assert type(outcome(lambda: flambeau.arange(3).mvlgamma_(p))) is RuntimeError


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_frexp_ldexp_nextafter(name):
    kind = getattr(torch, name)
    x = sample(kind, 3, [0.0, -0.0, 1.0, 1024.0, -3.0, 1e-5])
    y = sample(kind, 4, [0.0, -0.0, 1.0, 0.0, 9.0, 0.0])
    ours = flambeau.frexp(from_torch(x))
    same(ours, torch.frexp(x))
    assert ours.mantissa.dtype is getattr(flambeau, name)
    same(from_torch(x).frexp(), x.frexp())
    agree("nextafter", (x, y), 0)
    same(from_torch(x).nextafter_(from_torch(y)), x.clone().nextafter_(y))
    steps = torch.arange(len(x)) % 9 - 4
    agree("ldexp", (x, steps), 1)
    agree("ldexp", (x, steps > 0))
    agree("ldexp", (x, steps.double()), 2)
    agree("ldexp", (steps, steps), 2)
    same(from_torch(x).ldexp_(from_torch(steps)), x.clone().ldexp_(steps), 2)
    out = flambeau.empty(0, dtype=getattr(flambeau, name)), flambeau.empty(0, dtype=flambeau.int32)
    assert flambeau.frexp(from_torch(x), out=out)[0] is out[0]
    same(out, torch.frexp(x))


def test_frexp_refuses_integers():
    for kind in (torch.int64, torch.bool, torch.complex64):
        agree("frexp", (torch.ones(2).to(kind),))


def test_out_and_other_forms():
    x = torch.tensor([0.25, 1.5, 3.0])
    out = flambeau.empty(3)
    assert flambeau.special.i1(from_torch(x), out=out) is out
    same(out, torch.special.i1(x), 8)
    assert flambeau.special.ndtr(from_torch(x), out=out) is out
    same(out, torch.special.ndtr(x), 4)
    same(from_torch(x).i0_(), x.clone().i0_(), 4)
    same(from_torch(x).igamma_(from_torch(x.flip(0))), x.clone().igamma_(x.flip(0)), 8)
    same(from_torch(x).igammac(from_torch(x.flip(0))), x.igammac(x.flip(0)), 8)
    assert type(outcome(lambda: flambeau.special.zeta(2, 3))) is TypeError


def test_torch_special_has_all_that_pytorchs_has():
    theirs = {n for n in dir(torch.special) if not n.startswith("_") and callable(getattr(torch.special, n))}
    assert theirs - {"Tensor"} <= set(dir(flambeau.special))


def test_names_that_torch_special_shares_with_torch():
    x = torch.tensor([[0.25, 0.5], [0.75, 0.125]])
    for name in ("digamma", "psi", "erf", "erfc", "erfinv", "exp2", "expm1", "expit", "gammaln", "i0", "log1p", "logit",
                 "round", "sinc", "ndtr"):  # fmt: skip
        agree(name, (x,), 16)
    for name in ("softmax", "log_softmax", "logsumexp"):
        agree(name, (x, 1), 4)
    agree("xlogy", (x, x), 4)
    with pytest.raises(AttributeError, match="Flambeau lacks it"):
        flambeau.special.hypergeometric  # noqa: B018
