"""Formulas of linear algebra's derivatives; see Note [Derivatives].

Sources: M. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
differentiation" (2008); S. Walter and others, "Algorithmic differentiation of linear algebra functions" (2012);
M. Seeger and others, "Auto-differentiating linear algebra" (2017); G. Golub and V. Pereyra, "The differentiation
of pseudo-inverses" (1973). Complex formulas are the real ones with adjoints in place of transposes.

# Note [Gauge]
Singular vectors and eigenvectors are unique only up to a sign, complex ones up to a phase. A derivative exists if the
loss does not depend on that. If it depends on a phase, the formulas raise, as PyTorch's do. If singular values or
eigenvalues are equal, derivatives of their vectors are infinite or NaN; derivatives of the values are valid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.typeinfo import finfo
from flambeau.ops.op import table

Call = Callable[..., Any]


# -- what they share --------------------------------------------------------------------------------------------


def _with_diagonal(x: Any, diagonal: Any) -> Any:
    return x.tril(-1) + x.triu(1) + diagonal.diag_embed()


def _identities(diagonal: Any, n: int) -> Any:
    """Return identity matrices of `n` rows, each multiplied by its number in `diagonal`."""
    return diagonal.unsqueeze(-1).expand(*diagonal.meta.shape, n).diag_embed()


def _triangular(call: Call, a: Any, b: Any, upper: bool, ones: bool = False) -> Any:
    """Return the solution X of AX = B for a triangular A, of which only the triangle is read."""
    return call(table["linalg_solve_triangular"], (a, b), (upper, ones))


def _triangular_right(call: Call, a: Any, b: Any, upper: bool, ones: bool = False) -> Any:
    """Return the solution X of XA = B for a triangular A."""
    return _triangular(call, a.mT, b.mT, not upper, ones).mT


def _by_rows(x: Any, rows: Any) -> Any:
    """Return `x` with rows permuted: row i is row `rows[i]` of `x`."""
    return x.gather(-2, rows.unsqueeze(-1).expand(x.meta.shape))


def _to_rows(x: Any, rows: Any) -> Any:
    """Return `x` with rows permuted back: row `rows[i]` is row i of `x`."""
    return x.new_zeros(x.meta.shape).scatter_(-2, rows.unsqueeze(-1).expand(x.meta.shape), x)


# -- inverse, equations, determinants ---------------------------------------------------------------------------


def inverse(grad: Any, out: Any) -> Any:
    return -(out.mH @ grad @ out.mH)


def solve(grad: Any, a: Any, out: Any, call: Call, needs: Sequence[bool]) -> tuple[Any, Any]:
    for_b, _ = call(table["linalg_solve_ex"], (a.mH, grad))
    return -(for_b @ out.mH) if needs[0] else None, for_b


def det(grad: Any, a: Any, call: Call) -> Any:
    """Return the gradient of det: the adjugate, det(A) A^-1. For a singular matrix, a zero pivot becomes a tiny one."""
    factors, pivots, _ = call(table["linalg_lu_factor_ex"], (a,), (True,))
    n = a.meta.shape[-1]
    if not n:
        return grad.new_zeros(a.meta.shape)
    diagonal = factors.diagonal(0, -2, -1)
    diagonal = diagonal + _tiny_for_zeros(diagonal.detach(), a.detach())
    det = diagonal.prod(-1) * _parity(pivots)
    right = _identities(grad * det.conj(), n)
    return call(table["linalg_lu_solve"], (_with_diagonal(factors, diagonal), pivots, right), (True,))


def _tiny_for_zeros(diagonal: Any, a: Any) -> Any:
    size = a.abs().amax((-2, -1)).unsqueeze(-1)
    size = size + (size == 0).to(size.meta.dtype)
    return (diagonal == 0).to(size.meta.dtype) * size * float(finfo(size.meta.dtype).eps)


def _parity(pivots: Any) -> Any:
    """Return the sign of a permutation: 1 for an even number of row exchanges, -1 for an odd number."""
    places = pivots.new_ones(pivots.meta.shape[-1:]).cumsum(0)
    return 1 - 2 * ((pivots != places).sum(-1) % 2)


def slogdet(grads: Sequence[Any], out: Any, a: Any, call: Call) -> Any:
    """Return the gradient of slogdet. The real part of the logarithm takes the gradient of the magnitude, the imaginary
    part that of the phase.
    """
    total = grads[1]
    if a.meta.dtype.is_complex:
        total = total + 1j * (grads[0] * out.conj()).imag
    return call(table["linalg_solve_ex"], (a.mH, _identities(total.to(a.meta.dtype), a.meta.shape[-1])))[0]


# -- triangular factors -----------------------------------------------------------------------------------------


def cholesky(grad: Any, out: Any, params: tuple[Any, ...], call: Call) -> Any:
    factor, grad = (out.mH, grad.mH) if params[0] else (out, grad)
    inner = (factor.mH @ grad).tril()
    below = inner.tril(-1)
    inner = _with_diagonal(below + below.mH, inner.diagonal(0, -2, -1).real.to(inner.meta.dtype))
    half = _triangular(call, factor.mH, inner, upper=True)
    return _triangular_right(call, factor, half, upper=False) * 0.5


def solve_triangular(
    grad: Any, a: Any, out: Any, params: tuple[Any, ...], call: Call, needs: Sequence[bool]
) -> tuple[Any, Any]:
    upper, ones, *_ = params
    for_b = _triangular(call, a.mH, grad, not upper, ones)
    return _triangle(-(for_b @ out.mH), upper, ones) if needs[0] else None, for_b


def _triangle(x: Any, upper: bool, ones: bool) -> Any:
    return x.triu(int(ones)) if upper else x.tril(-int(ones))


def lu_factor(grad: Any, out: Any, out1: Any, call: Call) -> Any:
    """Return the gradient of an LU factorization A = P L U, from those of its square block and of the rows below it (L2
    U) or the columns to its right (L U2).
    """
    m, n = out.meta.shape[-2:]
    k = min(m, n)
    square, below, right = _blocks(out, k)
    lower, upper = _unpack_lu(square)
    of_square, of_below, of_right = _blocks(grad, k)
    of_lower = lower.mH @ of_square - of_right @ right.mH
    of_upper = of_square @ upper.mH - below.mH @ of_below
    inner = of_lower.tril(-1) + of_upper.triu()
    found = _triangular_right(call, upper.mH, inner, upper=False)
    found = _triangular(call, lower.mH, found, True, True)
    if m > k:
        found = _concatenate(call, found, _triangular_right(call, upper.mH, of_below, upper=False), -2)
    if n > k:
        found = _concatenate(call, found, _triangular(call, lower.mH, of_right, True, True), -1)
    return _to_rows(found, call(table["_lu_rows"], (out1,), (m,)))


def _blocks(x: Any, k: int) -> tuple[Any, Any, Any]:
    """Return the square of the first k rows and columns of a matrix, and the rest: rows below or columns right of
    it.
    """
    m, n = x.meta.shape[-2:]
    left, top = x.narrow(-1, 0, k), x.narrow(-2, 0, k)
    return left.narrow(-2, 0, k), left.narrow(-2, k, m - k), top.narrow(-1, k, n - k)


def _concatenate(call: Call, a: Any, b: Any, dim: int) -> Any:
    """Return both tensors joined along a dimension."""
    return call(table["cat"], (a, b), (dim,))


def _unpack_lu(factors: Any) -> tuple[Any, Any]:
    """Return L and U of the LU factors of a square block."""
    lower = factors.tril(-1)
    n = factors.meta.shape[-1]
    return lower + factors.new_ones(n).diag_embed(), factors.triu()


def lu_solve(
    grad: Any, a: Any, b: Any, out: Any, params: tuple[Any, ...], call: Call, needs: Sequence[bool]
) -> tuple[Any, ...]:
    """Return the gradients of P L U X = B, or of its adjoint, for which L and U are exchanged."""
    (adjoint,) = params
    for_c = call(table["linalg_lu_solve"], (a, b, grad), (not adjoint,))
    if not needs[0]:
        return None, None, for_c
    lower, upper = _unpack_lu(a)
    if adjoint:
        rows = call(table["_lu_rows"], (b,), (a.meta.shape[-1],))
        rows = rows.expand(out.meta.shape[:-1])
        of_exchanged, exchanged = _by_rows(grad, rows), _by_rows(out, rows)
        of_middle = _triangular(call, lower, of_exchanged, False, True)
        for_lower = exchanged @ of_middle.mH
        for_upper = (lower.mH @ exchanged) @ for_c.mH
    else:
        for_upper = _triangular(call, upper.mH, grad, upper=False) @ out.mH
        for_lower = _triangular(call, lower.mH, for_upper @ upper.mH, True, True)
    return -(for_lower.tril(-1) + for_upper.triu()), None, for_c


# -- orthogonal factors -----------------------------------------------------------------------------------------


def qr(grads: Sequence[Any], outs: Sequence[Any], params: tuple[Any, ...], metas: Any, call: Call) -> Any:
    (mode,), (q, r), (m, n) = params, outs, metas[0].shape[-2:]
    if mode == "r":
        raise RuntimeError(
            "The derivative of linalg.qr depends on Q, which is not computed when mode='r'. Please use "
            "linalg.qr(A, mode='reduced') if you are going to differentiate through linalg.qr."
        )
    if mode == "complete" and m > n:
        raise RuntimeError(
            "The QR decomposition is not differentiable when mode='complete' and nrows > ncols."
        )
    of_q, of_r = grads
    k = min(m, n)
    right, of_right = r.narrow(-1, k, n - k), of_r.narrow(-1, k, n - k)
    r, of_r = r.narrow(-1, 0, k), of_r.narrow(-1, 0, k)
    if n > k:  # the columns right of the square are Q^H times a part of A
        of_q = of_q + q @ (right @ of_right.mH)
    inner = (of_r @ r.mH - q.mH @ of_q).triu()
    above = inner.triu(1)
    inner = _with_diagonal(above + above.mH, inner.diagonal(0, -2, -1).real.to(inner.meta.dtype))
    found = _triangular_right(call, r.mH, of_q + q @ inner, upper=False)
    return _concatenate(call, found, q @ of_right, -1) if n > k else found


def no_geqrf(metas: Any) -> Any:
    if metas[0].dtype.is_complex:
        raise RuntimeError("geqrf does not support automatic differentiation for outputs with complex dtype.")
    raise NotImplementedError("the derivative for 'geqrf' is not implemented.")


def householder_product(grad: Any, a: Any, b: Any, call: Call) -> tuple[Any, Any]:
    """Return the gradients of H_1 ... H_k = I - V T V^H.

    T = (I + D S)^-1 D, S is the upper triangle of V^H V, and D has the factors b.
    """
    n, k = a.meta.shape[-1], b.meta.shape[-1]
    v = a.narrow(-1, 0, k).tril(-1)
    v = _concatenate(
        call, v.narrow(-2, 0, k) + a.new_ones(k).diag_embed(), v.narrow(-2, k, v.meta.shape[-2] - k), -2
    )
    top = v.narrow(-2, 0, n)
    s, d = (v.mH @ v).triu(1), b.unsqueeze(-1)
    t = _triangular(call, d * s, b.diag_embed(), True, True)
    of_t = -(v.mH @ (grad @ top))
    of_d = _triangular(call, (d * s).mH, of_t, False, True)
    of_ds = -(of_d @ t.mH)
    for_b = (of_d.diagonal(0, -2, -1)) + (of_ds * s.conj()).triu(1).sum(-1)
    of_s = (d.conj() * of_ds).triu(1)
    of_v = v @ (of_s + of_s.mH) - grad @ (top @ t.mH)
    of_top = -(grad.mH @ (v @ t))
    of_v = _concatenate(
        call, of_v.narrow(-2, 0, n) + of_top, of_v.narrow(-2, n, v.meta.shape[-2] - n), -2
    ).tril(-1)
    return _concatenate(call, of_v, a.new_zeros((*a.meta.shape[:-1], n - k)), -1), for_b


# -- singular values and eigenvalues ----------------------------------------------------------------------------


def _skew(x: Any) -> Any:
    return x - x.mH


def _gaps(values: Any) -> Any:
    """Return the matrix of differences value j - value i, with 1 on the diagonal."""
    away = values.unsqueeze(-2) - values.unsqueeze(-1)
    return _with_diagonal(away, values.new_ones(values.meta.shape))


def _is_near_zero(x: Any) -> bool:
    """Return True if values are zero up to rounding, by PyTorch's criterion. Waits for the device."""
    return bool((x.detach().abs() <= 1e-2).all().item())


