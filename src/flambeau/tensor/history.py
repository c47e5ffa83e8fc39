"""What tensors come from: views, and the nodes that recorded calls leave on the tape.

# Note [In-place changes]
A tensor that is changed in place gets the node of the change as its own. Where it is a view, its base gets a
`CopySlices` node: outside the view gradients pass unchanged, inside they pass the change. The other views
of that base find out when they are used next: their base has another node than the one they have `seen`, so
their steps are walked again from the base as it is now.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import itemgetter
from sys import getrefcount
from typing import Any

from flambeau.core.dtype import FLOATING
from flambeau.core.layout import contiguous_strides, is_dense
from flambeau.core.meta import Meta
from flambeau.ops import view as records
from flambeau.ops.joining import cat
from flambeau.ops.node_names import NAMES
from flambeau.ops.op import INPUTS, MISSING, NOT_DIFFERENTIABLE, Derivative, Op, names_of, table
from flambeau.ops.reduction import sum_
from flambeau.ops.view import View
from flambeau.runtime import current
from flambeau.tape.mode import mode, recording
from flambeau.tape.node import LAST, Edge, Leaf, Node, next_number
from flambeau.tensor.saved import FREED, Saved, called, save
from flambeau.tensor.tensor import (
    CUSTOM,
    INFERENCE,
    NO_GRAD,
    SEVERAL,
    History,
    Steps,
    Tensor,
    ViewHistory,
    make,
    new_object,
)

_LIMIT = 20_000  # as many are kept as plans of calls
_view_plans: dict[tuple[Any, ...], ViewPlan] = {}  # rules are pure: a cache, never cleared but for size

# -- views ------------------------------------------------------------------------------------------------


class ViewPlan:
    """A view of tensors of one meta with everything decided but the address.

    meta, offset: the view's, in bytes from what it is a view of. outputs: `(meta,)`. node: the class of nodes that
    record it.
    """

    __slots__ = ("meta", "node", "offset", "outputs")

    def __init__(self, view: View, of: Meta, params: tuple[Any, ...]) -> None:
        self.meta, self.offset = records.apply(view, of, params)
        self.outputs = (self.meta,)
        self.node = node_class(view, (of,), params)


def run(view: View, t: Tensor, *params: Any) -> Tensor:
    """The view of `t` that a record gives. Raises what its rule raises."""
    plan = _view_plans.get((view, t.meta, params)) or _view_plan(view, t, params)
    result = make(plan.meta, t.memory, t.ptr + plan.offset)
    result.counter = t.counter
    if t.history is None:
        result.history = _history_of_view(t, view, params, None if mode.recording else _made())
    else:
        result.history = _recorded_view(t, view, params, plan)
    return result


def _view_plan(view: View, t: Tensor, params: tuple[Any, ...]) -> ViewPlan:
    plan = ViewPlan(view, t.meta, params)
    if len(_view_plans) >= _LIMIT:
        _view_plans.clear()
    _view_plans[view, t.meta, params] = plan
    return plan


def _recorded_view(t: Tensor, view: View, params: tuple[Any, ...], plan: ViewPlan) -> ViewHistory | None:
    if view.derivative is None and requires_grad(t):
        return None
    if not mode.recording:
        return _history_of_view(t, view, params, _made())
    edge = edge_of(t)
    result = _history_of_view(t, view, params, None)
    if edge is not None or requires_grad(t):
        result.node = node = plan.node(edge, t.meta, params, plan.outputs)
        if edge is not None and edge[0].sequence == LAST:
            used_on(node)
    return result


def _history_of_view(t: Tensor, view: View, params: tuple[Any, ...], made: str | None) -> ViewHistory:
    """That of a view without a node."""
    history, base, before = t.history, t, None
    if history is not None and history.base is not None:
        base, before = history.base, history.steps
        made = made or history.made
    result = new_object(ViewHistory)
    result.node, result.index, result.made = None, 0, made
    result.base, result.steps = base, (before, view, params)
    result.seen = None if base.history is None else base.history.node
    result.version = t.counter.version
    return result


def _made() -> str | None:
    return None if mode.recording else INFERENCE if mode.inference else NO_GRAD


def run_several(
    kind: type[RecordedParts], t: Tensor, dim: int, parts: Sequence[tuple[View, tuple[Any, ...]]]
) -> tuple[Tensor, ...]:
    """Several views of `t` that are the outputs of one node."""
    results = [_shown(t, view, params) for view, params in parts]
    edge = edge_of(t) if mode.recording else None
    made = _made()
    node: Any = None
    if mode.recording and (edge is not None or requires_grad(t)):
        node = kind(edge, t.meta, dim, tuple([result.meta for result in results]))
        used_on(node)
    for i, (result, (view, params)) in enumerate(zip(results, parts, strict=True)):
        result.history = history = _history_of_view(t, view, params, made)
        history.node, history.index, history.made = node, i, history.made or SEVERAL
    return tuple(results)


def _shown(t: Tensor, view: View, params: tuple[Any, ...]) -> Tensor:
    """A view without a history."""
    plan = _view_plans.get((view, t.meta, params)) or _view_plan(view, t, params)
    result = make(plan.meta, t.memory, t.ptr + plan.offset)
    result.counter = t.counter
    return result


def replay(steps: Steps, base: Tensor) -> Tensor:
    """The view of `base` that these steps lead to."""
    listed = []
    while steps is not None:
        steps, view, params = steps
        listed.append((view, params))
    for view, params in reversed(listed):
        base = run(view, base, *params)
    return base


def unviewed(t: Tensor) -> Tensor:
    """A new view as a tensor of its own, with the same node: of memory that nothing else shows."""
    history = t.history
    assert history is not None
    t.history = None if history.node is None else History(history.node, history.index)
    return t


# -- nodes of tensors -------------------------------------------------------------------------------------


def node_of(t: Tensor) -> Node | None:
    """The node that `t` is an output of, a leaf's too; None if it requires no gradient.

    Raises RuntimeError: a view that does not allow it, or what it shows, was changed in place.
    """
    history = t.history
    if history is None:
        return None
    base = history.base
    if base is not None and base.history is not None:
        _renew(t, history, base.history.node)
    return history.node


def _renew(t: Tensor, history: History, now: Node | None) -> None:
    """Bring a view's node up to date with `now`, that of its base: see Note [In-place changes]."""
    if now is None:
        return
    if history.made is not None:
        if history.version != t.counter.version:
            raise RuntimeError(_refused(history, "its base or another view of its base has been"))
    elif now is not history.seen and (not isinstance(now, Leaf) or history.version != t.counter.version):
        _view_anew(history)


