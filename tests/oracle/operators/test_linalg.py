"""torch.linalg against PyTorch; what has signs or an order of its own is compared by reconstruction."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import from_torch, to_torch, torch

import flambeau
from flambeau.ops.linalg import linalg as ops
from flambeau.testing.operator_properties import cases, check_virtual

KINDS = ("float32", "float64", "complex64", "complex128")
NAMES = sorted(op.name for op in vars(ops).values() if isinstance(op, ops.Op))


def numbers(rng: Any, shape: Any, kind: str) -> Any:
    x = rng.uniform(-2, 2, shape)
    if kind.startswith("complex"):
        x = x + 1j * rng.uniform(-2, 2, shape)
    return torch.from_numpy(np.asarray(x)).to(getattr(torch, kind))


def formed(draw: Any, x: Any) -> Any:
    form = draw(st.sampled_from(("plain", "transposed", "stepped", "expanded")))
    if form == "transposed":
        x = x.mT.contiguous().mT
    if form == "stepped":
        x = torch.stack([x, x], -1)[..., 0]
    if form == "expanded":
        x = x.unsqueeze(0).expand(2, *x.shape)
    return x


@st.composite
def square(draw: Any, definite: bool = False, kinds: tuple[str, ...] = KINDS, least: int = 0) -> Any:
    """A batch of well-conditioned square matrices, Hermitian positive-definite ones if `definite`."""
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    n = draw(st.integers(least, 5))
    batch = draw(st.sampled_from(((), (2,), (2, 3), (0,), (1, 2))))
    x = numbers(rng, (*batch, n, n), draw(st.sampled_from(kinds)))
    x = x @ x.mH + torch.eye(n) if definite else x + 4 * n * torch.eye(n)
    return formed(draw, x)


@st.composite
def oblong(draw: Any, least: int = 0) -> Any:
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    batch = draw(st.sampled_from(((), (2,), (2, 3), (0,))))
    shape = (*batch, draw(st.integers(least, 5)), draw(st.integers(least, 5)))
    return formed(draw, numbers(rng, shape, draw(st.sampled_from(KINDS))))


def ours_of(x: Any) -> Any:
    return from_torch(x) if isinstance(x, torch.Tensor) else x


def agree(run: Any, *args: Any, text: bool = True) -> None:
    """The same dtypes, shapes and values (to rounding), or the same error with the same text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = run(torch, *args)
        except Exception as error:  # the oracle's refusal is the expectation
            if "view size is not" in str(error):  # its own slip, with expanded matrices
                return
            kind = flambeau.linalg.LinAlgError if isinstance(error, torch.linalg.LinAlgError) else type(error)
            with pytest.raises(kind) as caught:
                run(flambeau, *[ours_of(x) for x in args])
            assert caught.type is kind
            if text and not isinstance(error, TypeError):
                assert str(caught.value) == str(error).splitlines()[0]
            return
        ours = run(flambeau, *[ours_of(x) for x in args])
    alike(ours, theirs)


def alike(ours: Any, theirs: Any, scale: float = 1) -> None:
    if isinstance(theirs, tuple):
        assert len(ours) == len(theirs)
        assert type(ours).__name__ == type(theirs).__name__
        for one, other in zip(ours, theirs, strict=True):
            alike(one, other, scale)
        return
    assert repr(ours.dtype) == repr(theirs.dtype)
    assert tuple(ours.shape) == tuple(theirs.shape)
    near(to_torch(ours), theirs, scale)


def near(a: Any, b: Any, scale: float = 1) -> None:
    """Equal within rounding of the narrower dtype, relative to the largest element."""
    kinds = {a.dtype, b.dtype}
    limit = 2e-2 if torch.float16 in kinds else 5e-5 if kinds & {torch.float32, torch.complex64} else 1e-11
    a, b = a.to(torch.complex128), b.to(torch.complex128)
    same = (a == b) | (a.isnan() & b.isnan())
    size = torch.where(b.isfinite(), b, 0).abs()
    largest = 1 + (size.max().item() if b.numel() else 0)
    assert bool((same | ((a - b).abs() <= limit * largest * scale)).all()), f"\n{a}\nis not\n{b}"


