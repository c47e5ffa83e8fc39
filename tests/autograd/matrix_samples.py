"""Matrices at which linear algebra's derivatives can be compared with differences, and results without a gauge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _diagonal(x: Any) -> Any:
    """3, 6, 9, ... on the diagonal of a matrix of zeros: what keeps singular values apart."""
    k = min(x.shape[-2:])
    found = x.new_zeros(x.shape)
    found.diagonal(0, -2, -1).copy_(3 * x.new_ones(k).cumsum(0))
    return found


def regular(a: Any, *others: Any) -> tuple[Any, ...]:
    """Not diagonal: there a solver's order of eigenvalues would change."""
    ones = a.new_ones(a.shape)
    return (a + _diagonal(a) + ones.cumsum(-1) / 5 - ones.cumsum(-2) / 10, *others)


def hermitian(a: Any) -> tuple[Any, ...]:
    return (a + a.mH + _diagonal(a),)


def definite(a: Any) -> tuple[Any, ...]:
    return (a @ a.mH + _diagonal(a),)


def of_pairs(u: Any, s: Any, vh: Any, info: Any) -> tuple[Any, ...]:
    """A phase of a left singular vector times that of the right one is 1."""
    k = s.shape[-1]
    u, vh = u[..., :k], vh[..., :k, :]
    return u * vh[..., :1].mT, s, vh * u[..., :1, :].mT


def of_vectors(values: Any, vectors: Any, info: Any) -> tuple[Any, ...]:
    return values, vectors * vectors[..., :1, :].conj()


Before = Callable[..., tuple[Any, ...]]


def logarithms(scores: Any, *others: Any) -> tuple[Any, ...]:
    """Of probabilities that sum to 1: ctc_loss takes for granted that they do."""
    return scores.log_softmax(-1), *others


BEFORE: dict[str, Before] = {
    **dict.fromkeys(
        ("linalg_inv_ex", "linalg_solve_ex", "linalg_det", "linalg_slogdet", "linalg_lu_factor_ex", "linalg_qr",
         "linalg_svd", "linalg_svdvals", "linalg_eig", "linalg_eigvals"), regular
    ),
    **dict.fromkeys(("linalg_eigh", "linalg_eigvalsh"), hermitian),
    "linalg_cholesky_ex": definite,
    "ctc_loss": logarithms,
}  # fmt: skip
"""What the inputs of a record go through first."""
AFTER: dict[str, Before] = {"linalg_svd": of_pairs, "linalg_eigh": of_vectors, "linalg_eig": of_vectors}
"""What its outputs go through."""