def svd(given: Sequence[Any], outs: Sequence[Any]) -> Any:
    """Return the gradient of svd. Vectors without a singular value are arbitrary, so their gradients are ignored."""
    of_u, of_s, of_vh, _ = given
    u, s, vh, _ = outs
    k = s.meta.shape[-1]
    u, of_u = u.narrow(-1, 0, k), None if of_u is None else of_u.narrow(-1, 0, k)
    vh, of_vh = vh.narrow(-2, 0, k), None if of_vh is None else of_vh.narrow(-2, 0, k)
    if of_u is None and of_vh is None:
        return values_back(of_s, u, vh)
    s = s.to(u.meta.dtype)
    inner = _inner(u, s, vh, of_u, of_vh)
    if of_s is not None:
        inner = inner + of_s.to(s.meta.dtype).diag_embed()
    found = inner @ vh
    if of_vh is not None and vh.meta.shape[-1] > k:
        found = found + (of_vh - (of_vh @ vh.mH) @ vh) / s.unsqueeze(-1)
    found = u @ found
    if of_u is not None and u.meta.shape[-2] > k:
        found = found + ((of_u - u @ (u.mH @ of_u)) / s.unsqueeze(-2)) @ vh
    return found


def values_back(grad: Any, u: Any, vh: Any) -> Any:
    """Return U diag(grad) V^H, scaling the smaller of both factors."""
    if u.meta.shape[-2] < vh.meta.shape[-1]:
        return (u * grad.unsqueeze(-2)) @ vh
    return u @ (grad.unsqueeze(-1) * vh)


