"""Running one small program of torch.nn with both packages and comparing what they say."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from support import to_torch, torch

import flambeau


def outcome(run: Callable[[Any], Any], room: Any) -> Any:
    """What `run(torch)` returns, in plain values; or its error, or its warnings, as text."""
    room.manual_seed(0)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            found = plain(run(room))
        except Exception as error:
            found = (type(error).__name__, text(str(error)))
    return found, [(w.category.__name__, text(str(w.message))) for w in heard]


def text(x: str) -> str:
    """Messages name the packages."""
    return x.replace("flambeau.", "torch.")


def plain(x: Any) -> Any:
    """Tensors as nested lists, modules as their text: what both packages can be compared by."""
    if isinstance(x, flambeau.Tensor):
        x = to_torch(x.detach())
    if isinstance(x, torch.Tensor):
        return ("tensor", str(x.dtype), tuple(x.shape), x.detach().tolist())
    if isinstance(x, torch.nn.Module | flambeau.nn.Module):
        return repr(x)
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, list | tuple) or hasattr(x, "__next__"):
        return [plain(v) for v in x]
    if isinstance(x, torch.Size | flambeau.Size):
        return tuple(x)
    return text(repr(x)) if not isinstance(x, str | int | float | bool | None) else x


def agree(run: Callable[[Any], Any]) -> None:
    """Both packages return the same, raise the same error or give the same warnings."""
    ours, theirs = outcome(run, flambeau), outcome(run, torch)
    assert ours == theirs


def fails(run: Callable[[Any], Any]) -> None:
    """Both raise an error of the same type with the same words."""
    theirs = outcome(run, torch)[0]
    assert isinstance(theirs, tuple) and len(theirs) == 2 and theirs[0].endswith(("Error", "Exception")), (
        theirs
    )
    assert outcome(run, flambeau)[0] == theirs
