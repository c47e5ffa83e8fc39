"""NumPy's names of arguments, which PyTorch takes too: `x.sum(axis=1, keepdims=True)`, `torch.cat(arrays, axis=1)`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import CO_VARKEYWORDS
from types import FunctionType
from typing import Any

_OURS = {"axis": "dim", "keepdims": "keepdim", "x": "input", "a": "input", "x1": "input", "x2": "other"}


def accepting(define: Callable[..., Any]) -> Any:
    """A function that takes NumPy's names of its arguments too; itself if it has neither `dim` nor `keepdim`.

    What has neither is called too often to go through one more function, and seldom by these names.
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
    if "dim" not in own and "keepdim" not in own:
        return define
    ours = {name: mine for name, mine in _OURS.items() if mine in own and name not in own}

    @wraps(define)
    def call(*args: Any, **given: Any) -> Any:
        if given:
            for name in given.keys() & ours.keys():
                if ours[name] not in given:  # else the call is refused as it stands
                    given[ours[name]] = given.pop(name)
        return define(*args, **given)

    return call
