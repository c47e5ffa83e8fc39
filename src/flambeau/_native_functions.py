"""Functions of torch's namespace that PyTorch does not document and that libraries call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import flambeau as torch
from flambeau.core.callsite import warn_program
from flambeau.core.layout import wrap_dim
from flambeau.tensor.arguments.arg_aliases import accepting
from flambeau.tensor.arguments.arg_errors import IntOrTuple, IntTuple
from flambeau.tensor.arguments.torch_function import announce
from flambeau.tensor.signatures import signatures
from flambeau.tensor.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])

_INTERPOLATIONS, _PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


def _by_parser(define: F) -> F:
    """Return a function that refuses arguments of other types than its annotations say, as PyTorch's parser does."""
    checked: F = accepting(define, define.__name__)
    return checked


@_by_parser
def _shape_as_tensor(input: Tensor) -> Tensor:
    """Return the shape of a tensor as an int64 tensor on the CPU."""
    return torch.tensor(input.shape, dtype=torch.int64)


@_by_parser
def _softmax_backward_data(grad_output: Tensor, output: Tensor, dim: int, input_dtype: Any) -> Tensor:
    """Return the gradient of the input of a softmax along `dim`.

    Args:
        grad_output: The gradient of the result.
        output: The result.
        dim: The dimension.
        input_dtype: The dtype of the gradient that is returned.
    """
    weighted = grad_output * output
    return (weighted - output * weighted.sum(dim, keepdim=True)).to(input_dtype)


@_by_parser
def affine_grid_generator(theta: Tensor, size: IntTuple, align_corners: bool) -> Tensor:
    """Call `torch.nn.functional.affine_grid`."""
    return torch.nn.functional.affine_grid(theta, list(size), align_corners)


@_by_parser
def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """Call `torch.nn.functional.grid_sample`, with modes by their numbers.

    Args:
        input: The images or volumes.
        grid: The places to sample.
        interpolation_mode: 0 is bilinear, 1 nearest, 2 bicubic.
        padding_mode: 0 is zeros, 1 border, 2 reflection.
        align_corners: As for `grid_sample`.

    Raises:
        RuntimeError: If a mode has no such number.
    """
    if interpolation_mode not in range(3) or padding_mode not in range(3):
        raise RuntimeError(
            f"grid_sampler(): modes are 0, 1 or 2, got interpolation_mode={interpolation_mode} and "
            f"padding_mode={padding_mode}"
        )
    names = _INTERPOLATIONS[interpolation_mode], _PADDINGS[padding_mode]
    return torch.nn.functional.grid_sample(input, grid, *names, align_corners)


@_by_parser
@signatures("fill(input: Tensor, value: Tensor)\nfill(input: Tensor, value: Number)")
def fill(input: Tensor, value: Any) -> Tensor:
    """Return a tensor like `input` in which each element is `value`."""
    return input.clone().fill_(value)


@_by_parser
def is_signed(input: Tensor) -> bool:
    """Return True if the dtype of a tensor has negative numbers."""
    return input.is_signed()


@_by_parser
def frobenius_norm(
    input: Tensor, dim: IntOrTuple, keepdim: bool = False, *, out: Tensor | None = None
) -> Tensor:
    """Return the square root of the sum of squares along at most two dimensions.

    Raises:
        RuntimeError: If there are more dimensions.
    """
    if isinstance(dim, Sequence) and len(dim) > 2:
        raise RuntimeError(f"Expected at most 2 dimensions, but got {len(dim)} dimensions instead.")
    _warn_deprecated("frobenius_norm", "linalg.vector_norm(A, 2., dim, keepdim)")
    return torch.linalg.vector_norm(input, 2, dim, keepdim, out=out)


@_by_parser
@signatures(
    "nuclear_norm(input: Tensor, dim: IntOrTuple, keepdim: bool=)\nnuclear_norm(input: Tensor, keepdim: bool=)"
)
def nuclear_norm(
    input: Tensor, dim: Any = (-2, -1), keepdim: bool = False, *, out: Tensor | None = None
) -> Tensor:
    """Return the sum of the singular values of matrices.

    Args:
        input: The matrices.
        dim: Their two dimensions. A bool is `keepdim`, as in PyTorch.
        keepdim: Keep the two dimensions, with size 1.
        out: The tensor that receives the result.
    """
    if isinstance(dim, bool):
        dim, keepdim = (-2, -1), dim
    elif isinstance(dim, int):
        dim = (dim, dim)  # as PyTorch's parser reads it
    _warn_deprecated("nuclear_norm", "linalg.matrix_norm(A, 'nuc', dim, keepdim)")
    return torch.linalg.matrix_norm(input, "nuc", tuple(dim), keepdim, out=out)


def _warn_deprecated(name: str, instead: str) -> None:
    warn_program(
        f"at::{name} is deprecated and it is just left for JIT compatibility. It will be removed in a future PyTorch "
        f"release. Please use `{instead}` instead",
        UserWarning,
    )


