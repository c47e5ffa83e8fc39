"""Matrix products against PyTorch; TF32 on virtual GPUs against SPEC C06-C09 and C17."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import INTEGER_PRODUCTS, from_torch, same, torch
from test_reductions import agree

import flambeau

KINDS = (*INTEGER_PRODUCTS, "float16", "bfloat16", "float32", "float64", "complex64")


def number(rng: Any, shape: Any, kind: str) -> Any:
    """Small integers: every product and sum is exact, so any order of summation gives the same bits."""
    return torch.from_numpy(np.asarray(rng.integers(0, 4, shape))).to(getattr(torch, kind))


@given(
    st.sampled_from(KINDS), st.lists(st.integers(0, 3), max_size=4), st.lists(st.integers(0, 3), max_size=4),
    st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_matmul_of_all_ranks(kind: str, left: list[int], right: list[int], swap: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    if left and right:  # mostly sizes that fit
        right[-2 if len(right) > 1 else -1] = left[-1]
    a, b = number(rng, left, kind), number(rng, right, kind)
    if swap and a.ndim > 2:
        a = a.transpose(0, 1)
    agree(lambda room, x, y: room.matmul(x, y), a, b)


@given(st.sampled_from(KINDS), st.integers(0, 4), st.integers(0, 4), st.integers(0, 4), st.integers(0, 99))
def test_named_products(kind: str, n: int, k: int, m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b, v = number(rng, (n, k), kind), number(rng, (m, k), kind).t(), number(rng, (k,), kind)
    agree(lambda room, x, y: room.mm(x, y), a, b)
    agree(lambda room, x, y: room.mv(x, y), a, v)
    agree(lambda room, x, y: room.dot(x, y), v, v)
    agree(lambda room, x, y: room.outer(x, y), v, a[:, 0] if k else v)
    agree(lambda room, x, y: room.inner(x, y), a, v, strides=False)
    agree(
        lambda room, x, y: room.kron(x, y),
        a.clone(memory_format=torch.contiguous_format),
        b.clone(memory_format=torch.contiguous_format),
        strides=False,
    )
    agree(
        lambda room, x, y: room.bmm(x.unsqueeze(0).expand(2, -1, -1), y.unsqueeze(0).expand(2, -1, -1)),
        a,
        b,
        strides=False,
    )
    agree(lambda room, x, y: room.tensordot(x, y, 1), a, b, strides=False)


@given(
    st.sampled_from((*INTEGER_PRODUCTS, "float32", "float64")),
    st.sampled_from((0, 1, 2)),
    st.sampled_from((1, 3)),
    st.integers(0, 9),
)
def test_products_added(kind: str, beta: int, alpha: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b, v = number(rng, (2, 3), kind), number(rng, (3, 4), kind), number(rng, (3,), kind)
    for added in (number(rng, (2, 4), kind), number(rng, (4,), kind), number(rng, (2, 1), kind)):
        agree(lambda room, c, x, y: room.addmm(c, x, y, beta=beta, alpha=alpha), added, a, b)
    for name in ("baddbmm", "addbmm"):
        agree(
            lambda room, c, x, y, name=name: getattr(room, name)(
                c, x.unsqueeze(0).expand(2, 2, 3), y.unsqueeze(0).expand(2, 3, 4), beta=beta, alpha=alpha
            ),
            number(rng, (2, 4), kind), a, b,
        )  # fmt: skip
    agree(lambda room, c, x, y: room.addmv(c, x, y, beta=beta, alpha=alpha), number(rng, (2,), kind), a, v)
    agree(lambda room, c, x, y: room.addr(c, x, y, beta=beta, alpha=alpha), number(rng, (3, 3), kind), v, v)


def test_beta_zero_does_not_read_the_added_tensor() -> None:
    x = flambeau.ones(2, 2)
    assert flambeau.addmm(flambeau.full((2, 2), float("nan")), x, x, beta=0).tolist() == [[2.0, 2.0]] * 2


EQUATIONS = (
    "ij,jk->ik", "ij,jk", "ij->ji", "ij->", "ii->i", "ii", "bij,bjk->bik", "...ij,...jk->...ik", "ij,ij->i",
    "i,j->ij", "ijk,kl,li->j", "b...i,i->b...", "ij,kj,j->ik", "bij,jk->bki", "aij,aij->", "i,i", "jki",
)  # fmt: skip


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation: str) -> None:
    sizes = dict(zip("abijkl", (2, 3, 4, 4, 2, 5), strict=True)) | (
        {"l": 4, "k": 3} if "li" in equation else {}
    )
    rng = np.random.default_rng(0)
    operands = []
    for term in equation.partition("->")[0].split(","):
        shape = [n for x in term.replace("...", ".") for n in ([2, 3] if x == "." else [sizes[x]])]
        operands.append(number(rng, shape, "float64"))
    agree(lambda room, *ts: room.einsum(equation, *ts), *operands, strides=False)


def test_einsum_of_lists() -> None:
    rng = np.random.default_rng(0)
    a, b = number(rng, (2, 3, 4), "float32"), number(rng, (2, 4, 5), "float32")
    agree(lambda room, x, y: room.einsum(x, [..., 0, 1], y, [..., 1, 2], [..., 0, 2]), a, b, strides=False)


REFUSED = (
    lambda room, x: room.mm(x, x), lambda room, x: room.matmul(x, x), lambda room, x: room.mm(x, x.t().double()),
    lambda room, x: x @ x[0][:2], lambda room, x: room.dot(x, x), lambda room, x: room.dot(x[0], x[0][:2]),
    lambda room, x: room.dot(x[0], x[0].double()), lambda room, x: room.mv(x, x[0][:2]), lambda room, x: room.bmm(x, x),
    lambda room, x: room.bmm(x[None], x[None]), lambda room, x: room.bmm(x[None], x.t()[None].double()),
    lambda room, x: room.mm(x[0], x), lambda room, x: room.mm(x.bool(), x.t().bool()),
    lambda room, x: room.addmm(x, x, x), lambda room, x: room.addmm(x, x, x.t()),
    lambda room, x: room.addmm(x[:, :2].double(), x, x.t()), lambda room, x: room.addmv(x[0], x, x[0]),
    lambda room, x: room.outer(x, x[0]), lambda room, x: room.inner(x, x[:, :2]),
    lambda room, x: room.tensordot(x, x, 1),
    lambda room, x: room.tensordot(x, x, ([0], [1])), lambda room, x: room.einsum("ij,jk", x, x),
    lambda room, x: room.einsum("ij,jk->il", x, x.t()), lambda room, x: room.einsum("ijk,jk->i", x, x.t()),
    lambda room, x: room.einsum("ij", x, x.t()), lambda room, x: room.matmul(x, x[0, 0]),
    lambda room, x: room.mm(x, x.t(), out=room.empty(2, 2).double()),
)  # fmt: skip


@pytest.mark.parametrize("run", REFUSED)
def test_refusals_read_as_pytorchs(run: Any) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    with pytest.raises(Exception) as theirs:
        run(torch, x)
    with pytest.raises(theirs.type) as ours:
        run(flambeau, from_torch(x))
    assert str(ours.value).split("\n")[0] == str(theirs.value).split("\n")[0]


# -- TF32 -----------------------------------------------------------------------------------------------


def errors(profile: str, allow: bool) -> tuple[float, float, Any]:
    """The documentation's example at 1024: largest error of a float32 product, relative error, the product."""
    old = flambeau.backends.cuda.matmul.allow_tf32
    with flambeau.virtual(devices=1, profile=profile):
        flambeau.manual_seed(7)
        flambeau.backends.cuda.matmul.allow_tf32 = allow
        try:
            a, b = (flambeau.randn(1024, 1024, dtype=flambeau.float64, device="cuda") for _ in range(2))
            full = a @ b
            product = a.float() @ b.float()
            worst = (product.double() - full).abs().max().item()
            return worst, worst / full.abs().mean().item(), product.cpu().numpy()
        finally:
            flambeau.backends.cuda.matmul.allow_tf32 = old


