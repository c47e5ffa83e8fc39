"""Recording a call: its node, what is known beforehand (`Taped`), what is saved of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
from typing import Any

from flambeau.core.dtype import FLOATING
from flambeau.core.meta import Meta
from flambeau.ops.op import NOT_DIFFERENTIABLE
from flambeau.runtime import current
from flambeau.tape.mode import mode
from flambeau.tape.node import LEAF_SEQUENCE, Edge, next_sequence
from flambeau.tensor.autograd.autograd_meta import UNHELD, edge_of, node_of, requires_grad
from flambeau.tensor.autograd.node_classes import node_class
from flambeau.tensor.autograd.recorded_call import RecordedCall, Use
from flambeau.tensor.autograd.saved import save
from flambeau.tensor.tensor import History, Tensor, new_object

_uses: dict[Any, Use] = {}  # by record and which inputs require a gradient: made when first recorded
_taped: dict[Any, Taped] = {}  # of calls without a plan, which keeps that of others
_LIMIT = 20_000  # as many are kept as plans of calls


class Taped:
    """What is known of a call before it is recorded: decided once for each plan.

    record, params, node: the record, the call's static params, the class of its nodes.
    metas, outputs: of the inputs (None: a scalar) and outputs; index: the outputs' device's.
    places: of the inputs that gradients may pass to. given: the outputs that may require a gradient.
    uses: by which inputs require a gradient, a bit each.
    erases: whether the last input is no operand but what the call overwrites: see `erasing`.
    """

    __slots__ = (
        "erases", "given", "index", "metas", "node", "of_erasing", "outputs", "params", "places", "record", "uses",
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
        self.places = [
            i
            for i, meta in enumerate(self.metas)
            if meta is not None
            and derivative is not NOT_DIFFERENTIABLE
            and (derivative.takes is None or i in derivative.takes)
        ]
        self.erases = erases
        if erases and len(args) - 1 not in self.places:
            self.places.append(len(args) - 1)
        self.of_erasing: Taped | None = None
        self.node: Any = node_class(RecordedCall, record, self.metas, params) if self.places else None
        where = outputs[0].device.index
        self.index = -1 if where is None else where
        floating = [i for i, meta in enumerate(outputs) if meta.dtype.category >= FLOATING]
        self.given = [i for i in floating if derivative.outputs is None or i < derivative.outputs]
        self.uses: dict[int, Use] = {}

    def erasing(self, args: Sequence[Any]) -> Taped:
        """The same of a call one more of whose `args` is what it overwrites: gradients of zeros pass to that."""
        if self.of_erasing is None:
            self.of_erasing = Taped(self.record, self.params, args, self.outputs, erases=True)
        return self.of_erasing

    def use(self, wanted: int) -> Use:
        key = (self.record, wanted, len(self.metas), self.erases)
        use = _uses.get(key)
        if use is None:
            needs = tuple([bool(wanted >> i & 1) for i in range(len(self.metas))])
            use = _uses[key] = Use(self.record, needs, self.erases)
        self.uses[wanted] = use
        return use


def begin(taped: Taped, args: Sequence[Any], target: Tensor | None = None) -> Any:
    """The node of a call that is about to run, with what it saves of the inputs; None if none requires a gradient.

    `target` is about to be overwritten: where a formula needs what it was, a copy is saved.
    """
    edges: list[Edge] = [None] * len(args)
    streams = current.local.streams
    index = taped.index
    stream = streams[index]
    wanted = 0
    for i in taped.places:
        history = args[i].history
        if history is None:
            continue
        source = history.node if history.base is None else node_of(args[i])
        if source is None:
            continue
        wanted |= 1 << i
        if source.sequence == LEAF_SEQUENCE and source.stream is not stream and getrefcount(source) <= UNHELD:
            source.stream = streams[source.index]  # as in `edge_of`
        edges[i] = (source, history.index)
    if not wanted and not any(requires_grad(args[i]) for i in taped.places):
        return None
    node: Any = new_object(taped.node)
    node.use = use = taped.uses.get(wanted) or taped.use(wanted)
    node.saved = saved = []
    for place in use.inputs:
        a = args[place] if place < len(args) else None
        if isinstance(a, Tensor):
            edge = edges[place]
            if edge is None and a.history is not None:
                edge = edge_of(a)
            a = save(a.clone() if a is target else a, edge)
        saved.append(a)
    node.taped, node.edges, node.node_hooks = taped, edges, None
    node.outputs, node.index, node.stream = taped.outputs, index, stream
    node.sequence = next_sequence()
    if mode.anomaly:
        node.record_creation()
    return node


def finish(node: Any, outputs: Sequence[Tensor]) -> None:
    """Give a call's new tensors their node, and save those that its formulas need."""
    for i in node.taped.given:
        outputs[i].history = history = new_object(History)
        history.node, history.index = node, i
    if node.use.outputs:
        save_outputs(node, outputs)


def record(op: Any, params: tuple[Any, ...], args: Sequence[Any], outputs: Sequence[Tensor]) -> None:
    """Put on the tape what was computed otherwise than by a plan, if an input requires a gradient."""
    if not mode.recording:
        return
    metas = tuple([t.meta for t in outputs])
    key = (op, params, tuple([a.meta if isinstance(a, Tensor) else None for a in args]), metas)
    taped = _taped.get(key)
    if taped is None:
        if len(_taped) >= _LIMIT:
            _taped.clear()
        taped = _taped[key] = Taped(op, params, args, metas)
    node = begin(taped, args)
    if node is not None:
        finish(node, outputs)


def save_outputs(node: Any, outputs: Sequence[Tensor]) -> None:
    kept, saved = node.use.kept, node.saved
    if "out" in kept:
        saved.append(save(outputs[0], None, 0))
    if "out1" in kept:
        saved.append(save(outputs[1], None, 1))
    if "out2" in kept:
        saved.append(save(outputs[2], None, 2))
    if "outs" in kept:
        saved.append([save(t, None, i) for i, t in enumerate(outputs)])