def _view_anew(history: History) -> None:
    assert isinstance(history, ViewHistory)
    assert history.base is not None
    with recording(True):
        fresh = replay(history.steps, history.base).history
    assert fresh is not None
    history.node, history.index, history.seen = fresh.node, fresh.index, fresh.seen


def edge_of(t: Tensor) -> Edge:
    """Where the gradient of `t` goes: (node, output number), or None."""
    node = node_of(t)
    return None if node is None else (node, t.history.index)  # type: ignore[union-attr]


def requires_grad(t: Tensor) -> bool:
    """Whether gradients are computed for `t`.

    As PyTorch's also of a view, made while nothing was recorded, of what requires them: though it has no edge.
    """
    history = t.history
    if history is None:
        return False
    if history.node is not None:
        return True
    of = None if history.base is None else history.base.history
    return of is not None and of.node is not None and t.meta.dtype.category >= FLOATING


# -- leaves -----------------------------------------------------------------------------------------------


def require(t: Tensor) -> Leaf:
    """Make `t`, which no node made, a leaf that requires a gradient."""
    leaf = Leaf(t, _added)
    if t.history is None:
        t.history = History(leaf)
    else:
        t.history.node, t.history.index = leaf, 0
    return leaf


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


@functools.lru_cache(_LIMIT)
def _strides_of_gradient(meta: Meta) -> tuple[int, ...]:
    """A leaf's own where it is dense."""
    return meta.strides if is_dense(meta.shape, meta.strides) else contiguous_strides(meta.shape)


