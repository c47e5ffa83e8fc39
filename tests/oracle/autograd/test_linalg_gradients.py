"""Gradients of linear algebra against PyTorch's: of records and of what is made of them, first and second order."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import from_torch, to_torch, torch

import flambeau

Run = Callable[..., Any]
REAL, COMPLEX = "float64", "complex128"


def random(*shape: int, kind: str = REAL, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, shape)
    if kind == COMPLEX:
        x = x + 1j * rng.uniform(-1, 1, shape)
    return torch.from_numpy(np.asarray(x))


def regular(m: int, n: int, batch: tuple[int, ...], kind: str, seed: int = 0) -> Any:
    """Well-conditioned, its singular values and eigenvalues well apart."""
    return (
        random(*batch, m, n, kind=kind, seed=seed) + torch.diag(torch.arange(1.0, 2 + max(m, n)) * 2)[:m, :n]
    )


def gradients(room: Any, run: Run, tensors: list[Any], second: bool) -> list[Any]:
    """The results, the gradients of their sum with seeded weights, and those of these gradients' sum."""
    leaves = [t.clone().requires_grad_(t.is_floating_point() or t.is_complex()) for t in tensors]
    found = run(room, *leaves)
    outs = [t for t in (found if isinstance(found, tuple) else (found,)) if t.requires_grad]
    outs = [t for t in outs if t.numel()] or outs
    assert outs, "nothing that requires a gradient came out"
    wanted = [t for t in leaves if t.requires_grad]
    grads = room.autograd.grad(total(room, outs, 1), wanted, create_graph=second, allow_unused=True)
    results = [g for g in grads if g is not None]
    if second and any(g.requires_grad for g in results):
        loss = total(room, [g for g in results if g.requires_grad], 2)
        results += [g for g in room.autograd.grad(loss, wanted, allow_unused=True) if g is not None]
    return [*outs, *results]


def total(room: Any, tensors: list[Any], seed: int) -> Any:
    loss = 0
    for i, t in enumerate(tensors):
        w = random(*t.shape, kind=COMPLEX if t.is_complex() else REAL, seed=seed + 10 * i)
        w = w.to(getattr(torch, repr(t.dtype).split(".")[1]))
        product = t * (w if room is torch else from_torch(w))
        loss = loss + (product.real if product.is_complex() else product).sum()
    return loss


def agree(run: Run, *tensors: Any, second: bool = True, limit: float = 1e-8) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = gradients(torch, run, list(tensors), second)
        ours = gradients(flambeau, run, [from_torch(t) for t in tensors], second)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert repr(one.dtype) == repr(other.dtype)
        assert tuple(one.shape) == tuple(other.shape)
        assert_near(to_torch(one.detach()), other.detach(), limit)


def assert_near(a: Any, b: Any, limit: float) -> None:
    same = (a == b) | (a.isnan() & b.isnan())
    size = 1 + (b.abs().nan_to_num(0, 0, 0).max().item() if b.numel() else 0)
    assert bool((same | ((a - b).abs() <= limit * size)).all()), f"\n{a}\nis not\n{b}"


# -- functions of one matrix, or of two -----------------------------------------------------------------------


def hermitian(a: Any) -> Any:
    return a + a.mH


def definite(a: Any) -> Any:
    return a @ a.mH


