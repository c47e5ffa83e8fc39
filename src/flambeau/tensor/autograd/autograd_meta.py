"""The origin of tensors: the nodes whose outputs they are, and the bases of views.

# Note [Streams of leaves]
A leaf's gradient is accumulated on the stream of its `AccumulateGrad` node. PyTorch creates that node when a graph
first needs it, on the stream that is current on the leaf's device then, and drops it with the last graph or variable
that holds it. Here the leaf owns its node, with the hooks and the gradient; the node takes the current stream whenever
an edge to it is asked for and nothing else holds it, which its reference count shows.
Source: torch/csrc/autograd/input_buffer.cpp (its warning "The AccumulateGrad node's stream does not match"),
https://github.com/pytorch/pytorch/issues/137483.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from sys import getrefcount
from typing import Any

from flambeau.core.dtype import FLOATING
from flambeau.core.meta import Meta, ShortMeta
from flambeau.core.tracing.plan_tree import Build
from flambeau.ops import view as records
from flambeau.ops.shape.joining import cat
from flambeau.ops.view import View
from flambeau.runtime import current
from flambeau.runtime.hooks import host_work, launch_deferral
from flambeau.tape.autograd_node import LEAF_SEQUENCE, Edge, Leaf, Node
from flambeau.tape.mode import mode, recording
from flambeau.tensor import dispatch, interception, layout_functions
from flambeau.tensor.arguments.extents import out_of_bounds
from flambeau.tensor.autograd.grad_validation import callers, fit_gradient, forget_base, zeros_of
from flambeau.tensor.autograd.inplace_checks import explain_refusal
from flambeau.tensor.autograd.node_classes import RecordedShape, node_class
from flambeau.tensor.structures import SeenKeys, Structures
from flambeau.tensor.tensor import (
    INFERENCE,
    NO_GRAD,
    SEVERAL,
    AutogradMeta,
    Steps,
    Tensor,
    ViewMeta,
    make,
    make_view,
    new_object,
)
from flambeau.tensor.tensor_core import TensorCore

_LIMIT = 8_192  # number of cached plans of views, equal to that of calls
_view_plans: dict[tuple[Any, ...], ViewPlan] = {}  # rules are pure: a cache, never cleared but for size
_view_structures = Structures()  # rules are pure
_seen_views = SeenKeys()
_fast_view_plans = _view_plans  # where `run` looks first: see `_choose_plans`
_choice = threading.RLock()  # so that of two threads the later one's choice holds
_NO_PLANS: dict[tuple[Any, ...], ViewPlan] = {}


def _choose_plans() -> None:
    """Choose where `run` looks first. While launches are pending, views of their results need another path."""
    global _fast_view_plans
    with _choice:
        is_slow = interception.count or launch_deferral.pending is not None or host_work.charge is not None
        _fast_view_plans = _NO_PLANS if is_slow else _view_plans


interception.subscribe(_choose_plans)
launch_deferral.subscribe(_choose_plans)
host_work.on_change(_choose_plans)


# -- nodes of tensors -------------------------------------------------------------------------------------


def node_of(t: Tensor) -> Node | None:
    """Return the node of a tensor: its `grad_fn`, or the node that accumulates a leaf's gradient.

    Returns None if the tensor requires no gradient.

    Raises:
        RuntimeError: For a view that was changed in place, or whose base was, and that does not allow it.
    """
    history = t.history
    if history is None:
        return None
    base = history.base
    if base is not None and base.history is not None:
        _update_view_node(t, history, base.history.node)
    return history.node


def _update_view_node(t: Tensor, history: AutogradMeta, now: Node | None) -> None:
    """Update a view's node after its base was changed in place. See Note [In-place changes] in in_place.py."""
    if now is None:
        return
    if history.restriction is not None:
        if history.version != t.counter.version:
            raise RuntimeError(explain_refusal(history, "its base or another view of its base has been"))
    elif now is not history.base_node and (not isinstance(now, Leaf) or history.version != t.counter.version):
        _replay_view(history)


def _replay_view(history: AutogradMeta) -> None:
    assert isinstance(history, ViewMeta)
    assert history.base is not None
    with recording(True):
        fresh = replay(history.steps, history.base).history
    assert fresh is not None
    history.node, history.index, history.base_node = fresh.node, fresh.index, fresh.base_node


def edge_of(t: Tensor) -> Edge:
    """Return the edge along which the gradient of `t` flows, (node, output number), or None.

    A leaf's node that no graph or variable references moves to the current stream: see Note [Streams of leaves].
    """
    node = node_of(t)
    if node is None:
        return None
    if node.sequence == LEAF_SEQUENCE and getrefcount(node) <= UNHELD:
        node.stream = current.local.streams[node.index]
    return node, t.history.index  # type: ignore[union-attr]


def leaf_of(t: Tensor) -> Leaf | None:
    """Return the node of a tensor that accumulates a gradient; None for others."""
    node = None if t.history is None or t.history.base is not None else t.history.node
    return node if isinstance(node, Leaf) else None