# -- recorded operations ----------------------------------------------------------------------------------


class RecordedShape(Node):
    """A node of views: meta is their input's, saved what else is to know. No tensor, so it may be walked again."""

    __slots__ = ("meta", "saved")

    record: Any
    saved: Any

    def __init__(self, edge: Edge, meta: Meta, saved: Any, outputs: tuple[Meta, ...]) -> None:
        self.edges = (edge,)
        self.meta = meta
        self.saved = saved
        self.watchers = None
        self.placed(outputs)


class RecordedView(RecordedShape):
    """A node of a view, with the record's params."""

    __slots__ = ()

    def gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        meta = self.meta
        grad = fitted(self.record.derivative(grads[0], meta, run, *self.saved), meta)
        if not mode.recording and grad.history is not None:
            unviewed(grad)  # who adds it to a leaf sees by the memory's holders whether it shows another's
        return (grad,)


class RecordedParts(RecordedShape):
    """A node of several views that are, one after the other along dimension `saved`, what they were made of."""

    __slots__ = ()

    def gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        parts = [zeros_of(meta) if g is None else g for g, meta in zip(grads, self.outputs, strict=True)]
        return (fitted(self.joined(parts, self.saved), self.meta),)

    def joined(self, parts: list[Any], dim: int) -> Any:
        return _callers[0](cat, parts, (dim,))


class SplitBackward0(RecordedParts):
    """Of `split` and `chunk`."""

    __slots__ = ()


class SplitWithSizesBackward0(RecordedParts):
    """Of `split_with_sizes`."""

    __slots__ = ()


class UnbindBackward0(RecordedParts):
    """Of `unbind`: the dimension is not there in the parts."""

    __slots__ = ()

    def joined(self, parts: list[Any], dim: int) -> Any:
        return super().joined([part.unsqueeze(dim) for part in parts], dim)


class RecordedCall(Node):
    """A node of an operator's call; each operator has a class of its own, so that it has PyTorch's name.

    taped: what is known of the call beforehand. use: what its formulas ask for. saved: that, in the order of
    `use.kept`; None once it was freed.
    """

    __slots__ = ("saved", "taped", "use")

    record: Any
    saved: list[Any] | None
    taped: Taped
    use: Use

    def release(self) -> None:
        if self.use.kept:
            self.saved = None

    def gradients(self, grads: Sequence[Any], asked: Sequence[bool] | None = None) -> Sequence[Any]:
        use, metas = self.use, self.taped.metas
        known = self.known(grads, asked)
        given: list[Any]
        if use.whole is None:
            given = [None] * len(metas)
            for i, formula, pick in use.formulas:
                if asked is None or asked[i]:
                    grad = formula(*pick(known))
                    given[i] = grad if grad is None or grad.meta is metas[i] else fitted(grad, metas[i])
            return given
        given = list(use.whole(*use.pick(known)))
        given += [None] * (len(metas) - len(given))
        return [
            None if edge is None else fitted(g, meta)
            for g, edge, meta in zip(given, self.edges, metas, strict=False)
        ]

    def gradients_of(self, asked: Sequence[bool], grads: Sequence[Any]) -> Sequence[Any]:
        return self.gradients(grads, asked)

    def known(self, grads: Sequence[Any], asked: Sequence[bool] | None) -> list[Any]:
        """What formulas may ask for, in the order of `_AT_WALK` and `use.kept`."""
        use, taped, saved = self.use, self.taped, self.saved
        if saved is None:
            raise RuntimeError(FREED)
        if use.missing is not None:
            raise RuntimeError(use.missing)
        first, every, needs = grads[0], None, use.needs
        if first is None and use.first:
            first = zeros_of(self.outputs[0])
        if use.every:
            pairs = zip(grads, self.outputs, strict=True)
            every = tuple([zeros_of(meta) if g is None else g for g, meta in pairs])
        if asked is not None:
            needs = tuple([n and a for n, a in zip(needs, asked, strict=False)])
        known = [first, every, grads, taped.params, taped.metas, needs, _callers[0]]
        if saved:
            bare = not mode.recording
            for x in saved:
                if isinstance(x, Saved):
                    x = x.shown(self) if bare else x.unpack(self)
                known.append(x)
            if use.outs:
                known[-1] = tuple([x.shown(self) if bare else x.unpack(self) for x in known[-1]])
        return known

    def __getattr__(self, name: str) -> Any:
        """What was saved, under PyTorch's names; None if only other gradients need it.

        Raises AttributeError: no formula needs it. RuntimeError: it was freed, or changed in place.
        """
        names = _SAVED_AS.get(self.name(), _USUALLY)
        asked = names.get(name)
        if asked is None or asked not in _asked_by(self.record.derivative):
            raise AttributeError(f"'{self.name()}' object has no attribute '{name}'", name=name, obj=self)
        if asked not in self.use.kept:
            return None
        if self.saved is None:
            raise RuntimeError(FREED)
        found = self.saved[self.use.kept.index(asked)]
        return found.unpack(self) if isinstance(found, Saved) else found


