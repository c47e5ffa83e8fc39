"""Gradient clipping: by the norm of all gradients together, or by the value of each element, in a few launches."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterable
from typing import Any

from flambeau.core.errors import type_name
from flambeau.ops.multi_tensor import foreach_norm as ops
from flambeau.tape.mode import recording
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions import creation
from flambeau.tensor.functions.foreach_update import norms, update
from flambeau.tensor.functions.norms import vector_norm
from flambeau.tensor.tensor import Tensor

Tensors = Tensor | Iterable[Tensor]


def _list_tensors(tensors: Tensors) -> list[Tensor]:
    listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    for each in listed:
        if not isinstance(each, Tensor):
            raise TypeError(
                f"gradients are clipped of an iterable of Tensors, but one element is {type_name(each)}"
            )
    return listed


def _grads(parameters: Tensors) -> list[Tensor]:
    return [p.grad for p in _list_tensors(parameters) if p.grad is not None]


def _groups(tensors: list[Tensor]) -> list[list[Tensor]]:
    """Group tensors by device and dtype."""
    groups: dict[Any, list[Tensor]] = {}
    for t in tensors:
        groups.setdefault((t.device, t.dtype), []).append(t)
    return list(groups.values())


def _elements(t: Tensor) -> Tensor:
    """Return the elements of a tensor: itself, or the values of a sparse tensor with repeated positions summed."""
    if not t.meta.sparse:
        return t
    return (t.coalesce() if t.is_sparse else t).values()  # type: ignore[attr-defined]


def _scalable(t: Tensor) -> Tensor:
    """Return a strided tensor that shares the elements of `t`: `t` itself, or the values of a sparse tensor."""
    return t._values() if t.meta.sparse else t  # type: ignore[attr-defined]


def get_total_norm(
    tensors: Tensors, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Tensor:
    """Return the norm of the vector of all elements of the tensors, as a 0-dim tensor on the first tensor's device.

    Args:
        error_if_nonfinite: Raise if the norm is not finite, which waits for a GPU.
        foreach: No effect: tensors of one device and dtype are always processed together.

    Raises:
        RuntimeError: If `error_if_nonfinite` is True and the norm is not finite.
    """
    listed, order = _list_tensors(tensors), float(norm_type)
    if not listed:
        return creation.full((), 0.0)
    with recording(False):
        listed = [_elements(t) for t in listed]
        found = [v.to(listed[0].device) for group in _groups(listed) for v in norms(group, order)]
        total: Tensor = vector_norm(found[0] if len(found) == 1 else functions["cat"](found), order)
    if error_if_nonfinite and not bool(total.isfinite()):
        raise RuntimeError(
            f"The total norm of order {order} for gradients from `parameters` is non-finite, so it cannot be clipped. "
            "To disable this error and scale the gradients by the non-finite norm anyway, set "
            "`error_if_nonfinite=False`"
        )
    return total


def clip_grads_with_norm_(
    parameters: Tensors, max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Multiply gradients by max_norm / total_norm where that is less than 1, without waiting for a GPU."""
    grads, most = _grads(parameters), float(max_norm)
    if not grads:
        return
    with recording(False):
        for group in _groups([_scalable(t) for t in grads]):
            total = total_norm.to(group[0].device)
            update(ops.foreach_clip, [group, [total] * len(group)], (most,), ())


def clip_grad_norm_(
    parameters: Tensors, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """Scale the gradients of all parameters so that their total norm is at most `max_norm`. Returns the norm before
    scaling.

    Raises:
        RuntimeError: If `error_if_nonfinite` is True and the norm is not finite.
    """
    listed = _list_tensors(parameters)
    if not listed and isinstance(parameters, types.GeneratorType):
        warnings.warn("`parameters` is an empty generator, no gradient clipping will occur.", stacklevel=2)
    total = get_total_norm(_grads(listed), norm_type, error_if_nonfinite, foreach)
    clip_grads_with_norm_(listed, max_norm, total, foreach)
    return total


def clip_grad_norm(
    parameters: Tensors, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """Return `clip_grad_norm_` under its old name."""
    warnings.warn(
        "`torch.nn.utils.clip_grad_norm` is now deprecated in favor of `torch.nn.utils.clip_grad_norm_`.",
        FutureWarning,
        stacklevel=2,
    )
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


def clip_grad_value_(parameters: Tensors, clip_value: float, foreach: bool | None = None) -> None:
    """Clamp each element of the gradients to [-clip_value, clip_value]."""
    most = float(clip_value)
    for group in _groups(_grads(parameters)):
        update(ops.foreach_clamp, [group], (-most, most), ())
