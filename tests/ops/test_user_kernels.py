"""`torch.cuda.elementwise`: every function against its operator, whole expressions and their gradients against PyTorch."""

from __future__ import annotations

import random
from typing import Any

import pytest
from gpus import either, gpus
from launches import launches
from support import torch as oracle

import flambeau as torch
from flambeau.ops.pointwise.expression import RECORDS
from flambeau.tensor.call import call

pytestmark = either
elementwise = torch.cuda.elementwise
NAMES = sorted(RECORDS)
MANY = [
    "where",
    "softplus",
    "leaky_relu",
    "elu",
    "lerp",
    "igamma",
    "igammac",
    "special_zeta",
]  # promotion of their own


@pytest.fixture(autouse=True)
def one_gpu() -> Any:
    with gpus():
        yield


def operands(arity: int, dtype: Any, seed: int = 0) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.rand(3, 4, generator=generator) * 1.4 + 0.1).to(dtype).cuda() for _ in range(arity)]


def equal(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and bool(((a == b) | ((a != a) & (b != b))).all())


def test_it_knows_the_pointwise_functions() -> None:
    assert len(NAMES) > 100 and {"exp", "atan2", "erf", "where", "clamp", "special_ndtri"} <= set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in MANY])
def test_a_function_alone_is_its_operator(name: str) -> None:
    record: Any = RECORDS[name]
    text = f"{name}({', '.join('xyzw'[: record.arity])})"
    kernel = elementwise(text, differentiable=True)
    for dtype in (torch.float32, torch.float16, torch.float64, torch.int64, torch.bool, torch.complex64):
        try:
            want = call(record, operands(record.arity, dtype))
        except (NotImplementedError, RuntimeError):
            with pytest.raises((NotImplementedError, RuntimeError)):
                kernel(*operands(record.arity, dtype))
            continue
        if not dtype.is_complex or want.dtype in (dtype, torch.bool):
            assert equal(kernel(*operands(record.arity, dtype)), want), dtype


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_the_operators(name: str) -> None:
    record: Any = RECORDS[name]
    kernel = elementwise(f"{name}({', '.join('xyzw'[: record.arity])})", differentiable=True)
    args = [x.requires_grad_() for x in operands(record.arity, torch.float64)]
    if name == "where":
        args[0] = args[0].detach() > 0.5
    if name == "acosh":
        args = [(x.detach() + 1).requires_grad_() for x in args]
    if name == "atanh":
        args = [(x.detach() / 2).requires_grad_() for x in args]
    wanted = [x for x in args if x.requires_grad]
    try:
        want = call(record, args)
        first = torch.autograd.grad(want.sum(), wanted, create_graph=True, allow_unused=True)
    except (NotImplementedError, RuntimeError) as error:
        if "not implemented" in str(error) or not want.requires_grad:
            with pytest.raises((NotImplementedError, RuntimeError)):
                torch.autograd.grad(kernel(*args).sum(), wanted, allow_unused=True)
        return
    mine = torch.autograd.grad(kernel(*args).sum(), wanted, create_graph=True, allow_unused=True)
    for a, b in zip(first, mine, strict=True):
        assert a is b is None or torch.allclose(a, b, 1e-12, 1e-12, equal_nan=True)
    again = [(a, b) for a, b in zip(first, mine, strict=True) if a is not None and a.requires_grad]
    if not again:
        return
    try:
        second = torch.autograd.grad(sum(a.sum() for a, _ in again), wanted, allow_unused=True)
    except (NotImplementedError, RuntimeError):
        return
    mine = torch.autograd.grad(sum(b.sum() for _, b in again), wanted, allow_unused=True)
    for a, b in zip(second, mine, strict=True):
        a, b = (torch.zeros(3, 4).double().cuda() if x is None else x for x in (a, b))
        assert torch.allclose(a, b, 1e-10, 1e-10, equal_nan=True)


UNARY = [
    "sin",
    "cos",
    "tanh",
    "exp",
    "sigmoid",
    "sqrt",
    "log1p",
    "atan",
    "erf",
    "abs",
    "rsqrt",
    "relu",
    "expm1",
    "silu",
]
BINARY = ["atan2", "maximum", "minimum", "hypot"]


