"""Helpers of derivative formulas. See Note [Derivatives]. Formulas see tensors as objects with PyTorch's methods."""

from __future__ import annotations

from typing import Any

from flambeau.core.layout import wrap_dim
from flambeau.core.meta import Meta
from flambeau.ops.op import Derivative


def conj(x: Any) -> Any:
    """Return the complex conjugate of a tensor or a Python scalar."""
    return x.conjugate() if isinstance(x, _NUMBERS) else x.conj()


_NUMBERS = (bool, int, float, complex)  # a tuple, because a union would be created again in each call


def zeros(grad: Any) -> Any:
    """Return the derivative formula of an operator that is constant almost everywhere."""
    return grad.new_zeros(grad.meta.shape)


CONSTANT = Derivative(zeros)
"""Of such an operator of one input: its gradient is zero."""


def laid(x: Any, like: Meta) -> Any:
    """Return `x` in the memory format of `like`, copied if necessary: see Note [Memory formats]."""
    if x.meta.channels_last == like.channels_last:
        return x
    return x.new_empty_strided(x.meta.shape, like.suggest(x.meta.shape).strides).copy_(x)


class Refusal(Derivative):
    """The derivative of an operator that PyTorch cannot differentiate either: backward raises."""

    __slots__ = ()


def refuse_derivative(name: str) -> Refusal:
    """Return a derivative that raises PyTorch's "not implemented" error for the operator."""

    def raises() -> Any:
        raise RuntimeError(f"derivative for aten::{name} is not implemented")

    return Refusal(whole=raises, name="torch::autograd::NotImplemented")


def restore_dims(x: Any, meta: Meta, dims: Any, keepdim: bool) -> Any:
    """Return a reduction's result, or its gradient, with the reduced dims restored as dims of size 1.

    Args:
        dims: The reduced dims: an int, or a tuple; None or () for all.
    """
    if keepdim or not meta.ndim:
        return x
    if dims is None or dims == ():
        return x.reshape((1,) * meta.ndim)
    listed = (dims,) if isinstance(dims, int) else dims
    for dim in sorted(wrap_dim(d, meta.ndim) for d in listed):
        x = x.unsqueeze(dim)
    return x


def count(meta: Meta, dims: Any) -> int:
    """Return the number of elements that each result of a reduction combines."""
    if dims is None or dims == ():
        return meta.numel
    total = 1
    for dim in (dims,) if isinstance(dims, int) else dims:
        total *= meta.shape[dim] if meta.ndim else 1
    return total


def by_place(grad: Any, places: Any, meta: Meta, dim: int) -> Any:
    """Return the gradient of a tensor from which elements were selected along a dimension; 0 where none was
    selected.
    """
    if not meta.ndim:
        return grad.reshape(())
    return grad.new_zeros(meta.shape).scatter_add_(dim, places, grad)


def shared_among(mask: Any, grad: Any, dims: Any) -> Any:
    """Return `grad` divided equally among the elements that `mask` selects for each result."""
    listed = None if dims is None or dims == () else dims
    counts = mask.sum(listed, True) if mask.meta.ndim else mask
    return mask * (grad / counts)