def _inner(u: Any, s: Any, vh: Any, of_u: Any, of_vh: Any) -> Any:
    """Return the part of U^H dA V that is due to the gradients of the vectors."""
    left = None if of_u is None else _skew(u.mH @ of_u)
    right = None if of_vh is None else _skew(vh @ of_vh.mH)
    _check_phases(left, right)
    gaps = _gaps(s.real.square())
    found = 0
    if left is not None:
        found = found + (left / gaps) * s.unsqueeze(-2)
    if right is not None:
        found = found + s.unsqueeze(-1) * (right / gaps)
    if not s.meta.dtype.is_complex:
        return found
    phases = 0 if left is None else left.diagonal(0, -2, -1) / (2 * s)
    return _with_diagonal(found, phases + s * 0)


def _check_phases(left: Any, right: Any) -> None:
    """Check that the gradients do not depend on the phases of singular vectors. See Note [Gauge]."""
    parts = [x.diagonal(0, -2, -1).imag for x in (left, right) if x is not None and x.meta.dtype.is_complex]
    if parts and not _is_near_zero(sum(parts)):
        raise RuntimeError(
            "svd_backward: The singular vectors in the complex case are specified up to multiplication by e^{i phi}. "
            "The specified loss function depends on this phase term, making it ill-defined."
        )