def _references_of_unheld() -> int:
    """Return the reference count of a node to which only one history and one local variable refer."""
    history = AutogradMeta(object())  # type: ignore[arg-type]
    node = history.node
    return getrefcount(node)


UNHELD = _references_of_unheld()


def requires_grad(t: TensorCore) -> bool:
    """Return True if gradients are computed for `t`.

    As in PyTorch, this includes a view without an edge, which was created without recording from a tensor that requires
    a gradient.
    """
    history = t.history
    if history is None:
        return False
    if history.node is not None:
        return True
    of = None if history.base is None else history.base.history
    return of is not None and of.node is not None and t.meta.dtype.category >= FLOATING


# -- views ------------------------------------------------------------------------------------------------


class ViewPlan:
    """The plan of a view of tensors with one meta: everything except the address.

    Attributes:
        meta: The view's meta.
        offset: The distance in bytes to the tensor that is viewed.
        outputs: `(meta,)`.
        node: The class of nodes that record the view.
    """

    __slots__ = ("meta", "node", "offset", "outputs")

    def __init__(self, view: View, of: Meta, params: tuple[Any, ...]) -> None:
        self.meta, self.offset = records.apply(view, of, params)
        self.outputs = (self.meta,)
        self.node = node_class(RecordedView, view, (of,), params)

    @classmethod
    def of_shape(cls, node: Any, meta: Meta, offset: int) -> ViewPlan:
        plan = object.__new__(cls)
        plan.meta, plan.offset, plan.outputs, plan.node = meta, offset, (meta,), node
        return plan


def run(view: View, t: Tensor, *params: Any) -> Tensor:
    """Return the view of `t` that a view operator defines. Raises the errors of its rule."""
    plan = _fast_view_plans.get((view, params, t.meta))
    if plan is None and _fast_view_plans is _view_plans:
        plan = _find_view_plan((view, params, t.meta))
    if plan is None:
        if t.meta.sparse:
            return layout_functions.run_view(view, t, params)
        if interception.count:
            seen = interception.intercept_view(view, t, params)
            if seen is not NotImplemented:
                return seen
        if host_work.charge is not None and t.meta.device.index is not None:
            host_work.charge(host_work.VIEW, 1)
        plan = _view_plans.get((view, params, t.meta)) or _make_view_plan(view, t, params)
        result = make_view(t, plan.meta, plan.offset)
    else:
        result = make(plan.meta, t.memory, t.ptr + plan.offset)
        result.counter = t.counter
    if t.history is None:
        result.history = history_of_view(t, view, params, None if mode.recording else current_restriction())
    else:
        result.history = recorded_view(t, view, params, plan)
    return result


def _find_view_plan(key: tuple[Any, ...]) -> ViewPlan | None:
    """Return the plan of a view with a new key from the plan tree of its structure; None if there is none."""
    plan: ViewPlan | None = _view_structures.find(key)
    if plan is not None and _seen_views.has_seen(key):  # plans of keys that occur once are not stored
        _keep_view_plan(key, plan)
    return plan


def _make_view_plan(view: View, t: Tensor, params: tuple[Any, ...]) -> ViewPlan:
    """Return the plan of a view with a new key, from its structure's plan tree or created from the start."""
    meta = t.meta
    if meta.short:
        return _limit_to_storage(t, ViewPlan(view, meta, params))
    key = (view, params, meta)
    plan = _find_view_plan(key)
    if plan is None:
        plan = ViewPlan(view, meta, params)
        _view_structures.note(key, partial(_trace_view, view))
        _keep_view_plan(key, plan)
    return plan


def _keep_view_plan(key: tuple[Any, ...], plan: ViewPlan) -> None:
    if len(_view_plans) >= _LIMIT:
        _view_plans.clear()
    _view_plans[key] = plan


def _trace_view(view: View, operands: Sequence[Any], params: tuple[Any, ...]) -> Build:
    """Return the plan of a view over symbols."""
    plan = ViewPlan(view, operands[0], params)
    return Build(partial(ViewPlan.of_shape, plan.node), plan.meta, plan.offset)


def _limit_to_storage(t: Tensor, plan: ViewPlan) -> ViewPlan:
    """Return the plan of a view of a tensor that reaches beyond its storage. See Note [Storages made smaller]."""
    meta, storage, offset = plan.meta, t.memory, t.ptr - t.memory.ptr + plan.offset
    if meta.numel and offset + meta.span > storage.nbytes:
        if plan.offset or meta.numel != t.meta.numel:
            place, item = offset // meta.itemsize, meta.itemsize
            raise out_of_bounds(meta.shape, meta.strides, place, item, offset + meta.span, storage.nbytes)
        plan.meta = ShortMeta(meta)
        plan.outputs = (plan.meta,)
    return plan


