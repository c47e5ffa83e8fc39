"""Recording a change in place.

# Note [In-place changes]
A tensor that is changed in place gets the node of the change as its own. Where it is a view, its base gets a
`CopySlices` node: outside the view gradients pass unchanged, inside they pass the change. The other views
of that base find out when they are used next: their base has another node than the one they have `seen`, so
their steps are walked again from the base as it is now.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from flambeau.core.dtype import FLOATING
from flambeau.core.meta import Meta
from flambeau.tape.node import Edge, Leaf, Node
from flambeau.tensor.autograd.autograd_meta import edge_of, replay, requires_grad
from flambeau.tensor.autograd.inplace_checks import require_changeable
from flambeau.tensor.autograd.node_classes import node_class
from flambeau.tensor.autograd.recorded_call import RecordedCall
from flambeau.tensor.autograd.recording import Taped, begin, save_outputs
from flambeau.tensor.tensor import History, Steps, Tensor, ViewHistory, new_object


def begin_in_place(taped: Taped, args: Sequence[Any], target: Tensor) -> Any:
    """`begin` of a call that changes `target`; a node even where only the target requires a gradient.

    What was overwritten as a whole is given zeros: of a view's base `CopySlices` does that.

    Raises RuntimeError for a leaf, or a view of one, that requires a gradient.
    """
    if _erased(taped, args, target):
        args = (*args, target)
        taped = taped.erasing(args)
    node = begin(taped, args, target)
    if node is None:
        if not requires_grad(target):
            return None
        require_changeable(target)
        return _constant(taped)
    if target.meta.dtype.category < FLOATING:
        raise RuntimeError(
            f"a tensor of dtype {target.meta.dtype} cannot hold what requires a gradient, which {taped.record.name} "
            "would put there in place"
        )
    require_changeable(target)
    return node


def _erased(taped: Taped, args: Sequence[Any], target: Tensor) -> bool:
    """Whether a call overwrites what has a node of its own, to which no gradient of it passes."""
    history = target.history
    if history is None or history.base is not None or history.node is None:
        return False
    return not any(args[i] is target for i in taped.places)


def _constant(taped: Taped) -> Any:
    """The node of a call none of whose inputs requires a gradient."""
    node: Any = new_object(node_class(RecordedCall, taped.record, taped.metas, taped.params))
    node.use, node.saved, node.taped = taped.use(0), [], taped
    node.node_hooks, node.edges = None, [None] * len(taped.metas)
    node.set_outputs(taped.outputs)
    return node


def finish_in_place(node: Any, args: Sequence[Any], target: Tensor) -> None:
    """Give a changed tensor its new node: see Note [In-place changes]."""
    replace_node(target, node, next((i for i, a in enumerate(args) if a is target), None))
    if node.use.outputs:
        save_outputs(node, (target,))


def replace_node(target: Tensor, node: Any, place: int | None, index: int = 0) -> None:
    """`target` was changed in place and is output `index` of `node` now; it was its input `place`, if any.

    Who keeps its gradient keeps that of the new value.
    """
    history = target.history
    if history is None or history.base is None:
        kept = None if history is None else _keeper_of(history)
        target.history = History(node, index)
    else:
        assert isinstance(history, ViewHistory)
        kept = _keeper_of(history)
        base: Any = history.base
        replace_node(base, CopySlices(edge_of(base), node, place, history.steps, base.meta), 0)
        history.seen = node  # not the base's: walked again on next use
    if kept is not None:
        edge = edge_of(target)
        assert edge is not None
        edge[0].ensured_hooks.retain_grad_hooks[edge[1]] = kept


def _keeper_of(history: History) -> Any:
    watchers = None if history.node is None or isinstance(history.node, Leaf) else history.node.node_hooks
    return None if watchers is None else watchers.retain_grad_hooks.pop(history.index, None)


class CopySlices(Node):
    """Of a base whose view was changed in place by `change`; input `place` of that is what the view was."""

    __slots__ = ("change", "place", "steps")

    def __init__(self, before: Edge, change: Node, place: int | None, steps: Steps, meta: Meta) -> None:
        others = [edge for i, edge in enumerate(change.edges) if i != place]
        super().__init__((before, *others), (meta,))
        self.change, self.place, self.steps = change, place, steps

    def gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        base = self.outputs[0]  # the views are of its layout
        whole = grads[0].new_empty_strided(base.shape, base.strides).copy_(grads[0])
        part: Any = replay(self.steps, whole)
        given = list(self.change.gradients([part.clone()]))
        inside = given.pop(self.place) if self.place is not None else None
        if inside is None:
            part.zero_()
        else:
            part.copy_(inside)
        return (whole, *given)

    def release(self, walked: Container[Node]) -> None:
        if self.change not in walked:  # else a gradient led to what the change gave, too: its turn comes
            self.change.release(walked)


class Unwritten(Node):
    """Of a change in place, `what`, that has no derivative: the walk backward raises there."""

    __slots__ = ("what",)

    def __init__(self, what: str, edges: Sequence[Edge], outputs: Sequence[Meta]) -> None:
        super().__init__(edges, outputs)
        self.what = what

    def gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        raise RuntimeError(f"derivative for {self.what} is not implemented")

    def name(self) -> str:
        return "torch::autograd::NotImplemented"


Unwritten.__name__ = Unwritten.__qualname__ = "NotImplemented"  # as programs know it