def svdvals(grad: Any, a: Any, call: Call) -> Any:
    u, _, vh, _ = call(table["linalg_svd"], (a,), (False,))
    return values_back(grad, u, vh)


def eigh(given: Sequence[Any], outs: Sequence[Any]) -> Any:
    of_values, of_vectors, _ = given
    values, vectors, _ = outs
    if of_vectors is None:
        return (vectors * of_values.unsqueeze(-2)) @ vectors.mH
    inner = vectors.mH @ of_vectors
    _check_phase("linalg_eigh_backward", inner)
    inner = _skew(inner) / (2 * _gaps(values))  # for a Hermitian matrix only a Hermitian gradient counts
    return vectors @ _with_diagonal(inner, _or_zeros(of_values, values, inner)) @ vectors.mH


def _or_zeros(grad: Any, values: Any, like: Any) -> Any:
    """Return the gradient of eigenvalues, or zeros; complex if the eigenvectors are."""
    return (
        values.new_zeros(values.meta.shape, dtype=like.meta.dtype)
        if grad is None
        else grad.to(like.meta.dtype)
    )


def _check_phase(name: str, inner: Any) -> None:
    """Check that the gradients do not depend on the phases of eigenvectors. See Note [Gauge]."""
    if inner.meta.dtype.is_complex and not _is_near_zero(inner.diagonal(0, -2, -1).imag):
        raise RuntimeError(
            f"{name}: The eigenvectors in the complex case are specified up to multiplication by e^{{i phi}}. The "
            "specified loss function depends on this quantity, so it is ill-defined."
        )


def eigvalsh(grad: Any, a: Any, params: tuple[Any, ...], call: Call) -> Any:
    _, vectors, _ = call(table["linalg_eigh"], (a,), params)
    return (vectors * grad.unsqueeze(-2)) @ vectors.mH


def eig(given: Sequence[Any], outs: Sequence[Any], call: Call) -> Any:
    """Return the gradient of eig. Eigenvectors keep length 1, so components that lengthen them do not count."""
    of_values, of_vectors, _ = given
    values, vectors, _ = outs
    adjoint = vectors.mH
    if of_vectors is None:
        inner = of_values.diag_embed()
    else:
        inner = adjoint @ of_vectors
        _check_phase("linalg_eig_backward", inner)
        inner = inner - (adjoint @ vectors) * inner.diagonal(0, -2, -1).real.unsqueeze(-2)
        inner = _with_diagonal(inner / _gaps(values).conj(), _or_zeros(of_values, values, inner))
    return call(table["linalg_solve_ex"], (adjoint, inner @ adjoint))[0]


