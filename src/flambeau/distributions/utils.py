"""`torch.distributions.utils`: parameters of one shape, probabilities and logits, properties computed once."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Number
from typing import Any

from flambeau.autograd.grad_mode import enable_grad
from flambeau.core.public_names import explain_absent_names
from flambeau.core.typeinfo import finfo
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.exchange.data import tensor
from flambeau.tensor.functions.random import randn
from flambeau.tensor.promotion import get_default_dtype
from flambeau.tensor.tensor import Tensor


def broadcast_all(*values: Any) -> tuple[Tensor, ...]:
    """Return the arguments as tensors of one shape. Numbers get the dtype and device of the first tensor, or the
    defaults.

    Raises:
        ValueError: If the value is neither numbers nor tensors.
    """
    if not all(isinstance(v, (Number, Tensor)) for v in values):
        raise ValueError(
            "Input arguments must all be instances of Number, torch.Tensor or objects implementing __torch_function__."
        )
    first = next((v for v in values if isinstance(v, Tensor)), None)
    options: dict[str, Any] = {"dtype": get_default_dtype()}
    if first is not None:
        options = {"dtype": first.dtype, "device": first.device}
    return tuple(
        functions["broadcast_tensors"](
            *[v if isinstance(v, Tensor) else tensor(v, **options) for v in values]
        )
    )


def one_of_two(first: Any, second: Any, names: str = "`probs` or `logits`") -> None:
    """Raise ValueError unless exactly one of two arguments is given."""
    if (first is None) == (second is None):
        raise ValueError(f"Either {names} must be specified, but not both.")


def clamp_probs(probs: Tensor) -> Tensor:
    """Return probabilities away from 0 and 1 by the dtype's precision, so that their logarithms are finite."""
    eps = finfo(probs.dtype).eps
    return probs.clamp(min=eps, max=1 - eps)


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """Return probabilities of log-odds (`is_binary`), or of unnormalized logarithms over the last dimension."""
    return logits.sigmoid() if is_binary else logits.softmax(-1)


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """Return the reverse of `logits_to_probs`."""
    inside = clamp_probs(probs)
    return inside.log() - (-inside).log1p() if is_binary else inside.log()


class lazy_property:
    """A property that is computed once, in the autograd graph, and then is an attribute."""

    def __init__(self, wrapped: Callable[[Any], Any]) -> None:
        self.wrapped = wrapped
        self.__doc__ = wrapped.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        with enable_grad():
            value = self.wrapped(instance)
        setattr(instance, self.wrapped.__name__, value)
        return value


def sum_rightmost(value: Any, dims: int) -> Any:
    """Return the sum over the last `dims` dimensions."""
    return value.sum(tuple(range(-dims, 0))) if dims else value


def _standard_normal(shape: Any, dtype: Any, device: Any) -> Tensor:
    """Return standard normal numbers; PyTorch's libraries import this name."""
    return randn(shape, dtype=dtype, device=device)


_sum_rightmost = sum_rightmost


def vec_to_tril_matrix(vec: Tensor, diag: int = 0) -> Tensor:
    """Return square matrices whose lower triangles are the last dimension of a tensor, row by row.

    Args:
        vec: Tensor (..., d).
        diag: Diagonal that the triangle ends at: 0 is the main diagonal, -1 the one below.

    Raises:
        ValueError: If no triangle has d entries.
    """
    entries, step = vec.shape[-1], 1 + 2 * diag
    n = (math.sqrt(step**2 + 8 * entries + 4 * abs(diag) * (diag + 1)) - step) / 2
    if not n.is_integer():
        raise ValueError(
            f"The size of last dimension is {entries} which cannot be expressed as the lower triangular part of a "
            "square D x D matrix."
        )
    matrix = vec.new_zeros((*vec.shape[:-1], int(n), int(n)))
    rows, columns = functions["tril_indices"](int(n), int(n), diag, device=vec.device)
    return _put(matrix, rows, columns, vec)


def tril_matrix_to_vec(mat: Tensor, diag: int = 0) -> Tensor:
    """Return the lower triangles of square matrices as vectors, row by row.

    Args:
        mat: Tensor (..., n, n).
        diag: Diagonal that the triangle ends at, less than n and not less than -n.

    Raises:
        ValueError: If there is no such diagonal.
    """
    n = mat.shape[-1]
    if diag < -n or diag >= n:
        raise ValueError(f"diag ({diag}) provided is outside [{-n}, {n - 1}].")
    rows, columns = functions["tril_indices"](n, n, diag, device=mat.device)
    return mat[..., rows, columns]


def _put(matrix: Any, rows: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """Write values at positions of each matrix."""
    matrix[..., rows, columns] = values
    return matrix  # type: ignore[no-any-return]


__all__ = [
    "broadcast_all", "clamp_probs", "lazy_property", "logits_to_probs", "probs_to_logits", "tril_matrix_to_vec",
    "vec_to_tril_matrix",
]  # fmt: skip

explain_absent_names(globals(), "torch.distributions.utils")
