"""Leaves: tensors that no node made, and that collect their gradients."""

from __future__ import annotations

import functools
from sys import getrefcount
from typing import Any

from flambeau.core.layout import contiguous_strides, is_dense
from flambeau.core.meta import Meta
from flambeau.tape.node import Leaf
from flambeau.tensor.tensor import History, Tensor

_LAYOUTS = 20_000  # as many are kept as plans of calls


def require(t: Tensor) -> Leaf:
    """Make `t`, which no node made, a leaf that requires a gradient: the one that it was before, with its hooks."""
    leaf: Leaf | None = getattr(t.history, "rested", None)
    if leaf is None:
        leaf = Leaf(t, _added)
    else:
        leaf.set_meta(t.meta)
    leaf.grad = t.__dict__.pop("_grad", None)
    if t.history is None:
        t.history = History(leaf)
    else:
        t.history.node, t.history.index = leaf, 0
    return leaf


def rest(t: Tensor, leaf: Leaf) -> None:
    """Let `t` require no gradient for now. It keeps the one that it has; its hooks wait until it is a leaf again."""
    if leaf.grad is not None:
        t.__dict__["_grad"], leaf.grad = leaf.grad, None
    t.history.node, t.history.rested = None, leaf  # type: ignore[union-attr]


def _added(held: Any, grad: Any, meta: Meta, create: bool, holders: int) -> Any:
    """What a leaf's gradient becomes."""
    if held is None:
        return grad.clone() if create else _own(grad, meta, holders)
    if create:
        return held + grad
    held += grad
    return held


_REFERENCES = 4  # to a gradient that nobody else holds: `Leaf.add`, `_added`, `_own` and the question itself
_HOLDERS = 3  # of its memory: as memory, as the counter of its versions, and the question


def _own(grad: Any, meta: Meta, holders: int) -> Any:
    """`grad` itself where nobody else can see its memory and it lies as the leaf does, else a copy.

    holders: references to it that do not count.
    """
    wanted = _strides_of_gradient(meta)
    fits = grad.meta.strides == wanted
    alone = getrefcount(grad) <= _REFERENCES + holders and getrefcount(grad.memory) <= _HOLDERS
    if fits and alone and grad.history is None:
        return grad
    if fits:
        return grad.clone()
    return grad.new_empty_strided(meta.shape, wanted).copy_(grad)


@functools.lru_cache(_LAYOUTS)
def _strides_of_gradient(meta: Meta) -> tuple[int, ...]:
    """A leaf's own where it is dense."""
    return meta.strides if is_dense(meta.shape, meta.strides) else contiguous_strides(meta.shape)
