"""View operators: operators that access the same memory with another layout. They have an inference rule and no kernel.

A rule is called with a meta and static params; it returns the layout of the view or raises PyTorch's error.
`tensor/autograd/autograd_meta.py` runs them. A derivative is called with the gradient of the view, the meta of the
base, a function that runs views, and the params. It is plain tensor code, which is recorded if a second derivative is
needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from flambeau.core import dtype as dtypes
from flambeau.core.dtype import dtype
from flambeau.core.frozen import Record
from flambeau.core.layout import Shape, Strides, contiguous_strides, may_self_overlap, view_strides, wrap_dim
from flambeau.core.meta import Meta


class Layout(NamedTuple):
    """The layout of a view. `offset` is in elements of the view's dtype, from the viewed tensor's first element."""

    shape: Shape
    strides: Strides
    offset: int = 0
    dtype: dtype | None = None


class View(Record):
    """One view operator.

    Attributes:
        name: PyTorch's name.
        rule: `rule(meta, *params) -> Layout`, a pure function.
        derivative: `derivative(grad, meta, run, *params)`, the gradient of the base; None if it has none.
        node: PyTorch's name of its node, like `Derivative.name`.
    """

    name: str
    rule: Callable[..., Layout]
    derivative: Callable[..., Any] | None
    node: str | Callable[..., str] | None = None


table: dict[str, View] = {}
"""Every view record by name; filled by `record` alone."""


def record(
    derivative: Callable[..., Any] | None, node: str | Callable[..., str] | None = None
) -> Callable[[Callable[..., Layout]], View]:
    """Return a decorator that turns an inference rule into the view operator of its name."""

    def define(rule: Callable[..., Layout]) -> View:
        name = rule.__name__.rstrip("_")
        if name in table:
            raise ValueError(f"view {name!r} is defined twice")
        return table.setdefault(name, View(name, rule, derivative, node))

    return define


def _reshape_gradient(grad: Any, meta: Meta, run: Any, *params: Any) -> Any:
    return grad.reshape(meta.shape)


def _derivative_by_placing(view: str) -> Callable[..., Any]:
    """Return the derivative of a view that selects elements: zeros, with the gradient at the selected elements."""

    def derivative(grad: Any, meta: Meta, run: Any, *params: Any) -> Any:
        whole = grad.new_zeros(meta.shape)
        run(table[view], whole, *params).copy_(grad)
        return whole

    return derivative


@record(lambda grad, meta, run: grad)
def alias(meta: Meta) -> Layout:
    return Layout(meta.shape, meta.strides)


# -- shapes -----------------------------------------------------------------------------------------------


def infer_shape(shape: Sequence[int], count: int) -> Shape:
    """Return `shape` with its -1 replaced so that it holds `count` elements. Raises RuntimeError if it cannot."""
    listed, has_gaps = list(shape), [i for i, n in enumerate(shape) if n == -1]
    if len(has_gaps) > 1:
        raise RuntimeError("only one dimension can be inferred")
    for i, n in enumerate(listed):
        if n < -1:
            raise RuntimeError(f"invalid shape dimension {n} at index {i} of shape {listed}")
    known = prod(n for n in listed if n != -1)
    if not has_gaps:
        fits = known == count
    elif known:
        fits = count % known == 0
    elif count == 0:
        raise RuntimeError(
            f"cannot reshape tensor of 0 elements into shape {listed} because the unspecified dimension "
            "size -1 can be any value and is ambiguous"
        )
    else:
        fits = False
    if not fits:
        raise RuntimeError(f"shape '{listed}' is invalid for input of size {count}")
    return tuple([count // known if n == -1 else n for n in listed])


@record(_reshape_gradient)
def view(meta: Meta, shape: Shape) -> Layout:
    new = infer_shape(shape, meta.numel)
    strides = view_strides(meta.shape, meta.strides, new)
    if strides is None:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one dimension spans "
            "across two contiguous subspaces). Use .reshape(...) instead."
        )
    return Layout(new, strides)


@record(_reshape_gradient)
def _unsafe_view(meta: Meta, shape: Shape) -> Layout:
    """Return the layout of a result that PyTorch does not treat as a view, because its base is inaccessible."""
    return Layout(shape, contiguous_strides(shape))


@record(None)
def view_dtype(meta: Meta, kind: dtype) -> Layout:
    """Return the layout of the bytes as another dtype. The last dimension shrinks or grows with the item size."""
    was, size = meta.itemsize, kind.itemsize
    if was == size:
        return Layout(meta.shape, meta.strides, 0, kind)
    about = f"to view {meta.dtype.torch_name} as {kind.torch_name} (different element sizes)"
    if meta.ndim == 0:
        raise RuntimeError(f"self.dim() cannot be 0 {about}")
    if meta.strides[-1] != 1:
        raise RuntimeError(f"self.stride(-1) must be 1 {about}, but got {meta.strides[-1]}")
    if size < was:
        ratio = was // size
        strides = tuple([s * ratio for s in meta.strides[:-1]])
        return Layout((*meta.shape[:-1], meta.shape[-1] * ratio), (*strides, 1), 0, kind)
    ratio = size // was
    if meta.shape[-1] % ratio:
        raise RuntimeError(f"self.size(-1) must be divisible by {ratio} {about}, but got {meta.shape[-1]}")
    for dim, stride in enumerate(meta.strides[:-1]):
        if stride % ratio:
            raise RuntimeError(f"self.stride({dim}) must be divisible by {ratio} {about}, but got {stride}")
    strides = tuple([s // ratio for s in meta.strides[:-1]])
    return Layout((*meta.shape[:-1], meta.shape[-1] // ratio), (*strides, 1), 0, kind)


def _sum_to_shape(grad: Any, meta: Meta, run: Any, target: Shape) -> Any:
    lead = grad.ndim - meta.ndim
    dims = [
        *range(lead),
        *[lead + i for i, n in enumerate(meta.shape) if n == 1 and grad.meta.shape[lead + i] != 1],
    ]
    return grad.sum(dims, True).reshape(meta.shape) if dims else grad.reshape(meta.shape)


@record(_sum_to_shape)
def expand(meta: Meta, target: Shape) -> Layout:
    lead = len(target) - meta.ndim
    if lead < 0:
        kind = f"torch.{'cuda.' if meta.device.type == 'cuda' else ''}{meta.dtype.torch_name}Tensor"
        raise RuntimeError(
            f"expand({kind}{{{list(meta.shape)}}}, size={list(target)}): the number of sizes provided ({len(target)}) "
            f"must be greater or equal to the number of dimensions in the tensor ({meta.ndim})"
        )
    shape, strides = [0] * len(target), [0] * len(target)
    for dim in reversed(range(len(target))):
        want = target[dim]
        if dim >= lead:
            have, stride = meta.shape[dim - lead], meta.strides[dim - lead]
        else:  # a new dimension of size 1, with the stride that it would have there
            have, stride = 1, (shape[dim + 1] * strides[dim + 1] if dim + 1 < len(target) else 0)
        if want == -1 and dim < lead:
            raise RuntimeError(
                "The expanded size of the tensor (-1) isn't allowed in a leading, non-existing dimension "
                f"{dim}"
            )
        if want not in (-1, have):
            if have != 1 or want < 0:
                raise RuntimeError(
                    f"The expanded size of the tensor ({want}) must match the existing size ({have}) at "
                    f"non-singleton dimension {dim}.  Target sizes: {list(target)}.  "
                    f"Tensor sizes: {list(meta.shape)}"
                )
            have, stride = want, 0
        shape[dim], strides[dim] = have, stride
    return Layout(tuple(shape), tuple(strides))


# -- dimensions -------------------------------------------------------------------------------------------


def _permuted_back(grad: Any, meta: Meta, run: Any, dims: tuple[int, ...]) -> Any:
    back = [0] * meta.ndim
    for i, dim in enumerate(dims):
        back[wrap_dim(dim, meta.ndim)] = i
    return grad.permute(back)


@record(_permuted_back)
def permute(meta: Meta, dims: tuple[int, ...]) -> Layout:
    if len(dims) != meta.ndim:
        raise RuntimeError(
            "permute(sparse_coo): number of dimensions in the tensor input does not match the length of the "
            f"desired ordering of dimensions i.e. input.dim() = {meta.ndim} is not equal to len(dims) = "
            f"{len(dims)}"
        )
    order: list[int] = []
    for dim in dims:
        d = wrap_dim(dim, meta.ndim)
        if d in order:
            raise RuntimeError("permute(): duplicate dims are not allowed.")
        order.append(d)
    return Layout(tuple([meta.shape[d] for d in order]), tuple([meta.strides[d] for d in order]))


@record(lambda grad, meta, run: grad.t())
def t(meta: Meta) -> Layout:
    return Layout(meta.shape[::-1], meta.strides[::-1])


@record(lambda grad, meta, run, dim0, dim1: grad.transpose(dim0, dim1))
def transpose(meta: Meta, dim0: int, dim1: int) -> Layout:
    a, b = wrap_dim(dim0, meta.ndim), wrap_dim(dim1, meta.ndim)
    shape, strides = list(meta.shape), list(meta.strides)
    if shape:
        shape[a], shape[b] = shape[b], shape[a]
        strides[a], strides[b] = strides[b], strides[a]
    return Layout(tuple(shape), tuple(strides))


def _node_name_of_squeeze(metas: Any, params: tuple[Any, ...]) -> str:
    dims = params[0]
    return f"SqueezeBackward{0 if dims is None else 1 if len(dims) == 1 else 2}"


@record(_reshape_gradient, _node_name_of_squeeze)
def squeeze(meta: Meta, dims: tuple[int, ...] | None) -> Layout:
    """Return the layout without the dimensions of size 1 among `dims`, or all of them."""
    chosen = set(range(meta.ndim)) if dims is None else set(distinct(dims, meta.ndim))
    kept = [d for d in range(meta.ndim) if not (d in chosen and meta.shape[d] == 1)]
    return Layout(tuple([meta.shape[d] for d in kept]), tuple([meta.strides[d] for d in kept]))


def distinct(dims: Sequence[int], ndim: int) -> list[int]:
    """Return dims as non-negative ints. Raises RuntimeError if a dim is repeated."""
    wrapped: list[int] = []
    for dim in dims:
        d = wrap_dim(dim, ndim)
        if d in wrapped:
            raise RuntimeError(f"dim {d} appears multiple times in the list of dims")
        wrapped.append(d)
    return wrapped


@record(lambda grad, meta, run, dim: grad.squeeze(dim))
def unsqueeze(meta: Meta, dim: int) -> Layout:
    d = wrap_dim(dim, meta.ndim + 1)
    stride = meta.shape[d] * meta.strides[d] if d < meta.ndim else 1
    return Layout((*meta.shape[:d], 1, *meta.shape[d:]), (*meta.strides[:d], stride, *meta.strides[d:]))


@record(_derivative_by_placing("diagonal"))
def diagonal(meta: Meta, offset: int, dim1: int, dim2: int) -> Layout:
    a, b = wrap_dim(dim1, meta.ndim), wrap_dim(dim2, meta.ndim)
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    down, right = max(-offset, 0), max(offset, 0)
    size = max(min(meta.shape[a] - down, meta.shape[b] - right), 0)
    start = down * meta.strides[a] + right * meta.strides[b] if size else 0
    kept = [d for d in range(meta.ndim) if d not in (a, b)]
    shape = (*[meta.shape[d] for d in kept], size)
    return Layout(shape, (*[meta.strides[d] for d in kept], meta.strides[a] + meta.strides[b]), start)


def _fold_gradient(grad: Any, meta: Meta, run: Any, dim: int, size: int, step: int) -> Any:
    whole = grad.new_zeros(meta.shape)
    if not meta.ndim:
        return grad.reshape(()) if size else whole
    if step >= size:
        run(unfold, whole, dim, size, step).copy_(grad)
        return whole
    d = wrap_dim(dim, meta.ndim)
    reach = (grad.meta.shape[d] - 1) * step + 1
    for i in range(size):  # windows overlap, so one position of all windows is processed together
        run(slice_, whole, d, i, i + reach, step).add_(grad.select(-1, i))
    return whole


@record(_fold_gradient)
def unfold(meta: Meta, dim: int, size: int, step: int) -> Layout:
    d = wrap_dim(dim, meta.ndim)
    length = meta.shape[d] if meta.ndim else 1
    if size < 0:
        raise RuntimeError(f"size is {size} but must be >= 0")
    if size > length:
        raise RuntimeError(f"maximum size for tensor at dimension {d} is {length} but size is {size}")
    if step <= 0:
        raise RuntimeError(f"step is {step} but must be > 0")
    if not meta.ndim:
        return Layout((size,), (1,))
    shape = (*meta.shape[:d], (length - size) // step + 1, *meta.shape[d + 1 :], size)
    strides = (*meta.strides[:d], meta.strides[d] * step, *meta.strides[d + 1 :], meta.strides[d])
    return Layout(shape, strides)


# -- parts ------------------------------------------------------------------------------------------------


@record(_derivative_by_placing("select"))
def select(meta: Meta, dim: int, index: int) -> Layout:
    if meta.ndim == 0:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    d = wrap_dim(dim, meta.ndim)
    size = meta.shape[d]
    if not -size <= index < size:
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(meta.shape)} at dimension {d}"
        )
    at = index + size if index < 0 else index
    strides = meta.strides[:d] + meta.strides[d + 1 :]
    return Layout(meta.shape[:d] + meta.shape[d + 1 :], strides, at * meta.strides[d])


@record(_derivative_by_placing("slice"))
def slice_(meta: Meta, dim: int, start: int, end: int, step: int) -> Layout:
    """Return every `step`-th index from `start` to `end`, which are clipped; negative ones count from the end."""
    if meta.ndim == 0:
        raise IndexError("slice() cannot be applied to a 0-dim tensor.")
    d = wrap_dim(dim, meta.ndim)
    if step <= 0:
        raise RuntimeError("slice step must be positive")
    size = meta.shape[d]
    start = min(max(start + size if start < 0 else start, 0), size)
    end = min(max(end + size if end < 0 else end, start), size)
    shape = (*meta.shape[:d], (end - start + step - 1) // step, *meta.shape[d + 1 :])
    strides = (*meta.strides[:d], meta.strides[d] * step, *meta.strides[d + 1 :])
    return Layout(shape, strides, start * meta.strides[d])


def _scatter_gradient(grad: Any, meta: Meta, run: Any, shape: Shape, strides: Strides, offset: int) -> Any:
    """Return the gradient of a view in which elements may share memory: gradients of the same element are added."""
    start = min(offset, 0)
    here = _places(meta.shape, meta.strides, -start)
    there = _places(shape, strides, offset - start)
    length = max(int(here.max(initial=-1)), int(there.max(initial=-1))) + 1
    flat = grad.new_zeros((length,))
    flat.index_add_(0, _index_like(flat, there), grad.reshape((-1,)))
    given = flat.index_select(0, _index_like(flat, here))
    # elements that share memory each get a part of its gradient
    if may_self_overlap(meta.shape, meta.strides):
        counts = np.bincount(here, minlength=length)[here]
        given = given / _index_like(flat, counts).to(given.dtype)
    return given.reshape(meta.shape)


def _places(shape: Shape, strides: Strides, offset: int) -> Any:
    places = np.array(offset, np.int64)
    for n, s in zip(shape, strides, strict=True):
        places = places[..., None] + np.arange(n, dtype=np.int64) * s
    return places.reshape(-1)


def _index_like(t: Any, values: Any) -> Any:
    return t.new_tensor(values, dtype=dtypes.int64)


@record(_scatter_gradient)
def as_strided(meta: Meta, shape: Shape, strides: Strides, offset: int) -> Layout:
    """Return a layout of any strides. `offset` is relative to the tensor's first element; callers check the bounds."""
    return Layout(shape, strides, offset)