def eigvals(grad: Any, out: Any, a: Any, call: Call) -> Any:
    """Return the gradient of eigvals. The eigenvalues computed with vectors may have another order, so each takes the
    gradient of the nearest one.
    """
    values, vectors, _ = call(table["linalg_eig"], (a,))
    away = (values.detach().unsqueeze(-1) - out.detach().unsqueeze(-2)).abs()
    if away.meta.numel:
        grad = grad.gather(-1, away.argmin(-1))
    adjoint = vectors.mH
    return call(table["linalg_solve_ex"], (adjoint, grad.unsqueeze(-1) * adjoint))[0]


# -- least squares ----------------------------------------------------------------------------------------------


def pseudo_inverse(grad: Any, a: Any, out: Any) -> Any:
    """Return the gradient -P^H G P^H + (I - A P) G^H P P^H + P^H P G^H (I - P A), which assumes a constant rank."""
    p, q = out, out.mH
    rows = (grad.mH @ p) @ q if a.meta.shape[-2] < a.meta.shape[-1] else grad.mH @ (p @ q)
    columns = q @ (p @ grad.mH) if a.meta.shape[-2] > a.meta.shape[-1] else (q @ p) @ grad.mH
    inner = q @ (grad @ q)
    return rows - a @ (p @ rows) + columns - (columns @ p) @ a - inner


def lstsq(
    grad: Any, a: Any, b: Any, out: Any, params: tuple[Any, ...], call: Call, needs: Sequence[bool]
) -> tuple[Any, Any]:
    """Return the gradients of X = P B, where P is the pseudo-inverse of A."""

    def solve(a: Any, b: Any) -> Any:
        return call(table["linalg_lstsq"], (a, b), params)[0]

    for_b = solve(a.mH, grad)
    if not needs[0]:
        return None, for_b
    rest = a @ out - b
    outside = grad - a.mH @ for_b  # the part of the gradient that no change of B can produce
    found = solve(a.mH, out) @ outside.mH - rest @ solve(a, for_b).mH - for_b @ out.mH
    return found, for_b


# -- cross products and distances -------------------------------------------------------------------------------


def cross_left(grad: Any, b: Any, params: tuple[Any, ...], call: Call) -> Any:
    return call(table["linalg_cross"], (b.conj().expand(grad.meta.shape), grad), params)


def cross_right(grad: Any, a: Any, params: tuple[Any, ...], call: Call) -> Any:
    return call(table["linalg_cross"], (grad, a.conj().expand(grad.meta.shape)), params)


def cdist_left(grad: Any, a: Any, b: Any, out: Any, params: tuple[Any, ...], call: Call) -> Any:
    return call(table["_cdist_backward"], (grad, a, b, out), params)


def cdist_right(grad: Any, a: Any, b: Any, out: Any, params: tuple[Any, ...], call: Call) -> Any:
    return call(table["_cdist_backward"], (grad.mT, b, a, out.mT), params)


def cdist_backward(
    grad: Any, a: Any, b: Any, c: Any, d: Any, params: tuple[Any, ...], needs: Sequence[bool]
) -> tuple[Any, ...]:
    """Return the gradients of cdist's gradient, sum over j of a_ij f(b_i - c_j, d_ij), f = sign(x) |x|^(p-1) /
    d^(p-1).
    """
    (p,) = params
    away = b.unsqueeze(-2) - c.unsqueeze(-3)
    size, given, length = away.abs(), grad.unsqueeze(-2), d.unsqueeze(-1)
    if p == 0:
        return (None,) * 4
    if math.isinf(p):
        slope = away.sgn() * (size == length).to(size.meta.dtype)
        return (given * slope).sum(-1), None, None, None
    if p == 1:
        return (given * away.sgn()).sum(-1), None, None, None
    inside = (length != 0) & ((size != 0) | (p >= 2))
    size, length = size.where(inside, 1), length.where(inside, 1)
    unit = (size / length) ** (p - 2) / length * inside.to(size.meta.dtype)
    along = (given * unit * away).sum(-1)
    turned = (p - 1) * a.unsqueeze(-1) * unit * given
    return (
        along,
        turned.sum(-2) if needs[1] else None,
        -turned.sum(-3) if needs[2] else None,
        (1 - p) * a * along / d.where(d != 0, 1) if needs[3] else None,
    )
