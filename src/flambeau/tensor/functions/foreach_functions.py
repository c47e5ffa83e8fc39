"""`torch._foreach_*`: an operation on each tensor of a list, which programs use for averages and optimizers.

The names are PyTorch's, undocumented but widely used. Each tensor is a separate launch here; `torch.optim` and
`torch.nn.utils` use kernels over lists (foreach_update.py). A function without a trailing underscore returns a tuple of
new tensors; one with it changes the list's tensors and returns the list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.ops.op import table
from flambeau.ops.pointwise.pointwise import Pointwise
from flambeau.tensor.functions.norms import vector_norm
from flambeau.tensor.tensor import Tensor


def _check_tensors(tensors: Any) -> Sequence[Any]:
    if not isinstance(tensors, list | tuple):
        raise TypeError(f"argument 'self' must be tuple of Tensors, not {type(tensors).__name__}")
    if not tensors:
        raise RuntimeError("Tensor list must have at least one tensor.")
    return tensors


def _for_each(tensors: Sequence[Any], given: Any) -> Sequence[Any]:
    """Return one value for each tensor: the elements of a list, or one number repeated."""
    if isinstance(given, list | tuple):
        if len(given) == len(tensors):
            return given
        if any(isinstance(x, Tensor) for x in given):
            raise RuntimeError(
                f"Tensor lists must have the same number of tensors, got {len(tensors)} and {len(given)}"
            )
        raise RuntimeError("Tensor list must have same number of elements as scalar list.")
    if isinstance(given, Tensor) and given.dim():
        raise RuntimeError(
            f"scalar tensor expected to be 0 dim but it has {given.dim()} dimensions and "
            f"{given.numel()} elements."
        )
    return [given] * len(tensors)


def _bind(name: str, per_tensor: Callable[..., list[Any]], method: str = "") -> None:
    """Bind both forms of a foreach function.

    Args:
        name: What follows "_foreach_".
        per_tensor: Function of the tensors and of the call's arguments. It returns the arguments of the method for
            each tensor.
        method: The method of tensors that runs, if it is not `name`.
    """

    def bind(public: str, method: str, in_place: bool) -> None:
        def run(self: Any, *args: Any, **given: Any) -> Any:
            tensors = _check_tensors(self)
            each = per_tensor(tensors, *args, **given)  # all are looked at before the first is changed
            found = [getattr(x, method)(*a, **k) for x, (a, k) in zip(tensors, each, strict=True)]
            return self if in_place else tuple(found)

        run.__name__ = run.__qualname__ = public
        globals()[public] = run

    method = method or name
    bind(f"_foreach_{name}", method, False)
    bind(f"_foreach_{name}_", f"{method}_", True)


def _alone(tensors: Sequence[Any]) -> list[Any]:
    return [((), {}) for _ in tensors]


def _by_another(tensors: Sequence[Any], other: Any, *, alpha: Any = None) -> list[Any]:
    named = {} if alpha is None else {"alpha": alpha}
    return [((one,), named) for one in _for_each(tensors, other)]


def _by_two(tensors: Sequence[Any], tensors1: Any, tensors2: Any, value: Any = 1) -> list[Any]:
    scales = _for_each(tensors, value.tolist() if isinstance(value, Tensor) else value)
    pairs = zip(_for_each(tensors, tensors1), _for_each(tensors, tensors2), scales, strict=True)
    return [((a, b), {"value": scale}) for a, b, scale in pairs]


def _lerp(tensors: Sequence[Any], tensors1: Any, weight: Any) -> list[Any]:
    return [
        ((a, w), {}) for a, w in zip(_for_each(tensors, tensors1), _for_each(tensors, weight), strict=True)
    ]


_BY_ARITY: dict[int, Callable[..., list[Any]]] = {1: _alone, 2: _by_another, 4: _by_two}
for _op in table.values():
    if isinstance(_op, Pointwise) and _op.forms.foreach:
        _bind(_op.name, _BY_ARITY[_op.arity])
_bind("maximum", _by_another, "clamp_min")
_bind("minimum", _by_another, "clamp_max")
_bind("lerp", _lerp)


def _foreach_copy_(self: Any, src: Any, non_blocking: bool = False) -> Any:
    for target, source in zip(_check_tensors(self), _for_each(self, src), strict=True):
        target.copy_(source, non_blocking)
    return self


def _foreach_zero_(self: Any) -> Any:
    for x in _check_tensors(self):
        x.zero_()
    return self


def _foreach_clone(self: Any) -> tuple[Any, ...]:
    return tuple([x.clone() for x in _check_tensors(self)])


def _foreach_max(self: Any) -> tuple[Any, ...]:
    return tuple([x.max() for x in _check_tensors(self)])


def _foreach_norm(self: Any, ord: Any = 2, dtype: Any = None) -> tuple[Any, ...]:
    return tuple([vector_norm(x, ord, dtype=dtype) for x in _check_tensors(self)])


explain_absent_names(globals(), "torch")
