"""Arguments in the order of PyTorch's first versions, which PyTorch still accepts: `p.add_(-lr, grad)`."""

from __future__ import annotations

from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.tensor.tensor import Tensor


def moved_back(
    function: str, first: str, given: tuple[Any, ...], factor: str, *tensors: str
) -> tuple[Any, ...]:
    """Return `given`, a number and the tensors after it, in today's order, with a warning.

    Raises TypeError for any other arguments. `first` names the operand before them, for a function; a method has
    none.
    """
    number, *others = given
    kinds = Tensor if len(tensors) > 1 else (Tensor, int, float, complex)
    right = len(others) == len(tensors) and all(isinstance(x, kinds) for x in others)
    if not right or (isinstance(number, Tensor) and number.meta.ndim):
        most = len(tensors) + bool(first)
        plural = "s" if most > 1 else ""
        raise TypeError(
            f"{function}() takes {most} positional argument{plural} but {len(given) + bool(first)} were given"
        )
    before = [f"Tensor {first}"] if first else []
    out = ", Tensor out = None" if first else ""
    named = [f"Tensor {name}" for name in tensors]
    late = ", ".join([*before, f"Number {factor}", *named]) + (", *" + out if out else "")
    now = ", ".join([*before, *named, "*", f"Number {factor} = 1"]) + out
    warn_program(
        f"This overload of {function} is deprecated:\n\t{function}({late})\n"
        f"Consider using one of the following signatures instead:\n\t{function}({now})",
        UserWarning,
    )
    return given
