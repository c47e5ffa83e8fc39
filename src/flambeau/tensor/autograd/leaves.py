"""Leaves: tensors that no node computed and that accumulate their gradients."""

from __future__ import annotations

import functools
from sys import getrefcount
from typing import Any

from flambeau.core.layout import contiguous_strides, is_dense
from flambeau.core.meta import Meta
from flambeau.runtime.hooks import launch_deferral
from flambeau.tape.autograd_node import Leaf
from flambeau.tape.mode import mode
from flambeau.tensor import dispatch, interception
from flambeau.tensor.tensor import AutogradMeta, Tensor

_LAYOUTS = 8_192  # as many are kept as plans of calls


def make_leaf(t: Tensor) -> Leaf:
    """Make `t`, which no node produced, a leaf that requires a gradient. A former leaf gets its node and hooks back."""
    leaf: Leaf | None = getattr(t.history, "former_leaf", None)
    if leaf is None:
        leaf = Leaf(t, _accumulate_grad)
    else:
        leaf.set_meta(t.meta)
    leaf.grad = t.__dict__.pop("_grad", None)
    if t.history is None:
        t.history = AutogradMeta(leaf)
    else:
        t.history.node, t.history.index = leaf, 0
    return leaf


def release_leaf(t: Tensor, leaf: Leaf) -> None:
    """Make `t` not require a gradient. It keeps its gradient; its hooks are inactive until it is a leaf again."""
    if leaf.grad is not None:
        t.__dict__["_grad"], leaf.grad = leaf.grad, None
    t.history.node, t.history.former_leaf = None, leaf  # type: ignore[union-attr]


def _accumulate_grad(accumulated: Any, grad: Any, meta: Meta, create_graph: bool, references: int) -> Any:
    """Return a leaf's new gradient: the sum of its former gradient and an added one."""
    if accumulated is None:
        return grad.clone() if create_graph else _steal_or_copy(grad, meta, references)
    if accumulated.meta.sparse and not grad.meta.sparse:
        return grad + accumulated
    if create_graph or grad.__class__ in dispatch.classes or accumulated.__class__ in dispatch.classes:
        return accumulated + grad
    accumulated += grad
    return accumulated


# References to a gradient that no other code holds: of `Leaf.add`, `_accumulate_grad`, `_steal_or_copy` and
# `getrefcount`.
_REFERENCES = 4
_HOLDERS = 3  # references to its storage: `memory`, `counter` and the argument of `getrefcount`


def _steal_or_copy(grad: Any, meta: Meta, references: int) -> Any:
    """Return `grad` itself if no other code can see its memory and its layout suits the leaf; otherwise a copy.

    `holders` is the number of references to it that do not count.
    """
    if grad.meta.sparse:
        unshared = getrefcount(grad) <= _REFERENCES + references
        return grad if unshared and getrefcount(grad.memory.values.memory) <= _HOLDERS else grad.clone()
    if meta.sparse:
        return grad.clone()
    launch_deferral.settle(
        "a leaf takes its gradient"
    )  # pending launches would count as holders of the memory
    wanted = _strides_of_gradient(meta)
    fits = grad.meta.strides == wanted
    unshared = getrefcount(grad) <= _REFERENCES + references and getrefcount(grad.memory) <= _HOLDERS
    if unshared and grad.history is None and (fits or not mode.keeps_layout):
        return dispatch.show("detach", grad) if interception.count and dispatch.is_shown((grad,)) else grad
    if fits:
        return grad.clone()
    return grad.new_empty_strided(meta.shape, wanted).copy_(grad)


@functools.lru_cache(_LAYOUTS)
def _strides_of_gradient(meta: Meta) -> tuple[int, ...]:
    """Return the strides of a leaf's gradient, which are those of the leaf if it is dense."""
    return meta.strides if is_dense(meta.shape, meta.strides) else contiguous_strides(meta.shape)