SQUARE: dict[str, Run] = {
    "inv": lambda room, a: room.linalg.inv(a),
    "inverse": lambda room, a: a.inverse(),
    "inv_ex": lambda room, a: room.linalg.inv_ex(a)[0],
    "det": lambda room, a: room.linalg.det(a),
    "slogdet": lambda room, a: tuple(room.linalg.slogdet(a)),
    "logdet": lambda room, a: room.logdet(definite(a)),
    "cholesky": lambda room, a: room.linalg.cholesky(definite(a)),
    "cholesky upper": lambda room, a: room.linalg.cholesky(definite(a), upper=True),
    "cholesky_ex": lambda room, a: room.linalg.cholesky_ex(definite(a))[0],
    "cholesky old": lambda room, a: room.cholesky(definite(a)),
    "cholesky_inverse": lambda room, a: room.cholesky_inverse(room.linalg.cholesky(definite(a))),
    "cholesky_inverse upper": lambda room, a: room.cholesky_inverse(
        room.linalg.cholesky(definite(a), upper=True), True
    ),
    "lu_factor": lambda room, a: room.linalg.lu_factor(a)[0],
    "lu_factor_ex": lambda room, a: room.linalg.lu_factor_ex(a)[0],
    "svd": lambda room, a: of_svd(*room.linalg.svd(a)),
    "svd old": lambda room, a: of_old_svd(*room.svd(a)),
    "svdvals": lambda room, a: room.linalg.svdvals(a),
    "eigh": lambda room, a: of_eigen(*room.linalg.eigh(hermitian(a))),
    "eigh upper": lambda room, a: of_eigen(*room.linalg.eigh(a, "U")),
    "eigvalsh": lambda room, a: room.linalg.eigvalsh(a),
    "eig": lambda room, a: of_eigen(*room.linalg.eig(a)),
    "eigvals": lambda room, a: room.linalg.eigvals(a),
    "pinv": lambda room, a: room.linalg.pinv(a),
    "pinv of Hermitian": lambda room, a: room.linalg.pinv(hermitian(a), hermitian=True),
    "matrix_exp": lambda room, a: room.linalg.matrix_exp(a / 3),
    "matrix_power 3": lambda room, a: room.linalg.matrix_power(a, 3),
    "matrix_power 0": lambda room, a: room.linalg.matrix_power(a, 0) + a,
    "matrix_power -2": lambda room, a: a.matrix_power(-2),
    "multi_dot": lambda room, a: room.linalg.multi_dot([a, a, a]) if a.ndim == 2 else a * a,
    "vecdot": lambda room, a: room.linalg.vecdot(a, a.mT),
    "diagonal": lambda room, a: room.linalg.diagonal(a),
    "solve": lambda room, a: room.linalg.solve(a, a.mT),
    "solve from the right": lambda room, a: room.linalg.solve(a, a.mT, left=False),
    "solve_ex": lambda room, a: room.linalg.solve_ex(a, a[..., :1])[0],
}
ANY: dict[str, Run] = {
    "svdvals": lambda room, a: room.linalg.svdvals(a),
    "svd": lambda room, a: of_svd(*room.linalg.svd(a, full_matrices=False)),
    "svd full": lambda room, a: of_svd(*room.linalg.svd(a)),
    "svd left": lambda room, a: room.linalg.svd(a)[0].abs(),
    "svd right": lambda room, a: room.linalg.svd(a, False)[2].abs(),
    "svd values": lambda room, a: room.linalg.svd(a)[1],
    "qr": lambda room, a: tuple(room.linalg.qr(a)),
    "qr old": lambda room, a: tuple(room.qr(a)),
    "lu": lambda room, a: tuple(room.linalg.lu(a)[1:]),
    "lu_factor": lambda room, a: room.linalg.lu_factor(a)[0],
    "lu_unpack": lambda room, a: room.lu_unpack(*room.linalg.lu_factor(a))[1],
    "pinv": lambda room, a: room.linalg.pinv(a),
    "pinverse": lambda room, a: a.pinverse(),
    "norm": lambda room, a: room.linalg.norm(a),
    **{
        f"matrix_norm {order}": lambda room, a, order=order: room.linalg.matrix_norm(a, order)
        for order in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf)
    },
    "cond": lambda room, a: room.linalg.cond(a),
    "cond -2": lambda room, a: room.linalg.cond(a, -2),
    "vector_norm": lambda room, a: room.linalg.vector_norm(a, 3, -1),
    "outer": lambda room, a: room.outer(a.reshape(-1), a.reshape(-1)),
    "kron": lambda room, a: room.kron(a, a),
    "einsum": lambda room, a: room.einsum("...ij,...kj->...ik", a, a),
    "tensordot": lambda room, a: room.tensordot(a, a, ([-1], [-1])),
    "renorm": lambda room, a: room.renorm(a, 2, 0, 2.0) if a.numel() and a.ndim == 2 else a * a,
    "trapezoid": lambda room, a: room.trapezoid(a, dim=-1),
    "trapezoid at": lambda room, a: room.trapezoid(a, a * a),
    "cumulative_trapezoid": lambda room, a: room.cumulative_trapezoid(a, dx=0.5),
    "vander": lambda room, a: room.linalg.vander(a, N=4),
}  # fmt: skip


def of_svd(u: Any, s: Any, vh: Any) -> tuple[Any, ...]:
    """Without the phases, of U and Vh both."""
    k = s.shape[-1]
    return u[..., :k].abs(), s, vh[..., :k, :].abs(), (u[..., :k] * s.square().unsqueeze(-2)) @ vh[..., :k, :]


