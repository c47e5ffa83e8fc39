"""Recording of a call for autograd: its node, its `RecordPlan`, and the saved inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.core.dtype import FLOATING
from flambeau.core.host.native import mypyc_attr
from flambeau.core.meta import Meta
from flambeau.ops.op import NOT_DIFFERENTIABLE
from flambeau.runtime import current
from flambeau.runtime.hooks import host_work
from flambeau.tape.autograd_node import LEAF_SEQUENCE, Edge, next_sequence
from flambeau.tape.mode import mode
from flambeau.tensor.autograd.autograd_meta import edge_of, node_of, requires_grad
from flambeau.tensor.autograd.node_classes import node_class
from flambeau.tensor.autograd.recorded_call import RecordedCall, SavedSpec
from flambeau.tensor.autograd.saved import save
from flambeau.tensor.tensor import AutogradMeta, Tensor, new_object
from flambeau.tensor.tensor_core import TensorCore

_saved_specs: dict[
    Any, SavedSpec
] = {}  # by record and which inputs require a gradient: made when first recorded
# record plans of calls without a plan; the other record plans are stored in plans
_record_plans: dict[Any, RecordPlan] = {}
_LIMIT = 8_192  # as many are kept as plans of calls


@mypyc_attr(allow_interpreted_subclasses=True)  # so that `__new__` does not call `__init__`
class RecordPlan:
    """The decisions about a recorded call that are equal for each call of one plan.

    Attributes:
        record, params, node: The operator, the call's static params, and the class of its nodes.
        metas: Metas of the inputs; None for a scalar.
        outputs: Metas of the outputs.
        index: Index of the outputs' device.
        positions: Positions of the inputs that may receive gradients.
        differentiable: Positions of the outputs that may require a gradient.
        saved_specs: Set of inputs that require a gradient, as a bit mask -> `SavedSpec`.
        erases: True if the last input is not an operand but the tensor that the call overwrites.
        erasing_plan: The plan of the call with `erases`, created on first use.
    """

    __slots__ = (
        "differentiable",
        "erases",
        "erasing_plan",
        "index",
        "metas",
        "node",
        "outputs",
        "params",
        "positions",
        "record",
        "saved_specs",
    )  # fmt: skip

    def __init__(
        self,
        record: Any,
        params: tuple[Any, ...],
        args: Sequence[Any],
        outputs: tuple[Meta, ...],
        erases: bool = False,
    ) -> None:
        derivative = record.derivative
        self.record, self.params, self.outputs = record, params, outputs
        self.metas = tuple([a.meta if isinstance(a, Tensor) else None for a in args])
        self.positions = [
            i
            for i, meta in enumerate(self.metas)
            if meta is not None
            and derivative is not NOT_DIFFERENTIABLE
            and (derivative.takes is None or i in derivative.takes)
        ]
        self.erases = erases
        if erases and len(args) - 1 not in self.positions:
            self.positions.append(len(args) - 1)
        self.erasing_plan: RecordPlan | None = None
        self.node: Any = node_class(RecordedCall, record, self.metas, params) if self.positions else None
        where = outputs[0].device.index
        self.index = -1 if where is None else where
        floating = [i for i, meta in enumerate(outputs) if meta.dtype.category >= FLOATING]
        self.differentiable = [i for i in floating if derivative.outputs is None or i < derivative.outputs]
        self.saved_specs: dict[int, SavedSpec] = {}

    def of_shape(self, params: tuple[Any, ...], args: Sequence[Any], outputs: tuple[Meta, ...]) -> RecordPlan:
        """Return the record plan of a call with the same structure: what depends on no size is shared."""
        plan: RecordPlan = _new_plan(RecordPlan)
        plan.record, plan.params, plan.outputs = self.record, params, outputs
        plan.metas = metas = tuple([a.meta if isinstance(a, Tensor) else None for a in args])
        plan.positions, plan.index, plan.differentiable = self.positions, self.index, self.differentiable
        plan.saved_specs, plan.erases, plan.erasing_plan = self.saved_specs, self.erases, None
        plan.node = self.node and node_class(RecordedCall, self.record, metas, params)
        return plan

    def erasing(self, args: Sequence[Any]) -> RecordPlan:
        """Return the record plan of a call that also overwrites one of its `args`, which receives zero gradients."""
        if self.erasing_plan is None:
            self.erasing_plan = RecordPlan(self.record, self.params, args, self.outputs, erases=True)
        return self.erasing_plan

    def saved_spec(self, wanted: int) -> SavedSpec:
        key = (self.record, wanted, len(self.metas), self.erases)
        spec = _saved_specs.get(key)
        if spec is None:
            needs = tuple([bool(wanted >> i & 1) for i in range(len(self.metas))])
            spec = _saved_specs[key] = SavedSpec(self.record, needs, self.erases)
        self.saved_specs[wanted] = spec
        return spec


_new_plan = RecordPlan.__new__


def begin_recording(record_plan: RecordPlan, args: Sequence[Any], target: Tensor | None = None) -> Any:
    """Return the node of a call that is about to run, with its saved inputs; None if no input requires a gradient.

    `target` is about to be overwritten: if a formula needs its old value, a copy is saved.
    """
    edges: list[Edge] = [None] * len(args)
    streams = current.local.streams
    index = record_plan.index
    stream = streams[index]
    wanted = 0
    for i in record_plan.positions:
        operand: TensorCore = args[i]
        history = operand.history
        if history is None:
            continue
        source = history.node if history.base is None else node_of(args[i])
        if source is None:
            continue
        wanted |= 1 << i
        if source.sequence == LEAF_SEQUENCE and source.stream is not stream:
            source = None  # because `edge_of` counts the references to a leaf's node
            edges[i] = edge_of(args[i])
        else:
            edges[i] = (source, history.index)
    if not wanted and not any(requires_grad(args[i]) for i in record_plan.positions):
        return None
    node: Any = new_object(record_plan.node)
    node.saved_spec = spec = record_plan.saved_specs.get(wanted) or record_plan.saved_spec(wanted)
    node.saved = saved = []
    for place in spec.input_positions:
        a = args[place] if place < len(args) else None
        if isinstance(a, Tensor):
            edge = edges[place]
            if edge is None and a.history is not None:
                edge = edge_of(a)
            a = save(a.clone() if a is target else a, edge)
        saved.append(a)
    node.record_plan, node.edges, node.node_hooks = record_plan, edges, None
    node.outputs, node.index, node.stream = record_plan.outputs, index, stream
    node.sequence = next_sequence()
    if mode.anomaly:
        node.record_creation()
    if host_work.charge is not None and index >= 0:
        host_work.charge(host_work.RECORD, 1)
    return node


def finish_recording(node: Any, outputs: Sequence[Any]) -> None:
    """Set the node of a call's new tensors, and save those that its formulas need."""
    for i in node.record_plan.differentiable:
        output: TensorCore = outputs[i]
        output.history = history = new_object(AutogradMeta)
        history.node, history.index = node, i
    if node.saved_spec.outputs:
        save_outputs(node, outputs)


def record_result(op: Any, params: tuple[Any, ...], args: Sequence[Any], outputs: Sequence[Tensor]) -> None:
    """Record a result that was computed without a plan, if an input requires a gradient."""
    if not mode.recording:
        return
    metas = tuple([t.meta for t in outputs])
    key = (op, params, tuple([a.meta if isinstance(a, Tensor) else None for a in args]), metas)
    record_plan = _record_plans.get(key)
    if record_plan is None:
        if len(_record_plans) >= _LIMIT:
            _record_plans.clear()
        record_plan = _record_plans[key] = RecordPlan(op, params, args, metas)
    node = begin_recording(record_plan, args)
    if node is not None:
        finish_recording(node, outputs)


def save_outputs(node: Any, outputs: Sequence[Tensor]) -> None:
    names, saved = node.saved_spec.saved_names, node.saved
    if "out" in names:
        saved.append(save(outputs[0], None, 0))
    if "out1" in names:
        saved.append(save(outputs[1], None, 1))
    if "out2" in names:
        saved.append(save(outputs[2], None, 2))
    if "outs" in names:
        saved.append([save(t, None, i) for i, t in enumerate(outputs)])