# -- complex numbers --------------------------------------------------------------------------------------

PART = {dtypes.complex32: dtypes.float16, dtypes.complex64: dtypes.float32, dtypes.complex128: dtypes.float64}
WHOLE = {part: whole for whole, part in PART.items()}


@record(lambda grad, meta, run: grad.to(meta.dtype))
def real(meta: Meta) -> Layout:
    return Layout(meta.shape, tuple([2 * s for s in meta.strides]), 0, PART[meta.dtype])


@record(lambda grad, meta, run: grad.to(meta.dtype) * 1j)
def imag(meta: Meta) -> Layout:
    if not meta.dtype.is_complex:
        raise RuntimeError("imag is not implemented for tensors with non-complex dtypes.")
    return Layout(meta.shape, tuple([2 * s for s in meta.strides]), 1, PART[meta.dtype])


@record(lambda grad, meta, run: run(table["view_as_complex"], grad.contiguous()))
def view_as_real(meta: Meta) -> Layout:
    if not meta.dtype.is_complex:
        raise RuntimeError("view_as_real is only supported for complex tensors")
    return Layout((*meta.shape, 2), (*[2 * s for s in meta.strides], 1), 0, PART[meta.dtype])


@record(lambda grad, meta, run: run(view_as_real, grad))
def view_as_complex(meta: Meta) -> Layout:
    if meta.dtype not in WHOLE:
        raise RuntimeError(
            "view_as_complex is only supported for half, float and double tensors, but got a tensor of "
            f"scalar type: {meta.dtype.torch_name}"
        )
    if meta.ndim == 0:
        raise RuntimeError("Input tensor must have one or more dimensions")
    if meta.shape[-1] != 2:
        raise RuntimeError("Tensor must have a last dimension of size 2")
    if meta.strides[-1] != 1:
        raise RuntimeError("Tensor must have a last dimension with stride 1")
    if any(s % 2 for s in meta.strides[:-1]):
        raise RuntimeError("Tensor must have a stride divisible by 2 for all but last dimension")
    return Layout(meta.shape[:-1], tuple([s // 2 for s in meta.strides[:-1]]), 0, WHOLE[meta.dtype])


def apply(view: View, meta: Meta, params: tuple[Any, ...]) -> tuple[Meta, int]:
    """Return the view's meta, and the byte offset of its first element."""
    layout = view.rule(meta, *params)
    result = meta.with_(layout.shape, layout.strides, layout.dtype)
    return result, layout.offset * result.itemsize
