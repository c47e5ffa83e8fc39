"""`torch.cuda.jiterator`: C++ of one element on virtual GPUs, against NumPy; what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpus import either, gpus, simulated

import flambeau as torch
from flambeau.cuda import jiterator
from flambeau.cuda.jiterator import _create_jit_fn as jit
from flambeau.cuda.jiterator import _create_multi_output_jit_fn as jit_many

pytestmark = either


@pytest.fixture(autouse=True)
def one_gpu() -> Any:
    with gpus():
        yield


def two() -> tuple[Any, Any, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 5, 7))
    return torch.tensor(x).cuda(), torch.tensor(y).cuda(), x, y


def test_the_examples_of_pytorchs_documentation() -> None:
    a, b, x, y = two()
    first = jit("template <typename T> T my_kernel(T x, T y, T alpha) { return -x + alpha * y; }", alpha=1.0)
    assert np.array_equal(first(a, b).cpu().numpy(), -x + y)
    assert np.array_equal(first(a, b, alpha=3.14).cpu().numpy(), -x + 3.14 * y)
    second = jit(
        "template <typename T> T util_fn(T x, T y) { return ::sin(x) + ::cos(y); }"
        "template <typename T> T my_kernel(T x, T y, T val) { return ::min(val, util_fn(x, y)); }",
        val=0.0,
    )
    np.testing.assert_allclose(second(a, b).cpu().numpy(), np.minimum(0, np.sin(x) + np.cos(y)), 1e-14)
    gelu = jit("template <typename T> T my_gelu(T a) { return a > 0 ? a : 0; }")
    assert np.array_equal(gelu(a).cpu().numpy(), np.maximum(x, 0))
    by_reference = jit_many(
        "template <typename T> void k(T x, T y, T alpha, T& out) { out = -x + alpha * y; }", 1, alpha=2.0
    )
    assert np.array_equal(by_reference(a, b).cpu().numpy(), -x + 2 * y)


def stepped(x: np.ndarray, y: np.ndarray, times: int) -> np.ndarray:
    r = np.zeros_like(x)
    for _ in range(times):
        r = np.where(x > r, r + 1, r - y * 0.5)
    return r


STATEMENTS = {
    "T z = x * x, w; w = z + 1; z -= w / 2; return z;": lambda x, y: x * x - (x * x + 1) / 2,
    "const auto big = x > y; if (big) return x; return y * 2;": lambda x, y: np.where(x > y, x, y * 2),
    "T r = 0; if (x > 0) { if (y > 0) { r = 1; } else r = 2; } else if (y > 0) { r = 3; } else { r = 4; } return r;": (
        lambda x, y: np.where(x > 0, np.where(y > 0, 1, 2), np.where(y > 0, 3, 4)).astype(float)
    ),
    "if (x > 0 && !(y > 0) || x == y) { return T(1); } // one\n /* or */ return -T(1.5f);": (
        lambda x, y: np.where((x > 0) & ~(y > 0) | (x == y), 1, -1.5)
    ),
    "return std::fma(x, y, (T)2) - fabsf(::floor(y)) + pow(x, 2);": lambda x, y: x * y + 2 - np.abs(np.floor(y)) + x**2,
    "return isnan(x / 0 - x / 0) ? max(x, y) : 7.;": lambda x, y: np.maximum(x, y),
    "return x > y ? x > 1 ? 1e0 : .5 : 2e-1;": lambda x, y: np.where(x > y, np.where(x > 1, 1, 0.5), 0.2),
    "T a = x; { T b = a + 1; a = b * 2; } return a - -y + +x;": lambda x, y: (x + 1) * 2 + y + x,
    "T r = 0; " + "if (x > r) { r += T(1); } else { T s = y; r -= s * T(0.5); }" * 40 + " return r;": lambda x, y: stepped(x, y, 40),
    ";; T z; if (x > 0) z = x; else z = y; z *= z; return z;": lambda x, y: np.where(x > 0, x, y) ** 2,
}  # fmt: skip


@pytest.mark.parametrize("body", STATEMENTS)
def test_statements(body: str) -> None:
    a, b, x, y = two()
    got = jit(f"template <typename T> T f(T x, T y) {{ {body} }}")(a, b)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got.cpu().numpy(), STATEMENTS[body](x, y), 1e-14)


def test_integers_divide_as_in_c() -> None:
    a, b = torch.tensor([7, -7, 8, 6]).cuda(), torch.tensor([2, 2, -3, 4], dtype=torch.int32).cuda()
    f = jit(
        "template <class T> T f(T x, T y) { T q = x / y; return q * 100 + x % y + (x >> 1 & y | x ^ y) - ~x; }"
    )
    got = f(a, b)
    want = [
        int(x / y) * 100 + int(np.fmod(x, y)) + (x >> 1 & y | x ^ y) - ~x
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    assert got.dtype == torch.int64 and got.tolist() == want


INTS = {
    "return 1 / 2 + x;": [1.5, -1.5, 3.0],
    "T half = 7 / 2; return half;": [3, 3, 3],
    "return x * -7 / 2;": [-5.25, 5.25, -10.5],  # from the left: x makes it a T
    "return -7 / 2 * x;": [-4.5, 4.5, -9.0],
    "return (2 + 3 * 3 - 1) / 4 + x;": [3.5, 0.5, 5.0],
    "T seven = 7; return seven / 2;": [3.5, 3.5, 3.5],
    "auto seven = 7; return seven / 2 * x;": [4.5, -4.5, 9.0],
    "return T(7) / 2 + (T)1 / 2 + 1 / 2.0;": [4.5, 4.5, 4.5],
    "return (float)7 / 2 + (double)x / 2;": [4.25, 2.75, 5.0],
    "return halved(7) + x;": [5.0, 2.0, 6.5],
    "return nonzero(x) + nonzero(0);": [1, 1, 1],
    "bool b = x; return b + b;": [2, 2, 2],
    "bool b = false; b = x; return b * x / 2;": [0.75, -0.75, 1.5],
    "T big = x > 0; return big / 2;": [0.5, 0, 0.5],
    "return !x;": [0, 0, 0],
    "return x > 1 && x < 2;": [1, 0, 0],
    "return x > 0 ? 1 : 2;": [1, 2, 1],
    "return pow(x * x, 1 / 2);": [1, 1, 1],
}
HELPERS = """
template <typename T> T halved(T x) { return x / 2; }
template <typename T> bool nonzero(T x) { return x; }
template <typename T> T f(T x, T unused = 3) { %s }
"""


@pytest.mark.parametrize("body", INTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_ints_and_bools_are_those_of_cpp(body: str, dtype: torch.dtype) -> None:
    """And the result is a T, whatever is returned."""
    got = jit(HELPERS % body, unused=0)(torch.tensor([1.5, -1.5, 3.0], dtype=dtype).cuda())
    assert got.dtype is dtype and got.tolist() == INTS[body]


@simulated
@pytest.mark.parametrize(
    "body",
    ["return (x > 0 ? 1 : 2) / 2;", "return (x > 0) / 2 + x;", "return 1 / 0 + x;", "return (int)x;", "int y = x; return y;"],
)  # fmt: skip
def test_ints_that_only_a_compiler_computes_are_refused(body: str) -> None:
    with pytest.raises(torch.NotSupportedError, match="virtual GPUs compute a part of C"):
        jit(f"template <typename T> T f(T x) {{ {body} }}")(torch.ones(2).cuda())
    for typed in ("int f(T x)", "T f(int x)"):
        with pytest.raises(
            torch.NotSupportedError, match=f"a {'result' if typed[0] == 'i' else 'parameter'} of type int"
        ):
            jit(f"template <typename T> {typed} {{ return x / 2; }}")(torch.ones(2).cuda())


def test_floats_of_integers_are_refused() -> None:
    for body in ("return (float)x / 2 * 2;", "double y = x; return y / 2 * 2;"):
        with pytest.raises(NotImplementedError, match="\"float\" not implemented for 'Int' in f"):
            jit(f"template <typename T> T f(T x) {{ {body} }}")(torch.ones(2, dtype=torch.int32).cuda())


def test_several_outputs_broadcast_and_promote() -> None:
    f = jit_many(
        "template <typename T> void f(T x, T& s, T y, T& d, T scale) { s = x + y; if (x > y) { d = scale * (x - y); } else { d = 0; } }",
        2,
        scale=2,
    )
    x, y = torch.tensor([[1.0], [5.0]], dtype=torch.float16).cuda(), torch.tensor([2, 3]).cuda()
    total, gap = f(x, y)
    assert total.dtype == gap.dtype == torch.float16
    assert total.tolist() == [[3, 4], [7, 8]] and gap.tolist() == [[0, 0], [6, 4]]
    assert f(x, y, scale=1)[1].tolist() == [[0, 0], [3, 2]]


def test_wrong_calls_raise_what_pytorch_raises() -> None:
    text = "template <typename T> T f(T x, T alpha) { return x * alpha; }"
    f, x = jit(text, alpha=1.0), torch.ones(3).cuda()
    assert (f.kernel_name, f.code_string, f.return_by_ref, f.num_outputs) == ("f", text, False, 1)
    with pytest.raises(KeyError, match="beta is not declared in function definition"):
        f(x, beta=2)
    with pytest.raises(AssertionError, match="jiterator only supports up to 8 tensor inputs, got 9"):
        f(*[x] * 9)
    with pytest.raises(RuntimeError, match="f takes 2 inputs, but 3 were given"):
        f(x, x)
    with pytest.raises(RuntimeError, match="all input tensors must live in CUDA device"):
        f(x.cpu())
    with pytest.raises(Exception, match="Couldn't parse code, please check correctness"):
        jit("float f(float x) { return x; }")
    with pytest.raises(AssertionError, match="Return by value only works for single output"):
        jiterator._JittedFunction(text, False, 2)
    with pytest.raises(RuntimeError, match="f does not give 2 outputs by reference"):
        jit_many(text, 2, alpha=1)(x)


def test_code_is_a_string_and_inputs_are_tensors() -> None:
    with pytest.raises(TypeError, match="expected a str of C\\+\\+ code, but got int"):
        torch.cuda.jiterator._create_jit_fn(3)
    twice = torch.cuda.jiterator._create_jit_fn("template <typename T> T twice(T x) { return x + x; }")
    with pytest.raises(TypeError, match="twice: input 0 must be a Tensor, not float"):
        twice(3.0)


@simulated
def test_it_wants_a_gpu() -> None:
    f = jit("template <typename T> T f(T x) { return x; }")
    with (
        torch.virtual(devices=0),
        pytest.raises(AssertionError, match="only supported on CUDA and ROCm GPUs"),
    ):
        f(torch.ones(1))


@simulated
@pytest.mark.parametrize(
    "body, what, column",
    [
        ("for (int i = 0; i < 3; ++i) x += x; return x;", "`for`", 34),
        ("int n = 2; return x * n;", "a variable of type int", 34),
        ("return __ldg(&x);", "`&`", 47),
        ("return tgamma(x);", "`tgamma` of 1 arguments", 41),
        ("return x[0];", "`\\[` where `;` is needed", 42),
        ("T y; return x + y;", "`y`, which has no value", 50),
        ("if (x > 0) { return x; }", "a way without a return", None),
        ("T z; if (x > 0) { z = x; } return z;", "`z`, which has no value", 68),
        ("T x = 1; return x;", "another `x`", 36),
        ("return x", "the end where more is needed", None),
    ],
)  # fmt: skip
def test_cpp_that_virtual_gpus_do_not_read_is_refused_with_its_place(
    body: str, what: str, column: int | None
) -> None:
    f = jit(f"template <typename T> T f(T x) {{ {body} }}")
    place = "" if column is None else f" at line 1, column {column}: "
    with pytest.raises(torch.NotSupportedError, match=f"^f: {what}{place}"):
        f(torch.ones(3).cuda())


def test_integers_are_not_made_floats() -> None:
    f = jit("template <typename T> T f(T x) { return x * 2.5; }")
    with pytest.raises(NotImplementedError, match="\"mul\" not implemented for 'Long' in f"):
        f(torch.ones(3, dtype=torch.int64).cuda())