def a_text(rng: random.Random, depth: int) -> str:
    """A random expression of x, y and z, smooth where 0 < x, y, z < 2, that Python and PyTorch can evaluate too."""
    if not depth:
        return rng.choice(["x", "y", "z", "x", "y", "0.5", "2", "1.25"])
    kind = rng.randrange(8)
    one = a_text(rng, depth - 1)
    other = a_text(rng, rng.randrange(depth))
    if kind < 3:
        return f"({one} {rng.choice('+-*')} {other})"
    if kind == 3:
        return f"({one} / (1 + abs({other} + 0 * x)))"
    if kind == 4:
        return f"{rng.choice(BINARY)}({one} + 0 * x, {other} + 0 * y)"
    if kind == 5:
        return f"where({one} + 0 * x > {other}, {other} + 0 * x, {one} + 0 * y)"
    if kind == 6:
        return f"abs({one} + 0 * x) ** {rng.choice(['2', '0.5', '3'])}"
    return f"{rng.choice(UNARY)}(1 + abs({one} + 0 * x))"


@pytest.mark.parametrize("seed", range(40))
def test_random_expressions_and_gradients_are_pytorchs(seed: int) -> None:
    rng = random.Random(seed)
    text = a_text(rng, 4) + " + 0 * x * y * z"
    ours = [x.requires_grad_() for x in operands(3, torch.float64, seed)]
    theirs = [oracle.tensor(x.tolist(), dtype=oracle.float64, requires_grad=True) for x in ours]
    names = {
        name: getattr(oracle, name, None) or getattr(oracle.nn.functional, name)
        for name in [*UNARY, *BINARY, "where"]
    }
    want = eval(text, names | dict(zip("xyz", theirs, strict=True)))
    got = elementwise(f"lambda x, y, z: {text}", differentiable=True)(*ours)
    want.sum().backward()
    got.sum().backward()
    assert oracle.allclose(oracle.tensor(got.tolist(), dtype=oracle.float64), want, 1e-11, 1e-12), text
    for mine, other in zip(ours, theirs, strict=True):
        assert oracle.allclose(
            oracle.tensor(mine.grad.tolist(), dtype=oracle.float64), other.grad, 1e-9, 1e-10
        ), text


def test_it_is_one_launch_forward_and_one_for_each_gradient() -> None:
    fused = elementwise("x * y + z", differentiable=True, name="fused")
    x, y, z = (t.requires_grad_() for t in operands(3, torch.float32))
    with launches() as names:
        out = fused(x, y, z)
    assert names == ["fused"]
    grad = torch.ones_like(out)
    with launches() as names:
        gradients = torch.autograd.grad(out, (x, y, z), grad)
    assert names == ["fused.gradient"]  # that of z is the result's
    assert gradients[2].data_ptr() == grad.data_ptr()
    assert equal(gradients[0], y.detach()) and equal(gradients[1], x.detach())


def test_only_what_gradients_need_is_saved() -> None:
    product = elementwise("x * exp(y)", differentiable=True)
    x, y = operands(2, torch.float32)
    node = product(x.requires_grad_(), y).grad_fn
    assert node._saved_self is None and node._saved_other.data_ptr() == y.data_ptr()
    out = product(x, y.requires_grad_())
    assert out.grad_fn._saved_self.data_ptr() == x.data_ptr()
    with launches() as names:
        (gradient,) = torch.autograd.grad(out.sum(), y)  # that of x is not asked for
    assert names.count("elementwise.gradient") == 1 and torch.allclose(gradient, (x * y.exp()).detach())


def test_several_results_are_one_launch_and_so_are_their_gradients() -> None:
    turned = elementwise("lambda r, t: (r * cos(t), r * sin(t), r > t)", differentiable=True, name="turned")
    r, t = (x.requires_grad_() for x in operands(2, torch.float64))
    with launches() as names:
        x, y, greater = turned(r, t)
    assert names == ["turned"] and not greater.requires_grad and greater.dtype == torch.bool
    want = r * t.cos(), r * t.sin()
    assert equal(x, want[0]) and equal(y, want[1]) and equal(greater, r > t)
    weights = operands(2, torch.float64, 5)
    loss, same = (sum((w * v).sum() for w, v in zip(weights, pair, strict=True)) for pair in ((x, y), want))
    with launches() as names:
        first = torch.autograd.grad(loss, (r, t), create_graph=True)
    assert names.count("turned.gradient") == 1
    for a, b in zip(first, torch.autograd.grad(same, (r, t), create_graph=True), strict=True):
        assert torch.allclose(a, b, 1e-13)
    second = torch.autograd.grad(sum(a.square().sum() for a in first), (r, t))
    again = torch.autograd.grad(same, (r, t), create_graph=True)
    for a, b in zip(second, torch.autograd.grad(sum(a.square().sum() for a in again), (r, t)), strict=True):
        assert torch.allclose(a, b, 1e-12)
    (alone,) = torch.autograd.grad(turned(r, t)[1].sum(), r)  # the other results have no gradient
    assert torch.allclose(alone, t.sin())
    one = elementwise("x + 1,")(r)
    assert isinstance(one, tuple) and len(one) == 1
    whole, part = elementwise("x // 2, x / 2")(torch.tensor([3, 5]).cuda())
    assert (whole.dtype, whole.tolist(), part.tolist()) == (torch.float32, [1, 2], [1.5, 2.5])  # one dtype


