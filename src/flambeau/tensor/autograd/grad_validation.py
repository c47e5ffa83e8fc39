"""The conversion of gradients that formulas return to gradients that inputs accept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.core.meta import Meta
from flambeau.ops.reduce.reduction import sum_
from flambeau.tensor import dispatch, interception
from flambeau.tensor.arguments.typing import strided
from flambeau.tensor.tensor import AutogradMeta, Tensor

callers: list[Callable[..., Any]] = []
"""Who runs a record, and who makes an empty tensor."""


def set_callers(call: Callable[..., Any], empty: Callable[..., Any]) -> None:
    """Register the functions of `tensor/call.py` that run operators for formulas and create tensors."""
    callers[:] = call, empty


def zeros_of(meta: Meta) -> Any:
    if interception.count and dispatch.is_shown():
        return dispatch.show("zeros", list(meta.shape), dtype=meta.dtype, layout=strided, device=meta.device)
    plain = Meta.contiguous_of(meta.shape, meta.dtype, meta.device)
    return callers[1](plain).zero_()


def fit_gradient(grad: Any, meta: Meta | None) -> Any:
    """Return a formula's result as an input's gradient: reduced to its shape, real if it is, cast, moved to its
    device.
    """
    if grad is None or meta is None or grad.meta is meta:
        return grad
    kind = grad.meta.dtype
    if grad.meta.shape != meta.shape:
        grad = summed_to(grad, meta.shape)
    if kind is not meta.dtype:
        if kind.is_complex and not meta.dtype.is_complex:
            grad = grad.real
        grad = grad.to(meta.dtype)
    return grad if grad.meta.device is meta.device else grad.to(meta.device)


def summed_to(grad: Any, shape: tuple[int, ...]) -> Any:
    """Return `grad` summed over the dimensions along which `shape` was broadcast."""
    if grad.meta.sparse:
        grad = grad.to_dense()
    wide = grad.meta.shape
    lead = len(wide) - len(shape)
    within = [lead + i for i, n in enumerate(shape) if n == 1 and wide[lead + i] != 1]
    if not shape:
        return callers[0](sum_, (grad,), (None, False, None)) if lead else grad
    if not within and lead and interception.count and dispatch.is_shown((grad,)):
        total = callers[0](sum_, (grad,), ((*range(lead),), True, None))
        return forget_base(total.view(shape))  # as PyTorch's sum_to does
    if not within:
        return callers[0](sum_, (grad,), ((*range(lead),), False, None)) if lead else grad
    grad = callers[0](sum_, (grad,), ((*range(lead), *within), True, None))
    return forget_base(grad.view(shape)) if lead else grad


def forget_base(t: Tensor) -> Tensor:
    """Return a new view as an independent tensor with the same node, because nothing else refers to its memory."""
    history = t.history
    assert history is not None
    t.history = None if history.node is None else AutogradMeta(history.node, history.index)
    return t