_USUALLY = {"_saved_self": "a", "_saved_other": "b", "_saved_result": "out"}
_POWER = {"_saved_self": "a", "_saved_exponent": "b"}
_PRODUCT = {"_saved_self": "a", "_saved_mat2": "b"}
_SAVED_AS = {
    "PowBackward0": _POWER,
    "PowBackward1": {**_POWER, "_saved_result": "out"},
    "MmBackward0": _PRODUCT,
    "BmmBackward0": _PRODUCT,
    "AddmmBackward0": {"_saved_mat1": "b", "_saved_mat2": "c"},
    "MvBackward0": {"_saved_self": "a", "_saved_vec": "b"},
}


class Use:
    """What a derivative needs where some of the inputs require a gradient: decided once for each set of them.

    formulas: (input, formula, what picks its arguments) of those inputs; or `whole`, one for all, and its `pick`:
        out of what is known `_AT_WALK`, followed by what is `kept`.
    inputs: positions of the inputs that are kept. outputs: whether any output is; outs: all, as one, the last.
    A node that keeps nothing may be walked again. needs: which inputs require a gradient.
    first: whether the first output's gradient must be there, of zeros if none came; every: all outputs'.
    missing: what to say if nobody has written its derivative.
    """

    __slots__ = (
        "every", "first", "formulas", "inputs", "kept", "missing", "needs", "outputs", "outs", "pick", "whole",
    )  # fmt: skip

    def __init__(self, record: Op, needs: tuple[bool, ...]) -> None:
        derivative = record.derivative
        self.needs = needs
        self.missing = _missing(record) if derivative is MISSING and any(needs) else None
        self.whole = derivative.whole if any(needs) else None
        bound = getattr(self.whole, "bound", None)  # what it asks for depends on who needs a gradient
        if bound is not None:
            self.whole = bound(needs)
        names = () if self.whole is None else names_of(self.whole)
        formulas = [
            (i, formula, names_of(formula))
            for i, (formula, needed) in enumerate(zip(derivative.formulas, needs, strict=False))
            if formula is not None and needed
        ]
        asked = dict.fromkeys(names + tuple([name for _, _, each in formulas for name in each]))
        inputs = [name for name in asked if name in _PLACES]
        self.inputs = [_PLACES[name] for name in inputs]
        self.kept = inputs + [name for name in _OUTPUTS if name in asked]
        self.outputs = len(self.kept) > len(inputs)
        self.outs = "outs" in asked
        self.first, self.every = "grad" in asked, "grads" in asked
        known = [*_AT_WALK, *self.kept]
        self.formulas = [(i, formula, _picker(known, each)) for i, formula, each in formulas]
        self.pick = _picker(known, names)


