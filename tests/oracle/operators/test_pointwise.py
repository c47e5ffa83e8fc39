"""Every pointwise operator against PyTorch: values, dtype, shape, strides, and the type of each refusal."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import from_torch, same, torch

import flambeau
from flambeau.core.dtype import DTYPES
from flambeau.ops.op import table
from flambeau.ops.pointwise.pointwise import Pointwise

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:.*experimental")

ORACLE_DTYPES = [getattr(torch, d.name) for d in DTYPES]
PUBLIC = [op for op in table.values() if isinstance(op, Pointwise) and hasattr(flambeau, op.name)]
UNARY = [op.name for op in PUBLIC if op.arity == 1]
FUNCTIONAL = [
    *dir(flambeau.nn.functional),
    *[n for n in table if n.endswith("_backward")],
]  # tested elsewhere
BINARY = [op.name for op in PUBLIC if op.arity == 2 and op.name not in FUNCTIONAL]
ULPS = {"erf": 6, "erfc": 64, "lgamma": 64, "digamma": 64, "erfinv": 16, "sinc": 32, "pow": 16, "float_power": 16, "tan": 8, "logit": 8,
        "atanh": 8, "asinh": 8, "acosh": 16, "log1p": 8, "logaddexp": 8, "logaddexp2": 8, "igamma": 256, "igammac": 256}  # fmt: skip
EXACT = {
    "add", "sub", "mul", "neg", "abs", "floor", "ceil", "trunc", "round",
    "sign", "copysign", "fmod", "remainder", "floor_divide", "frac", "conj_physical", "nan_to_num", "heaviside",
}  # fmt: skip


ALL_PAIRS = {
    "mul",
    "div",
    "atan2",
    "eq",
    "pow",
    "bitwise_and",
    "maximum",
    "float_power",
    "copysign",
    "logical_or",
}


def tolerance(name, kind):
    if name in EXACT and not kind.is_complex:
        return 0
    return ULPS.get(name, 4) * (16 if kind.is_complex else 1)


def sample(shape, kind, seed, special=True, low=-9):
    """Random values in a range where everything is defined, with NaN, infinities and zeros among floats."""
    rng = np.random.default_rng(seed)
    if kind is torch.bool:
        return torch.from_numpy(rng.integers(0, 2, shape)).to(kind)
    if not (kind.is_floating_point or kind.is_complex):
        low = max(low, 0) if not kind.is_signed else low
        return torch.from_numpy(np.asarray(rng.integers(low, 10, shape))).to(kind)
    x = np.asarray(rng.normal(0, 2, shape))
    if special and x.size > 8 and not kind.is_complex:
        x.ravel()[rng.integers(0, x.size, 6)] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0]
    if kind.is_complex:
        x = x + 1j * np.asarray(rng.normal(0, 2, shape))
    return torch.from_numpy(np.asarray(x)).to(kind)


def outcome(call, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call(*args, **kwargs), None
        except (RuntimeError, TypeError, NotImplementedError, ValueError, OverflowError, IndexError) as error:
            return None, error


def agree(name, ours, theirs, ulps, **kwargs):
    """The same call here and there: the same result, or the same type of error."""
    want, refused = outcome(getattr(torch, name), *theirs, **kwargs)
    got, ours_refused = outcome(getattr(flambeau, name), *ours, **kwargs)
    about = f"{name}{tuple(theirs)}{kwargs}"
    if "'ComplexHalf'" in str(refused):
        return  # computed on CUDA devices; the oracle's CPU has no kernel for it, ours has one for both
    if refused is not None:
        assert type(ours_refused) is type(refused), (
            f"{about}: {ours_refused!r} where PyTorch says {refused!r}"
        )
        return
    assert ours_refused is None, f"{about}: {ours_refused!r} where PyTorch computes"
    try:
        same(got, want, ulps)
    except AssertionError as error:
        raise AssertionError(f"{about}: {error}") from None


@pytest.mark.parametrize("name", UNARY)
def test_unary_operators_of_every_dtype(name):
    for kind in ORACLE_DTYPES:
        x = sample((5, 7), kind, 1)
        agree(name, (from_torch(x),), (x,), tolerance(name, kind))
        agree(name, (from_torch(x[0, 0]),), (x[0, 0],), tolerance(name, kind))


@pytest.mark.parametrize("name", BINARY)
def test_binary_operators_of_every_pair_of_dtypes(name):
    for i, a in enumerate(ORACLE_DTYPES):
        for b in ORACLE_DTYPES:
            if a is not b and name not in ALL_PAIRS:
                continue
            if name in ("pow", "float_power") and a is torch.bool and b.is_complex:
                continue  # 0 to a complex power is NaN or infinity
            special = not (a.is_complex or b.is_complex)  # PyTorch's complex a + 1 * b makes infinities NaN
            x = sample((12,), a, i, special, low=1)
            y = sample((12,), b, i + 1, special, low=1)  # integer division by zero raises
            kind = max(a, b, key=lambda d: (d.is_complex, d.is_floating_point))
            agree(name, (from_torch(x), from_torch(y)), (x, y), tolerance(name, kind))


# -- layouts ----------------------------------------------------------------------------------------------


@st.composite
def tensors(draw, count):
    """`count` float32 tensors that broadcast together: 0-dim, empty, permuted, stepped, expanded."""
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 4]), max_size=4))
    made = []
    for _ in range(count):
        own = [1 if draw(st.integers(0, 4)) == 0 else n for n in shape[draw(st.integers(0, len(shape))) :]]
        order = draw(st.permutations(range(len(own))))
        steps = [draw(st.sampled_from([1, 1, 2])) for _ in own]
        stored = torch.randn([own[i] * steps[i] for i in order])
        x = stored.permute([order.index(i) for i in range(len(own))])
        x = x[tuple(slice(None, None, step) for step in steps)]
        if draw(st.integers(0, 3)) == 0:
            x = x.expand(shape)
        made.append(x)
    return made


@given(tensors(2))
def test_results_are_laid_out_as_pytorchs(pair):
    a, b = pair
    agree("add", (from_torch(a), from_torch(b)), (a, b), 0)
    agree("lt", (from_torch(a), from_torch(b)), (a, b), 0)


@given(tensors(3))
def test_three_operands_are_laid_out_as_pytorchs(three):
    a, b, c = three
    condition = a > 0
    agree("where", (from_torch(condition), from_torch(b), from_torch(c)), (condition, b, c), 0)


@given(tensors(1))
def test_unary_results_are_laid_out_as_pytorchs(one):
    agree("neg", (from_torch(one[0]),), (one[0],), 0)


# -- scalars, in place, out= ------------------------------------------------------------------------------

SCALARS = [
    True,
    0,
    1,
    -3,
    300,
    2.5,
    -0.5,
    1e300,
    float("nan"),
    1 + 2j,
    2**40,
    np.float32(2.5),
    np.int64(3),
    np.bool_(True),
]
OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"]
STORED_ONLY = [
    k for k in ORACLE_DTYPES if str(k)[6:] in ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2")
]
KINDS = [k for k in ORACLE_DTYPES if k is not torch.complex32]


def apply(name, x, y):
    return getattr(__import__("operator"), name + "_" if name in ("and", "or") else name)(x, y)


def same_outcome(ours, theirs, ulps, about):
    (got, ours_refused), (want, refused) = ours, theirs
    if "'ComplexHalf'" in str(refused):
        return
    if refused is not None:
        assert isinstance(ours_refused, type(refused)), (
            f"{about}: {ours_refused!r} where PyTorch says {refused!r}"
        )
        return
    assert ours_refused is None, f"{about}: {ours_refused!r} where PyTorch computes {want}"
    try:
        same(got, want, ulps)
    except AssertionError as error:
        raise AssertionError(f"{about}: {error}") from None


@pytest.mark.parametrize("name", [*OPERATORS, "eq", "ne", "lt", "le", "gt", "ge"])
def test_operators_with_scalars_on_either_side(name):
    ulps = 0 if name in ("add", "sub", "eq", "lt") else 8
    for i, kind in enumerate(KINDS):
        x = sample((5,), kind, i, special=False, low=1)
        for scalar in SCALARS:
            if (x.is_complex() and isinstance(scalar, float) and abs(scalar) > 1e3) or scalar != scalar:
                continue
            if name == "pow" and kind in STORED_ONLY and scalar in (0, 1):
                continue  # PyTorch fills or copies for these two exponents; we refuse as for any other
            if name == "pow" and scalar == 0 and x.is_complex():
                continue  # 0 to a complex power is NaN or infinity
            for a, b in [(x, scalar), (scalar, x)]:
                mine = tuple(from_torch(v) if v is x else v for v in (a, b))
                wide = 64 if x.is_complex() or isinstance(scalar, complex) else 1
                same_outcome(
                    outcome(apply, name, *mine),
                    outcome(apply, name, a, b),
                    ulps * wide,
                    f"{name}({a}, {b!r})",
                )


@pytest.mark.parametrize("name", ["add_", "sub_", "mul_", "div_", "remainder_", "eq_", "logical_and_"])
def test_in_place_forms_of_every_pair(name):
    for i, a in enumerate(KINDS):
        for b in KINDS:
            x, y = sample((5,), a, i, special=False), sample((5,), b, i + 1, special=False, low=1)
            mine = from_torch(x)
            version = mine._version
            got = outcome(getattr(mine, name), from_torch(y))
            want = outcome(getattr(x, name), y)
            same_outcome(got, want, 256 if a.is_complex else 8, f"{a} {name} {b}")
            if want[1] is None:
                assert got[0] is mine and mine._version == version + 1
            else:
                same(mine, sample((5,), a, i, special=False))


def test_out_takes_any_dtype_of_the_result_or_above():
    a, b = torch.randn(4), torch.randint(1, 9, (4,))
    for kind in KINDS:
        mine, theirs = from_torch(torch.zeros(4, dtype=kind)), torch.zeros(4, dtype=kind)
        got = outcome(flambeau.add, from_torch(a), from_torch(b), out=mine)
        want = outcome(torch.add, a, b, out=theirs)
        same_outcome(got, want, 0, f"out={kind}")
