"""Further products and sums of linear algebra: powers, the exponential, chains, cross products, trapezoids."""

# ruff: noqa: N803 (arguments have the names that PyTorch gives them: A, B, UPLO)

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.core.dtype import FLOATING, bfloat16, bool_, float16, int64
from flambeau.core.layout import broadcast_shapes, wrap_dim
from flambeau.ops.autocast_rules import LOWER
from flambeau.ops.linalg import geometry
from flambeau.ops.linalg import linalg as ops
from flambeau.tensor import autocast
from flambeau.tensor.arguments.arg_errors import IntTuple
from flambeau.tensor.arguments.options import integer
from flambeau.tensor.arguments.public import both, function, functions
from flambeau.tensor.arguments.typing import contiguous_format
from flambeau.tensor.functions.linalg import inv, invert, solve, tensor_of
from flambeau.tensor.functions.matmul import deliver_chain, multiply_chain
from flambeau.tensor.out_argument import deliver, require_dtype, run
from flambeau.tensor.signatures import accepts, signatures
from flambeau.tensor.tensor import Tensor

# -- functions of a matrix -------------------------------------------------------------------------------------------


@both
def matrix_power(input: Tensor, n: int, *, out: Tensor | None = None) -> Tensor:
    """Return each square matrix raised to an integer power. A negative power inverts the matrix first."""
    tensor_of(input, "linalg_matrix_power")
    n = integer(n, "linalg_matrix_power", "n", 2)
    ops.check_square("linalg.matrix_power", input.meta)
    power = _power(input, n)
    if out is not None and out.dtype.is_floating_point and n not in (0, 1):  # which PyTorch copies
        require_dtype(power.dtype, out)
    result: Tensor = deliver(power, out, "matrix_power")
    return result


def _power(x: Tensor, n: int) -> Tensor:
    if n == 0:  # gradients of zeros pass to x
        whole: Tensor = x.clone(memory_format=contiguous_format).copy_(_identities(x))
        return whole
    if n == 1:
        once: Tensor = x.clone(memory_format=contiguous_format)
        return once
    if n < 0:
        x, n = inv(x), -n
    found: Tensor | None = None
    while n:
        if n % 2:
            found = x if found is None else functions["matmul"](found, x)
        n //= 2
        x = functions["matmul"](x, x) if n else x
    assert found is not None
    return found


def _identities(like: Tensor) -> Tensor:
    eye = functions["eye"](like.meta.shape[-1], dtype=like.dtype, device=like.device)
    found: Tensor = eye.expand(like.meta.shape).clone(memory_format=contiguous_format)
    return found


_TERMS = [1 / math.factorial(k) for k in range(20)]


@both
def matrix_exp(input: Tensor) -> Tensor:
    """Return the exponential of each square matrix.

    Taylor's polynomial of degree 19 of the matrix halved until its norm is at most 1, squared as often.
    """
    tensor_of(input, "linalg_matrix_exp", "input")
    ops.check_square("linalg.matrix_exp", input.meta)
    ops.check_floating("linalg.matrix_exp", input.meta)
    if not input.numel():
        return input.clone()
    halvings = _halvings(input)
    x = _taylor(input * (-halvings).exp2().to(input.dtype))
    squarings = 0 if input.is_meta else int(halvings.max().item())
    for done in range(squarings):
        x = functions["where"](halvings > done, functions["matmul"](x, x), x)
    return x


def _halvings(x: Tensor) -> Any:
    """Return the number of times that each matrix is halved, expanded over the matrix; 0 for a non-finite matrix."""
    norms = x.detach().abs().sum(-2, keepdim=True).amax(-1, keepdim=True)
    return functions["nan_to_num"](norms.log2().ceil(), 0.0, 0.0, 0.0).clamp(min=0)


