"""Hypothesis strategies that views, indexing and joining share: twins, ours and PyTorch's, of one layout."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from support import same, torch

import flambeau


@st.composite
def twins(draw: Any, ndim: tuple[int, int] = (0, 4), kind: str = "float32", dense: bool = False) -> Any:
    """(ours, PyTorch's): the same values, shape, strides and storage offset, over storages of their own."""
    shape = draw(st.lists(st.integers(0, 4), min_size=ndim[0], max_size=ndim[1]))
    count = 1
    for n in shape:
        count *= max(n, 1)
    base = torch.arange(3 * count + 7).to(getattr(torch, kind))
    theirs = base[2 : 2 + 2 * count : 2] if not dense and draw(st.booleans()) else base[1 : 1 + count]
    order = draw(st.permutations(range(len(shape))))
    theirs = theirs.view([max(shape[d], 1) for d in order])
    inverse = [order.index(d) for d in range(len(shape))]
    theirs = theirs.permute(inverse)
    theirs = theirs[tuple(slice(n) for n in shape)]
    if not dense and shape and draw(st.booleans()):
        dim = draw(st.integers(0, len(shape) - 1))
        if shape[dim] >= 1:
            theirs = theirs.narrow(dim, 0, 1).expand(shape)
    return of_torch(theirs), theirs


def of_torch(theirs: Any) -> Any:
    """Our tensor over a copy of PyTorch's whole storage, with the same layout and offset."""
    size = theirs.untyped_storage().nbytes() // theirs.element_size()
    base = flambeau.empty(size, dtype=getattr(flambeau, str(theirs.dtype).split(".")[1]))
    if size:
        ctypes.memmove(base.data_ptr(), theirs.untyped_storage().data_ptr(), base.meta.nbytes)
    return base.as_strided(tuple(theirs.shape), theirs.stride(), theirs.storage_offset())


def outcome(run: Callable[[], Any]) -> Any:
    """A call's result, or the exception it raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return run()
        except Exception as error:
            return error


def agree(ours: Any, theirs: Any, offsets: bool = False, strides: bool = True) -> None:
    """Assert that two outcomes are the same results, or errors of one type."""
    if isinstance(theirs, Exception):
        assert type(ours) is type(theirs), f"{ours!r} where PyTorch raises {theirs!r}"
        return
    if isinstance(ours, Exception):
        raise AssertionError(f"PyTorch returns {theirs!r}") from ours
    same(ours, theirs, strides=strides)
    if offsets:
        for a, b in zip(_all(ours), _all(theirs), strict=True):
            assert not b.numel() or a.storage_offset() == b.storage_offset()


def _all(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]