@_by_parser
def norm_except_dim(v: Tensor, pow: int = 2, dim: int = 0) -> Tensor:
    """Return the norm of each slice of `v` along `dim`, with all other dimensions of size 1.

    Args:
        v: The tensor.
        pow: The exponent of the norm.
        dim: The dimension; -1 gives the norm of the whole tensor.

    Raises:
        IndexError: If the tensor does not have the dimension.
        RuntimeError: If the tensor has no slice along `dim`.
    """
    if dim == -1:
        _require_floating(v)
        return v.norm(pow)
    if not v.dim():
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    d = wrap_dim(dim, v.dim())
    if not v.size(d):
        last = 0 < d == v.dim() - 1
        v.reshape((-1, 0) if last else (0, -1))  # raises PyTorch's error
    others = [i for i in range(v.dim()) if i != d]
    _require_floating(v)
    return torch.linalg.vector_norm(v, pow, others, keepdim=True) if others else v.abs()


def _require_floating(v: Tensor) -> None:
    if not (v.is_floating_point() or v.is_complex()):
        kind = v.dtype.torch_name
        raise RuntimeError(
            f"norm(): input dtype should be either floating point or complex. Got {kind} instead."
        )


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()
) -> Any:
    """Return `true_fn(*operands)` if `pred` is true, else `false_fn(*operands)`.

    The host waits for a predicate on a GPU, because Flambeau runs programs eagerly.

    Args:
        pred: A bool, or a tensor of one element.
        true_fn: The function for True.
        false_fn: The function for False.
        operands: The arguments.

    Raises:
        RuntimeError: If the predicate is neither, a branch is not callable, or the operands are not in a sequence.
    """
    if not isinstance(pred, bool | Tensor) or (isinstance(pred, Tensor) and pred.numel() != 1):
        raise RuntimeError(f"Expected pred to be bool or single-element tensor, but got {pred}.")
    if not callable(true_fn) or not callable(false_fn):
        raise RuntimeError("Expect both branches to be callable.")
    if not isinstance(operands, tuple | list):
        raise RuntimeError(f"Expect operands to be a tuple of tensors, but got {operands}.")
    return (true_fn if bool(pred) else false_fn)(*operands)


def while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Sequence[Any]
) -> tuple[Any, ...]:
    """Run `carried_inputs = body_fn(*carried_inputs)` as long as `cond_fn(*carried_inputs)` is true.

    Args:
        cond_fn: Returns a bool, or a tensor of one bool.
        body_fn: Returns as many values as it takes.
        carried_inputs: The first values, in a tuple or list.

    Returns:
        The last values, in a tuple.

    Raises:
        RuntimeError: If an argument is of another kind, or `body_fn` returns another number of values.
    """
    if not callable(cond_fn) or not callable(body_fn):
        raise RuntimeError("Expect cond_fn and body_fn to be callable.")
    if not isinstance(carried_inputs, tuple | list):
        raise RuntimeError(f"Expect carried_inputs to be a tuple, but got {type(carried_inputs)}")
    values = tuple(carried_inputs)
    while bool(cond_fn(*values)):
        found = body_fn(*values)
        found = tuple(found) if isinstance(found, tuple | list) else (found,)
        if len(found) != len(values):
            raise RuntimeError(
                f"body_fn should return {len(values)} values, as it takes, but got {len(found)}"
            )
        values = found
    return values


@_by_parser
def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Return `input` with elements set to 0 at random and the others divided by 1 - p, and the mask of those kept.

    Args:
        input: The elements.
        p: The probability of 0.
        train: False returns a copy of `input`.
    """
    if train is False or not input.numel():
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    mask = torch.rand_like(input) < 1.0 - p
    return input * mask * (0.0 if p == 1.0 else 1.0 / (1.0 - p)), mask


# -- operators of torch.ops.aten by their own names ---------------------------------------------------------


@_by_parser
def convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: IntTuple, padding: IntTuple, dilation: IntTuple,
    transposed: bool, output_padding: IntTuple, groups: int,
) -> Tensor:  # fmt: skip
    """Call `torch.ops.aten.convolution`."""
    return torch.ops.aten.convolution(
        input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )


@_by_parser
def grid_sampler_2d(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """Call `torch.ops.aten.grid_sampler_2d`."""
    return torch.ops.aten.grid_sampler_2d(input, grid, interpolation_mode, padding_mode, align_corners)


@_by_parser
def grid_sampler_3d(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """Call `torch.ops.aten.grid_sampler_3d`."""
    return torch.ops.aten.grid_sampler_3d(input, grid, interpolation_mode, padding_mode, align_corners)


@_by_parser
def native_batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, training: bool, momentum: float, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Call `torch.ops.aten.native_batch_norm`."""
    return torch.ops.aten.native_batch_norm(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )


@_by_parser
def native_group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int,  # noqa: N803
    group: int, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Call `torch.ops.aten.native_group_norm`."""
    return torch.ops.aten.native_group_norm(input, weight, bias, N, C, HxW, group, eps)


@_by_parser
def native_layer_norm(
    input: Tensor, normalized_shape: IntTuple, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, ...]:
    """Call `torch.ops.aten.native_layer_norm`."""
    return torch.ops.aten.native_layer_norm(input, normalized_shape, weight, bias, eps)


announce({
    define.__name__: define
    for define in (
        affine_grid_generator, convolution, fill, frobenius_norm, grid_sampler, grid_sampler_2d, grid_sampler_3d,
        is_signed, native_batch_norm, native_dropout, native_group_norm, native_layer_norm, norm_except_dim,
        nuclear_norm,
    )
})  # fmt: skip
