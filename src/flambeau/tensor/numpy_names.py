"""What every public function does with its arguments before it is called, and when that fails.

NumPy's names of arguments are PyTorch's too: `x.sum(axis=1, keepdims=True)`, `torch.cat(arrays, axis=1)`,
`torch.add(x1=a, x2=b)`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import CO_VARKEYWORDS
from types import FunctionType
from typing import Any

from flambeau.tensor.mistakes import SIGNS, explained

_OURS = {"axis": "dim", "keepdims": "keepdim", "x": "input", "a": "input", "x1": "input", "x2": "other"}


def accepting(define: Callable[..., Any], method: bool = False) -> Any:
    """A function that takes NumPy's names of its arguments too, and says which of them is of a wrong type.

    Itself where it has no such names; methods that have neither `dim` nor `keepdim` too: what has neither is called too
    often to go through one more function, and seldom by these names.
    """
    if not isinstance(define, FunctionType):
        return define
    code = define.__code__
    own = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}
    if code.co_flags & CO_VARKEYWORDS and own & {
        "input",
        "self",
    }:  # of a tensor; it reads its arguments itself
        own |= {"dim", "keepdim"}
    ours = {name: mine for name, mine in _OURS.items() if mine in own and name not in own}
    if not own & ({"dim", "keepdim"} if method else {*ours.values()}):
        return define

    @wraps(define)
    def call(*args: Any, **given: Any) -> Any:
        if given:
            for name in given.keys() & ours.keys():
                if ours[name] not in given:  # else the call is refused as it stands
                    given[ours[name]] = given.pop(name)
        try:
            return define(*args, **given)
        except SIGNS as error:
            mistake = explained(define, args, given)
            if mistake is None:
                raise
            raise mistake from error

    return call