# -- values that are the only ones ---------------------------------------------------------------------------

UNIQUE = (
    "inv",
    "det",
    "slogdet",
    "pinv",
    "matrix_exp",
    "cond",
    "matrix_rank",
    "lu",
    "lu_factor",
    "inv_ex",
    "svdvals",
)


@given(square(), st.sampled_from(UNIQUE))
def test_functions_of_square_matrices(x: Any, name: str) -> None:
    agree(lambda room, t: getattr(room.linalg, name)(t), x)


@given(square(definite=True), st.sampled_from(("cholesky", "cholesky_ex", "eigvalsh")))
def test_functions_of_definite_matrices(x: Any, name: str) -> None:
    agree(lambda room, t: getattr(room.linalg, name)(t), x)


@given(square(definite=True, least=1), st.booleans(), st.booleans(), st.data())
def test_cholesky_keeps_part_of_indefinite_matrices(x: Any, upper: bool, checked: bool, data: Any) -> None:
    x = x.clone()
    for matrix in x.flatten(0, -3) if x.ndim > 2 else [x]:
        if data.draw(st.booleans()):
            row, column = data.draw(st.tuples(*[st.integers(0, x.shape[-1] - 1)] * 2))
            matrix[row, column] = data.draw(st.sampled_from((-9.0, float("nan"))))
    agree(lambda room, t: room.linalg.cholesky_ex(t, upper=upper, check_errors=checked), x)


