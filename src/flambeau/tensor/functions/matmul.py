"""Matrix products, and functions that are computed by one: einsum, tensordot, kron."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.brief import brief
from flambeau.core.callsite import warn_program
from flambeau.core.dtype import FLOATING, INTEGRAL, bool_, dtype, promote_types
from flambeau.core.errors import argument_type, type_name
from flambeau.core.layout import wrap_dim
from flambeau.ops.autocast_rules import AS_IS_ON_CPU, LOWER_ON_CUDA, WIDEST_ON_CUDA, AutocastRule
from flambeau.ops.copy import checked_scalar, wide_scalar
from flambeau.ops.linalg import matmul as ops
from flambeau.tensor import autocast, dispatch, interception
from flambeau.tensor.arguments.arg_errors import Number
from flambeau.tensor.arguments.public import alias, both, function, functions, method, method_and_function
from flambeau.tensor.arguments.torch_function import arm_for
from flambeau.tensor.call import call
from flambeau.tensor.functions import out_dtype_matmul
from flambeau.tensor.out_argument import deliver, require_dtype, run
from flambeau.tensor.signatures import accepts, signatures
from flambeau.tensor.tensor import Tensor

_VECTORS = AutocastRule("widest", "as_is")


@both
def matmul(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the product of vectors, matrices or (broadcast) batches of them, by their ranks.

    Raises:
        RuntimeError: For sizes that do not fit, different dtypes or devices, a 0-dim operand.
    """
    if interception.count and out is None and dispatch.is_shown((input, other)):
        return dispatch.compose("matmul", input, other)
    return run(ops.matmul, (input, other), (), out)


@method
def __matmul__(self: Tensor, other: Any) -> Any:
    if isinstance(other, Tensor):
        if interception.count and dispatch.is_shown((self, other)):
            return dispatch.compose("matmul", self, other)
        return call(ops.matmul, (self, other))
    return __matmul__(self, other) if arm_for((other,)) else NotImplemented


@method
def __rmatmul__(self: Tensor, other: Any) -> Any:
    return __rmatmul__(self, other) if arm_for((other,)) else NotImplemented


@both
@signatures("""
mm(input: Tensor, mat2: Tensor)
mm(input: Tensor, mat2: Tensor, out_dtype: dtype)
Tensor.mm(mat2: Tensor)
""")
def mm(input: Tensor, mat2: Tensor, out_dtype: dtype | None = None, *, out: Tensor | None = None) -> Tensor:
    """Return the product of two matrices.

    Args:
        out_dtype: Dtype of the result, float32 for half-precision CUDA matrices.
    """
    if out_dtype is not None:
        out_dtype_matmul.check_device("mm", input, out)
    if input.ndim != 2:
        raise RuntimeError("self must be a matrix")
    if mat2.ndim != 2:
        raise RuntimeError("mat2 must be a matrix")
    if out_dtype is not None:
        return out_dtype_matmul.product("mm", input, mat2, out_dtype, out)
    return run(ops.matmul, (input, mat2), (), out)


@function
def spmm(input: Tensor, mat2: Tensor) -> Tensor:
    """Return the product of two matrices: `mm` by an old name, for factors that are sparse."""
    return mm(input, mat2)


alias("dsmm", spmm, as_method=False)


@both
@signatures("""
bmm(input: Tensor, mat2: Tensor)
bmm(input: Tensor, mat2: Tensor, out_dtype: dtype)
Tensor.bmm(mat2: Tensor)
""")
def bmm(input: Tensor, mat2: Tensor, out_dtype: dtype | None = None, *, out: Tensor | None = None) -> Tensor:
    """Return the products of two batches of matrices, (b, n, m) and (b, m, p), without broadcasting. `out_dtype` as in
    `mm`.
    """
    if out_dtype is not None:
        out_dtype_matmul.check_device("bmm", input, out)
    _check_batches(input, mat2)
    if out_dtype is not None:
        return out_dtype_matmul.product("bmm", input, mat2, out_dtype, out)
    return run(ops.matmul, (input, mat2), (), out)


def _check_batches(a: Tensor, b: Tensor) -> None:
    for at, batch in enumerate((a, b)):
        if batch.ndim != 3:
            raise RuntimeError(f"batch{at + 1} must be a 3D tensor")
    want = (a.meta.shape[0], a.meta.shape[2])
    if b.meta.shape[:2] != want:
        raise RuntimeError(
            "Expected size for first two dimensions of batch2 tensor to be: "
            f"[{want[0]}, {want[1]}] but got: [{b.meta.shape[0]}, {b.meta.shape[1]}]."
        )


