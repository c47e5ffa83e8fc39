"""Running one call of torch.nn.functional with both packages."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import from_torch, same, same_values, to_torch, torch

import flambeau

HALF_AND_UP = ("float16", "bfloat16", "float32", "float64")


def draw(*shape: int, seed: int = 0, kind: str = "float32", low: float = -3, high: float = 3) -> Any:
    """Seeded uniform numbers."""
    values = np.random.default_rng(seed).uniform(low, high, shape)
    return torch.from_numpy(np.asarray(values)).to(getattr(torch, kind))


def classes(*shape: int, count: int, seed: int = 0) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, count, shape))


def both(run: Callable[..., Any], *args: Any, ulps: float = 4, atol: float = 0, **named: Any) -> None:
    """`run(functional, *args)` with both: the same values to ulps (or an absolute difference), dtype and shape,
    or an error of the same type.
    """
    theirs, ours = outcome(torch, run, args, named), outcome(flambeau, run, args, named)
    if isinstance(theirs, Exception):
        assert type(ours) is type(theirs), f"{ours!r} where PyTorch raises {theirs!r}"
        return
    if isinstance(ours, Exception):
        raise ours
    for a, b in zip(*[x if isinstance(x, tuple) else (x,) for x in (ours, theirs)], strict=True):
        close(a, b, ulps, atol)


def close(ours: Any, theirs: Any, ulps: float, atol: float) -> None:
    """The same dtype and shape, and each value to `ulps` or to `atol`, whichever is wider."""
    if not atol:
        same(ours, theirs, ulps, strides=False)
        return
    assert repr(ours.dtype) == repr(theirs.dtype), f"{ours.dtype} is not {theirs.dtype}"
    assert tuple(ours.shape) == tuple(theirs.shape), f"{ours.shape} is not {theirs.shape}"
    wide = torch.complex128 if theirs.dtype.is_complex else torch.float64
    mine, wanted = to_torch(ours).to(wide), theirs.to(wide)
    near = (mine - wanted).abs() <= atol
    same_values(torch.where(near, wanted, mine).to(theirs.dtype), theirs, ulps)


def outcome(room: Any, run: Callable[..., Any], args: Any, named: dict[str, Any]) -> Any:
    ours = room is flambeau

    def carry(x: Any) -> Any:
        if ours and isinstance(x, torch.Tensor):
            return from_torch(x)
        return getattr(flambeau, str(x).split(".")[1]) if ours and isinstance(x, torch.dtype) else x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return run(
                room.nn.functional, *[carry(x) for x in args], **{k: carry(v) for k, v in named.items()}
            )
        except Exception as error:
            return error


def refuses(error: type[Exception], text: str, run: Callable[..., Any], *args: Any) -> None:
    """Both raise `error`, and ours says `text`."""
    assert type(outcome(torch, run, args, {})) is error
    with pytest.raises(error, match=text):
        raise outcome(flambeau, run, args, {})
