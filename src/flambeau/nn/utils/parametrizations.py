"""Parametrizations that are ready to use: orthogonal matrices, weights by norm and direction, of spectral norm 1."""

from __future__ import annotations

from typing import Any

from flambeau.core.typeinfo import finfo
from flambeau.nn.functional import normalize
from flambeau.nn.modules.module import Module
from flambeau.nn.utils import parametrize
from flambeau.nn.utils.spectral_norm import TRANSPOSED, as_matrix, check_iterations
from flambeau.nn.utils.weight_norm import norm_except, scale_to_norms
from flambeau.tape.mode import recording
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions import creation, linalg
from flambeau.tensor.tensor import Tensor

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]


def _tensor_of(module: Any, name: str) -> Tensor:
    tensor = getattr(module, name, None)
    if not isinstance(tensor, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    return tensor


# -- orthogonal matrices ------------------------------------------------------------------------------------


def _is_orthogonal(q: Tensor) -> bool:
    n, k = q.shape[-2:]
    found = q.mH @ q - creation.eye(k, dtype=q.dtype, device=q.device)
    return bool((found.abs() <= 10.0 * n * finfo(q.dtype).eps).all())


def _made_orthogonal(a: Tensor) -> Tensor:
    """Return the orthogonal factor of a QR decomposition, with signs that leave orthogonal matrices unchanged."""
    x, tau = functions["geqrf"](a)
    signs = x.diagonal(dim1=-2, dim2=-1).sgn().unsqueeze(-2)
    result: Tensor = linalg.householder_product(x, tau) * signs
    return result


class _Orthogonal(Module):
    """A parametrization by orthogonal (unitary) matrices. With a `base`, the result is multiplied by the base."""

    base: Any

    def __init__(self, weight: Tensor, orthogonal_map: str, *, use_trivialization: bool = True) -> None:
        super().__init__()
        if weight.is_complex() and orthogonal_map == "householder":
            raise ValueError("The householder parametrization does not support complex tensors.")
        self.shape = weight.shape
        self.orthogonal_map = orthogonal_map
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.shape[-2] < x.shape[-1]
        x = x.mT if wide else x
        q = self._by_reflections(x) if self.orthogonal_map == "householder" else self._by_skew(x)
        if hasattr(self, "base"):
            q = self.base @ q
        return q.mT if wide else q

    def _by_skew(self, x: Tensor) -> Tensor:
        """Return the matrix exponential, or the Cayley map, of a skew matrix."""
        n, k = x.shape[-2:]
        x = x.tril()
        if n != k:
            x = functions["cat"]([x, x.new_zeros(*x.shape[:-1], n - k)], -1)
        skew = x - x.mH
        if self.orthogonal_map == "matrix_exp":
            q = functions["matrix_exp"](skew)
        else:
            one = creation.eye(n, dtype=skew.dtype, device=skew.device)
            q = linalg.solve(one - skew * 0.5, one + skew * 0.5)
        return q[..., :k]

    @staticmethod
    def _by_reflections(x: Tensor) -> Tensor:
        a = x.tril(-1)
        q = linalg.householder_product(a, 2.0 / (1.0 + (a * a).sum(-2)))
        result: Tensor = q * x.diagonal(dim1=-2, dim2=-1).int().unsqueeze(-2)
        return result

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Return an unconstrained matrix for an orthogonal matrix, or for the one nearest to it. Raises ValueError for
        other shapes.
        """
        if weight.shape != self.shape:
            raise ValueError(
                f"Expected a matrix or batch of matrices of shape {self.shape}. Got a tensor of shape {weight.shape}."
            )
        with recording(False):
            wide = weight.shape[-2] < weight.shape[-1]
            q = weight.mT if wide else weight
            if not hasattr(self, "base"):
                return self._reflections_of(q, wide)
            self.base = self._complete_basis(q)
            start = creation.zeros_like(weight)
            start.diagonal(dim1=-2, dim2=-1).fill_(-1.0)
            return start

    def _reflections_of(self, q: Tensor, wide: bool) -> Tensor:
        if self.orthogonal_map != "householder":
            raise NotImplementedError(
                "It is not possible to assign to the matrix exponential or the Cayley parametrizations when "
                "use_trivialization=False."
            )
        a, tau = functions["geqrf"](q)
        diagonal = a.diagonal(dim1=-2, dim2=-1)
        signs = diagonal.sign()
        diagonal.copy_(signs.where(tau != 0.0, -signs))
        return a.mT if wide else a

    @staticmethod
    def _complete_basis(q: Tensor) -> Tensor:
        """Return a square orthogonal matrix whose first columns are (approximately) those of q."""
        n, k = q.shape[-2:]
        if n == k:
            return q.clone() if _is_orthogonal(q) else _made_orthogonal(q)
        drawn = functions["randn"](*q.shape[:-1], n - k, dtype=q.dtype, device=q.device)
        return _made_orthogonal(functions["cat"]([q, drawn], -1))


def orthogonal(
    module: Any, name: str = "weight", orthogonal_map: str | None = None, *, use_trivialization: bool = True
) -> Any:
    """Keep a weight (or batch of matrices) orthogonal: its columns or, where it is wide, its rows are orthonormal.

    orthogonal_map: "matrix_exp", "cayley" or "householder" (default: "matrix_exp" of square or complex ones, else
    "householder"). With `use_trivialization` it can be assigned to. Returns the module. Raises ValueError.
    """
    weight = _tensor_of(module, name)
    if weight.dim() < 2:
        raise ValueError(
            f"Expected a matrix or batch of matrices. Got a tensor of {weight.dim()} dimensions."
        )
    if orthogonal_map is None:
        square = weight.shape[-2] == weight.shape[-1]
        orthogonal_map = "matrix_exp" if square or weight.is_complex() else "householder"
    if orthogonal_map not in ("matrix_exp", "cayley", "householder"):
        raise ValueError(
            f'orthogonal_map has to be one of "matrix_exp", "cayley", "householder". Got: {orthogonal_map}'
        )
    made = _Orthogonal(weight, orthogonal_map, use_trivialization=use_trivialization)
    return parametrize.register_parametrization(module, name, made, unsafe=True)


# -- norms --------------------------------------------------------------------------------------------------


class _WeightNorm(Module):
    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return scale_to_norms(weight_v, weight_g, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return norm_except(weight, self.dim), weight


def weight_norm(module: Any, name: str = "weight", dim: int | None = 0) -> Any:
    """Split a weight into its norms over all dimensions but `dim` (original0) and its direction (original1).

    Returns the module. States of the older `torch.nn.utils.weight_norm` load.
    """
    parametrize.register_parametrization(module, name, _WeightNorm(dim), unsafe=True)

    def rename(state_dict: Any, prefix: str, *rest: Any) -> None:
        old = [f"{prefix}{name}_g", f"{prefix}{name}_v"]
        if all(key in state_dict for key in old):
            for i, key in enumerate(old):
                state_dict[f"{prefix}parametrizations.{name}.original{i}"] = state_dict.pop(key)

    module._register_load_state_dict_pre_hook(rename)
    return module


class _SpectralNorm(Module):
    """A weight over its largest singular value; the buffers approximate the singular vectors."""

    def __init__(self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12) -> None:
        super().__init__()
        ndim = weight.dim()
        if not -ndim <= dim < ndim:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [-{ndim}, {ndim - 1}] but got {dim})"
            )
        check_iterations(n_power_iterations)
        self.dim = dim % ndim
        self.eps = eps
        if ndim > 1:
            self.n_power_iterations = n_power_iterations
            with recording(False):
                matrix = as_matrix(weight, self.dim)
                drawn = [matrix.new_empty(n).normal_(0, 1) for n in matrix.shape]
                for side, x in zip(("_u", "_v"), drawn, strict=True):
                    self.register_buffer(side, normalize(x, dim=0, eps=eps))
                self._iterate(matrix, 15)

    def _iterate(self, matrix: Tensor, count: int) -> None:
        with recording(False):
            for _ in range(count):
                self._u.copy_(normalize(matrix.mv(self._v), dim=0, eps=self.eps))
                self._v.copy_(normalize(matrix.mH.mv(self._u), dim=0, eps=self.eps))

    def forward(self, weight: Tensor) -> Tensor:
        if weight.dim() == 1:
            return normalize(weight, dim=0, eps=self.eps)
        matrix = as_matrix(weight, self.dim)
        if self.training:
            self._iterate(matrix, self.n_power_iterations)
        # copies, so that two calls before one backward save different pairs
        u, v = self._u.clone(), self._v.clone()
        result: Tensor = weight / functions["vdot"](u, matrix.mv(v))
        return result

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def spectral_norm(
    module: Any, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Any:
    """Divide a weight by its largest singular value, which calls in training approximate better.

    Args:
        dim: The dimension of the outputs (default: 1 for transposed convolutions, else 0).

    Returns:
        The module.

    Raises:
        ValueError: If there is no iteration.
    """
    weight = _tensor_of(module, name)
    if dim is None:
        dim = 1 if isinstance(module, TRANSPOSED) else 0
    made = _SpectralNorm(weight, n_power_iterations, dim, eps)
    return parametrize.register_parametrization(module, name, made)