def _taylor(x: Tensor) -> Tensor:
    """Return a Taylor polynomial in the fourth power of x, whose coefficients are polynomials of degree 3."""
    matmul = functions["matmul"]
    second = matmul(x, x)
    powers = [_identities(x), x, second, matmul(second, x)]
    fourth = matmul(second, second)
    blocks = [
        sum(
            (p * term for p, term in zip(powers[1:], _TERMS[at + 1 : at + 4], strict=True)),
            powers[0] * _TERMS[at],
        )
        for at in range(0, 20, 4)
    ]
    found = blocks[-1]
    for block in reversed(blocks[:-1]):
        found = matmul(found, fourth) + block
    return found


# -- products --------------------------------------------------------------------------------------------------------


@signatures("linalg_multi_dot(tensors: TensorList)")
def multi_dot(tensors: Sequence[Tensor], *, out: Tensor | None = None) -> Tensor:
    """Return the product of several matrices in the order of fewest operations; the first and last may be vectors."""
    tensors = list(tensors)
    if len(tensors) < 2:
        raise RuntimeError(f"multi_dot(): expected at least 2 tensors but got {len(tensors)}")
    _check_chain_dims(tensors)
    shape = [*tensors[0].meta.shape[:-1], *tensors[-1].meta.shape[1:]]
    tensors[0] = tensors[0] if tensors[0].ndim == 2 else tensors[0].unsqueeze(0)
    tensors[-1] = tensors[-1] if tensors[-1].ndim == 2 else tensors[-1].unsqueeze(1)
    for at, (a, b) in enumerate(pairwise(tensors)):
        if a.meta.shape[1] != b.meta.shape[0]:
            raise RuntimeError(
                f"multi_dot(): tensors {at} and {at + 1} with shapes {list(a.meta.shape)} and {list(b.meta.shape)} "
                "cannot be multiplied"
            )
    return deliver_chain(multiply_chain(tensors).reshape(shape), out)


def _check_chain_dims(tensors: Sequence[Tensor]) -> None:
    for which, x in (("first", tensors[0]), ("last", tensors[-1])):
        if x.ndim not in (1, 2):
            raise RuntimeError(f"multi_dot(): the {which} tensor must be 1D or 2D but got {x.ndim}D")
    for at, x in enumerate(tensors[1:-1], 1):
        if x.ndim != 2:
            raise RuntimeError(f"multi_dot(): tensor {at} must be 2D but got {x.ndim}D")


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1, out: Tensor | None = None) -> Tensor:
    """Return the dot product of vectors along `dim`, the first conjugated; broadcast."""
    if autocast.threads:
        return autocast.call_cast(LOWER, _vecdot, (x, y), dim, out)
    return _vecdot(x, y, dim, out)


def _vecdot(x: Tensor, y: Tensor, dim: int, out: Tensor | None) -> Tensor:
    ops.check_floating("linalg.vecdot", x.meta)
    if x.dtype is not y.dtype:
        raise RuntimeError(
            "linalg.vecdot: Expected x and y to have the same dtype, but found x of type "
            f"{x.dtype.torch_name} and y of type {y.dtype.torch_name} instead"
        )
    if out is not None and out.dtype is not x.dtype:
        raise RuntimeError(
            f"linalg.vecdot: Expected out of dtype{x.dtype.torch_name} but found {out.dtype.torch_name}"
        )
    result: Tensor = functions["sum"](x.conj() * y, dim, out=out)
    return result


def linalg_cross(input: Tensor, other: Tensor, *, dim: int = -1, out: Tensor | None = None) -> Tensor:
    """Return the cross product of vectors of 3 elements along `dim`; broadcast."""
    if input.ndim != other.ndim:
        raise RuntimeError("linalg.cross: inputs must have the same number of dimensions.")
    wrap_dim(dim, input.ndim)
    if not input.ndim:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    result: Tensor = run(geometry.cross, (input, other), (dim,), out)
    return result


