"""`torch._foreach_*`: an operation on each tensor of a list, by which programs write averages and optimizers.

The names are PyTorch's own, not documented, and used all the same. Each tensor is a launch of its own here;
`torch.optim` and `torch.nn.utils` go by kernels over lists (foreach_update.py). What has no underscore at its end
gives a tuple of new tensors; what has one changes the list's and gives the list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.names import explain_absent_names
from flambeau.tensor.functions.norms import vector_norm
from flambeau.tensor.tensor import Tensor

_ALONE = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round "
    "rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
)
_BY_ANOTHER = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "div", "pow": "pow", "clamp_max": "clamp_max",
    "clamp_min": "clamp_min", "maximum": "clamp_min", "minimum": "clamp_max",
}  # fmt: skip
_BY_TWO = ("addcdiv", "addcmul")


def _check_tensors(tensors: Any) -> Sequence[Any]:
    if not isinstance(tensors, list | tuple):
        raise TypeError(f"argument 'self' must be tuple of Tensors, not {type(tensors).__name__}")
    if not tensors:
        raise RuntimeError("Tensor list must have at least one tensor.")
    return tensors


def _for_each(tensors: Sequence[Any], given: Any) -> Sequence[Any]:
    """One for each tensor: those of a list, or a number (also as a tensor of no dimensions) for all."""
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


def _bind(name: str, per_tensor: Callable[..., list[Any]]) -> None:
    """Both forms of a name. `per_tensor(tensors, ...)`: the arguments of the tensors' method, for each tensor."""

    def bind(public: str, method: str, in_place: bool) -> None:
        def run(self: Any, *args: Any, **given: Any) -> Any:
            tensors = _check_tensors(self)
            each = per_tensor(tensors, *args, **given)  # all are looked at before the first is changed
            found = [getattr(x, method)(*a, **k) for x, (a, k) in zip(tensors, each, strict=True)]
            return self if in_place else tuple(found)

        run.__name__ = run.__qualname__ = public
        globals()[public] = run

    method = _BY_ANOTHER.get(name, name)
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


for _name in _ALONE.split():
    _bind(_name, _alone)
for _name in _BY_ANOTHER:
    _bind(_name, _by_another)
for _name in _BY_TWO:
    _bind(_name, _by_two)
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
