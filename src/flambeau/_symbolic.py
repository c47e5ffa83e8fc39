"""The symbolic numbers of PyTorch's compiler: classes without instances here, and functions of plain numbers.

Programs ask `isinstance(size, torch.SymInt)` and call `torch.sym_max`. Flambeau runs eagerly, so that every size is a
plain number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce, wraps
from typing import Any

import numpy as np

from flambeau.core.absent import absent_class
from flambeau.overrides import handle_torch_function, has_torch_function
from flambeau.tensor.arguments.torch_function import announce

__all__ = [
    "SymBool", "SymFloat", "SymInt", "sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sqrt",
    "sym_sum",
]  # fmt: skip


def _asking(define: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function such that it asks its arguments' `__torch_function__` first, as graphs of torch.fx want."""

    @wraps(define)
    def ask(*args: Any) -> Any:
        asked = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
        return handle_torch_function(ask, asked, *args) if has_torch_function(asked) else define(*args)

    ask.__module__ = "flambeau"  # which shows it
    return ask


_ADVICE = "Use plain numbers: nothing is symbolic without a compiler."
SymBool = absent_class("torch", "SymBool", _ADVICE)
SymFloat = absent_class("torch", "SymFloat", _ADVICE)
SymInt = absent_class("torch", "SymInt", _ADVICE)


@_asking
def sym_int(a: Any) -> int:
    """Return the number without its fraction."""
    return int(a)


@_asking
def sym_float(a: Any) -> float:
    """Return the number as a float."""
    return float(a)


@_asking
def sym_not(a: Any) -> bool:
    """Return the negation of a truth value."""
    return not a


@_asking
def sym_max(a: float, b: float) -> float:
    """Return the greater number, as a float if either is a float."""
    return _choose(max, a, b)


@_asking
def sym_min(a: float, b: float) -> float:
    """Return the smaller number, as a float if either is a float."""
    return _choose(min, a, b)


@_asking
def sym_sqrt(a: Any) -> float:
    """Return the square root."""
    return math.sqrt(a)


@_asking
def sym_sum(*args: Any) -> Any:
    """Return the sum of the numbers, given as one list or one by one."""
    numbers = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
    return reduce(operator.add, numbers, 0)


@_asking
def sym_ite(b: bool, t: Any, f: Any) -> Any:
    """Return `t` if `b`, else `f`.

    Raises:
        AssertionError: `b` is not a bool, or `t` and `f` are of two types.
    """
    if not isinstance(b, bool):
        raise AssertionError(f"expected SymBool or bool, got {type(b)}")
    if type(t) is not type(f):
        raise AssertionError(f"type mismatch: {type(t)} vs {type(f)}")
    return t if b else f


_NUMBERS = (np.integer, np.floating, int, float)


def _choose(select: Callable[..., Any], a: Any, b: Any) -> Any:
    for x in (a, b):
        if not isinstance(x, _NUMBERS):
            raise AssertionError(f"expected {_NUMBERS}, got {type(x)}")
    found = select(a, b)
    return float(found) if isinstance(a, float) or isinstance(b, float) else found


announce({
    define.__name__: define for define in (sym_float, sym_int, sym_ite, sym_max, sym_min, sym_not, sym_sqrt, sym_sum)
})  # fmt: skip