def test_dtypes_promote_as_pytorch_promotes_them() -> None:
    whole, half = torch.tensor([1, 2, 3]).cuda(), torch.tensor([0.5, 1, 2], dtype=torch.float16).cuda()
    assert elementwise("x + 1")(whole).dtype == torch.int64
    assert elementwise("x * 0.5")(whole).tolist() == [0.5, 1.0, 1.5]
    assert elementwise("x / 2")(whole).dtype == torch.float32
    assert elementwise("x // 2")(whole).tolist() == [0, 1, 1]
    assert elementwise("-x % 2 + x ** 2")(whole).tolist() == [2, 4, 10]
    assert elementwise("x + y")(whole, half).dtype == torch.float16
    assert elementwise("x + y")(half, torch.tensor(2.0)).dtype == torch.float16  # a CPU scalar
    assert elementwise("x + 1j")(half.float()).dtype == torch.complex64
    truths = torch.tensor([True, False]).cuda()
    assert elementwise("x * 1")(truths).dtype == elementwise("x + 0")(truths).dtype == torch.int64
    assert elementwise("x + -1 + 256")(whole.to(torch.uint8)).tolist() == [0, 1, 2]  # numbers wrap
    assert elementwise("x > 1")(whole).tolist() == [False, True, True]
    assert elementwise("x & 1 | x << 2")(whole).tolist() == [5, 8, 13]
    assert elementwise("~(x > 1) & (x < 3) | False")(whole).tolist() == [True, False, False]
    assert elementwise("(x > 1) * x + (x == 1)")(whole).tolist() == [1, 2, 3]
    # rounded once: in half precision 2048 + 1 would be 2048
    assert elementwise("x + 2048 - 2048")(half).tolist() == [0.5, 1, 2]


def test_choices_chains_and_logic() -> None:
    x = torch.tensor([-2.0, 0.0, 1.0, 5.0]).cuda()
    assert elementwise("x if x > 0 else -x")(x).tolist() == [2, 0, 1, 5]
    assert elementwise("0 <= x < 2")(x).tolist() == [False, True, True, False]
    assert elementwise("x and not x > 2 or x == 5")(x).tolist() == [True, False, True, True]
    assert elementwise("max(x, 0, 2) + min(x, 1)")(x).tolist() == [0, 2, 3, 6]
    assert elementwise("inf if x > 2 else nan if x < 0 else pi")(x)[1:].tolist() == [
        pytest.approx(3.14159274)
    ] * 2 + [float("inf")]


def test_operands_broadcast_by_position_name_and_default() -> None:
    x, y = torch.arange(3.0).cuda(), torch.tensor([[1.0], [2.0]]).cuda()
    f = elementwise("lambda x, y, scale=2: scale * x - y")
    want = 2 * x - y
    for got in (f(x, y), f(x, y=y), f(y=y, x=x), f(x, y, 2), f(x, y, scale=torch.tensor(2.0).cuda())):
        assert equal(got, want)
    assert elementwise("b - a").names == ("b", "a")
    assert f(x.t()[::2], 1).tolist() == [-1, 3]
    both = elementwise("x * y, x > y")(x, 1)
    assert isinstance(both, tuple) and both[1].tolist() == [False, False, True]
    assert elementwise("x + 1")(torch.empty(0, 3).cuda()).shape == (0, 3)
    assert elementwise("x + 1")(torch.arange(3)).tolist() == [1, 2, 3]  # of the CPU


@pytest.mark.parametrize(
    "text, why, column",
    [
        ("x + foo(y)", "there is no function 'foo' of elements", 5),
        ("1 + sin(x, y)", "sin takes 1 arguments, not 2", 5),
        ("x + y.z", "has no attribute", 5),
        ("x @ y", "no such operator", 1),
        ("x + 'a'", "'a' is not a number", 5),
        ("lambda x: x + y", "'y' is none of the parameters x", 15),
        ("lambda x, y=z: x", "'z' is none of the parameters", 13),
        ("lambda *x: 1", "plain names", 9),
        ("clamp(x, min=0)", "by position", 10),
        ("x is y", "are compared by", 1),
        ("sum(x)", "no function 'sum'", 1),
        ("gelu(x)", "no function 'gelu'", 1),
        ("1 + 2", "needs an operand", 1),
        ("x + 9223372036854775808", "does not fit into 64 bits", 5),
        ("+".join("abcdefghj"), "at most 8 operands, not 9", 1),
    ],
)  # fmt: skip
def test_a_text_that_is_none_is_refused_with_its_place(text: str, why: str, column: int) -> None:
    with pytest.raises(SyntaxError, match=why) as caught:
        elementwise(text)
    assert (caught.value.lineno, caught.value.offset, caught.value.text) == (1, column, text)
    with pytest.raises(SyntaxError):
        elementwise("x +")