@both
def cross(input: Tensor, other: Tensor, dim: int | None = None, *, out: Tensor | None = None) -> Tensor:
    """Return the cross product along `dim`, by default the first dimension of size 3."""
    if dim is None:
        warn_program(
            "Using torch.cross without specifying the dim arg is deprecated.\n"
            "Please either pass the dim explicitly or simply use torch.linalg.cross.\n"
            "The default value of dim will change to agree with that of linalg.cross in a future release.",
            UserWarning,
        )
        if 3 not in input.meta.shape:
            raise RuntimeError("no dimension of size 3 in input")
        dim = input.meta.shape.index(3)
    return linalg_cross(input, other, dim=dim, out=out)


def linalg_diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Return the diagonal of each matrix, a view."""
    found: Tensor = A.diagonal(offset, dim1, dim2)
    return found


# -- Vandermonde matrices --------------------------------------------------------------------------------------------


def _powers(x: Tensor, count: int) -> Tensor:
    """Return x to the powers 0, 1, 2, ... along a new last dimension; integers as int64."""
    x = x.to(int64) if x.dtype.category < FLOATING else x
    x = x.unsqueeze(-1)
    first = functions["ones_like"](x)
    if count < 2:
        return first.narrow(-1, 0, count)
    found: Tensor = functions["cat"]([first, x.expand(*x.meta.shape[:-1], count - 1).cumprod(-1)], -1)
    return found


def linalg_vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """Return Vandermonde matrices: row i holds x[..., i] to the powers 0, 1, ..., N - 1."""
    if x.dtype is bool_ or x.dtype in (float16, bfloat16):
        raise RuntimeError(
            f"linalg.vander supports floating point, complex, and integer tensors, but got {x.dtype.torch_name}"
        )
    count = (x.meta.shape[-1] if x.ndim else 1) if N is None else N
    if count <= 1:
        raise RuntimeError("N must be greater than 1.")
    return _powers(x if x.ndim else x.unsqueeze(0), count)


@function
def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """Return the Vandermonde matrix of a vector, powers descending unless `increasing`."""
    if x.ndim != 1:
        raise RuntimeError("x must be a one-dimensional tensor.")
    count = x.meta.shape[0] if N is None else N
    if count < 0:
        raise RuntimeError("N must be non-negative.")
    found = _powers(x, count)
    return found if increasing else found.flip(-1)


# -- tensors as matrices ---------------------------------------------------------------------------------------------


def tensorinv(A: Tensor, ind: int = 2, *, out: Tensor | None = None) -> Tensor:
    """Return the inverse of A as a map from its dimensions from `ind` on to those before."""
    if ind <= 0:
        raise RuntimeError(f"Expected a strictly positive integer for 'ind', but got {ind}")
    if ind > A.ndim:
        raise RuntimeError(f"ArrayRef: invalid slice, N = {ind}; size = {A.ndim}")
    before, after = A.meta.shape[:ind], A.meta.shape[ind:]
    rows, columns = math.prod(before), math.prod(after)
    if rows != columns:
        raise RuntimeError(
            "Expected self to satisfy the requirement prod(self.shape[ind:]) == prod(self.shape[:ind]), but got "
            f"{columns} != {rows}"
        )
    found = invert(A.reshape(rows, columns), "inv").inverse
    result: Tensor = deliver(found.reshape(*after, *before), out, "tensorinv")
    return result


@accepts("linalg_tensorsolve", other="B")
def tensorsolve(A: Tensor, B: Tensor, dims: IntTuple | None = None, *, out: Tensor | None = None) -> Tensor:
    """Return X of tensordot(A, X, X.ndim) = B; `dims` of A are moved to its end first."""
    if dims is not None:
        moved = [wrap_dim(d, A.ndim) for d in dims]
        return tensorsolve(A.permute([d for d in range(A.ndim) if d not in moved] + moved), B, out=out)
    shape = A.meta.shape[B.ndim :]
    rows, columns = math.prod(A.meta.shape[: B.ndim]), math.prod(shape)
    if rows != columns:
        raise RuntimeError(
            "Expected self to satisfy the requirement prod(self.shape[other.ndim:]) == prod(self.shape[:other.ndim])"
            f", but got {columns} != {rows}"
        )
    found = solve(A.reshape(rows, rows), B.reshape(-1))
    result: Tensor = deliver(found.reshape(shape), out, "tensorsolve")
    return result


# -- trapezoids ------------------------------------------------------------------------------------------------------


@function
@signatures("""
trapezoid(y: Tensor, *, dx: Number=, dim: int=)
trapezoid(y: Tensor, x: Tensor, *, dim: int=)
""")
def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """Return the integral along `dim` by the trapezoidal rule, of samples at `x`, or at distance `dx` (default 1)."""
    dim = _samples_dim("trapezoid", y, x, dx, dim)
    if not y.meta.shape[dim]:
        return y.new_zeros((*y.shape[:dim], *y.shape[dim + 1 :]))
    if x is None:
        ends = y.select(dim, 0) + y.select(dim, -1)
        return (y.sum(dim) - ends * 0.5) * (1.0 if dx is None else dx)
    return _areas("trapezoid", y, x, dim).sum(dim) / 2.0


@function
@signatures("""
cumulative_trapezoid(y: Tensor, *, dx: Number=, dim: int=)
cumulative_trapezoid(y: Tensor, x: Tensor, *, dim: int=)
""")
def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """Return the integrals from the first sample to each later sample; see `trapezoid`."""
    dim = _samples_dim("cumulative_trapezoid", y, x, dx, dim)
    if x is not None:
        return _areas("cumulative_trapezoid", y, x, dim).cumsum(dim) / 2.0
    pairs = _pairs(y, dim)
    return (pairs[0] + pairs[1]).cumsum(dim) * ((1.0 if dx is None else dx) / 2.0)


@function
@signatures("""
trapz(y: Tensor, *, dx: float=, dim: int=)
trapz(y: Tensor, x: Tensor, *, dim: int=)
""")
def trapz(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """Call `torch.trapezoid`."""
    return trapezoid(y, x, dx=dx, dim=dim)


def _samples_dim(name: str, y: Tensor, x: Tensor | None, dx: Any, dim: int) -> int:
    if x is not None and dx is not None:
        raise TypeError(f"{name}() takes x or dx, not both")
    if not y.ndim:
        raise IndexError(
            f"Dimension specified as {dim} but tensor has no dimensions"
            if name == "trapezoid"
            else "slice() cannot be applied to a 0-dim tensor."
        )
    dim = wrap_dim(dim, y.ndim)
    if y.dtype is bool_ or (x is not None and x.dtype is bool_):
        which = "`y`" if x is None else "`x` or `y`"
        raise RuntimeError(f"{name}: received a bool input for {which}, but bool is not supported")
    return dim


def _pairs(t: Tensor, dim: int) -> tuple[Any, Any]:
    """Return all elements along `dim` but the last, and all but the first."""
    count = max(t.meta.shape[dim] - 1, 0)
    return t.narrow(dim, 0, count), t.narrow(dim, min(1, t.meta.shape[dim]), count)


def _areas(name: str, y: Tensor, x: Tensor, dim: int) -> Any:
    """Return twice the area between neighbouring samples."""
    if x.ndim == 1:
        if x.meta.shape[0] != y.meta.shape[dim]:
            raise RuntimeError(f"{name}: There must be one `x` value for each sample point")
        x = x.reshape([-1 if d == dim else 1 for d in range(y.ndim)])
    elif x.ndim < y.ndim:
        x = x.reshape((1,) * (y.ndim - x.ndim) + x.meta.shape)
    broadcast_shapes([x.meta.shape, y.meta.shape])
    (before, after), (low, high) = _pairs(x, dim), _pairs(y, dim)
    return (after - before) * (low + high)