def of_old_svd(u: Any, s: Any, v: Any) -> tuple[Any, ...]:
    return of_svd(u, s, v.mH)


def of_eigen(values: Any, vectors: Any) -> tuple[Any, ...]:
    return values, vectors.abs()


@pytest.mark.parametrize("kind", (REAL, COMPLEX))
@pytest.mark.parametrize("name", SQUARE)
def test_functions_of_square_matrices(name: str, kind: str) -> None:
    for batch in ((), (2,)):
        agree(SQUARE[name], regular(3, 3, batch, kind))


@pytest.mark.parametrize("name", SQUARE)
@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
def test_no_matrices(name: str) -> None:
    a = from_torch(regular(3, 3, (0,), REAL)).requires_grad_()
    found = SQUARE[name](flambeau, a)
    for t in found if isinstance(found, tuple) else (found,):
        assert flambeau.autograd.grad(t.abs().sum(), a, retain_graph=True)[0].shape == (0, 3, 3)


@pytest.mark.parametrize("kind", (REAL, COMPLEX))
@pytest.mark.parametrize("name", ANY)
def test_functions_of_any_matrices(name: str, kind: str) -> None:
    for m, n in ((3, 3), (4, 2), (2, 4)):
        agree(ANY[name], regular(m, n, (), kind))
    agree(ANY[name], regular(3, 2, (2,), kind))


PAIRS: dict[str, Run] = {
    "solve": lambda room, a, b: room.linalg.solve(a, b),
    "solve a vector": lambda room, a, b: room.linalg.solve(a, b[..., 0]) if a.ndim == b.ndim else a @ b,
    "solve_triangular": lambda room, a, b: room.linalg.solve_triangular(a, b, upper=True),
    "solve_triangular lower": lambda room, a, b: room.linalg.solve_triangular(a, b, upper=False),
    "solve_triangular of ones": lambda room, a, b: room.linalg.solve_triangular(
        a, b, upper=True, unitriangular=True
    ),
    "solve_triangular from the right": lambda room, a, b: room.linalg.solve_triangular(
        a, b.mT, upper=False, left=False
    ),
    "triangular_solve": lambda room, a, b: room.triangular_solve(b, a)[0],
    "triangular_solve transposed": lambda room, a, b: b.triangular_solve(a, transpose=True)[0],
    "cholesky_solve": lambda room, a, b: room.cholesky_solve(b, room.linalg.cholesky(definite(a))),
    "cholesky_solve upper": lambda room, a, b: b.cholesky_solve(
        room.linalg.cholesky(definite(a), upper=True), True
    ),
    "lu_solve": lambda room, a, b: room.linalg.lu_solve(*room.linalg.lu_factor(a), b),
    "lu_solve adjoint": lambda room, a, b: room.linalg.lu_solve(*room.linalg.lu_factor(a), b, adjoint=True),
    "lu_solve from the right": lambda room, a, b: room.linalg.lu_solve(
        *room.linalg.lu_factor(a), b.mT, left=False
    ),
    "lu_solve old": lambda room, a, b: room.lu_solve(b, *room.linalg.lu_factor(a)),
    "lstsq": lambda room, a, b: room.linalg.lstsq(a, b)[0],
    "matmul": lambda room, a, b: a @ b,
    "baddbmm": lambda room, a, b: room.baddbmm(b, a, b, beta=2, alpha=3) if b.ndim == 3 == a.ndim else a @ b,
}  # fmt: skip


@pytest.mark.parametrize("kind", (REAL, COMPLEX))
@pytest.mark.parametrize("name", PAIRS)
def test_functions_of_two_matrices(name: str, kind: str) -> None:
    for batches in (((), ()), ((2,), (2,)), ((2, 1), (3,)), ((), (2,))):
        a, b = (
            regular(3, n, batch, kind, n) if n == 3 else random(*batch, 3, n, kind=kind)
            for n, batch in zip((3, 2), batches, strict=True)
        )
        if "lu_solve" in name and "old" not in name and batches[0] != batches[1]:
            continue  # PyTorch wants the same batches there
        if name == "lstsq" and batches[0] != batches[1]:
            continue
        agree(PAIRS[name], a, b)