@both
def mv(input: Tensor, vec: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the product of a matrix and a vector."""
    return (
        autocast.call_cast(AS_IS_ON_CPU, _mv, (input, vec), out) if autocast.threads else _mv(input, vec, out)
    )


def _mv(input: Tensor, vec: Tensor, out: Tensor | None) -> Tensor:
    if input.ndim != 2 or vec.ndim != 1:
        raise RuntimeError(f"vector + matrix @ vector expected, got 1, {input.ndim}, {vec.ndim}")
    (rows, columns), size = input.meta.shape, vec.numel()
    if columns != size:
        raise RuntimeError(f"size mismatch, got input ({rows}), mat ({rows}x{columns}), vec ({size})")
    return run(ops.matmul, (input, vec), (), out)


@both
def dot(input: Tensor, tensor: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the sum of the products of two vectors of one length."""
    return (
        autocast.call_cast(_VECTORS, _dot, (input, tensor), out)
        if autocast.threads
        else _dot(input, tensor, out)
    )


def _dot(input: Tensor, tensor: Tensor, out: Tensor | None) -> Tensor:
    _check_vectors("dot", input, tensor)
    return run(ops.matmul, (input, tensor), (), out)


@both
def vdot(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return `dot` with the first vector conjugated."""
    return (
        autocast.call_cast(_VECTORS, _vdot, (input, other), out)
        if autocast.threads
        else _vdot(input, other, out)
    )


def _vdot(input: Tensor, other: Tensor, out: Tensor | None) -> Tensor:
    _check_vectors("vdot", input, other)
    return run(ops.matmul, (_conjugate(input), other), (), out)


def _conjugate(t: Tensor) -> Tensor:
    return t.conj().resolve_conj() if t.dtype.is_complex else t


def _check_vectors(name: str, a: Tensor, b: Tensor) -> None:
    if a.ndim != 1 or b.ndim != 1:
        raise RuntimeError(f"1D tensors expected, but got {a.ndim}D and {b.ndim}D tensors")
    if a.dtype is not b.dtype:
        raise RuntimeError(
            f"{name} : expected both vectors to have same dtype, but found {a.dtype.torch_name} "
            f"and {b.dtype.torch_name}"
        )
    if a.numel() != b.numel():
        n, m = a.numel(), b.numel()
        raise RuntimeError(
            f"inconsistent tensor size, expected tensor [{n}] and src [{m}] to have the same number of "
            "elements, "
            f"but got {n} and {m} elements respectively"
        )


@both
def inner(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return products summed over the last dimension of both."""
    if input.ndim == 0 or other.ndim == 0:
        return functions["mul"](input, other, out=out)
    if input.meta.shape[-1] != other.meta.shape[-1]:
        raise RuntimeError(
            "inner() the last dimension must match on both input tensors but got shapes "
            f"{list(input.meta.shape)} and {list(other.meta.shape)}"
        )
    if input.ndim == other.ndim == 1:
        return (
            dot(input, other, out=out) if out is not None else dot(input, other).view(())
        )  # as PyTorch's node
    return tensordot(input, other, ([-1], [-1]), out=out)


@both
def outer(input: Tensor, vec2: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the matrix of the products of all pairs of elements of two vectors."""
    for name, vector in (("self", input), ("vec2", vec2)):
        if vector.ndim != 1:
            raise RuntimeError(f"outer: Expected 1-D argument {name}, but got {vector.ndim}-D")
    return functions["mul"](input.unsqueeze(1), vec2, out=out)


alias("ger", outer)


# -- a product added to a tensor ------------------------------------------------------------------------


def _numbers(beta: Any, alpha: Any, like: Tensor, shape: Sequence[int], depth: int) -> tuple[Any, Any]:
    """Return the factors of a product of this shape, converted as PyTorch converts those that it uses."""
    if 0 in shape:
        return 0, 0
    return _number(beta, like), _number(alpha, like) if depth else 0


def _number(x: Any, like: Tensor) -> Any:
    """Return a factor converted as PyTorch converts it: to an integer of the dtype for integer tensors."""
    x = wide_scalar(x.item() if isinstance(x, Tensor) else x)
    if like.dtype.category == INTEGRAL:
        return checked_scalar(x, like.dtype)
    if isinstance(x, complex):
        if not x.imag:
            return _number(x.real, like)
        if not like.dtype.is_complex:
            kind = "int64_t" if like.dtype.category < FLOATING else ops.c_name(like.dtype)
            raise RuntimeError(f"value cannot be converted to type {kind} without overflow")
    if like.dtype.category < FLOATING:
        return bool(x)
    return x


def _check_expands(input: Tensor, shape: tuple[int, ...]) -> None:
    sizes = input.meta.shape
    if len(sizes) > len(shape):
        raise RuntimeError(
            f"expand({list(sizes)}, size={list(shape)}): the number of sizes provided ({len(shape)}) must be "
            f"greater or equal to the number of dimensions in the tensor ({len(sizes)})"
        )
    for at in range(1, len(sizes) + 1):
        if sizes[-at] not in (1, shape[-at]):
            raise RuntimeError(
                f"The expanded size of the tensor ({shape[-at]}) must match the existing size "
                f"({sizes[-at]}) at "
                f"non-singleton dimension {len(shape) - at}.  Target sizes: {list(shape)}.  "
                f"Tensor sizes: {list(sizes)}"
            )


def _add_product(
    input: Tensor, a: Tensor, b: Tensor, beta: Any, alpha: Any, out: Tensor | None, kind: dtype | None = None
) -> Tensor:
    """Return beta * input + alpha * (a @ b) of matrices or batches, with `input` broadcast to the product.

    Args:
        kind: Dtype of the result; None for that of the operands.
    """
    left, right = a.meta.shape, b.meta.shape
    if left[-1] != right[-2]:
        raise RuntimeError(ops.mismatch(a.meta, b.meta))
    if input.meta.shape != right[-1:]:
        _check_expands(input, (*left[:-1], right[-1]))
    args = (input, a, b, *_numbers(beta, alpha, input, (*left[:-1], right[-1]), left[-1]))
    if kind is not None:
        return out_dtype_matmul.add_product(
            "addmm" if a.ndim == 2 else "baddbmm", input, a, b, args[3:], kind, out
        )
    return _run_added(args, out)


def _run_added(args: tuple[Any, ...], out: Tensor | None) -> Tensor:
    """Run the operator, whose factors are real; complex factors are applied by separate operators."""
    input, a, b, beta, alpha = args
    if not (isinstance(beta, complex) or isinstance(alpha, complex)):
        return run(ops.addmm, args, (), out)
    product = functions["matmul"](a, b) * alpha
    result = product + input * beta if beta != 0 else product  # at 0 the input is not read
    if out is not None:
        require_dtype(result.dtype, out)
    found: Tensor = deliver(result, out)
    return found


@both
@signatures("""
addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number=, alpha: Number=)
addmm(input: Tensor, mat1: Tensor, mat2: Tensor, out_dtype: dtype, *, beta: Number=, alpha: Number=)
Tensor.addmm(mat1: Tensor, mat2: Tensor, *, beta: Number=, alpha: Number=)
""")
def addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, out_dtype: dtype | None = None, *, beta: Number = 1,
    alpha: Number = 1, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return beta * input + alpha * (mat1 @ mat2). With beta 0, `input` is not read. `out_dtype` as in `mm`."""
    for name, mat in (("mat1", mat1), ("mat2", mat2)):
        if mat.meta.ndim != 2:
            raise RuntimeError(f"{name} must be a matrix, got {mat.ndim}-D tensor")
    return _add_product(input, mat1, mat2, beta, alpha, out, out_dtype)


def _check_added_batches(input: Tensor, batch1: Tensor, batch2: Tensor, kind: dtype | None = None) -> None:
    """Raise PyTorch's error for operands of `baddbmm`, in its order."""
    _check_expands(input, (batch1.size(0), batch1.size(1), batch2.size(2)))
    if kind is None and not autocast.threads:
        ops.check_added(input.meta, batch1.meta, batch2.meta)
    _check_batches(batch1, batch2)


@both
@signatures("""
baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number=, alpha: Number=)
baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, out_dtype: dtype, *, beta: Number=, alpha: Number=)
Tensor.baddbmm(batch1: Tensor, batch2: Tensor, *, beta: Number=, alpha: Number=)
""")
def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, out_dtype: dtype | None = None, *, beta: Number = 1,
    alpha: Number = 1, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return beta * input + alpha * (batch1 @ batch2) of batches of matrices. `out_dtype` as in `mm`."""
    _check_added_batches(input, batch1, batch2, out_dtype)
    return _add_product(input, batch1, batch2, beta, alpha, out, out_dtype)


@both
@signatures("addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number=, alpha: Number=)")
def addbmm(
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
    out: Tensor | None = None,
) -> Tensor:
    """Return beta * input + alpha * the sum over the batch of batch1 @ batch2."""
    batch1.size(1), batch2.size(2)
    _check_batches(batch1, batch2)
    count, rows, depth = batch1.meta.shape
    wide = batch1.permute(1, 0, 2).reshape(rows, count * depth)
    return _add_product(input, wide, batch2.reshape(count * depth, batch2.meta.shape[2]), beta, alpha, out)


@both
@signatures("addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: Number=, alpha: Number=)")
def addmv(
    input: Tensor, mat: Tensor, vec: Tensor, *, beta: Number = 1, alpha: Number = 1, out: Tensor | None = None
) -> Tensor:
    """Return beta * input + alpha * (mat @ vec)."""
    if autocast.threads:
        return autocast.call_cast(AS_IS_ON_CPU, _addmv, (input, mat, vec), beta, alpha, out)
    return _addmv(input, mat, vec, beta, alpha, out)


def _addmv(input: Tensor, mat: Tensor, vec: Tensor, beta: Any, alpha: Any, out: Tensor | None) -> Tensor:
    if mat.ndim != 2 or vec.ndim != 1 or input.ndim > 1:
        raise RuntimeError(f"vector + matrix @ vector expected, got {input.ndim}, {mat.ndim}, {vec.ndim}")
    (rows, columns), size = mat.meta.shape, vec.numel()
    if columns != size or (input.ndim == 1 and input.numel() not in (1, rows)):
        raise RuntimeError(
            f"size mismatch, got input ({input.numel()}), mat ({rows}x{columns}), vec ({size})"
        )
    if not input.dtype is mat.dtype is vec.dtype:
        names = [t.dtype.torch_name for t in (input, mat, vec)]
        raise RuntimeError(
            f"addmv input tensors must have the same dtype, but got {names[0]}, {names[1]}, and {names[2]}"
        )
    return _run_added((input, mat, vec, *_numbers(beta, alpha, input, (rows,), columns)), out)


@both
@signatures("addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Number=, alpha: Number=)")
def addr(
    input: Tensor,
    vec1: Tensor,
    vec2: Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
    out: Tensor | None = None,
) -> Tensor:
    """Return beta * input + alpha * outer(vec1, vec2)."""
    if autocast.threads:
        return autocast.call_cast(LOWER_ON_CUDA, _addr, (input, vec1, vec2), beta, alpha, out)
    return _addr(input, vec1, vec2, beta, alpha, out)


def _addr(input: Tensor, vec1: Tensor, vec2: Tensor, beta: Any, alpha: Any, out: Tensor | None) -> Tensor:
    for name, vector in (("vec1", vec1), ("vec2", vec2)):
        if vector.ndim != 1:
            raise RuntimeError(f"addr: Expected 1-D argument {name}, but got {vector.ndim}-D")
    left, right = vec1.unsqueeze(1), vec2.unsqueeze(0)
    _check_expands(input, (left.meta.shape[0], right.meta.shape[1]))
    kind = promote_types(input.dtype, promote_types(vec1.dtype, vec2.dtype))
    beta, alpha = _factor("beta", beta, kind), _factor("alpha", alpha, kind)
    if kind is bool_:
        scaled = functions["bitwise_and"](left & right, bool(alpha))
        result = functions["bitwise_or"](scaled, functions["bitwise_and"](input, bool(beta)))
    elif beta == 0:  # the input is not read: its NaNs do not spread
        result = (functions["mul"](left, right) * alpha).to(kind)
    else:
        result = functions["addcmul"](input if beta == 1 else input * beta, left, right, value=alpha)
    found: Tensor = deliver(result, out)
    return found


def _factor(name: str, x: Any, kind: dtype) -> Any:
    """Return a factor of `addr`, converted as PyTorch converts it for results of this dtype."""
    x = x.item() if isinstance(x, Tensor) else x
    if kind.category < FLOATING and isinstance(x, float | complex):
        raise RuntimeError(
            f"For integral input tensors, argument {name} must not be a floating point number."
        )
    if isinstance(x, bool) and kind is not bool_:
        raise RuntimeError(f"Boolean {name} only supported for Boolean results.")
    return x


def _in_place(define: Any, first: str, second: str, bind: Callable[[Any], Any] = method) -> None:
    """Bind `Tensor.<name>_`, whose two operands PyTorch calls `first` and `second`."""

    def inner(self: Tensor, a: Tensor, b: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
        if define is addr and self.meta.ndim != 2:
            raise RuntimeError(f"2D tensor expected, got {self.meta.ndim}D tensor for input")
        if define is baddbmm and b.dtype is not self.dtype:
            _check_added_batches(self, a, b)
            raise RuntimeError(
                f"Bad in-place call: input tensor dtype {ops.c_name(self.dtype)} and output tensor dtype "
                f"{ops.c_name(b.dtype)} should match"
            )
        result = define(self, a, b, beta=beta, alpha=alpha)
        if result.meta.shape != self.meta.shape:
            raise RuntimeError(
                f"Bad in-place call: input tensor size {list(self.meta.shape)} and output tensor size "
                f"{list(result.meta.shape)} should match"
            )
        return self.copy_(result)

    inner.__name__ = name = define.__name__ + "_"
    inner.__doc__ = f"`{define.__name__}` in place."
    operands = f"{first}: Tensor, {second}: Tensor"
    signatures(
        f"Tensor.{name}({operands}, *, beta: Number=, alpha: Number=)",
        shown=f"Tensor.{name}({operands}, *, beta: Number=1, alpha: Number=1)",
    )
    accepts(name, **{first: "a", second: "b"})
    bind(inner)


_in_place(addmm, "mat1", "mat2")
_in_place(baddbmm, "batch1", "batch2")
_in_place(addbmm, "batch1", "batch2")
_in_place(addr, "vec1", "vec2")
signatures("addmv_(input: Tensor, mat: Tensor, vec: Tensor, *, beta: Number=, alpha: Number=)")
_in_place(addmv, "mat", "vec", method_and_function)


# -- contractions ---------------------------------------------------------------------------------------


@function
def tensordot(a: Tensor, b: Tensor, dims: Any = 2, out: Tensor | None = None) -> Tensor:
    """Return the product summed over pairs of dimensions: the last `dims` of `a` with the first of `b`, or lists."""
    if autocast.threads:
        return autocast.call_cast(WIDEST_ON_CUDA, _tensordot, (a, b), dims, out)
    return _tensordot(a, b, dims, out)


def _tensordot(a: Tensor, b: Tensor, dims: Any, out: Tensor | None) -> Tensor:
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        if dims < 0:
            raise RuntimeError(f"tensordot expects dims >= 0, but got dims={dims}")
        if dims > min(a.ndim, b.ndim):
            raise RuntimeError(f"tensordot expects dims < ndim_a or ndim_b, but got dims={dims}")
        left, right = list(range(-dims, 0)), list(range(dims))
    else:
        if not isinstance(dims, (tuple, list)):
            raise RuntimeError(
                "tensordot expects dims to be int or tuple[list[int], list[int]] or list[list[int]] containing two "
                f"lists, but got dims={brief(dims)}"
            )
        left, right = dims
        if not (isinstance(left, Sequence) and isinstance(right, Sequence)):
            wrong = right if isinstance(left, Sequence) else left
            raise TypeError(f"tensordot(): argument 'dims' must be tuple of ints, not {type_name(wrong)}")
    if len(left) != len(right):
        raise RuntimeError("both dimension lists should have same length")
    for i, j in zip(left, right, strict=True):
        n, m = a.meta.shape[wrap_dim(i, a.ndim)], b.meta.shape[wrap_dim(j, b.ndim)]
        if n == 1 != m:  # as if expanded
            b = b.sum(j, keepdim=True, dtype=b.dtype)
        elif m == 1 != n:
            a = a.sum(i, keepdim=True, dtype=a.dtype)
        elif n != m:
            raise RuntimeError(
                f"contracted dimensions need to match, but first has size {n} in dim {i} and second has "
                f"size {m} "
                f"in dim {j}"
            )
    result = _contract(a, b, [d % a.ndim for d in left], [d % b.ndim for d in right])
    if out is not None and out.dtype is not result.dtype:
        raise RuntimeError(
            f"tensordot: Expected the output tensor to have dtype {result.dtype.torch_name}, but got an output tensor "
            f"with dtype {out.dtype.torch_name}"
        )
    found: Tensor = deliver(result, out)
    return found


def _contract(a: Tensor, b: Tensor, left: Sequence[int], right: Sequence[int]) -> Tensor:
    """Return one matrix product over the paired dimensions."""
    kept_a = [d for d in range(a.ndim) if d not in left]
    kept_b = [d for d in range(b.ndim) if d not in right]
    shape = [a.meta.shape[d] for d in kept_a] + [b.meta.shape[d] for d in kept_b]
    depth = math.prod(a.meta.shape[d] for d in left)
    rows = math.prod(a.meta.shape[d] for d in kept_a)
    columns = math.prod(b.meta.shape[d] for d in kept_b)
    flat_a = a.permute([*kept_a, *left]).reshape(rows, depth)
    flat_b = b.permute([*right, *kept_b]).reshape(depth, columns)
    return mm(flat_a, flat_b).reshape(shape)


@both
def kron(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the Kronecker product: a block matrix of each element of `input` times `other`."""
    ndim = max(input.ndim, other.ndim)
    a = (1,) * (ndim - input.ndim) + input.meta.shape
    b = (1,) * (ndim - other.ndim) + other.meta.shape
    left = input.reshape([n for size in a for n in (size, 1)])
    right = other.reshape([n for size in b for n in (1, size)])
    result = functions["mul"](left, right).reshape([n * m for n, m in zip(a, b, strict=True)])
    found: Tensor = deliver(result, out)
    return found


@function
def chain_matmul(*matrices: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the product of several matrices, in the order of fewest operations."""
    warn_program(
        "torch.chain_matmul is deprecated and will be removed in a future PyTorch release. Use torch.linalg.multi_dot "
        "instead, which accepts a list of two or more tensors rather than multiple parameters.",
        UserWarning,
    )
    if not matrices:
        raise RuntimeError("chain_matmul(): Expected one or more matrices")
    for matrix in matrices:
        if matrix.ndim != 2:
            raise RuntimeError(f"Tensor dimension is {matrix.ndim}, expected 2 instead.")
    result = multiply_chain(matrices)
    if len(matrices) == 1:
        return result
    return deliver_chain(result, out)


def deliver_chain(result: Tensor, out: Tensor | None) -> Tensor:
    """Return the product of a chain, stored in `out` if it is not None.

    Raises:
        RuntimeError: If the dtype of `out` is not the result's.
    """
    if out is not None and out.dtype is not result.dtype:
        raise RuntimeError(
            f"multi_dot(): expected out tensor to have dtype {ops.c_name(result.dtype)} but got {ops.c_name(out.dtype)}"
        )
    found: Tensor = deliver(result, out)
    return found


def multiply_chain(matrices: Sequence[Tensor]) -> Tensor:
    """Return the product of matrices with matching sizes, multiplied in the order of fewest operations."""
    sizes = [m.meta.shape[0] for m in matrices] + [matrices[-1].meta.shape[1]]
    cuts = _cheapest_cuts(sizes)

    def product(i: int, j: int) -> Tensor:
        if i == j:
            return matrices[i]
        cut = cuts[i, j]
        return mm(product(i, cut), product(cut + 1, j))

    return product(0, len(matrices) - 1)


def _cheapest_cuts(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return the best split of each run of a chain of matrices, by dynamic programming."""
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    cuts: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            cost[i, j], cuts[i, j] = min(
                (cost[i, cut] + cost[cut + 1, j] + sizes[i] * sizes[cut + 1] * sizes[j + 1], cut)
                for cut in range(i, j)
            )
    return cuts


# -- einsum ---------------------------------------------------------------------------------------------


@function
@signatures(shown="einsum(equation: str, *operands: Any)")
def einsum(*args: Any) -> Tensor:
    """Return the sum of products that subscripts describe: `einsum("ij,jk->ik", a, b)`.

    Raises:
        RuntimeError: If subscripts do not match the operands.
    """
    equation, operands = _einsum_arguments(args)
    if autocast.threads:
        operands = list(autocast.cast(LOWER_ON_CUDA, *operands))
    inputs, output = _parse_equation(equation, operands)
    _check_sizes(inputs, operands)
    terms = [_diagonal(t, labels) for t, labels in zip(operands, inputs, strict=True)]
    result, labels = terms[0]
    if len(terms) == 1:
        return _alone(result, labels, output)
    result, labels = _summed_out(result, labels, set(output).union(*[set(later) for _, later in terms[1:]]))
    for at, (other, others) in enumerate(terms[1:], 2):
        needed = set(output).union(*[set(later) for _, later in terms[at:]])
        result, labels = _multiply_pair(result, labels, other, others, needed)
    return result.permute([labels.index(x) for x in output])


Labels = list[str]


def _alone(t: Tensor, labels: Labels, output: Labels) -> Tensor:
    """Return a single operand with dimensions summed and permuted. Sums of integers are int64, as in `sum`."""
    alone = [at for at, x in enumerate(labels) if x not in output]
    kept = [x for x in labels if x in output]
    return (t.sum(alone) if alone else t).permute([kept.index(x) for x in output])


def _einsum_arguments(args: tuple[Any, ...]) -> tuple[str, list[Tensor]]:
    if len(args) < 2:
        raise ValueError(
            "einsum(): must specify the equation string and at least one operand, or at least one "
            "operand and its subscripts list"
        )
    if isinstance(args[0], str):
        operands = args[1:]
        if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
            operands = tuple(operands[0])
        for at, each in enumerate(operands):
            if not isinstance(each, Tensor):
                raise TypeError(f"expected Tensor as element {at} in argument 1, but got {type_name(each)}")
        return args[0], list(operands)
    if not isinstance(args[0], Tensor):
        raise TypeError(argument_type("einsum", "equation", 1, "str", args[0]))
    equation = ",".join(_letters(subscripts) for subscripts in args[1::2][: len(args) // 2])
    if len(args) % 2:
        equation += "->" + _letters(args[-1])
    return equation, list(args[: len(args) // 2 * 2 : 2])


def _letters(subscripts: Sequence[Any]) -> str:
    """Return a list of ints below 52 (and Ellipsis) as letters."""
    letters = ""
    for s in subscripts:
        if s is not Ellipsis and not 0 <= s < 52:
            raise ValueError("einsum(): expected subscripts to be in the range [0, 52)")
        letters += "..." if s is Ellipsis else chr(ord("A") + s) if s < 26 else chr(ord("a") + s - 26)
    return letters


def _parse_equation(equation: str, operands: Sequence[Tensor]) -> tuple[list[Labels], Labels]:
    """Return the labels of the dimensions of each operand and of the result. An ellipsis becomes '.0', '.1', ..."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not operands:
        raise RuntimeError("einsum(): must provide at least one operand")
    if len(terms) != len(operands):
        which = "more" if len(operands) > len(terms) else "fewer"
        raise RuntimeError(f"einsum(): {which} operands were provided than specified in the equation")
    _check_subscripts(equation)
    inputs = [_labels(term, at, t) for at, (term, t) in enumerate(zip(terms, operands, strict=True))]
    hidden = sorted({x for labels in inputs for x in labels if x[0] == "."}, key=lambda x: -int(x[1:]))
    if not arrow:
        every = [x for labels in inputs for x in labels if x[0] != "."]
        return inputs, hidden + sorted(x for x in set(every) if every.count(x) == 1)
    return inputs, _output_labels(right, hidden, inputs)


def _labels(term: str, at: int, t: Tensor) -> Labels:
    before, dots, after = term.partition("...")
    named = len(before) + len(after)
    if (not dots and named != t.ndim) or named > t.ndim:
        raise RuntimeError(
            f"einsum(): the number of subscripts in the equation ({named}) "
            + (
                f"does not match the number of dimensions ({t.ndim}) for operand {at} and no ellipsis was "
                "given"
                if not dots
                else f"is more than the number of dimensions ({t.ndim}) for operand {at}"
            )
        )
    hidden = t.ndim - named
    return [
        *before,
        *[f".{i}" for i in reversed(range(hidden))],
        *after,
    ]  # counted from the last: they broadcast


def _check_subscripts(equation: str) -> None:
    """Check that an equation names dimensions by letters and at most one ellipsis for each operand and the output."""
    operand, place, seen = 0, "operand 0", False
    for found in re.finditer(r"->|\.\.\.|\S", equation):
        token, output = found[0], place == "output"
        if token == "," and not output:
            operand, place, seen = operand + 1, f"operand {operand + 1}", False
        elif token == "->" and not output:
            place, seen = "output", False
        elif token == "..." and not seen:
            seen = True
        elif token[0] == ".":
            _refuse_dot(output, place, seen)
        elif not (token.isascii() and token.isalpha()):
            raise RuntimeError(
                f"einsum(): invalid subscript given at index {found.start()} in the equation string, subscripts must "
                "be in [a-zA-Z]"
            )


def _refuse_dot(output: bool, place: str, seen: bool) -> None:
    if seen:
        why = (
            "but an ellipsis (...) was already found" if output else "for which an ellipsis was already found"
        )
    else:
        why = "that is not part of any ellipsis" + " (...)" * output
    raise RuntimeError(f"einsum(): found '.' for {place} {why}")


def _output_labels(term: str, hidden: Labels, inputs: list[Labels]) -> Labels:
    before, dots, after = term.partition("...")
    known = {x for labels in inputs for x in labels}
    named = before + after
    for x in named:
        if named.count(x) > 1:
            raise RuntimeError(f"einsum(): output subscript {x} appears more than once in the output")
        if x not in known:
            raise RuntimeError(
                f"einsum(): output subscript {x} does not appear in the equation for any input operand"
            )
    return [*before, *(hidden if dots else ()), *after]


def _check_sizes(inputs: list[Labels], operands: Sequence[Tensor]) -> None:
    seen: dict[str, int] = {}
    for at, (labels, t) in enumerate(zip(inputs, operands, strict=True)):
        for x, size in zip(labels, t.meta.shape, strict=True):
            known = seen.get(x, 1)
            if size != 1 and known not in (1, size):
                raise RuntimeError(
                    f"einsum(): subscript {x} has size {size} for operand {at} which does not broadcast with "
                    f"previously seen size {known}"
                )
            seen[x] = size if known == 1 else known


def _diagonal(t: Tensor, labels: Labels) -> tuple[Tensor, Labels]:
    """Replace repeated labels by the diagonal of their dimensions."""
    for x in sorted(set(labels)):
        while labels.count(x) > 1:
            first = labels.index(x)
            second = labels.index(x, first + 1)
            if t.meta.shape[first] != t.meta.shape[second]:
                raise RuntimeError(
                    f"einsum(): subscript {x} is repeated for one operand but the sizes don't match, "
                    f"{t.meta.shape[second]} != {t.meta.shape[first]}"
                )
            t = t.diagonal(0, first, second)
            labels = [y for at, y in enumerate(labels) if at not in (first, second)] + [x]
    return t, labels


def _summed_out(t: Tensor, labels: Labels, needed: set[str]) -> tuple[Tensor, Labels]:
    """Sum over the dimensions that neither another operand nor the output has."""
    alone = [at for at, x in enumerate(labels) if x not in needed]
    if alone:
        t = t.sum(alone, dtype=t.dtype)
    return t, [x for x in labels if x in needed]


def _multiply_pair(
    a: Tensor, left: Labels, b: Tensor, right: Labels, needed: set[str]
) -> tuple[Tensor, Labels]:
    """Return the product of two operands as one batched matrix product, with the labels in `needed`."""
    for x in set(left) & set(right):  # a size of 1 broadcasts against another size, so drop the label
        n, m = a.meta.shape[left.index(x)], b.meta.shape[right.index(x)]
        if n != m and n == 1:
            a, left = a.squeeze(left.index(x)), [y for y in left if y != x]
        elif n != m:
            b, right = b.squeeze(right.index(x)), [y for y in right if y != x]
    a, left = _summed_out(a, left, needed | set(right))
    b, right = _summed_out(b, right, needed | set(left))
    batch = [x for x in left if x in right and x in needed]
    depth = [x for x in left if x in right and x not in needed]
    rows, columns = [x for x in left if x not in right], [x for x in right if x not in left]
    sizes = dict(zip(left, a.meta.shape, strict=True)) | dict(zip(right, b.meta.shape, strict=True))

    def flat(t: Tensor, labels: Labels, *groups: Labels) -> Any:
        ordered = t.permute([labels.index(x) for group in groups for x in group])
        return ordered.reshape([math.prod(sizes[x] for x in group) for group in groups])

    multiply = bmm if depth else functions["mul"]
    product = multiply(flat(a, left, batch, rows, depth), flat(b, right, batch, depth, columns))
    kept = [*batch, *rows, *columns]
    return product.reshape([sizes[x] for x in kept]), kept