def test_tf32_has_the_documented_error() -> None:
    worst, relative, _ = errors("a100-40g", True)
    exact, small, _ = errors("a100-40g", False)
    assert relative == pytest.approx(
        0.0022, rel=0.25
    )  # the largest of 1024^2 errors; of 10240^2 it is 0.0022
    assert 5e-4 < relative < 1e-2 and small < 1e-4 and worst > 10 * exact


def test_a_volta_gpu_has_no_tf32() -> None:
    with_flag, without = errors("v100-16g", True), errors("v100-16g", False)
    assert with_flag[1] < 1e-4 and (with_flag[2] == without[2]).all()


def test_rounding_goes_to_nearest_ties_away_and_keeps_the_range() -> None:
    from flambeau.ops.linalg.matmul import round_to_tf32

    step = 2.0**-10
    given_ = np.array(
        [1 + step / 2, -1 - step / 2, 1 + step * 0.49, 3e38, 1e-38, np.inf, -np.inf, np.nan], np.float32
    )
    want = np.array([1 + step, -1 - step, 1, 3e38, 1e-38, np.inf, -np.inf, np.nan], np.float32)
    found = round_to_tf32(given_)
    np.testing.assert_array_equal(found[[0, 1, 2, 5, 6, 7]], want[[0, 1, 2, 5, 6, 7]])
    np.testing.assert_allclose(found, want, rtol=2.0**-11)
    assert not (found.view(np.uint32)[:5] & 0x1FFF).any()