@pytest.mark.parametrize("kind", (REAL, COMPLEX))
def test_packed_factors_as_leaves(kind: str) -> None:
    """Both triangles of packed factors take a gradient, only one of others."""
    a, b = regular(3, 3, (), kind), random(3, 2, kind=kind)
    lu, pivots = torch.linalg.lu_factor(a)
    for adjoint in (False, True):
        agree(
            lambda room, f, p, b, adjoint=adjoint: room.linalg.lu_solve(f, p, b, adjoint=adjoint),
            lu,
            pivots,
            b,
        )
    agree(lambda room, f, p: tuple(room.lu_unpack(f, p)[1:]), lu, pivots)
    for upper in (False, True):
        agree(lambda room, f, b, upper=upper: room.linalg.solve_triangular(f, b, upper=upper), a, b)


@pytest.mark.parametrize("kind", (REAL, COMPLEX))
@pytest.mark.parametrize("batch", ((), (2,)))
def test_householder_product(kind: str, batch: tuple[int, ...]) -> None:
    for m, n, k in ((4, 3, 3), (4, 3, 2), (3, 3, 3), (3, 1, 1)):
        a, tau = random(*batch, m, n, kind=kind), random(*batch, k, kind=kind, seed=1)
        agree(lambda room, a, tau: room.linalg.householder_product(a, tau), a, tau, second=False)
    a, tau = torch.geqrf(random(*batch, 4, 3, kind=kind))
    other = random(*batch, 4, 2, kind=kind, seed=2)
    for left, adjoint in ((True, False), (True, True), (False, False), (False, True)):
        agree(
            lambda room, a, tau, c, left=left, adjoint=adjoint: room.ormqr(a, tau, c, left, adjoint),
            a, tau, other if left else other.mT, second=False,
        )  # fmt: skip
    agree(lambda room, a, tau: room.orgqr(a, tau), a, tau, second=False)


@pytest.mark.parametrize("kind", (REAL, COMPLEX))
def test_complete_qr(kind: str) -> None:
    agree(lambda room, a: tuple(room.linalg.qr(a, "complete")), regular(2, 4, (), kind))
    agree(lambda room, a: tuple(room.linalg.qr(a, "complete")), regular(3, 3, (2,), kind))


# -- matrices of lower rank, and with equal values ----------------------------------------------------------------


@pytest.mark.parametrize("kind", (REAL, COMPLEX))
def test_matrices_of_lower_rank(kind: str) -> None:
    for m, n in ((4, 3), (3, 4), (3, 3)):
        low = random(m, 2, kind=kind) @ random(2, n, kind=kind, seed=1)
        agree(lambda room, a: room.linalg.pinv(a, rtol=1e-9), low)
        agree(lambda room, a: room.linalg.lstsq(a, a[:, :2], rcond=1e-9, driver="gelsd")[0], low)
        agree(lambda room, a: room.linalg.matrix_norm(a, 2), low)
    agree(lambda room, a: room.linalg.pinv(a), torch.eye(3, dtype=getattr(torch, kind)))
    agree(lambda room, a: room.linalg.svdvals(a), 2 * torch.eye(3, dtype=getattr(torch, kind)), second=False)
    agree(lambda room, a: room.linalg.matrix_exp(a), torch.zeros(3, 3, dtype=getattr(torch, kind)))
    agree(lambda room, a: room.linalg.qr(a)[1], torch.eye(3, dtype=getattr(torch, kind)))


@pytest.mark.parametrize("kind", (REAL, COMPLEX))
@pytest.mark.parametrize("driver", ("gels", "gelsy", "gelsd", "gelss"))
def test_least_squares(kind: str, driver: str) -> None:
    for m, n in ((4, 2), (3, 3), (2, 4)):
        a, b = regular(m, n, (2,), kind), random(2, m, 2, kind=kind, seed=3)
        agree(lambda room, a, b: room.linalg.lstsq(a, b, driver=driver)[0], a, b)
    a, b = regular(4, 2, (2,), kind), random(2, 4, 2, kind=kind, seed=3)
    agree(lambda room, a, b: tuple(room.linalg.lstsq(a, b, driver=driver)[:2]), a, b, second=False)


