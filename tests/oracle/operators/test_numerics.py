"""What is promised of numbers: halves are rounded once, TF32 where it is named and nowhere else, integers wrap,
NaN and infinity go where PyTorch's go, long sums lose nothing, and virtual GPUs repeat themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support import from_torch, same, to_torch, torch

import flambeau
from flambeau.core.dtype import bfloat16, float16, float32
from flambeau.ops.op import Op, table
from flambeau.ops.pointwise.pointwise import Pointwise
from flambeau.tensor.call import call
from flambeau.testing.operator_properties import UNSAMPLED, bits, maker, plain, tensor_of

pytestmark = pytest.mark.filterwarnings("ignore:.*experimental")

HALVES = ["float16", "bfloat16"]
POINTWISE = [op for op in table.values() if isinstance(op, Pointwise) and hasattr(torch, op.name)]
OF_THEIR_DTYPE = ("nan_to_num", "nextafter")  # what they give is the dtype's own
OTHER_ARGUMENTS = ("hardshrink", "polygamma", "prelu")  # the second is a number, or of another shape
NAMES = [
    (op.name, op.arity)
    for op in POINTWISE
    if {float16, bfloat16} <= set(op.dtypes) and op.name not in OF_THEIR_DTYPE + OTHER_ARGUMENTS
]
UNARY, BINARY = ([name for name, arity in NAMES if arity == n] for n in (1, 2))
FUNCTIONAL = flambeau.nn.functional


def all_of(kind: str) -> Any:
    """Every number of 16 bits."""
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(getattr(torch, kind))


def function_of(name: str, module: Any = flambeau) -> Any:
    return getattr(module, name)


# -- halves: computed in float32, rounded once -------------------------------------------------------------------

# PyTorch's CPU has them by series of its own, whose error shows in 16 bits at zeros and poles.
LOOSE = {"digamma": 2, "lgamma": 2, "erfinv": 2, "sinc": 2, "i0": 2}
OTHERWISE = ("erf", "logit")  # PyTorch gives 0 for small numbers; it rounds more than once


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_every_half(name: str, kind: str) -> None:
    x = all_of(kind)
    mine = from_torch(x)
    found = function_of(name)(mine)
    wide = function_of(name)(mine.float())
    same(found, to_torch(wide).to(getattr(torch, repr(found.dtype).removeprefix("torch."))))
    if name not in OTHERWISE:
        same(found, function_of(name, torch)(x), LOOSE.get(name, 1))


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_pairs_of_halves(name: str, kind: str) -> None:
    """Numbers of every size, each with another at random: what float32 gives, rounded."""
    shuffled = all_of(kind)[torch.randperm(1 << 16, generator=torch.Generator().manual_seed(0))]
    x, y = from_torch(all_of(kind)[::13]), from_torch(shuffled[::13])
    found = function_of(name)(x, y)
    wide = to_torch(function_of(name)(x.float(), y.float()))
    same(found, wide.to(getattr(torch, repr(found.dtype).removeprefix("torch."))))


def _layers(x: Any, w: Any) -> Iterator[Callable[[], Any]]:
    """Calls whose arithmetic has many steps; x (4, 6, 8, 8), w (5, 6, 3, 3)."""
    m = x.flatten(1)
    yield lambda: (x, w)
    yield lambda: m.sum(1)
    yield lambda: m.mean()
    yield lambda: m.prod(0)
    yield lambda: m.var(1)
    yield lambda: m.norm(dim=1)
    yield lambda: m.logsumexp(1)
    yield lambda: m.cumsum(1)
    yield lambda: m @ m.t()
    yield lambda: flambeau.softmax(m, 1)
    yield lambda: flambeau.log_softmax(m, 1)
    yield lambda: FUNCTIONAL.layer_norm(m, (384,))
    yield lambda: FUNCTIONAL.group_norm(x, 3)
    yield lambda: FUNCTIONAL.batch_norm(x, None, None, training=True)
    yield lambda: FUNCTIONAL.conv2d(x, w)
    yield lambda: FUNCTIONAL.avg_pool2d(x, 3)
    yield lambda: FUNCTIONAL.interpolate(x, scale_factor=2, mode="bilinear")


@pytest.mark.parametrize("kind", HALVES)
def test_what_has_many_steps_is_rounded_once_too(kind: str) -> None:
    flambeau.manual_seed(0)
    dtype = getattr(flambeau, kind)
    x, w = flambeau.randn(4, 6, 8, 8).to(dtype), flambeau.randn(5, 6, 3, 3).to(dtype)
    for half, wide in zip(_layers(x, w), _layers(x.float(), w.float()), strict=True):
        mine, exact = half(), wide()
        if isinstance(mine, flambeau.Tensor):
            assert mine.dtype is dtype
            assert mine.tolist() == exact.to(dtype).tolist()


# -- TF32 ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def a100() -> Iterator[Any]:
    with flambeau.virtual(devices=1, profile="a100"):
        yield flambeau.device("cuda:0")


@pytest.fixture
def ampere(a100: Any) -> Iterator[Any]:
    """A GPU with TF32; the switches are on again after the test."""
    yield a100
    set_tf32(True)


def set_tf32(on: bool) -> None:
    flambeau.backends.cuda.matmul.allow_tf32 = flambeau.backends.cudnn.allow_tf32 = on


def to_ten_bits(x: Any) -> Any:
    """The nearest number of 10 bits after the point, ties away from zero: what the tensor cores read."""
    step = np.spacing(np.abs(x)) * np.float32(1 << 13)
    return (np.sign(x) * np.floor(np.abs(x) / step + np.float32(0.5)) * step).astype(np.float32)


def test_products_read_ten_bits_and_add_in_float32(ampere: Any) -> None:
    random = np.random.default_rng(0)
    a, b = (random.normal(size=s).astype(np.float32) for s in ((65, 70), (70, 33)))
    x, y, w = (random.normal(size=s).astype(np.float32) for s in ((2, 6, 9, 9), (5, 6, 3, 3), (6, 4, 2, 2)))
    for run, operands in (
        (lambda a, b: a @ b, (a, b)),
        (flambeau.mm, (a, b)),
        (FUNCTIONAL.linear, (a, b.T.copy())),
        (FUNCTIONAL.conv2d, (x, y)),
        (FUNCTIONAL.conv_transpose2d, (x, w)),
    ):
        set_tf32(True)
        found = run(*[flambeau.from_numpy(o).to(ampere) for o in operands]).cpu().numpy()
        set_tf32(False)
        exact = run(*[flambeau.from_numpy(o).to(ampere) for o in operands]).cpu().numpy()
        rounded = run(*[flambeau.from_numpy(to_ten_bits(o)).to(ampere) for o in operands]).cpu().numpy()
        assert np.abs(found - rounded).max() < 1e-5  # the order of additions
        assert np.abs(found - exact).max() > 1e-3


def test_what_solvers_multiply_is_not_rounded_to_tf32(ampere: Any) -> None:
    """A fit that is nearly exact leaves residuals that 10 bits would drown; reflectors keep lengths."""
    random = np.random.default_rng(0)
    a, x, v = (random.normal(size=s).astype(np.float32) for s in ((30, 4), (4, 2), (4, 3)))
    b = a @ x + np.float32(1e-3) * random.normal(size=(30, 2)).astype(np.float32)
    set_tf32(True)
    left, right = (flambeau.from_numpy(m).to(ampere) for m in (a, b))
    found = flambeau.linalg.lstsq(left, right).residuals.cpu().numpy()
    want = torch.linalg.lstsq(*(torch.from_numpy(m).double() for m in (a, b)), driver="gelsd").residuals
    np.testing.assert_allclose(found, want.numpy(), rtol=2e-3)
    reflectors, tau = flambeau.geqrf(flambeau.from_numpy(v).to(ampere))
    turned = flambeau.ormqr(reflectors, tau, right[:4]).cpu().numpy()
    np.testing.assert_allclose(np.linalg.norm(turned, axis=0), np.linalg.norm(b[:4], axis=0), rtol=1e-5)


@pytest.mark.parametrize("name", sorted(set(table) - set(UNSAMPLED)))
def test_tf32_changes_products_and_convolutions_and_nothing_else(name: str, ampere: Any) -> None:
    op = table[name]
    if float32 not in op.dtypes:
        return
    set_tf32(True)
    rounded = results(op, ampere)
    set_tf32(False)
    if results(op, ampere) != rounded:
        assert {"matmul_allow_tf32", "cudnn_allow_tf32", "rnn_allow_tf32"} & set(op.flags), (
            f"{name} is changed by the flags"
        )


def results(op: Op, where: Any) -> list[list[bytes]]:
    found = []
    for inputs, params in op.samples(maker(float32, 0), float32):
        args = [tensor_of(x, plain, where) if isinstance(x, np.ndarray) else x for x in inputs]
        moved = tuple([where if p is flambeau.device("cpu") else p for p in params])
        try:
            found.append(bits(call(op, args, moved)))
        except (RuntimeError, IndexError, TypeError, ValueError):
            found.append([])
    return found


def test_the_records_that_follow_the_flags_are_products_and_convolutions() -> None:
    follow = {
        op.name
        for op in table.values()
        if {"matmul_allow_tf32", "cudnn_allow_tf32", "rnn_allow_tf32"} & set(op.flags)
    }
    assert {"matmul", "addmm"} <= follow
    assert not follow & {op.name for op in POINTWISE}
    assert all("mm" in n or "matmul" in n or "conv" in n or "attention" in n for n in follow), follow


# -- integers wrap -----------------------------------------------------------------------------------------------

INTEGERS = ["uint8", "int8", "int16", "int32", "int64"]
WRAPPING = {
    "add": lambda m, x, y: x + y, "sub": lambda m, x, y: x - y, "mul": lambda m, x, y: x * y,
    "neg": lambda m, x, y: -x, "abs": lambda m, x, y: x.abs(), "square": lambda m, x, y: m.square(x),
    "pow": lambda m, x, y: x**3, "alpha": lambda m, x, y: m.add(x, y, alpha=3), "sum": lambda m, x, y: x.sum(),
    "sum in its dtype": lambda m, x, y: x.sum(dtype=x.dtype), "prod": lambda m, x, y: x.prod(),
    "cumsum": lambda m, x, y: x.cumsum(0, dtype=x.dtype), "cumprod": lambda m, x, y: x.cumprod(0, dtype=x.dtype),
    "matmul": lambda m, x, y: x[:4].reshape(2, 2) @ y[:4].reshape(2, 2), "dot": lambda m, x, y: x.dot(y),
    "shift": lambda m, x, y: x << 3, "addcmul": lambda m, x, y: m.addcmul(x, x, y), "in place": lambda m, x, y: x.clone().add_(y),
    "index_add": lambda m, x, y: x.index_add(0, m.zeros(len(y), dtype=m.int64), y), "diff": lambda m, x, y: m.diff(x),
    "invert": lambda m, x, y: ~x, "to a narrower one": lambda m, x, y: x.to(m.int8), "to unsigned": lambda m, x, y: x.to(m.uint8),
}  # fmt: skip


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("name", WRAPPING)
def test_integers_wrap(name: str, kind: str) -> None:
    dtype = getattr(torch, kind)
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.tensor([low, high, low + 1, high - 1, high // 2 + 1, 100, 3, 0], dtype=dtype)
    y = x.flip(0).roll(1)
    same(WRAPPING[name](flambeau, from_torch(x), from_torch(y)), WRAPPING[name](torch, x, y))


# -- NaN and infinity ----------------------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")
ROWS = torch.tensor([
    [1.0, NAN, 2.0, -3.0], [INF, 1.0, -INF, 2.0], [INF, 1.0, 5.0, INF], [-INF, -INF, 0.0, 1.0], [NAN, INF, NAN, 0.0],
    [0.0, -0.0, 0.0, -0.0], [3e38, 3e38, -3e38, 1.0], [1e-40, 1e-45, 0.0, -1e-45], [-INF] * 4, [NAN] * 4,
])  # fmt: skip
SPECIAL = {
    name: (lambda m, x, name=name: getattr(x, name)(1))
    for name in (
        "sum", "mean", "prod", "amax", "amin", "argmax", "argmin", "any", "all", "var", "std", "logsumexp", "cumsum",
        "cumprod", "cummax", "cummin", "logcumsumexp", "nansum", "nanmean", "median", "max", "min", "softmax",
        "log_softmax", "count_nonzero",
    )
} | {
    "norm": lambda m, x: m.linalg.vector_norm(x[:7], dim=1), "nanmedian": lambda m, x: x.nanmedian(1).values,
    "norm 1": lambda m, x: m.linalg.vector_norm(x, 1, dim=1),
    "norm inf": lambda m, x: m.linalg.vector_norm(x, INF, dim=1), "norm -inf": lambda m, x: m.linalg.vector_norm(x, -INF, dim=1),
    "sort": lambda m, x: m.sort(x, dim=1, stable=True), "sort down": lambda m, x: m.sort(x, dim=1, descending=True, stable=True),
    "topk": lambda m, x: m.topk(x, 1, 1).values, "smallest": lambda m, x: m.topk(x, 1, 1, largest=False).values,
    "kthvalue": lambda m, x: m.kthvalue(x, 2, 1).values, "clamp": lambda m, x: x.clamp(-1, 1), "relu": lambda m, x: x.relu(),
    "minimum": lambda m, x: m.minimum(x, x.flip(1)), "fmax": lambda m, x: m.fmax(x, x.flip(1)),
    "maximum": lambda m, x: m.maximum(x, x.flip(0)), "nan_to_num": lambda m, x: m.nan_to_num(x), "sign": lambda m, x: x.sign(),
    "matmul": lambda m, x: x[:5] @ x[:5].t(), "unique": lambda m, x: m.unique(x[:4]),
    "isin": lambda m, x: m.isin(x, x[0]), "max_pool": lambda m, x: m.nn.functional.max_pool1d(x[None], 2),
    "avg_pool": lambda m, x: m.nn.functional.avg_pool1d(x[None], 2), "int": lambda m, x: x.nan_to_num(0, 1, 2).clamp(-9, 9).int(),
    "quantile": lambda m, x: m.quantile(x.double(), 0.5, 1), "layer_norm": lambda m, x: m.nn.functional.layer_norm(x[:7], (4,)),
    "searchsorted": lambda m, x: m.searchsorted(m.arange(3.0), x), "aminmax": lambda m, x: m.aminmax(x, dim=1),
    "nll": lambda m, x: m.nn.functional.nll_loss(x, m.tensor([0, 1, 2, 3, 0, 1, 2, 3, 0, 1]), reduction="none"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", SPECIAL)
def test_nan_and_infinity(name: str, kind: str) -> None:
    x = ROWS.to(getattr(torch, kind))
    same(SPECIAL[name](flambeau, from_torch(x)), SPECIAL[name](torch, x), 4, strides=False)


# -- long sums -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sum", "mean", "norm", "cumsum", "var", "logsumexp", "softmax"])
def test_long_sums_lose_nothing(name: str) -> None:
    x = flambeau.rand(1 << 20, generator=flambeau.Generator().manual_seed(0))
    wide = x.double()
    runs = {
        "cumsum": lambda x: x.cumsum(0)[-1],
        "logsumexp": lambda x: x.logsumexp(0),
        "softmax": lambda x: x.softmax(0)[7],
    }
    run = runs.get(name, lambda x: getattr(x, name)())
    found, exact = run(x), run(wide).item()
    assert found.dtype is flambeau.float32
    assert abs(found.item() / exact - 1) < 1e-6


# -- virtual GPUs repeat themselves ----------------------------------------------------------------------------------


def program() -> list[list[bytes]]:
    """Additions at repeated places, which GPUs may make in any order; and random numbers."""
    flambeau.manual_seed(1)
    x, places = flambeau.randn(64, 5, device="cuda"), flambeau.randint(0, 7, (64,), device="cuda")
    zeros = flambeau.zeros(7, 5, device="cuda")
    many = places[:, None].expand(64, 5)
    return [
        bits(t)
        for t in (
            zeros.index_add(0, places, x), zeros.scatter_add(0, many, x), zeros.index_put((places,), x, accumulate=True),
            FUNCTIONAL.dropout(x), x.cumsum(0), x @ x.t(), flambeau.bincount(places, x[:, 0]), x.sum(),
        )
    ]  # fmt: skip


def test_every_schedule_gives_the_same_bits() -> None:
    found = []
    for schedule in ("earliest", "random:1", "random:2", "adversarial:3"):
        with flambeau.virtual(devices=1, schedule=schedule):
            found.append(program())
    assert all(one == found[0] for one in found)