_AT_WALK = ("grad", "grads", "given", "params", "metas", "needs", "call")  # what is known without being saved


def _picker(known: list[str], names: tuple[str, ...]) -> Callable[[list[Any]], Sequence[Any]]:
    """What picks the values of these names out of those of all that are known."""
    places = [known.index(name) for name in names]
    if len(places) > 1:
        return itemgetter(*places)
    first = places[0] if places else 0
    return itemgetter(slice(first, first + len(places)))  # `itemgetter` of one place gives no sequence


def _missing(record: Op) -> str:
    if table.get(record.name) is record:
        return f"derivative for torch.{record.name} is not implemented in Flambeau"
    return (
        f"the user kernel '{record.name}' has no derivative: torch.cuda.elementwise(..., differentiable=True) makes "
        "one, torch.cuda.jiterator does not"
    )


_OUTPUTS = ("out", "out1", "out2", "outs")


def _asked_by(derivative: Derivative) -> set[str]:
    formulas = [f for f in (derivative.whole, *derivative.formulas) if f is not None]
    return {name for formula in formulas for name in names_of(formula)}


_PLACES = {letter: i for i, letter in enumerate(INPUTS)}


_callers: list[Callable[..., Any]] = []


def called_by(call: Callable[..., Any]) -> None:
    """Say who runs records for formulas: `tensor/call.py`, once."""
    _callers.append(call)


def zeros_of(meta: Meta) -> Any:
    plain = Meta.contiguous_of(meta.shape, meta.dtype, meta.device)
    return _callers[1](plain).zero_()


def fitted(grad: Any, meta: Meta | None) -> Any:
    """A formula's result as the gradient of an input: summed over what was broadcast, real, cast, moved."""
    if grad is None or meta is None or grad.meta is meta:
        return grad
    kind = grad.meta.dtype
    if grad.meta.shape != meta.shape:
        grad = summed_to(grad, meta.shape)
    if kind is not meta.dtype:
        if kind.is_complex and not meta.dtype.is_complex:
            grad = grad.real
        grad = grad.to(meta.dtype)
    return grad if grad.meta.device is meta.device else grad.to(meta.device)


def summed_to(grad: Any, shape: tuple[int, ...]) -> Any:
    """`grad` summed over the dimensions along which `shape` was broadcast."""
    wide = grad.meta.shape
    lead = len(wide) - len(shape)
    within = [lead + i for i, n in enumerate(shape) if n == 1 and wide[lead + i] != 1]
    if not within:
        return _callers[0](sum_, (grad,), ((*range(lead),), False, None)) if lead else grad
    grad = _callers[0](sum_, (grad,), ((*range(lead), *within), True, None))
    return unviewed(grad.view(shape)) if lead else grad


# -- recording --------------------------------------------------------------------------------------------

_classes: dict[Any, Any] = {}  # of each record (and name): made when it is first recorded


def node_class(record: Op | View, metas: tuple[Meta | None, ...], params: tuple[Any, ...]) -> Any:
    """The class of the nodes of a record's calls."""
    found = _classes.get(record)
    if found is None:
        found = _classes[record] = _make_class(record)
    return found if isinstance(found, type) else found(metas, params)


def _make_class(record: Op | View) -> Any:
    """The class; or, where nodes are named by call, what chooses among several."""
    make_class = functools.cache(_class_of)
    table = {} if isinstance(record, View) else NAMES
    if record.name in table:
        named: Any = table[record.name]
        choose = named
    else:
        named = record.node if isinstance(record, View) else record.derivative.name

        def choose(metas: Any, params: Any) -> str:
            found: str = named(metas[0], params)
            return found

    if not callable(named):
        return _class_of(record, named or _node_name(record.name))
    return lambda metas, params: make_class(record, choose(metas, params))


