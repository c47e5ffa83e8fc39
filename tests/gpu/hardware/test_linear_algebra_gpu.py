"""Linear algebra on a real GPU: what the factors must satisfy, NumPy's numbers where there is one answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_kit import GPU, needs_gpu

import flambeau
from flambeau import linalg
from flambeau.testing import operator_properties

pytestmark = needs_gpu

KINDS = (np.float32, np.float64, np.complex64, np.complex128)
SHAPES = [(1, 1), (3, 3), (40, 40), (600, 600), (5, 4, 4), (2, 3, 33, 33), (100, 2, 2)]
TALL_AND_WIDE = [
    (5, 3),
    (3, 5),
    (64, 64),
    (300, 40),
    (40, 300),
    (7, 5, 3),
    (7, 3, 5),
    (2, 2, 50, 40),
    (3, 40, 50),
]


@pytest.fixture(autouse=True)
def whole_products() -> Any:
    matmul = flambeau.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, False
    yield
    matmul.allow_tf32 = before


def random(shape: Any, kind: Any, seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(shape)
    if np.dtype(kind).kind == "c":
        x = x + 1j * generator.standard_normal(shape)
    return x.astype(kind)


def regular(shape: Any, kind: Any, seed: int = 0) -> Any:
    """Matrices that are far from singular."""
    n = shape[-1]
    return random(shape, kind, seed) + float(2 * n**0.5) * np.eye(n, dtype=kind)


def definite(shape: Any, kind: Any) -> Any:
    a = random(shape, kind)
    return a @ a.conj().swapaxes(-1, -2) / shape[-1] + np.eye(shape[-1], dtype=kind)


def there(x: Any) -> Any:
    return flambeau.tensor(x, device=GPU)


def here(x: Any) -> Any:
    return np.asarray(x.cpu())


def close(got: Any, want: Any, factor: float = 1) -> None:
    got = here(got) if isinstance(got, flambeau.Tensor) else got
    assert got.shape == want.shape
    precise = {got.dtype, want.dtype} <= {np.dtype(np.float64), np.dtype(np.complex128)}
    tolerance = factor * (1e-11 if precise else 5e-4) * max(1.0, np.abs(want).max(initial=0))
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)


def adjoint(x: Any) -> Any:
    return x.conj().swapaxes(-1, -2)


def orthonormal(q: Any) -> None:
    """Its columns, or its rows if it is wide."""
    q = here(q)
    q = q if q.shape[-2] >= q.shape[-1] else adjoint(q)
    close(
        adjoint(q) @ q,
        np.broadcast_to(np.eye(q.shape[-1], dtype=q.dtype), (*q.shape[:-2], q.shape[-1], q.shape[-1])),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_equations(kind: Any, shape: Any) -> None:
    a, b = regular(shape, kind), random((*shape[:-1], 3), kind, 1)
    ga, gb = there(a), there(b)
    close(linalg.solve(ga, gb), np.linalg.solve(a, b))
    close(linalg.solve(ga.mT, gb), np.linalg.solve(a.swapaxes(-1, -2), b))
    close(linalg.solve(ga, gb[..., 0]), np.linalg.solve(a, b[..., :1])[..., 0])
    close(linalg.solve(ga, gb.mT, left=False), np.linalg.solve(a.swapaxes(-1, -2), b).swapaxes(-1, -2))
    close(linalg.inv(ga), np.linalg.inv(a))
    factors, pivots = linalg.lu_factor(ga)
    assert pivots.dtype is flambeau.int32 and tuple(pivots.shape) == shape[:-1]
    close(linalg.lu_solve(factors, pivots, gb), np.linalg.solve(a, b))
    close(linalg.lu_solve(factors, pivots, gb, adjoint=True), np.linalg.solve(adjoint(a), b))
    if shape[-1] < 35:
        close(linalg.det(ga) / here(linalg.det(ga)).max(), np.linalg.det(a) / here(linalg.det(ga)).max())
    sign, size = linalg.slogdet(ga)
    want = np.linalg.slogdet(a)
    close(sign, want[0])
    close(size, want[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", TALL_AND_WIDE)
def test_lu(kind: Any, shape: Any) -> None:
    a = random(shape, kind)
    p, lower, upper = linalg.lu(there(a))
    close(here(p) @ here(lower) @ here(upper), a)
    assert np.abs(here(lower)).max() <= 1 + 1e-5 or np.iscomplexobj(a)
    _, lower, upper = linalg.lu(there(regular((4, 6, 6), kind)), pivot=False)
    close(here(lower) @ here(upper), regular((4, 6, 6), kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_definite_matrices(kind: Any, shape: Any) -> None:
    a = definite(shape, kind)
    close(linalg.cholesky(there(a)), np.linalg.cholesky(a))
    close(linalg.cholesky(there(a), upper=True), adjoint(np.linalg.cholesky(a)))
    b = random((*shape[:-1], 2), kind)
    close(flambeau.cholesky_solve(there(b), linalg.cholesky(there(a))), np.linalg.solve(a, b), 10)
    close(flambeau.cholesky_inverse(linalg.cholesky(there(a))), np.linalg.inv(a), 10)
    values, vectors = linalg.eigh(there(a))
    close(values, np.linalg.eigvalsh(a))
    close(a @ here(vectors), here(vectors) * here(values)[..., None, :])
    orthonormal(vectors)
    close(linalg.eigvalsh(there(a), "U"), np.linalg.eigvalsh(a))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("upper", (False, True))
@pytest.mark.parametrize("shape", SHAPES)
def test_triangular_systems(kind: Any, upper: bool, shape: Any) -> None:
    a, b = regular(shape, kind), random((*shape[:-1], 3), kind, 1)
    part = np.triu(a) if upper else np.tril(a)
    want = np.linalg.solve(part, b)
    for layout in (
        operator_properties.plain,
        operator_properties.reversed_dims,
        operator_properties.with_gaps,
    ):
        ga, gb = operator_properties.tensor_of(a, layout, GPU), operator_properties.tensor_of(b, layout, GPU)
        close(linalg.solve_triangular(ga, gb, upper=upper), want)
    ones = part - part * np.eye(shape[-1], dtype=kind) + np.eye(shape[-1], dtype=kind)
    small = ones / shape[-1] + (1 - 1 / shape[-1]) * np.eye(shape[-1], dtype=kind)
    got = linalg.solve_triangular(there(small.astype(kind)), there(b), upper=upper, unitriangular=True)
    close(small @ here(got), b, 10)
    got = linalg.solve_triangular(there(a), there(b).mT, upper=upper, left=False)
    close(here(got) @ part, b.swapaxes(-1, -2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", TALL_AND_WIDE)
def test_orthogonal_factors(kind: Any, shape: Any) -> None:
    a = random(shape, kind)
    for mode in ("reduced", "complete"):
        q, r = linalg.qr(there(a), mode)
        want = np.linalg.qr(a, mode)
        assert tuple(q.shape) == want[0].shape and tuple(r.shape) == want[1].shape
        close(here(q) @ here(r), a)
        orthonormal(q)
        close(r, np.triu(here(r)))
    q, r = linalg.qr(there(a), "r")
    assert q.numel() == 0 and np.abs(np.abs(here(r)) - np.abs(want[1][..., : r.shape[-2], :])).max() < 1e-2
    if shape[-2] >= shape[-1]:
        packed, tau = flambeau.geqrf(there(a))
        close(here(linalg.householder_product(packed, tau)) @ np.triu(here(packed)[..., : shape[-1], :]), a)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", TALL_AND_WIDE)
def test_singular_values(kind: Any, shape: Any) -> None:
    a = random(shape, kind)
    want = np.linalg.svd(a, compute_uv=False)
    for full in (False, True):
        u, s, vh = linalg.svd(there(a), full_matrices=full)
        k = s.shape[-1]
        assert (u.shape[-1], vh.shape[-2]) == ((shape[-2], shape[-1]) if full else (k, k))
        close(s, want)
        close(here(u)[..., :k] * here(s)[..., None, :] @ here(vh)[..., :k, :], a)
        orthonormal(u)
        orthonormal(vh)
    close(linalg.svdvals(there(a)), want)
    close(linalg.pinv(there(a)), np.linalg.pinv(a), 10)
    assert here(linalg.matrix_rank(there(a))).tolist() == np.linalg.matrix_rank(a).tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (5, 5), (60, 60), (3, 6, 6)])
def test_eigenvalues(kind: Any, shape: Any) -> None:
    a = random(shape, kind)
    values, vectors = linalg.eig(there(a))
    assert values.is_complex() and vectors.is_complex()
    close(a @ here(vectors), here(vectors) * here(values)[..., None, :])
    close(np.linalg.norm(here(vectors), axis=-2), np.ones(shape[:-1], np.dtype(kind).type(0).real.dtype))
    want = np.linalg.eigvals(a)
    for got in (here(values), here(linalg.eigvals(there(a)))):
        for x, y in zip(got.reshape(-1, shape[-1]), want.reshape(-1, shape[-1]), strict=True):
            assert all(np.abs(y - one).min() < 1e-2 for one in x) and abs(x.sum() - y.sum()) < 1e-2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", TALL_AND_WIDE)
def test_least_squares(kind: Any, shape: Any) -> None:
    a, b = random(shape, kind), random((*shape[:-1], 2), kind, 1)
    found = linalg.lstsq(there(a), there(b))
    close(found.solution, np.linalg.pinv(a) @ b, 10)


@pytest.mark.parametrize("kind", KINDS)
def test_powers_and_exponentials(kind: Any) -> None:
    a = random((3, 6, 6), kind)
    close(linalg.matrix_power(there(a), 3), a @ a @ a)
    close(
        linalg.matrix_power(there(regular((3, 6, 6), kind)), -2),
        np.linalg.matrix_power(regular((3, 6, 6), kind), -2),
    )
    want = here(linalg.matrix_exp(flambeau.tensor(a)))
    close(linalg.matrix_exp(there(a)), want)


# -- matrices without an answer --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 3), (4, 3, 3), (4, 600, 600)])
def test_singular_matrices(shape: Any) -> None:
    a = regular(shape, np.float64)
    a[..., 1] = 0
    if len(shape) == 3:
        a[0] = regular(shape[1:], np.float64)
    where = r"\(Batch element 1\): " if len(shape) == 3 else ""
    with pytest.raises(linalg.LinAlgError, match=f"linalg.inv: {where}The diagonal element 2 is zero"):
        linalg.inv(there(a))
    with pytest.raises(
        linalg.LinAlgError,
        match=f"linalg.solve: {where}The solver failed because the input matrix is singular",
    ):
        linalg.solve(there(a), there(random((*shape[:-1], 1), np.float64)))
    inverse, info = linalg.inv_ex(there(a))
    assert here(info).reshape(-1)[-1] == 2 and np.isnan(here(inverse).reshape(-1)[-1])
    assert not here(linalg.det(there(a))).reshape(-1)[-1]
    sign, size = linalg.slogdet(there(a))
    assert not here(sign).reshape(-1)[-1] and here(size).reshape(-1)[-1] == -np.inf


@pytest.mark.parametrize("shape", [(4, 4), (3, 4, 4), (3, 600, 600)])
def test_matrices_that_are_not_definite(shape: Any) -> None:
    a = definite(shape, np.float32)
    a[..., 2, 2] = -9
    where = r"\(Batch element 0\): " if len(shape) == 3 else ""
    with pytest.raises(
        linalg.LinAlgError,
        match=f"linalg.cholesky: {where}The factorization could not be completed .* minor of order 3",
    ):
        linalg.cholesky(there(a))
    factor, info = linalg.cholesky_ex(there(a))
    assert (here(info) == 3).all() and not np.triu(here(factor), 1).any()
    close(here(factor)[..., :2, :2], np.linalg.cholesky(a[..., :2, :2]))


def test_matrices_that_are_not_finite() -> None:
    a = random((3, 5, 5), np.float32)
    a[1, 3, 2] = np.nan
    for call in (linalg.svd, linalg.svdvals, linalg.eigh, linalg.eigvalsh):
        with pytest.raises(
            linalg.LinAlgError,
            match=r"\(Batch element 1\): The algorithm failed to converge because the input matrix contained non-finite values",
        ):
            call(there(a))
    with pytest.raises(RuntimeError, match="input tensor should not contain infs or NaNs"):
        linalg.eig(there(a))


def test_matrices_without_elements() -> None:
    for make in (lambda t: linalg.det(t), lambda t: linalg.slogdet(t)[1], linalg.inv):
        got, want = make(flambeau.zeros(2, 0, 0, device=GPU)), make(flambeau.zeros(2, 0, 0))
        assert got.tolist() == want.tolist()
    q, _ = linalg.qr(flambeau.zeros(3, 0, device=GPU), "complete")
    assert q.tolist() == np.eye(3).tolist()
    u, s, vh = linalg.svd(flambeau.zeros(3, 0, device=GPU))
    assert u.tolist() == np.eye(3).tolist() and s.numel() == vh.numel() == 0


# -- our own kernels ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_cross_products(kind: Any) -> None:
    """To rounding: a GPU contracts the products of complex numbers with their sums."""
    a, b = random((4, 3), kind), random((4, 3), kind, 1)
    close(linalg.cross(there(a), there(b)), np.cross(a, b))
    close(linalg.cross(there(a.T), there(b.T), dim=0), np.cross(a, b).T)


@pytest.mark.parametrize("p", (0.0, 1.0, 2.0, 3.5, float("inf")))
@pytest.mark.parametrize(
    "shape", [((5, 3), (7, 3)), ((200, 70), (130, 70)), ((2, 1, 33, 20), (3, 65, 20)), ((1, 1), (1, 1))]
)
def test_distances(p: float, shape: Any) -> None:
    a, b = (random(s, np.float64, i) for i, s in enumerate(shape))
    options = {"compute_mode": "donot_use_mm_for_euclid_dist"}
    want = here(flambeau.cdist(flambeau.tensor(a), flambeau.tensor(b), p, **options))
    close(flambeau.cdist(there(a), there(b), p, **options), want)
    turned = there(np.array(a.swapaxes(-1, -2))).mT
    close(flambeau.cdist(turned, there(b), p, **options), want)