@pytest.mark.parametrize("n", [128, 200])
def test_cholesky_keeps_part_of_large_matrices(n: int) -> None:
    x = numbers(np.random.default_rng(n), (n, n), "float64")
    x = x @ x.mT + torch.eye(n)
    x[n // 2, n // 2] = -1.0
    (theirs, order), (ours, info) = torch.linalg.cholesky_ex(x), flambeau.linalg.cholesky_ex(from_torch(x))
    assert info.item() == order.item() == n // 2 + 1
    rows = n if n <= 128 else order  # below them, the library of PyTorch leaves blocks of another size
    near(to_torch(ours)[:rows], theirs[:rows])
    valid = to_torch(ours)[:, : order - 1]
    near((valid @ valid.mT)[:, : order - 1], x[:, : order - 1])


@given(oblong(), st.sampled_from(("svdvals", "pinv", "matrix_rank", "lu", "cond")))
def test_functions_of_oblong_matrices(x: Any, name: str) -> None:
    agree(lambda room, t: getattr(room.linalg, name)(t), x)


@given(square(definite=True), st.booleans())
def test_cholesky_solves(x: Any, upper: bool) -> None:
    def run(room: Any, a: Any) -> Any:
        factor = room.linalg.cholesky(a, upper=upper)
        return room.cholesky_solve(a[..., :1] if a.numel() else a, factor, upper), room.cholesky_inverse(
            factor, upper
        )

    agree(lambda room, a: tuple(run(room, a)), x)


@given(square(least=1), st.integers(-3, 6))
def test_matrix_power(x: Any, n: int) -> None:
    agree(lambda room, t: room.linalg.matrix_power(t / 8, n), x)


@given(square(least=1), st.floats(-6, 6))
def test_matrix_exp_of_any_size(x: Any, factor: float) -> None:
    """Against an independent one: of halves, squared."""
    x = x.to(torch.complex128) * factor / max(1e-9, x.abs().sum(-2).max().item() if x.numel() else 1)
    ours = flambeau.linalg.matrix_exp(from_torch(x))
    near(to_torch(ours), torch.linalg.matrix_exp(x), 10)


@given(st.data(), st.sampled_from(KINDS), st.booleans(), st.sampled_from((None, 1, 3)))
def test_solve(data: Any, kind: str, left: bool, columns: Any) -> None:
    a = data.draw(square(kinds=(kind,), least=1))
    n = a.shape[-1]
    batch = data.draw(st.sampled_from((a.shape[:-2], (), (1,))))
    rng = np.random.default_rng(n)
    shape = (*batch, n) if columns is None else (*batch, n, columns) if left else (*batch, columns, n)
    agree(lambda room, x, y: room.linalg.solve(x, y, left=left), a, numbers(rng, shape, kind), text=False)


@given(st.data(), st.sampled_from(KINDS), st.booleans(), st.booleans(), st.booleans())
def test_solve_triangular(data: Any, kind: str, upper: bool, left: bool, ones: bool) -> None:
    a = data.draw(square(kinds=(kind,), least=1))
    n = a.shape[-1]
    b = numbers(np.random.default_rng(n), (n, 2) if left else (2, n), kind)
    agree(
        lambda room, x, y: room.linalg.solve_triangular(x, y, upper=upper, left=left, unitriangular=ones),
        a / (4 * n) if ones else a, b,
    )  # fmt: skip


@given(st.data(), st.sampled_from(KINDS), st.booleans(), st.booleans())
def test_lu_solve_and_unpack(data: Any, kind: str, left: bool, adjoint: bool) -> None:
    a = data.draw(square(kinds=(kind,), least=1)).contiguous()
    n = a.shape[-1]
    b = numbers(np.random.default_rng(n), (*a.shape[:-2], n, 2) if left else (*a.shape[:-2], 2, n), kind)

    def run(room: Any, x: Any, y: Any) -> Any:
        factors, pivots = room.linalg.lu_factor(x)
        return room.linalg.lu_solve(factors, pivots, y, left=left, adjoint=adjoint), *room.lu_unpack(
            factors, pivots
        )

    agree(run, a, b)


# -- factors: compared by what they make --------------------------------------------------------------------


@given(oblong(), st.sampled_from(("reduced", "complete", "r")))
def test_qr(x: Any, mode: str) -> None:
    q, r = flambeau.linalg.qr(from_torch(x), mode)
    theirs = torch.linalg.qr(x, mode)
    assert [tuple(q.shape), tuple(r.shape)] == [tuple(t.shape) for t in theirs]
    near(to_torch(r).abs(), theirs.R.abs())
    assert bool((to_torch(r) == to_torch(r).triu()).all())
    if mode != "r":
        near(to_torch(q) @ to_torch(r), x)
        near(
            to_torch(q).mH @ to_torch(q), torch.eye(q.shape[-1], dtype=x.dtype).expand_as(to_torch(q.mH @ q))
        )


@given(oblong(least=1))
def test_qr_from_reflectors(x: Any) -> None:
    if x.shape[-2] < x.shape[-1]:
        x = x.mT
    ours = from_torch(x)
    packed, tau = flambeau.geqrf(ours)
    near(to_torch(flambeau.linalg.householder_product(packed, tau)), to_torch(flambeau.linalg.qr(ours).Q))
    agree(lambda room, a, b: room.linalg.householder_product(a, b), *torch.geqrf(x))


@given(oblong(), st.booleans())
def test_svd(x: Any, full: bool) -> None:
    theirs = torch.linalg.svd(x, full_matrices=full)
    u, s, vh = (to_torch(t) for t in flambeau.linalg.svd(from_torch(x), full_matrices=full))
    for one, other in zip((u, s, vh), theirs, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
    near(s, theirs.S)
    k = s.shape[-1]
    near((u[..., :k] * s.unsqueeze(-2).to(u.dtype)) @ vh[..., :k, :], x)
    near(u.mH @ u, torch.eye(u.shape[-1], dtype=x.dtype).expand_as(u.mH @ u))
    near(vh @ vh.mH, torch.eye(vh.shape[-2], dtype=x.dtype).expand_as(vh @ vh.mH))


@given(square(definite=True), st.sampled_from(("L", "U", "l")))
def test_eigh_reads_one_triangle(x: Any, uplo: str) -> None:
    broken = x + (torch.ones_like(x).triu(1) if uplo.upper() == "L" else torch.ones_like(x).tril(-1))
    values, vectors = (to_torch(t) for t in flambeau.linalg.eigh(from_torch(broken), uplo))
    near(values, torch.linalg.eigvalsh(x))
    near(x @ vectors, vectors * values.unsqueeze(-2))


@given(square())
def test_eig(x: Any) -> None:
    values, vectors = flambeau.linalg.eig(from_torch(x))
    assert repr(values.dtype) == repr(torch.linalg.eigvals(x).dtype)
    values, vectors = to_torch(values), to_torch(vectors)
    near(x.to(vectors.dtype) @ vectors, vectors * values.unsqueeze(-2), 10)
    near(to_torch(flambeau.linalg.eigvals(from_torch(x))).sum(-1), x.diagonal(0, -2, -1).sum(-1), 10)


@given(oblong(least=1), st.sampled_from((None, "gels", "gelsy", "gelsd", "gelss")), st.booleans())
def test_lstsq(x: Any, driver: Any, vector: bool) -> None:
    b = numbers(
        np.random.default_rng(1), (*x.shape[:-1],) if vector else (*x.shape[:-1], 2), str(x.dtype)[6:]
    )
    if np.linalg.cond(x.numpy()).max(initial=1) < 1e3:
        agree(lambda room, a, y: room.linalg.lstsq(a, y, driver=driver), x, b, text=False)


# -- norms --------------------------------------------------------------------------------------------------


@given(
    oblong(least=1),
    st.sampled_from(("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf, 3, "no")),
    st.booleans(),
    st.data(),
)
def test_matrix_norm(x: Any, order: Any, keepdim: bool, data: Any) -> None:
    dim = data.draw(st.sampled_from(((-2, -1), (-1, -2), (0, 1), (1, 0), (0, -1), (0, 0), (0, 9))))
    if x.numel():
        agree(lambda room, t: room.linalg.matrix_norm(t, order, dim, keepdim), x)


@given(
    oblong(least=1), st.sampled_from((None, "fro", "nuc", 1, -1, 2, 0, 3.5, math.inf)),
    st.sampled_from((None, 0, -1, (0,), (0, 1), (1, 0), (0, 1, 2))), st.booleans(),
)  # fmt: skip
def test_norm(x: Any, order: Any, dim: Any, keepdim: bool) -> None:
    if x.numel():
        agree(lambda room, t: room.linalg.norm(t, order, dim, keepdim), x)


@given(square(least=1), st.sampled_from((None, "fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf, 7)))
def test_cond(x: Any, p: Any) -> None:
    agree(lambda room, t: room.linalg.cond(t, p), x)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64", "int32"])
def test_dtypes_of_norms(kind: str) -> None:
    x = torch.ones(3, 4).to(getattr(torch, kind))
    for order in ("fro", 1, 2, "nuc"):
        agree(lambda room, t, order=order: room.linalg.matrix_norm(t, order), x)
    for wanted in ("float32", "float64", "complex64", "int32"):
        agree(
            lambda room, t, wanted=wanted: room.linalg.vector_norm(t, 2, dtype=getattr(room, wanted)),
            x,
            text=False,
        )


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("limits", [{}, {"atol": 0.5}, {"rtol": 0.1}, {"atol": 1.0, "rtol": 0.5}])
def test_rank_and_pseudo_inverse_up_to_a_limit(hermitian: bool, limits: Any) -> None:
    x = torch.diag_embed(torch.tensor([[3.0, -1.0, 0.2], [2.0, 1e-9, 0.0]]))
    agree(lambda room, t: room.linalg.matrix_rank(t, hermitian=hermitian, **limits), x)
    agree(lambda room, t: room.linalg.pinv(t, hermitian=hermitian, **limits), x)
    tensors = {name: torch.tensor([value, 2 * value]) for name, value in limits.items()}
    names = list(tensors)

    def run(room: Any, t: Any, *given: Any) -> Any:
        return room.linalg.matrix_rank(t, hermitian=hermitian, **dict(zip(names, given, strict=True)))

    agree(run, x, *tensors.values())


# -- products, distances, trapezoids ----------------------------------------------------------------------------


@given(
    st.sampled_from((0, 1, 2, 3, 1.5, math.inf)), st.integers(0, 30), st.integers(1, 4), st.sampled_from((0, 1, 3, 80)),
    st.sampled_from(((), (2,), (1, 2))), st.sampled_from(("float32", "float64")), st.integers(0, 2),
)  # fmt: skip
def test_cdist(p: float, rows: int, others: int, columns: int, batch: Any, kind: str, mode: int) -> None:
    modes = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")
    rng = np.random.default_rng(rows)
    a, b = numbers(rng, (*batch, rows, columns), kind), numbers(rng, (others, columns), kind)
    agree(lambda room, x, y: room.cdist(x, y, p, modes[mode]), a, b)


@pytest.mark.parametrize("p", [0.0, 1.0, 1.5, 2.0, math.inf])
@pytest.mark.parametrize("shape", [(2, 70, 3), (150, 40), (0, 3)])
def test_distances_among_rows_are_those_to_a_copy_of_them(shape: tuple[int, ...], p: float) -> None:
    """Where rows meet themselves each distance is computed once, and rows are taken in blocks."""
    x = flambeau.rand(shape, generator=flambeau.Generator().manual_seed(0))
    exact = "donot_use_mm_for_euclid_dist"
    among = flambeau.cdist(x, x, p, exact)
    assert flambeau.equal(among, flambeau.cdist(x, x.clone(), p, exact))
    assert flambeau.equal(among, among.mT)


def test_cdist_by_product_respects_tf32() -> None:
    """More than 25 rows go through a matrix product, which TF32 rounds on an A100 and not on a V100."""
    rng = np.random.default_rng(0)
    a, b = (from_torch(numbers(rng, (40, 8), "float32")) for _ in range(2))
    exact = flambeau.cdist(a, b)
    found = {}
    for profile in ("a100-40g", "v100-16g"):
        with flambeau.virtual(devices=1, profile=profile):
            for allowed in (True, False):
                flambeau.backends.cuda.matmul.allow_tf32 = allowed
                there = flambeau.cdist(a.cuda(), b.cuda()).cpu()
                found[profile, allowed] = float((there - exact).abs().max().item())
            flambeau.backends.cuda.matmul.allow_tf32 = True
    assert found.pop(("a100-40g", True)) > 1e-4
    assert list(found.values()) == [0, 0, 0]


@pytest.mark.parametrize("kind", ["uint8", "int32", "int64", "float16", "float32", "complex64"])
def test_cross(kind: str) -> None:
    rng = np.random.default_rng(3)
    a, b = (torch.from_numpy(rng.integers(0, 9, (2, 3, 3))).to(getattr(torch, kind)) for _ in range(2))
    for dim in (-1, 1, 0, 5):
        agree(lambda room, x, y, dim=dim: room.linalg.cross(x, y, dim=dim), a, b)
    agree(lambda room, x, y: room.cross(x, y), a, b)
    agree(lambda room, x, y: room.linalg.cross(x, y), a[:1], b)
    agree(
        lambda room, x, y: room.linalg.cross(x, y.to(room.float64)),
        a.real if a.is_complex() else a,
        b.real if a.is_complex() else b,
    )


@given(st.data(), st.sampled_from(("trapezoid", "cumulative_trapezoid")), st.integers(-3, 3), st.booleans())
def test_trapezoids(data: Any, name: str, dim: int, shared: bool) -> None:
    shape = data.draw(st.lists(st.integers(0, 4), max_size=3))
    kind = data.draw(st.sampled_from(("int64", "float32", "float64")))
    rng = np.random.default_rng(len(shape))
    y = torch.from_numpy(np.asarray(rng.integers(-4, 5, shape))).to(getattr(torch, kind))
    agree(lambda room, t: getattr(room, name)(t, dim=dim), y)
    agree(lambda room, t: getattr(room, name)(t, dx=0.5, dim=dim), y)
    points = shape[dim] if -len(shape) <= dim < len(shape) else 2
    x = torch.from_numpy(np.asarray(rng.uniform(0, 9, points if shared else shape)))
    agree(lambda room, t, at: getattr(room, name)(t, at, dim=dim), y, x, text=False)


@given(
    st.integers(0, 4),
    st.sampled_from((None, 0, 1, 2, 5)),
    st.booleans(),
    st.sampled_from(("int32", "float32", "complex64")),
)
def test_vander(n: int, count: Any, increasing: bool, kind: str) -> None:
    x = torch.arange(1, n + 1).to(getattr(torch, kind))
    agree(lambda room, t: room.vander(t, count, increasing), x)
    agree(lambda room, t: room.linalg.vander(t.reshape(1, n), N=count), x)


@pytest.mark.parametrize(
    "shapes", [((2,), (2, 3), (3, 4)), ((4, 2), (2, 9), (9, 1), (1, 5)), ((3,), (3,)), ((2, 3), (3,))]
)
def test_multi_dot(shapes: Any) -> None:
    rng = np.random.default_rng(0)
    agree(lambda room, *ts: room.linalg.multi_dot(ts), *[numbers(rng, s, "float64") for s in shapes])


def test_tensors_as_matrices() -> None:
    rng = np.random.default_rng(0)
    a = numbers(rng, (2, 3, 6), "float64")
    agree(lambda room, t: room.linalg.tensorinv(t), a)
    agree(lambda room, t: room.linalg.tensorinv(t * 0), a)
    agree(lambda room, t, b: room.linalg.tensorsolve(t, b), a, numbers(rng, (2, 3), "float64"))
    agree(
        lambda room, t, b: room.linalg.tensorsolve(t, b, (0,)),
        numbers(rng, (6, 2, 3), "float64"),
        numbers(rng, (2, 3), "float64"),
    )


def test_vecdot_and_diagonal() -> None:
    rng = np.random.default_rng(0)
    a, b = (numbers(rng, (2, 3), "complex64") for _ in range(2))
    agree(lambda room, x, y: room.linalg.vecdot(x, y), a, b)
    agree(lambda room, x, y: room.linalg.vecdot(x, y[:1], dim=0), a, b)
    agree(lambda room, x: room.linalg.diagonal(x, offset=1), a)


# -- older names -----------------------------------------------------------------------------------------------


@given(
    square(definite=True, least=1),
    st.sampled_from(("det", "logdet", "slogdet", "inverse", "cholesky", "pinverse", "matrix_exp")),
)
def test_names_of_torch(x: Any, name: str) -> None:
    agree(lambda room, t: getattr(room, name)(t), x)
    agree(lambda room, t: getattr(t, name)(), x)


@given(oblong(least=1), st.booleans(), st.booleans())
def test_svd_of_torch(x: Any, some: bool, vectors: bool) -> None:
    theirs = torch.svd(x, some, vectors)
    ours = flambeau.svd(from_torch(x), some, vectors)
    assert [tuple(t.shape) for t in ours] == [tuple(t.shape) for t in theirs]
    near(to_torch(ours.S), theirs.S)
    if some and vectors:
        u, s, v = (to_torch(t) for t in ours)
        near((u * s.unsqueeze(-2).to(u.dtype)) @ v.mH, x)


def test_triangular_solve_of_torch() -> None:
    rng = np.random.default_rng(0)
    a, b = numbers(rng, (3, 3), "float64") + 4 * torch.eye(3), numbers(rng, (3, 2), "float64")
    for upper in (True, False):
        for transpose in (True, False):
            agree(lambda room, y, x, u=upper, t=transpose: room.triangular_solve(y, x, u, t), b, a)


# -- refusals: type and text ---------------------------------------------------------------------------------

A = torch.tensor([[4.0, 1], [1, 3]])
SINGULAR = torch.stack([A, torch.zeros(2, 2)])
OPERANDS = {
    "A": A, "singular": SINGULAR[1], "batch": SINGULAR, "half": A.half(), "int": A.int(), "oblong": torch.ones(2, 3),
    "vector": torch.ones(2), "number": torch.tensor(1.0), "empty": torch.empty(0, 0), "thin": torch.empty(2, 0, 3),
}  # fmt: skip
REFUSING = (
    "inv", "det", "slogdet", "svdvals", "eigvalsh", "cholesky", "lu", "lu_factor", "matrix_exp", "cond", "pinv",
    "matrix_norm", "inv_ex", "matrix_rank",
)  # fmt: skip


@pytest.mark.parametrize("name", REFUSING)
@pytest.mark.parametrize("operand", sorted(OPERANDS))
def test_refusals(name: str, operand: str) -> None:
    if (name, operand) in (
        ("inv_ex", "batch"),
        ("inv_ex", "singular"),
        ("cond", "oblong"),
        ("matrix_exp", "half"),
    ):
        return  # undefined, or overflowing in PyTorch
    agree(lambda room, t: getattr(room.linalg, name)(t), OPERANDS[operand])


PAIRS = [
    ("solve", A, torch.ones(3)), ("solve", A, torch.ones(3, 2)), ("solve", SINGULAR, torch.ones(2, 2)),
    ("solve", SINGULAR[1], torch.ones(2)), ("solve", A, A.double()), ("solve", A.int(), A.int()),
    ("solve", A.half(), A.half()),
    ("solve", torch.ones(2, 3), torch.ones(2)), ("lstsq", torch.ones(2), torch.ones(2)), ("lstsq", A.half(), A.half()),
    ("cross", A, A), ("cross", torch.ones(2, 3), torch.ones(3)), ("vecdot", A, A.int()), ("vecdot", A.int(), A.int()),
    ("tensorsolve", torch.ones(2, 3), torch.ones(2)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "a", "b"), PAIRS)
def test_refusals_of_pairs(name: str, a: Any, b: Any) -> None:
    agree(lambda room, x, y: getattr(room.linalg, name)(x, y), a, b)


MORE = [
    lambda room, a: room.linalg.qr(a, "x"), lambda room, a: room.linalg.eigh(a, "X"),
    lambda room, a: room.linalg.lu(a, pivot=False), lambda room, a: room.linalg.lstsq(a, a, driver="x"),
    lambda room, a: room.linalg.lstsq(a / a, a, driver="gels"), lambda room, a: room.linalg.multi_dot([a]),
    lambda room, a: room.linalg.multi_dot([a, a.reshape(1, 2, 2)]), lambda room, a: room.linalg.svd(a, driver="gesvd"),
    lambda room, a: room.linalg.matrix_power(a * 0, -1), lambda room, a: room.linalg.matrix_power(a, 1.5),
    lambda room, a: room.linalg.tensorinv(a, 0), lambda room, a: room.linalg.vector_norm(a, "fro"),
    lambda room, a: room.cdist(a, a[:, :1]), lambda room, a: room.cdist(a, a, -1.0),
    lambda room, a: room.cdist(a, a[0]),
    lambda room, a: room.cdist(a.int(), a.int()), lambda room, a: room.cdist(a, a, compute_mode="x"),
    lambda room, a: room.trapezoid(a > 1), lambda room, a: room.cumulative_trapezoid(a, a > 1),
    lambda room, a: room.cross(a, a), lambda room, a: room.linalg.svd(a * float("nan")),
    lambda room, a: room.linalg.inv_ex(a * 0, check_errors=True), lambda room, a: room.linalg.inv([1]),
    lambda room, a: room.norm(a[0], "nuc"), lambda room, a: room.linalg.inv(a, out=room.empty(0, dtype=room.float64)),
    lambda room, a: room.linalg.eigvals(a, out=room.empty(0)),
    lambda room, a: room.linalg.pinv(a, out=room.empty(0, dtype=room.int32)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MORE)))
def test_more_refusals(number: int) -> None:
    agree(MORE[number], A)


def test_a_refusal_changes_nothing() -> None:
    out = flambeau.ones(2, 2)
    with pytest.raises(flambeau.linalg.LinAlgError):
        flambeau.linalg.inv(flambeau.zeros(2, 2), out=out)
    assert out.tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    "name", ["inv", "det", "cholesky", "svdvals", "eigvalsh", "pinv", "matrix_power", "norm", "cond"]
)
def test_out(name: str) -> None:
    def run(room: Any, a: Any) -> Any:
        out = room.empty(0)
        more = (2,) if name == "matrix_power" else ()
        assert getattr(room.linalg, name)(a, *more, out=out) is out
        return out

    agree(run, A)


def test_out_of_several() -> None:
    for name in ("slogdet", "lu", "eigh", "lu_factor"):
        count = len(getattr(torch.linalg, name)(A))

        def run(room: Any, a: Any, name: str = name, count: int = count) -> Any:
            out = tuple(room.empty(0) for _ in range(count))
            if name == "lu_factor":
                out = (out[0], room.empty(0, dtype=room.int32))
            found = getattr(room.linalg, name)(a, out=out)
            assert all(one is other for one, other in zip(found, out, strict=True))
            return tuple(x.abs() for x in found)

        agree(run, A)


# -- virtual GPUs ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def where() -> Any:
    with flambeau.virtual(devices=1, profile="a100-40g"):
        yield flambeau.device("cuda:0")


@pytest.mark.parametrize("name", NAMES)
def test_a_virtual_device_computes_the_same_bits(name: str, where: Any) -> None:
    assert sum(check_virtual(op, kind, where) for op, kind in cases() if op.name == name) >= 3


def test_lu_without_pivoting_on_a_gpu(where: Any) -> None:
    x = from_torch(SINGULAR[0].expand(2, 2, 2) + torch.arange(2.0).reshape(2, 1, 1)).to(where)
    p, lower, upper = flambeau.linalg.lu(x, pivot=False)
    assert p.numel() == 0
    near(to_torch(lower @ upper), to_torch(x), 100)  # the product in TF32
    _, _, info = flambeau.linalg.lu_factor_ex(x * 0, pivot=False)
    assert info.tolist() == [1, 1]


def test_errors_on_a_gpu(where: Any) -> None:
    with pytest.raises(flambeau.linalg.LinAlgError, match="Batch element 1"):
        flambeau.linalg.inv(from_torch(SINGULAR).to(where))
    with pytest.raises(RuntimeError, match="other than `gels` is not supported on CUDA"):
        flambeau.linalg.lstsq(from_torch(A).to(where), from_torch(A).to(where), driver="gelsd")
    assert flambeau.linalg.svd(from_torch(A).to(where), driver="gesvd").S.device == where


# -- matrices that are not finite: LAPACK's iterations need not end for them ------------------------------------------

ITERATIONS = {
    "svd": lambda a: flambeau.linalg.svd(a), "svdvals": lambda a: flambeau.linalg.svdvals(a),
    "eigh": lambda a: flambeau.linalg.eigh(a), "eigvalsh": lambda a: flambeau.linalg.eigvalsh(a),
    "pinv": lambda a: flambeau.linalg.pinv(a), "lstsq": lambda a: flambeau.linalg.lstsq(a, a),
}  # fmt: skip


@pytest.mark.parametrize("run", ITERATIONS.values(), ids=ITERATIONS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_iterations_refuse_infinite_matrices(run: Any, device: str) -> None:
    inf = float("inf")
    endless = [[-3.0, 0.0, 0.0], [inf, 0.0, 0.0], [0.0, -inf, 1.0]]
    with flambeau.virtual(1), pytest.raises(flambeau.linalg.LinAlgError, match="non-finite values"):
        run(flambeau.tensor([torch.eye(3).tolist(), endless], device=device))


def test_eigh_does_not_read_the_other_triangle() -> None:
    values = [[1.0, float("nan")], [2.0, 3.0]]
    for module in (torch, flambeau):
        assert module.linalg.eigvalsh(module.tensor(values)).isfinite().all()


def test_cdist_of_a_huge_p_takes_the_largest_difference() -> None:
    rows, other = [[0.5, -1.0], [0.3, 2.0]], [[1.5, 1.0]]
    theirs, mine = (m.cdist(m.tensor(rows), m.tensor(other), p=1e300) for m in (torch, flambeau))
    assert mine.tolist() == theirs.tolist()