def test_determinants_of_singular_matrices() -> None:
    """The adjugate; PyTorch's first derivative is 0 here, so the reference is a limit of regular ones."""
    for low in (
        torch.ones(2, 2, dtype=torch.float64),
        torch.diag(torch.tensor([2.0, 0.0, 3.0], dtype=torch.float64)),
        random(3, 2) @ random(2, 3, seed=1),
        torch.zeros(3, 3, dtype=torch.float64),
        torch.zeros(1, 1, dtype=torch.float64),
        random(3, 2, kind=COMPLEX) @ random(2, 3, kind=COMPLEX, seed=1),
        1e-30 * torch.diag(torch.tensor([2.0, 0.0, 3.0], dtype=torch.float64)),
    ):
        scale = max(low.abs().max().item(), 1e-300) if low.any() else 1.0
        near = (low / scale + 1e-6 * random(*low.shape)).to(low.dtype)
        want = (torch.linalg.det(near) * torch.linalg.inv(near)).mH * scale ** (low.shape[0] - 1)
        a = from_torch(low).requires_grad_()
        det = flambeau.linalg.det(a)
        (grad,) = flambeau.autograd.grad(det.real if det.is_complex() else det, a)
        bound = 1e-5 * scale ** (low.shape[0] - 1)
        assert bool(((to_torch(grad) - want).abs() <= bound).all()), (low, grad, want)


# -- distances and products --------------------------------------------------------------------------------------------

MODES = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("p", (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf))
def test_cdist(p: float, mode: str) -> None:
    run: Run = lambda room, x, y: room.cdist(x, y, p, mode)  # noqa: E731
    for batches in (((), ()), ((2, 1), (3,))):
        agree(run, random(*batches[0], 4, 3), random(*batches[1], 5, 3, seed=1), second=False)
    for n, m in ((0, 3), (3, 0), (30, 4)):
        agree(run, random(n, 3), random(m, 3, seed=1), second=False)
    x = torch.tensor([[1.0, 2.0], [1.0, 3.0], [0.0, 0.0]], dtype=torch.float64)
    if mode != MODES[1]:  # by a product equal rows are not equal
        agree(run, x, x.clone(), second=False)
    a = from_torch(x).requires_grad_()
    (grad,) = flambeau.autograd.grad(flambeau.cdist(a, a, p, mode).sum(), a)
    assert bool(grad.isfinite().all())
    agree(run, random(4, 3).float(), random(5, 3, seed=1).float(), second=False, limit=1e-4)


@pytest.mark.parametrize("p", (1.0, 1.5, 2.0, 3.0))
def test_pairwise_distances(p: float) -> None:
    x = random(5, 3)
    agree(lambda room, x: room.pdist(x, p), x, second=False)
    agree(lambda room, x: room.dist(x, x * x, p), x)


@pytest.mark.parametrize("kind", (REAL, COMPLEX))
def test_cross(kind: str) -> None:
    a, b = random(2, 3, kind=kind), random(2, 3, kind=kind, seed=1)
    agree(lambda room, a, b: room.linalg.cross(a, b), a, b)
    agree(lambda room, a, b: room.cross(a, b, dim=1), a[:1], b)
    agree(
        lambda room, a, b: room.linalg.cross(a, b, dim=0),
        random(3, 1, 2, kind=kind),
        random(3, 4, 2, kind=kind),
    )


@pytest.mark.parametrize("kind", (REAL, COMPLEX))
def test_tensors_as_matrices(kind: str) -> None:
    a = regular(6, 6, (), kind)
    agree(lambda room, a: room.linalg.tensorinv(a.reshape(2, 3, 6)), a)
    agree(lambda room, a, b: room.linalg.tensorsolve(a.reshape(2, 3, 6), b), a, random(2, 3, kind=kind))


@pytest.mark.parametrize("kind", (REAL, COMPLEX))
@pytest.mark.parametrize("p", ("fro", 1, -1, 2, -2, math.inf, -math.inf, "nuc"))
def test_condition_numbers(kind: str, p: Any) -> None:
    """PyTorch's own has no gradient for most p: it changes the inverse in place."""

    def run(room: Any, a: Any) -> Any:
        if room is flambeau:
            return room.linalg.cond(a, p)
        return torch.linalg.matrix_norm(a, p) * torch.linalg.matrix_norm(torch.linalg.inv(a), p)

    agree(run, regular(3, 3, (2,), kind))


def test_matrix_exp_of_several_sizes() -> None:
    x = torch.stack([random(3, 3) * factor for factor in (1e-6, 0.5, 4, 30)])
    agree(lambda room, a: room.linalg.matrix_exp(a), x, limit=1e-7)


# -- refusals ----------------------------------------------------------------------------------------------------------

