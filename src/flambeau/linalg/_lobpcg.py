"""`lobpcg`: the largest or smallest eigenvalues of a large symmetric matrix, by products with it alone."""

# ruff: noqa: N803, N806 (matrices have the names that PyTorch gives them: A, B, X, E, R, S)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.autograd.function import Function
from flambeau.core.dtype import bool_, float32, float64
from flambeau.core.errors import NotSupportedError
from flambeau.core.typeinfo import finfo
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.arguments.torch_function import announce
from flambeau.tensor.functions.linalg import eigh, linalg_qr
from flambeau.tensor.tensor import Tensor

_ROUNDING = {float32: 1.2e-07, float64: 2.23e-16}
_METHODS = ("basic", "ortho")
_DETAILS = ("ortho_iparams", "ortho_fparams", "ortho_bparams")


def lobpcg(
    A: Tensor,
    k: int | None = None,
    B: Tensor | None = None,
    X: Tensor | None = None,
    n: int | None = None,
    iK: Tensor | None = None,
    niter: int | None = None,
    tol: float | None = None,
    largest: bool | None = None,
    method: str | None = None,
    tracker: Callable[[Any], Any] | None = None,
    ortho_iparams: dict[str, int] | None = None,
    ortho_fparams: dict[str, float] | None = None,
    ortho_bparams: dict[str, bool] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the `k` largest eigenvalues of A x = E B x, and their eigenvectors, by products with the matrices alone.

    Gradients reach a dense `A` if `B` is None.

    Args:
        A: A symmetric matrix, or a batch of them; dense or sparse.
        k: The number of eigenvalues (default: the columns of `X`, or 1).
        B: A symmetric positive definite matrix; None for the identity.
        X: (m, n), a first approximation; None for a random one.
        n: The columns of the random approximation (default `k`), at most a third of the rows.
        iK: A preconditioner.
        niter: The maximum number of steps (default 1,000); -1 means no limit.
        tol: The relative residual at which an eigenpair counts as found (default: the square root of the rounding).
        largest: False for the smallest eigenvalues.
        method: "ortho" (default) or "basic". Both use the same stable basis.
        tracker: Called at each step with the solver, whose variables have PyTorch's names.
        ortho_iparams, ortho_fparams, ortho_bparams: None.

    Raises:
        ValueError: If there are fewer than 3 n rows, or in backward if `A` is sparse or `B` given.
        NotSupportedError: If one of the `ortho_` arguments is not None.
    """
    for name, value in zip(_DETAILS, (ortho_iparams, ortho_fparams, ortho_bparams), strict=True):
        if value is not None:
            raise NotSupportedError(
                f"lobpcg: {name} configures PyTorch's orthogonalization; Flambeau's has no parameters"
            )
    options = {
        "k": k, "n": n, "niter": niter, "tol": tol, "largest": largest, "method": method, "tracker": tracker,
    }  # fmt: skip
    if A.requires_grad or (B is not None and B.requires_grad):
        symmetric = (A + A.mT) / 2, None if B is None else (B + B.mT) / 2
        found: tuple[Tensor, Tensor] = Eigenpairs.apply(*symmetric, X, iK, options)
        return found
    return _solve_batch(A, B, X, iK, **options)  # type: ignore[arg-type]


class Eigenpairs(Function):
    """The differentiable `lobpcg` of a symmetric matrix."""

    @staticmethod
    def forward(
        ctx: Any, A: Tensor, B: Tensor | None, X: Tensor | None, iK: Tensor | None, options: Any
    ) -> Any:
        E, U = _solve_batch(A, B, X, iK, **options)
        ctx.save_for_backward(A, E, U)
        ctx.is_general = B is not None
        return E, U

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        A, E, U = ctx.saved_tensors
        if ctx.is_general:
            raise ValueError(
                "lobpcg.backward does not support B != None: give A alone, such as L^-1 A L^-T for B = L L^T"
            )
        if A.is_sparse:
            raise ValueError(
                "lobpcg.backward does not support sparse input yet. Note that lobpcg.forward does though."
            )
        d_values, d_vectors = grads
        return _gradient(A, E, U, d_values, d_vectors), None, None, None, None


def _gradient(A: Tensor, E: Tensor, U: Tensor, d_values: Tensor, d_vectors: Tensor) -> Tensor:
    """Return the gradient of `A` from those of eigenvalues and eigenvectors.

    The other eigenvectors of `A`, which span the complement of `U`, give the part of the eigenvectors' gradient that
    leaves the space of `U`.
    """
    k = U.shape[-1]
    complement = linalg_qr(U, mode="complete").Q[..., k:]
    values, vectors = eigh(complement.mT @ A @ complement)
    others = complement @ vectors
    gaps = E.unsqueeze(-2) - E.unsqueeze(-1)
    same = functions["eye"](k, dtype=bool_, device=A.device)
    within = functions["where"](
        same, d_values.unsqueeze(-1), (U.mT @ d_vectors) / functions["where"](same, 1, gaps)
    )
    beyond = (others.mT @ d_vectors) / (E.unsqueeze(-2) - values.unsqueeze(-1))
    return (U @ within + others @ beyond) @ U.mT


def _solve_batch(
    A: Tensor,
    B: Tensor | None,
    X: Tensor | None,
    iK: Tensor | None,
    *,
    k: int | None,
    n: int | None,
    tol: float | None,
    method: str | None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    if A.shape[-2] != A.shape[-1]:
        raise AssertionError(f"A must be square, got shape {A.shape}")
    if B is not None and A.shape != B.shape:
        raise AssertionError(f"A and B must have same shape, got {A.shape} vs {B.shape}")
    kind = A.dtype if A.dtype in _ROUNDING else float32
    m = A.shape[-1]
    k = (1 if X is None else X.shape[-1]) if k is None else k
    n = (k if n is None else n) if X is None else X.shape[-1]
    if m < 3 * n:
        raise ValueError(
            f"LOBPCG algorithm is not applicable when the number of A rows (={m}) is smaller than 3 x the number of "
            f"requested eigenpairs (={n})"
        )
    if method not in (None, *_METHODS):
        raise ValueError(f"lobpcg: method must be one of {_METHODS}, got {method!r}")
    tol = _ROUNDING[kind] ** 0.5 if tol is None else tol
    batch = A.shape[:-2]
    matrices = [A] if not batch else A.reshape(-1, m, m)
    pairs = []
    for i, a in enumerate(matrices):
        b = B if B is None or not batch else B.reshape(-1, m, m)[i]
        x = functions["randn"]((m, n), dtype=kind, device=A.device) if X is None else X.reshape(-1, m, n)[i]
        solver = EigenSolver(
            a, b, x, iK if iK is None or iK.ndim == 2 else iK.reshape(-1, m, m)[i], k, tol, options
        )
        pairs.append(solver.run())
    if not batch:
        return pairs[0]
    values, vectors = zip(*pairs, strict=True)
    return functions["stack"](values).reshape(*batch, k), functions["stack"](vectors).reshape(*batch, m, k)


class EigenSolver:
    """The iteration of `lobpcg` for one matrix, which a tracker may read and stop.

    Each step takes the best approximation in the space of the present one, its preconditioned residual and the last
    change (A. Knyazev, "Toward the Optimal Preconditioned Eigensolver", 2001). The space's basis is orthonormal in
    the inner product of `B`; directions that rounding makes dependent are dropped.

    Attributes:
        A, B, iK: The arguments.
        E, X, R, S: Eigenvalues, eigenvectors, residuals, and the basis of the last step.
        iparams, fparams, bparams: The parameters that are integers, floats and bools.
        ivars, fvars, bvars, tvars: The variables that are integers, floats, bools and tensors.
    """

    def __init__(
        self,
        A: Tensor,
        B: Tensor | None,
        X: Tensor,
        iK: Tensor | None,
        k: int,
        tol: float,
        options: dict[str, Any],
    ) -> None:
        self.A, self.B, self.iK, self.X = A, B, iK, X
        m, n = X.shape
        niter = 1000 if options["niter"] is None else options["niter"]
        self.iparams = {"m": m, "n": n, "k": k, "niter": niter}
        self.fparams = {"tol": tol}
        self.bparams = {"largest": options["largest"] is not False}
        self._tracker: Callable[[EigenSolver], object] | None = options["tracker"]
        self.E, self.R, self.S = X.new_zeros(n), X.new_zeros(m, n), X.new_zeros(m, 3 * n)
        self.ivars = {"istep": 0, "converged_count": 0}
        self.fvars = {
            "X_norm": float(X.norm()),
            "A_norm": float((A @ X).norm()) / float(X.norm()),
            "B_norm": float(self._apply_weight(X).norm()) / float(X.norm()),
        }
        self.bvars = {"force_stop": False}
        self.tvars: dict[str, Tensor] = {}

    def run(self) -> tuple[Tensor, Tensor]:
        """Iterate until `k` residuals are below the tolerance. Returns the eigenvalues and eigenvectors."""
        self._project(self.X)
        before: Tensor | None = None
        while not self._is_done():
            self.ivars["istep"] += 1
            step = self.R if self.iK is None else self.iK @ self.R
            parts = (
                [self.X, step]
                if before is None
                else [self.X, step, self.X - before @ (before.mT @ self._apply_weight(self.X))]
            )
            before = self.X
            self._project(functions["cat"](parts, 1))
        k = self.iparams["k"]
        return self.E[:k], self.X[:, :k]

    def _apply_weight(self, x: Tensor) -> Tensor:
        return x if self.B is None else self.B @ x

    def _project(self, S: Tensor) -> None:
        """Set eigenvalues, eigenvectors and residuals to the best in the space of the columns of `S`."""
        for _ in range(2):  # the second time removes what rounding leaves of the first
            S = S / S.norm(dim=0).clamp(min=finfo(S.dtype).tiny)
            squares, turns = eigh(S.mT @ self._apply_weight(S))
            kept = squares > squares[-1] * finfo(S.dtype).eps * S.shape[1]
            S = S @ (turns[:, kept] / squares[kept].sqrt())
        values, turns = eigh(S.mT @ (self.A @ S))
        n = self.iparams["n"]
        if self.bparams["largest"]:
            values, turns = values.flip(0), turns.flip(1)
        self.S, self.E, self.X = S, values[:n], S @ turns[:, :n]
        self.R = self.A @ self.X - self._apply_weight(self.X) * self.E

    def _is_done(self) -> bool:
        """Update the convergence criterion and call the tracker. Returns True if the iteration must end."""
        sizes = self.X.norm(dim=0) * (self.fvars["A_norm"] + self.E.abs() * self.fvars["B_norm"])
        self.tvars["rerr"] = errors = self.R.norm(dim=0) / sizes
        count = int((errors < self.fparams["tol"]).cumprod(0).sum())  # the leading ones
        self.ivars["converged_count"] = count
        if self._tracker is not None:
            self._tracker(self)
        steps = self.iparams["niter"]
        is_last = steps >= 0 and self.ivars["istep"] >= steps
        return self.bvars["force_stop"] or is_last or count >= self.iparams["k"]


announce({"lobpcg": lobpcg})
