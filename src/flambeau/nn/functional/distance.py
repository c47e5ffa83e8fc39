"""Distances and similarities of vectors."""

from __future__ import annotations

from flambeau.autograd.grad_mode import no_grad
from flambeau.nn.functional.activation import require_tensor
from flambeau.ops.autocast_rules import FLOAT32_ON_CUDA
from flambeau.ops.linalg import geometry
from flambeau.tensor import autocast
from flambeau.tensor.arguments.public import function, functions
from flambeau.tensor.call import call
from flambeau.tensor.functions.joining import triu_indices
from flambeau.tensor.functions.reduction import norm
from flambeau.tensor.signatures import by_parser, compares
from flambeau.tensor.tensor import Tensor


@by_parser
@function
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """Return the p-norm of x1 - x2 + eps along the last dimension, of broadcast shapes."""
    ndim = max(x1.dim(), x2.dim())
    return norm(x1 - x2 + float(eps), float(p), ndim - 1 if ndim else 0, keepdim)


@by_parser
@function
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the cosine of the angle between vectors along `dim`; norms are eps at least. Floats of one kind."""
    if autocast.threads:
        x1, x2 = autocast.cast(FLOAT32_ON_CUDA, x1, x2)
    eps = float(eps)
    kind = x1.dtype if x1.dtype is x2.dtype else functions["result_type"](x1, x2)
    if not eps >= 0:  # NaN is refused, too
        raise RuntimeError(f"eps must be non-negative, got: {eps:g}")
    if not kind.is_floating_point:
        raise RuntimeError(
            f"expected common dtype to be floating point, yet common dtype is {kind.torch_name}"
        )
    shape = (x1 * x2).shape if x1.shape != x2.shape else x1.shape
    first, second = (
        x.expand(shape) if x.dtype.is_floating_point else x.to(kind).expand(shape) for x in (x1, x2)
    )
    # each norm is computed in its input's dtype, as in PyTorch
    lengths = [_length(x, dim, eps) for x in (first, second)]
    return ((first / lengths[0]) * (second / lengths[1])).sum(dim)


def _length(x: Tensor, dim: int, eps: float) -> Tensor:
    """Return the norm along `dim`, at least `eps`. As in PyTorch, the gradient does not depend on whether `eps`
    applies.
    """
    length: Tensor = norm(x, 2, dim, True)
    if not length.requires_grad:
        return length.clamp_min(eps)
    length = length.clone()  # a copy, because the norm's gradient needs the norm unchanged
    with no_grad():
        return length.clamp_min_(eps)


@by_parser
@function
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """Return the p-norm distances of every two rows (i < j) of a matrix."""
    if autocast.threads:
        (input,) = autocast.cast(FLOAT32_ON_CUDA, input)
    if require_tensor(input, "pdist").dim() != 2:
        raise RuntimeError(f"pdist only supports 2D tensors, got: {input.dim()}D")
    if not input.dtype.is_floating_point or input.dtype.itemsize < 4:
        raise RuntimeError("pdist only supports floating-point dtypes")
    if p < 0:
        raise RuntimeError("pdist only supports non-negative p values")
    count = input.shape[0]
    rows, columns = triu_indices(count, count, 1, device=input.device).unbind(0)
    lengths: Tensor = call(geometry.cdist, (input, input), (float(p),))
    return lengths.view(-1).index_select(0, rows.mul_(count).add_(columns))


@compares("dim", "eps", "p")
def normalize(
    input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    """Return x over its p-norm along `dim`, which counts as eps at least."""
    length = norm(input, p, dim, True).clamp_min(eps).expand_as(input)
    return functions["div"](input, length, out=out)  # type: ignore[no-any-return]