REFUSED: dict[str, Run] = {
    "a phase of U": lambda room, a: room.linalg.svd(a)[0].real.sum(),
    "a phase of Vh": lambda room, a: room.linalg.svd(a)[2].real.sum(),
    "a phase of eigh": lambda room, a: room.linalg.eigh(a)[1].real.sum(),
    "a phase of eig": lambda room, a: room.linalg.eig(a)[1].real.sum(),
    "a complete Q": lambda room, a: room.linalg.qr(a[:, :2], "complete")[0].real.sum(),
    "R alone": lambda room, a: room.linalg.qr(a, "r")[1].real.sum(),
    "geqrf": lambda room, a: room.geqrf(a)[0].real.sum(),
    "values without vectors": lambda room, a: room.svd(a, compute_uv=False)[0].real.sum(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_gradient_raises(name: str) -> None:
    a = regular(3, 3, (), COMPLEX)
    with pytest.raises((RuntimeError, NotImplementedError)) as theirs:
        REFUSED[name](torch, a.clone().requires_grad_()).backward()
    with pytest.raises(type(theirs.value)) as ours:
        REFUSED[name](flambeau, from_torch(a).requires_grad_()).backward()
    assert str(ours.value) == str(theirs.value)


OUT: dict[str, Run] = {
    "inv": lambda room, a, out: room.linalg.inv(a, out=out),
    "det": lambda room, a, out: room.linalg.det(a, out=out),
    "svd": lambda room, a, out: room.linalg.svd(a, out=(out, out.new_empty(3), out.clone())),
    "pinv": lambda room, a, out: room.linalg.pinv(a, out=out),
    "matrix_power": lambda room, a, out: room.linalg.matrix_power(a, 3, out=out),
    "solve": lambda room, a, out: room.linalg.solve(a, a, out=out),
    "cholesky": lambda room, a, out: room.linalg.cholesky(a, out=out),
    "eigvalsh": lambda room, a, out: room.linalg.eigvalsh(a, out=out),
}


@pytest.mark.parametrize("name", OUT)
def test_out_takes_no_gradient(name: str) -> None:
    a = definite(regular(3, 3, (), REAL))
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        OUT[name](torch, a.clone().requires_grad_(), torch.empty(3, 3, dtype=torch.float64))
    out = flambeau.full((3, 3), 7.0, dtype=flambeau.float64)
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        OUT[name](flambeau, from_torch(a).requires_grad_(), out)
    assert out.tolist() == [[7.0] * 3] * 3


# -- names -------------------------------------------------------------------------------------------------------------

NODES: dict[str, Run] = {
    "LinalgInvExBackward0": lambda room, a: room.linalg.inv(a),
    "LinalgDetBackward0": lambda room, a: room.det(a),
    "LinalgSlogdetBackward0": lambda room, a: room.slogdet(a)[1],
    "LinalgCholeskyExBackward0": lambda room, a: room.linalg.cholesky(definite(a)),
    "LinalgSolveExBackward0": lambda room, a: room.linalg.solve(a, a),
    "LinalgSolveTriangularBackward0": lambda room, a: room.linalg.solve_triangular(a, a, upper=True),
    "LinalgLuFactorExBackward0": lambda room, a: room.linalg.lu_factor(a)[0],
    "LinalgLuSolveBackward0": lambda room, a: room.linalg.lu_solve(*room.linalg.lu_factor(a), a),
    "LinalgQrBackward0": lambda room, a: room.linalg.qr(a)[0],
    "LinalgSvdBackward0": lambda room, a: room.linalg.svdvals(a),
    "LinalgEighBackward0": lambda room, a: room.linalg.eigvalsh(a),
    "LinalgEigBackward0": lambda room, a: room.linalg.eigvals(a),
    "LinalgLstsqBackward0": lambda room, a: room.linalg.lstsq(a, a)[0],
    "LinalgPinvBackward0": lambda room, a: room.linalg.pinv(a),
    "LinalgCrossBackward0": lambda room, a: room.linalg.cross(a, a),
    "LinalgHouseholderProductBackward0": lambda room, a: room.linalg.householder_product(a, a[0]),
    "CdistBackward0": lambda room, a: room.cdist(a, a),
    "GeqrfBackward0": lambda room, a: room.geqrf(a)[1],
}


@pytest.mark.parametrize("name", NODES)
def test_nodes_have_the_names(name: str) -> None:
    a = regular(3, 3, (), REAL)
    assert NODES[name](torch, a.clone().requires_grad_()).grad_fn.name() == name
    assert NODES[name](flambeau, from_torch(a).requires_grad_()).grad_fn.name() == name