def test_the_cpu_and_doubles_are_left_alone() -> None:
    a = flambeau.tensor([[1 + 2.0**-20]])
    assert (a @ flambeau.ones(1, 1)).item() == a.item()
    with flambeau.virtual(devices=1, profile="a100-40g"):
        b = flambeau.tensor([[1 + 2.0**-40]], dtype=flambeau.float64, device="cuda")
        assert (b @ flambeau.ones(1, 1, dtype=flambeau.float64, device="cuda")).item() == 1 + 2.0**-40


# -- out_dtype: on CUDA alone ---------------------------------------------------------------------------------


UNROUNDED = {
    "mm": lambda m, x, kind: m.mm(x[0], x[0], out_dtype=kind),
    "bmm": lambda m, x, kind: m.bmm(x, x, kind),
    "addmm": lambda m, x, kind: m.addmm(x[1], x[0], x[0], kind, beta=2, alpha=0.5),
    "baddbmm": lambda m, x, kind: m.baddbmm(x[:1], x, x, out_dtype=kind),
}


@pytest.mark.parametrize("name", UNROUNDED)
def test_products_of_halves_in_float32(name: str) -> None:
    """As the float32 product of the same numbers; PyTorch's CPU build has none, and says so."""
    run = UNROUNDED[name]
    given = torch.randn(3, 4, 4).half()
    with pytest.raises(NotImplementedError, match=f"^Could not run 'aten::{name}.dtype' with"):
        run(torch, given, torch.float32)
    with pytest.raises(NotImplementedError, match=f"^Could not run 'aten::{name}.dtype' with"):
        run(flambeau, from_torch(given), flambeau.float32)
    with flambeau.virtual(devices=1):
        x = from_torch(given).cuda().requires_grad_()
        found = run(flambeau, x, flambeau.float32)
        wide = {
            "mm": lambda a: a[0] @ a[0],
            "bmm": lambda a: a @ a,
            "addmm": lambda a: 2 * a[1] + 0.5 * (a[0] @ a[0]),
        }
        want = wide.get(name, lambda a: a[:1] + a @ a)(given.float())
        same(found.detach(), want, ulps=8)
        with pytest.raises(RuntimeError, match=r"^derivative for aten::(add)?mm is not implemented"):
            found.sum().backward()
        x = x.detach()
        assert run(flambeau, x, flambeau.float16).dtype is flambeau.float16
        with pytest.raises(RuntimeError, match=r"^out_dtype must be the same as input dtype or fp32"):
            run(flambeau, x, flambeau.float64)
        out = flambeau.empty(3, 4, 4, device="cuda")
        assert flambeau.bmm(x, x, flambeau.float32, out=out) is out
        with pytest.raises(
            RuntimeError, match=r"^out_dtype must be the same as the dtype of the provided out"
        ):
            flambeau.bmm(x, x, flambeau.float32, out=out.half())


SHAPES = [
    (3,),
    (4,),
    (2, 3),
    (3, 2),
    (4, 2),
    (4, 2, 3),
    (4, 3, 2),
    (5, 3, 2),
    (2, 4, 2, 3),
    (1, 2, 3),
    (0, 3),
]


@pytest.mark.parametrize("left", SHAPES)
def test_products_of_all_shapes_and_what_is_said_of_those_that_do_not_fit(left: tuple[int, ...]) -> None:
    def said(m: Any, right: tuple[int, ...], kind: str) -> Any:
        try:
            return (
                m.arange(math.prod(left)).reshape(left).float() @ m.ones(right, dtype=getattr(m, kind))
            ).tolist()
        except RuntimeError as error:
            return str(error).rstrip()

    for right in SHAPES:
        one_mistake = 0 not in left and (len(left) + len(right) > 2 or left == right)
        for kind in ("float32", "float64") if one_mistake else ("float32",):
            assert said(flambeau, right, kind) == said(torch, right, kind), (right, kind)


@pytest.mark.parametrize(
    "kinds", [*itertools.product(("float32", "float64", "int64"), repeat=3)], ids="-".join
)
def test_added_products_of_several_dtypes_are_refused_in_pytorchs_words(kinds: tuple[str, ...]) -> None:
    def said(m: Any, name: str, shapes: Any) -> str:
        ones = [m.ones(shape, dtype=getattr(m, kind)) for shape, kind in zip(shapes, kinds, strict=True)]
        try:
            return str((m.nn.functional.linear if name == "linear" else getattr(m, name))(*ones))
        except RuntimeError as error:
            return str(error)

    for name, shapes in {
        "addmm": [(2, 2), (2, 3), (3, 2)], "baddbmm": [(4, 2, 2), (4, 2, 3), (4, 3, 2)],
        "linear": [(2, 2), (3, 2), (3,)],
    }.items():  # fmt: skip
        assert said(flambeau, name, shapes) == said(torch, name, shapes)