def test_calls_that_do_not_fit_are_refused() -> None:
    f, x = elementwise("lambda x, y=1: x + atan2(x, y)"), torch.ones(3).cuda()
    for args, named, why in [
        ((), {}, "misses the operands x"),
        ((x, x, x), {}, "takes 2 operands but 3 were given"),
        ((x,), {"z": 1}, "unexpected operand 'z'"),
        ((x,), {"x": 1}, "multiple values for operand 'x'"),
        ((1, 2), {}, "needs a tensor"),
        ((x, "1"), {}, "y must be a tensor or a number, not str"),
    ]:
        with pytest.raises(TypeError, match=why):
            f(*args, **named)
    with pytest.raises(
        NotImplementedError,
        match="\"atan2\" not implemented for 'ComplexFloat' in elementwise at line 1, column 20",
    ):
        f(x * 1j)
    with pytest.raises(RuntimeError, match="must match the size"):
        f(x, torch.ones(2).cuda())
    with pytest.raises(RuntimeError, match=r"'elementwise' has no derivative: .*differentiable=True"):
        f(x.requires_grad_()).sum().backward()


@pytest.mark.simulated
def test_a_text_and_a_name_are_strings() -> None:
    for bad in (None, 3, lambda x: x):
        with pytest.raises(TypeError, match="text must be a str"):
            torch.cuda.elementwise(bad)
    with pytest.raises(TypeError, match="name must be a str, not int"):
        torch.cuda.elementwise("x", name=3)


@pytest.mark.simulated
def test_races_name_the_kernel() -> None:
    with torch.virtual(races="error"):
        x = torch.zeros(4, device="cuda")
        blur = elementwise("x + 1", name="blur")
        with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(torch.RaceError, match="blur"):
            blur(x)


def test_results_go_where_out_says() -> None:
    x, y = torch.arange(50_000.0).cuda(), torch.tensor([2.0]).cuda()
    fused = elementwise("x * 2 + y")
    want = x * 2 + y
    half = torch.empty(100, dtype=torch.float16, device="cuda")
    assert fused(x[:100], y, out=half) is half and half.tolist() == want[:100].half().tolist()
    assert fused(x, y, out=x) is x and equal(x, want)  # in place
    both = elementwise("x + y, x - y")
    a, b = torch.empty(3).cuda(), torch.empty(3).cuda()
    assert both(torch.ones(3).cuda(), y, out=(a, b)) == (a, b)
    assert (a.tolist(), b.tolist()) == ([3] * 3, [-1] * 3)
    assert both(a, b, out=(torch.empty(3).cuda(), b))[1].tolist() == [4] * 3
    with pytest.raises(RuntimeError, match="only the last may be stored in an operand"):
        both(a, b, out=(a, b))
    with pytest.raises(TypeError, match="gives 2 results, but out has 1"):
        both(a, b, out=(a,))
    with pytest.raises(RuntimeError, match="can't be cast"):
        elementwise("x + 0.5")(a, out=torch.empty(3, dtype=torch.int64).cuda())
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        elementwise("x + 1", differentiable=True)(a.clone().requires_grad_(), out=b)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_large_tensors_of_any_layout(dtype: str) -> None:
    """The host computes them in blocks."""
    kernel, truth = elementwise("x * 2 + y - x // 3"), elementwise("x > y")
    x = (torch.arange(120_000) % 97).to(getattr(torch, dtype)).cuda()
    y = (torch.arange(120_000) % 31).to(x.dtype).cuda()
    for a, b in (
        (x, y), (x.view(300, 400).t(), y.view(400, 300)), (x.view(3, 40_000)[:, ::2], y[:20_000]),
        (x[:70_000].view(70_000, 1), y[:2]), (x.view(2, 60_000), 3), (x.view(60, 2, 1000), y[:1000]),
    ):  # fmt: skip
        assert equal(kernel(a, b), a * 2 + b - a // 3)
        assert equal(truth(a, b), a > b)