def recorded_view(t: Tensor, view: View, params: tuple[Any, ...], plan: ViewPlan) -> ViewMeta | None:
    if view.derivative is None and requires_grad(t):
        return None
    if not mode.recording:
        return history_of_view(t, view, params, current_restriction())
    edge = edge_of(t)
    result = history_of_view(t, view, params, None)
    if edge is not None or requires_grad(t):
        result.node = plan.node(edge, t.meta, params, plan.outputs)
        if host_work.charge is not None and t.meta.device.index is not None:
            host_work.charge(host_work.RECORD, 1)
    return result


def history_of_view(t: Tensor, view: View, params: tuple[Any, ...], restriction: str | None) -> ViewMeta:
    """Return the history of a view that has no node."""
    history, base, before = t.history, t, None
    if history is not None and history.base is not None:
        base, before = history.base, history.steps
        restriction = restriction or history.restriction
    result = new_object(ViewMeta)
    result.node, result.index, result.restriction = None, 0, restriction
    result.base, result.steps = base, (before, view, params)
    unused = base.history is None or result.restriction is not None
    result.base_node = None if unused else base.history.node  # type: ignore[union-attr]
    result.version = t.counter.version
    return result


def current_restriction() -> str | None:
    return None if mode.recording else INFERENCE if mode.inference else NO_GRAD


def run_several(
    kind: type[RecordedParts], t: Tensor, dim: int, parts: Sequence[tuple[View, tuple[Any, ...]]]
) -> tuple[Tensor, ...]:
    """Return several views of `t` that are the outputs of one node."""
    if t.meta.sparse:
        return tuple([layout_functions.run_view(view, t, params) for view, params in parts])
    if interception.count:
        seen = interception.intercept_views(kind, t, dim, parts)
        if seen is not NotImplemented:
            return seen
    if host_work.charge is not None and t.meta.device.index is not None:
        host_work.charge(host_work.VIEW, len(parts))
    results = [_make_view(t, view, params) for view, params in parts]
    record_several(kind, t, dim, parts, results)
    return tuple(results)


def record_several(
    kind: type[RecordedParts],
    t: Tensor,
    dim: int,
    parts: Sequence[tuple[View, tuple[Any, ...]]],
    results: Sequence[Tensor],
) -> None:
    """Record several views of `t` as the outputs of one node."""
    edge = edge_of(t) if mode.recording else None
    restriction = current_restriction()
    node: Any = None
    if mode.recording and (edge is not None or requires_grad(t)):
        node = kind(edge, t.meta, dim, tuple([result.meta for result in results]))
    for i, (result, (view, params)) in enumerate(zip(results, parts, strict=True)):
        result.history = history = history_of_view(t, view, params, restriction)
        history.node, history.index, history.restriction = node, i, history.restriction or SEVERAL


def _make_view(t: Tensor, view: View, params: tuple[Any, ...]) -> Tensor:
    """Return a view without a history."""
    plan = _view_plans.get((view, params, t.meta)) or _make_view_plan(view, t, params)
    return make_view(t, plan.meta, plan.offset)


def replay(steps: Steps, base: Tensor) -> Tensor:
    """Return the view of `base` that results from these steps."""
    listed = []
    while steps is not None:
        steps, view, params = steps
        listed.append((view, params))
    for view, params in reversed(listed):
        base = run(view, base, *params)
    return base


# -- nodes of views ---------------------------------------------------------------------------------------


class RecordedView(RecordedShape):
    """The node of a view, with the view's params."""

    __slots__ = ()

    def gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        meta = self.meta
        if interception.count and not mode.recording and dispatch.is_shown(grads):
            grad = dispatch.compose("view_backward", self.record, grads[0], meta, self.saved)
        else:
            grad = fit_gradient(self.record.derivative(grads[0], meta, run, *self.saved), meta)
        if not mode.recording and grad.history is not None:
            forget_base(grad)  # a leaf decides by the references to the memory whether the gradient shares it
        return (grad,)


class RecordedParts(RecordedShape):
    """A node whose outputs are several views: parts of its input along dimension `saved`."""

    __slots__ = ()

    def gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        parts = [zeros_of(meta) if g is None else g for g, meta in zip(grads, self.outputs, strict=True)]
        return (fit_gradient(self.join_gradients(parts, self.saved), self.meta),)

    def join_gradients(self, parts: list[Any], dim: int) -> Any:
        return callers[0](cat, parts, (dim,))


class SplitBackward0(RecordedParts):
    """The node of `split` and `chunk`."""

    __slots__ = ()


class SplitWithSizesBackward0(RecordedParts):
    """The node of `split_with_sizes`."""

    __slots__ = ()


class UnbindBackward0(RecordedParts):
    """The node of `unbind`, whose outputs lack the dimension."""

    __slots__ = ()

    def join_gradients(self, parts: list[Any], dim: int) -> Any:
        return super().join_gradients([part.unsqueeze(dim) for part in parts], dim)