def _class_of(record: Op | View, name: str) -> Any:
    if isinstance(record, View):
        return type(name, (RecordedView,), {"__slots__": (), "record": record})
    return type(name, (RecordedCall,), {"__slots__": (), "record": record})


def _node_name(name: str) -> str:
    words = name.replace(".", "_").split("_")
    return "".join([w[:1].upper() + w[1:] for w in words]) + "Backward0"


_uses: dict[Any, Use] = {}  # by record and which inputs require a gradient: made when first recorded


class Taped:
    """What is known of a call before it is recorded: decided once for each plan.

    record, params, node: the record, the call's static params, the class of its nodes.
    metas, outputs: of the inputs (None: a scalar) and outputs; index: the outputs' device's.
    places: of the inputs that gradients may pass to. given: the outputs that may require a gradient.
    uses: by which inputs require a gradient, a bit each.
    """

    __slots__ = ("given", "index", "metas", "node", "outputs", "params", "places", "record", "uses")

    def __init__(
        self, record: Any, params: tuple[Any, ...], args: Sequence[Any], outputs: tuple[Meta, ...]
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
        self.node: Any = node_class(record, self.metas, params) if self.places else None
        where = outputs[0].device.index
        self.index = -1 if where is None else where
        floating = [i for i, meta in enumerate(outputs) if meta.dtype.category >= FLOATING]
        self.given = [i for i in floating if derivative.outputs is None or i < derivative.outputs]
        self.uses: dict[int, Use] = {}

    def use(self, wanted: int) -> Use:
        key = (self.record, wanted, len(self.metas))
        use = _uses.get(key)
        if use is None:
            needs = tuple([bool(wanted >> i & 1) for i in range(len(self.metas))])
            use = _uses[key] = Use(self.record, needs)
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
        edges[i] = (source, history.index)
        if source.sequence == LAST:  # as in `used_on`
            source.stream = stream if source.index == index else streams[source.index]
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
    node.taped, node.edges, node.watchers = taped, edges, None
    node.outputs, node.index, node.stream = taped.outputs, index, stream
    node.sequence = next_number()
    if mode.anomaly:
        node.note_where()
    return node


def finish(node: Any, outputs: Sequence[Tensor]) -> None:
    """Give a call's new tensors their node, and save those that its formulas need."""
    for i in node.taped.given:
        outputs[i].history = history = new_object(History)
        history.node, history.index = node, i
    if node.use.outputs:
        _save_outputs(node, outputs)


def record(op: Any, params: tuple[Any, ...], args: Sequence[Any], outputs: Sequence[Tensor]) -> None:
    """Put on the tape what was computed otherwise than by a plan, if an input requires a gradient."""
    if mode.recording:
        node = begin(Taped(op, params, args, tuple([t.meta for t in outputs])), args)
        if node is not None:
            finish(node, outputs)


def _save_outputs(node: Any, outputs: Sequence[Tensor]) -> None:
    kept, saved = node.use.kept, node.saved
    if "out" in kept:
        saved.append(save(outputs[0], None, 0))
    if "out1" in kept:
        saved.append(save(outputs[1], None, 1))
    if "out2" in kept:
        saved.append(save(outputs[2], None, 2))
    if "outs" in kept:
        saved.append([save(t, None, i) for i, t in enumerate(outputs)])


def used_on(node: Node) -> None:
    """A leaf's gradient is accumulated on the stream that was current on its device at its last recorded use."""
    for edge in node.edges:
        if edge is not None and edge[0].sequence == LAST:
            leaf = edge[0]
            leaf.stream = node.stream if leaf.index == node.index else current.local.streams[leaf.index]


# -- in place ---------------------------------------------------------------------------------------------


def begin_in_place(taped: Taped, args: Sequence[Any], target: Tensor) -> Any:
    """`begin` of a call that changes `target`; a node even where only the target requires a gradient.

    Raises RuntimeError for a leaf, or a view of one, that requires a gradient.
    """
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


def _constant(taped: Taped) -> Any:
    """The node of a call none of whose inputs requires a gradient."""
    node: Any = new_object(node_class(taped.record, taped.metas, taped.params))
    node.use, node.saved, node.taped = taped.use(0), [], taped
    node.watchers, node.edges = None, [None] * len(taped.metas)
    node.placed(taped.outputs)
    return node


def require_changeable(target: Tensor) -> None:
    """Raise RuntimeError where a recorded in-place change of `target` is not allowed: of leaves, of some views."""
    history = target.history
    if history is None or not mode.recording:
        return
    base = history.base
    if base is not None:
        if history.made is not None:
            raise RuntimeError(_refused(history, "is being"))
        if base.history is not None and isinstance(base.history.node, Leaf):
            raise RuntimeError(
                "a view of a leaf Variable that requires grad is being used in an in-place operation."
            )
    if isinstance(history.node, Leaf):
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")


def refuse_inference(target: Tensor) -> None:
    """Raise RuntimeError where a tensor made in `inference_mode` would be changed in place outside of it."""
    if target.memory.version < 0 and not mode.inference:
        raise RuntimeError(
            "Inplace update to inference tensor outside InferenceMode is not allowed.You can make a clone to get a "
            "normal tensor before doing inplace update.See https://github.com/pytorch/rfcs/pull/17 for more details."
        )


def _refused(history: History, what: str) -> str:
    """Why a view, or what it shows, may not be changed in place on the tape: in PyTorch's words."""
    node, made = history.node, history.made
    of = "" if node is None else f"Output {history.index} of {called(node)} is a view"
    if node is None or made in (NO_GRAD, INFERENCE):
        where = "inference mode" if made == INFERENCE else "no_grad mode"
        after = "in normal mode" if made == INFERENCE else "with grad mode enabled"
        prefix = f"{of} of a view which was created in" if of else "A view was created in"
        message = f"{prefix} {where} and {what} modified inplace {after}."
    else:
        message = f"{of} and {what} modified inplace."
    return message + _WHY[made or NO_GRAD]


_CLARIFY = (
    " Given that this use case is ambiguous and error-prone, it is forbidden. You can clarify your code by moving both "
    "the view and the inplace either both inside the {0} block (if you don't want the inplace to be tracked) or both "
    "outside (if you want the inplace to be tracked)."
)
_WHY = {
    NO_GRAD: _CLARIFY.format("no_grad"),
    INFERENCE: _CLARIFY.format("inference_mode"),
    SEVERAL: " This view is the output of a function that returns multiple views. Such functions do not allow the "
    "output views to be modified inplace. You should replace the inplace operation by an out-of-place one.",
    CUSTOM: " This view was created inside a custom Function (or because an input was returned as-is) and the "
    "autograd logic to handle view+inplace would override the custom backward associated with the custom Function, "
    "leading to incorrect gradients. This behavior is forbidden. You can fix this by cloning the output of the custom "
    "Function.",
}


def finish_in_place(node: Any, args: Sequence[Any], target: Tensor) -> None:
    """Give a changed tensor its new node: see Note [In-place changes]."""
    replace_node(target, node, next((i for i, a in enumerate(args) if a is target), None))
    if node.use.outputs:
        _save_outputs(node, (target,))


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
        edge[0].watched.keepers[edge[1]] = kept


def _keeper_of(history: History) -> Any:
    watchers = None if history.node is None or isinstance(history.node, Leaf) else history.node.watchers
    return None if watchers is None else watchers.keepers.pop(history.index, None)


class CopySlices(Node):
    """Of a base whose view was changed in place by `change`; input `place` of that is what the view was."""

    __slots__ = ("change", "place", "steps")

    def __init__(
        self, before: Edge, change: RecordedCall, place: int | None, steps: Steps, meta: Meta
    ) -> None:
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

    def release(self) -> None:
        self.change.release()
