"""Recording of in-place changes.

# Note [In-place changes]
A tensor that is changed in place gets the node of the change as its own. If it is a view, its base gets a `CopySlices`
node: outside the view gradients pass unchanged, inside they pass through the change. Other views of that base are
updated at their next use: the base's node then differs from their `base_node`, so their view operations are recorded
again from the current base.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from flambeau.core.dtype import FLOATING
from flambeau.core.meta import Meta
from flambeau.tape.autograd_node import Edge, Leaf, Node
from flambeau.tensor.autograd.autograd_meta import edge_of, replay, requires_grad
from flambeau.tensor.autograd.inplace_checks import require_changeable
from flambeau.tensor.autograd.node_classes import node_class
from flambeau.tensor.autograd.recorded_call import RecordedCall
from flambeau.tensor.autograd.recording import RecordPlan, begin_recording, save_outputs
from flambeau.tensor.tensor import AutogradMeta, Steps, Tensor, ViewMeta, new_object


def begin_in_place(record_plan: RecordPlan, args: Sequence[Any], target: Tensor) -> Any:
    """Return `begin_recording` of a call that changes `target`. A node is created even if only the target requires a
    gradient.

    The gradient of a value that was overwritten as a whole is zero; for the base of a view `CopySlices` ensures that.
    Integers do not require gradients: a call that changes them is not recorded.

    Raises:
        RuntimeError: If the target is a leaf, or a view of one, that requires a gradient.
    """
    if not record_plan.record.recorded_in_place or target.meta.dtype.category < FLOATING:
        return None
    if _erases_history(record_plan, args, target):
        args = (*args, target)
        record_plan = record_plan.erasing(args)
    node = begin_recording(record_plan, args, target)
    if node is None:
        if not requires_grad(target):
            return None
        require_changeable(target)
        return _node_without_inputs(record_plan)
    require_changeable(target)
    return node


def _erases_history(record_plan: RecordPlan, args: Sequence[Any], target: Tensor) -> bool:
    """Return True if a call overwrites a tensor that has a node and passes no gradient to it."""
    history = target.history
    if history is None or history.base is not None or history.node is None:
        return False
    return not any(args[i] is target for i in record_plan.positions)


def _node_without_inputs(record_plan: RecordPlan) -> Any:
    """Return the node of a call none of whose inputs requires a gradient."""
    node: Any = new_object(
        node_class(RecordedCall, record_plan.record, record_plan.metas, record_plan.params)
    )
    node.saved_spec, node.saved, node.record_plan = record_plan.saved_spec(0), [], record_plan
    node.node_hooks, node.edges = None, [None] * len(record_plan.metas)
    node.set_outputs(record_plan.outputs)
    return node


def finish_in_place(node: Any, args: Sequence[Any], target: Tensor) -> None:
    """Give a changed tensor its new node. See Note [In-place changes]."""
    replace_node(target, node, next((i for i, a in enumerate(args) if a is target), None))
    if node.saved_spec.outputs:
        save_outputs(node, (target,))


def replace_node(target: Tensor, node: Any, place: int | None, index: int = 0) -> None:
    """Make `target`, which was changed in place, output `index` of `node`. `place` is its position among the inputs, if
    any.

    With `retain_grad`, the tensor retains the gradient of its new value.
    """
    history = target.history
    if history is None or history.base is None:
        retain_grad = None if history is None else _take_retain_grad(history)
        target.history = AutogradMeta(node, index)
    else:
        assert isinstance(history, ViewMeta)
        retain_grad = _take_retain_grad(history)
        base: Any = history.base
        replace_node(base, CopySlices(edge_of(base), node, place, history.steps, base.meta), 0)
        history.base_node = node  # not the base's: walked again on next use
    if retain_grad is not None:
        edge = edge_of(target)
        assert edge is not None
        edge[0].ensured_hooks.retain_grad_hooks[edge[1]] = retain_grad


def _take_retain_grad(history: AutogradMeta) -> Any:
    node_hooks = None if history.node is None or isinstance(history.node, Leaf) else history.node.node_hooks
    return None if node_hooks is None else node_hooks.retain_grad_hooks.pop(history.index, None)


class CopySlices(Node):
    """The node of a base whose view was changed in place by `change`. The view is input `place` of that node."""

    __slots__ = ("change", "place", "steps")

    def __init__(self, before: Edge, change: Node, place: int | None, steps: Steps, meta: Meta) -> None:
        others = [edge for i, edge in enumerate(change.edges) if i != place]
        super().__init__((before, *others), (meta,))
        self.change, self.place, self.steps = change, place, steps

    def gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        base = self.outputs[0]  # the views have its layout
        whole = grads[0].new_empty_strided(base.shape, base.strides).copy_(grads[0])
        part: Any = replay(self.steps, whole)
        input_grads = list(self.change.gradients([part.clone()]))
        inside = input_grads.pop(self.place) if self.place is not None else None
        if inside is None:
            part.zero_()
        else:
            part.copy_(inside)
        return (whole, *input_grads)

    def name(self) -> str:
        return "torch::autograd::CopySlices"

    def release(self, finished: Container[Node]) -> None:
        if self.change not in finished:  # otherwise another gradient still flows to the change's output
            self.change.release(finished)


class NotImplementedNode(Node):
    """The node of an in-place change, `what`, without a derivative. Its backward raises."""

    __slots__ = ("what",)

    def __init__(self, what: str, edges: Sequence[Edge], outputs: Sequence[Meta]) -> None:
        super().__init__(edges, outputs)
        self.what = what

    def gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        raise RuntimeError(f"derivative for {self.what} is not implemented")

    def name(self) -> str:
        return "torch::autograd::NotImplemented"


NotImplementedNode.__name__ = NotImplementedNode.__qualname__ = "NotImplemented"  # the name that programs see
