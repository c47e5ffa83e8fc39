"""What tensors come from: views, and the nodes that recorded calls leave on the tape.

# Note [In-place changes]
A tensor that is changed in place gets the node of the change as its own. Where it is a view, its base gets a
`CopySlices` node: outside the view gradients pass unchanged, inside they pass the change. The other views
of that base find out when they are used next: their base has another node than the one they have `seen`, so
their steps are walked again from the base as it is now.

# Note [What is saved]
Not tensors but what they are made of, with the version counter's count and the node: a node that held its own
output would keep itself alive. On use the count is compared: a tensor that was changed in place since raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any

from flambeau.core.dtype import FLOATING
from flambeau.core.layout import contiguous_strides, is_dense
from flambeau.core.meta import Meta
from flambeau.ops import view as records
from flambeau.ops.op import INPUTS, MISSING, NOT_DIFFERENTIABLE, Derivative, Op, names_of
from flambeau.ops.view import View
from flambeau.runtime import current
from flambeau.tape.mode import mode, recording
from flambeau.tape.node import Edge, Leaf, Node
from flambeau.tensor.tensor import History, Steps, Tensor, make

_LIMIT = 20_000  # as many layouts are kept as plans
_layouts: dict[tuple[Any, ...], tuple[Meta, int]] = {}  # rules are pure: a cache, never cleared but for size

# -- views ------------------------------------------------------------------------------------------------


def run(view: View, t: Tensor, *params: Any) -> Tensor:
    """The view of `t` that a record gives. Raises what its rule raises."""
    key = (view, t.meta, params)
    found = _layouts.get(key)
    if found is None:
        if len(_layouts) >= _LIMIT:
            _layouts.clear()
        found = _layouts[key] = records.apply(view, t.meta, params)
    meta, offset = found
    result = make(meta, t.memory, t.ptr + offset)
    result.counter = t.counter
    history = t.history
    if history is None:
        result.history = History(None, 0, t, (None, view, params))
    else:
        result.history = _recorded_view(history, t, view, params)
    return result


def _recorded_view(history: History, t: Tensor, view: View, params: tuple[Any, ...]) -> History:
    node = node_of(t)
    made = None
    if node is not None and mode.recording and view.derivative is not None:
        made = node_class(view)((edge_of(t),), (), (t.meta,))
        made.saved = {"params": params}
        made.placed((t.meta,))
    base = history.base
    steps: Steps
    if base is None:
        base, steps = t, (None, view, params)
    else:
        steps = (history.steps, view, params)
    result = History(made, 0, base, steps, None if base.history is None else base.history.node)
    result.unrecorded = node is not None and not mode.recording
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
    """The node that `t` is an output of, a leaf's too; None if it requires no gradient."""
    history = t.history
    if history is None:
        return None
    base = history.base
    if base is not None and base.history is not None:
        now = base.history.node
        if now is not history.seen and now is not None and not isinstance(now, Leaf):
            _view_anew(t, history, base)
    return history.node


def _view_anew(t: Tensor, history: History, base: Tensor) -> None:
    """The base was changed in place: see Note [In-place changes]."""
    if history.unrecorded:
        raise RuntimeError(
            "A view was created in no_grad mode and its base or another view of its base has been modified inplace "
            "with grad mode enabled. Given that this use case is ambiguous and error-prone, it is forbidden. You can "
            "clarify your code by moving both the view and the inplace either both inside the no_grad block (if you "
            "don't want the inplace to be tracked) or both outside (if you want the inplace to be tracked)."
        )
    with recording(True):
        fresh = replay(history.steps, base).history
    assert fresh is not None
    history.node, history.index, history.seen = fresh.node, fresh.index, fresh.seen


def edge_of(t: Tensor) -> Edge:
    """Where the gradient of `t` goes: (node, output number), or None."""
    node = node_of(t)
    return None if node is None else (node, t.history.index)  # type: ignore[union-attr]


def requires_grad(t: Tensor) -> bool:
    """Whether gradients are computed for `t`."""
    return node_of(t) is not None


# -- leaves -----------------------------------------------------------------------------------------------


def require(t: Tensor) -> Leaf:
    """Make `t`, which no node made, a leaf that requires a gradient."""
    leaf = Leaf(t, _added)
    if t.history is None:
        t.history = History(leaf)
    else:
        t.history.node, t.history.index = leaf, 0
    return leaf


def _added(held: Any, grad: Any, meta: Meta, create: bool) -> Any:
    """What a leaf's gradient becomes."""
    if held is None:
        return grad.clone() if create else _own(grad, meta)
    if create:
        return held + grad
    held += grad
    return held


_REFERENCES = 4  # to a gradient that nobody else holds: `Leaf.add`, `_added`, `_own` and the question itself


def _own(grad: Any, meta: Meta) -> Any:
    """`grad` itself where nobody else can see its memory and it lies as the leaf does, else a copy."""
    wanted = meta.strides if is_dense(meta.shape, meta.strides) else contiguous_strides(meta.shape)
    fits = grad.meta.strides == wanted
    if fits and getrefcount(grad) <= _REFERENCES and getrefcount(grad.memory) <= 2 and grad.history is None:
        return grad
    if fits:
        return grad.clone()
    return grad.new_empty_strided(meta.shape, wanted).copy_(grad)


# -- recorded operations ----------------------------------------------------------------------------------


class Recorded(Node):
    """A node of an operator's call; each operator has a class of its own, so that it has PyTorch's name."""

    __slots__ = ("metas", "saved")

    record: Any
    metas: tuple[Meta | None, ...]
    saved: dict[str, Any] | None

    def __init__(
        self, edges: Sequence[Edge], outputs: Sequence[Meta], metas: tuple[Meta | None, ...]
    ) -> None:
        super().__init__(edges, outputs)
        self.metas = metas
        self.saved = None

    def release(self) -> None:
        self.saved = None

    def kept(self) -> dict[str, Any]:
        if self.saved is None:
            raise RuntimeError(
                "Trying to backward through the graph a second time (or directly access saved tensors after they have "
                "already been freed). Saved intermediate values of the graph are freed when you call .backward() or "
                "autograd.grad(). Specify retain_graph=True if you need to backward through the graph a second time "
                "or if you need to access saved tensors after calling backward."
            )
        return self.saved


class RecordedView(Recorded):
    """A node of a view."""

    __slots__ = ()

    def gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        meta = self.metas[0]
        return (fitted(self.record.derivative(grads[0], meta, run, *self.kept()["params"]), meta),)


class RecordedCall(Recorded):
    """A node of an operator. `names[i]` is what the formula of input `i` needs, `names[0]` what the whole does."""

    __slots__ = ()

    derivative: Derivative
    names: tuple[tuple[str, ...], ...]

    def gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        values = _Values(self, grads)
        derivative = self.derivative
        if derivative is MISSING:
            raise RuntimeError(f"derivative for torch.{self.record.name} is not implemented in Flambeau")
        if derivative.whole is not None:
            given = derivative.whole(*[values[name] for name in self.names[0]])
            given = [None if edge is None else g for g, edge in zip(given, self.edges, strict=False)]
        else:
            given = [
                None if edge is None else formula(*[values[name] for name in names])  # type: ignore[misc]
                for edge, formula, names in zip(self.edges, derivative.formulas, self.names, strict=False)
            ]
        given += [None] * (len(self.edges) - len(given))
        return [fitted(g, meta) for g, meta in zip(given, self.metas, strict=True)]


class _Values:
    """What formulas ask for by name, unpacked when first asked for."""

    def __init__(self, node: RecordedCall, grads: Sequence[Any]) -> None:
        self.node = node
        self.saved = node.kept()
        self.known: dict[str, Any] = {
            "grad": zeros_of(node.outputs[0]) if grads[0] is None else grads[0],
            "metas": node.metas,
            "call": _call_of(),
            "given": grads,
            "needs": tuple([edge is not None for edge in node.edges]),
        }
        self.grads = grads

    def __getitem__(self, name: str) -> Any:
        if name not in self.known:
            self.known[name] = self.find(name)
        return self.known[name]

    def find(self, name: str) -> Any:
        if name == "grads":
            return tuple(
                [
                    zeros_of(meta) if g is None else g
                    for g, meta in zip(self.grads, self.node.outputs, strict=True)
                ]
            )
        found = self.saved[name]
        if name == "outs":
            return tuple([x.unpack(self.node) for x in found])
        return found.unpack(self.node) if isinstance(found, Saved) else found


_callers: list[Callable[..., Any]] = []


def called_by(call: Callable[..., Any]) -> None:
    """Say who runs records for formulas: `tensor/call.py`, once."""
    _callers.append(call)


def _call_of() -> Callable[..., Any]:
    return _callers[0]


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
    lead = grad.meta.ndim - len(shape)
    dims = [*range(lead)]
    dims += [lead + i for i, n in enumerate(shape) if n == 1 and grad.meta.shape[lead + i] != 1]
    if dims:
        grad = grad.sum(tuple(dims), True)
    return grad.view(shape) if lead and grad.meta.shape != shape else grad


class Saved:
    """A tensor that a node saved: see Note [What is saved]."""

    __slots__ = (
        "counter",
        "hooked",
        "index",
        "memory",
        "meta",
        "node",
        "own",
        "ptr",
        "unpacked_by",
        "version",
    )

    def __init__(self, t: Tensor, own: int | None = None) -> None:
        """`own`: it is this output of the node that saves it."""
        self.own = own
        edge = None if own is not None else edge_of(t)
        self.node: Node | None
        self.index: int
        self.node, self.index = edge or (None, 0)
        self.counter, self.version = t.counter, t.counter.version
        self.meta = t.meta
        hooks = mode.pack_hooks[-1] if mode.pack_hooks else None
        self.unpacked_by = None
        if hooks is None:
            self.memory, self.ptr = t.memory, t.ptr
            return
        self.unpacked_by = hooks[1]
        bare = make(t.meta, t.memory, t.ptr) if own is not None else t
        with recording(False):
            self.hooked = hooks[0](bare)

    def unpack(self, node: Node) -> Tensor:
        """The tensor again, with its history. Raises RuntimeError if it was changed in place since."""
        source, index = (node, self.own) if self.own is not None else (self.node, self.index)
        if self.unpacked_by is not None:
            with recording(False):
                t: Tensor = self.unpacked_by(self.hooked)
            if not isinstance(t, Tensor):
                raise TypeError(
                    f"Output of saved tensor unpack_hook expected to be a Tensor but got result of type {type(t)}"
                )
            t = make(t.meta, t.memory, t.ptr)
        else:
            if self.counter.version != self.version:
                raise RuntimeError(_changed(self, source, index))
            t = make(self.meta, self.memory, self.ptr)
            t.counter = self.counter
        if source is not None and t.meta.dtype.category >= FLOATING:
            t.history = History(source, index)
        return t


def _changed(saved: Saved, source: Node | None, index: int | None) -> str:
    meta = saved.meta
    kind = f"{'torch.cuda' if meta.device.type == 'cuda' else 'torch'}.{meta.dtype.torch_name}Tensor"
    of = (
        "" if source is None or isinstance(source, Leaf) else f", which is output {index} of {source.name()},"
    )
    return (
        f"one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{kind} {list(meta.shape)}]{of} is at version {saved.counter.version}; expected version {saved.version} "
        "instead. Hint: enable anomaly detection to find the operation that failed to compute its gradient, with "
        "torch.autograd.set_detect_anomaly(True)."
    )


# -- recording --------------------------------------------------------------------------------------------

_classes: dict[Any, Any] = {}  # of each record: made when it is first recorded


def node_class(record: Op | View) -> Any:
    """The class of a record's nodes."""
    found = _classes.get(record)
    if found is None:
        found = _classes[record] = _make_class(record)
    return found


def _class_of_call(op: Op, params: tuple[Any, ...], args: Sequence[Any]) -> Any:
    """`node_class` of an operator whose nodes are named by call."""
    name = op.derivative.name(args[0].meta, params)  # type: ignore[misc, operator]
    found = _classes.get((op, name))
    if found is None:
        found = _classes[op, name] = type(name, (node_class(op),), {"__slots__": ()})
    return found


def _make_class(record: Op | View) -> Any:
    if isinstance(record, View):
        return type(_node_name(record.name), (RecordedView,), {"__slots__": (), "record": record})
    derivative = record.derivative
    formulas = (derivative.whole,) if derivative.whole is not None else derivative.formulas
    names = tuple([() if f is None else names_of(f) for f in formulas])
    members = {"__slots__": (), "record": record, "derivative": derivative, "names": names}
    named = derivative.name
    return type(named if isinstance(named, str) else _node_name(record.name), (RecordedCall,), members)


def _node_name(name: str) -> str:
    words = name.replace(".", "_").split("_")
    return "".join([w[:1].upper() + w[1:] for w in words]) + "Backward0"


def begin(op: Op, params: tuple[Any, ...], args: Sequence[Any], target: Tensor | None = None) -> Any:
    """The node of a call that is about to run, with what it saves of the inputs; None if none requires a gradient.

    `target` is about to be overwritten: where a formula needs what it was, a copy is saved.
    """
    derivative = op.derivative
    if derivative is NOT_DIFFERENTIABLE or not mode.recording:
        return None
    edges = [edge_of(a) if isinstance(a, Tensor) and a.history is not None else None for a in args]
    cls = node_class(op) if not callable(derivative.name) else _class_of_call(op, params, args)
    names = cls.names
    if derivative.whole is None and derivative is not MISSING:
        edges = [
            e if i < len(names) and derivative.formulas[i] is not None else None for i, e in enumerate(edges)
        ]
    if not any(edges):
        return None
    metas = tuple([a.meta if isinstance(a, Tensor) else None for a in args])
    node = cls(edges, (), metas)
    if derivative.whole is not None:
        needed = set(names[0])
    else:
        needed = {
            name for edge, listed in zip(edges, names, strict=False) if edge is not None for name in listed
        }
    saved: dict[str, Any] = {}
    for name in needed:
        if name == "params":
            saved[name] = params
        elif name in _PLACES:
            a = args[_PLACES[name]] if _PLACES[name] < len(args) else None
            if isinstance(a, Tensor):
                saved[name] = Saved(a.clone() if a is target else a)
            else:
                saved[name] = a
    node.saved = saved
    for edge in edges:
        if edge is not None and isinstance(edge[0], Leaf):
            edge[0].lies_on(current.local.streams[edge[0].index])
    return node


_PLACES = {letter: i for i, letter in enumerate(INPUTS)}


def finish(node: Any, outputs: Sequence[Tensor]) -> None:
    """Give a call's new tensors their node, and save those that its formulas need."""
    node.placed(tuple([t.meta for t in outputs]))
    for i, t in enumerate(outputs[: node.derivative.outputs]):
        if t.meta.dtype.category >= FLOATING:
            t.history = History(node, i)
    _save_outputs(node, outputs)


def _save_outputs(node: Any, outputs: Sequence[Tensor]) -> None:
    names = {name for edge, listed in zip(node.edges, node.names, strict=False) if edge for name in listed}
    if node.derivative.whole is not None:
        names = set(node.names[0])
    if "out" in names:
        node.saved["out"] = Saved(outputs[0], 0)
    if "out1" in names:
        node.saved["out1"] = Saved(outputs[1], 1)
    if "outs" in names:
        node.saved["outs"] = [Saved(t, i) for i, t in enumerate(outputs)]


# -- in place ---------------------------------------------------------------------------------------------


def begin_in_place(op: Op, params: tuple[Any, ...], args: Sequence[Any], target: Tensor) -> Any:
    """`begin` of a call that changes `target`; a node even where only the target requires a gradient.

    Raises RuntimeError for a leaf, or a view of one, that requires a gradient.
    """
    if not mode.recording:
        return None
    node = begin(op, params, args, target)
    before = node_of(target)
    if node is None:
        if before is None:
            return None
        require_no_leaf(target)
        node = node_class(op)([None] * len(args), (), tuple([None] * len(args)))
        node.saved = {}
        return node
    if target.meta.dtype.category < FLOATING:
        raise RuntimeError(
            f"a tensor of dtype {target.meta.dtype} cannot hold what requires a gradient, which {op.name} would put "
            "there in place"
        )
    require_no_leaf(target)
    return node


def require_no_leaf(target: Tensor) -> None:
    """Raise RuntimeError where a recorded in-place change of `target` would change a leaf."""
    history = target.history
    if history is None or not mode.recording:
        return
    base = history.base
    if base is None:
        if isinstance(history.node, Leaf):
            raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
        return
    of = base.history.node if base.history is not None else None
    if history.unrecorded:
        raise RuntimeError(
            "A view was created in no_grad mode and is being modified inplace with grad mode enabled. Given that this "
            "use case is ambiguous and error-prone, it is forbidden. You can clarify your code by moving both the view "
            "and the inplace either both inside the no_grad block (if you don't want the inplace to be tracked) or "
            "both outside (if you want the inplace to be tracked)."
        )
    if isinstance(of, Leaf):
        raise RuntimeError(
            "a view of a leaf Variable that requires grad is being used in an in-place operation."
        )


def finish_in_place(node: Any, args: Sequence[Any], target: Tensor) -> None:
    """Give a changed tensor its new node: see Note [In-place changes]."""
    node.placed((target.meta,))
    history = target.history
    base = None if history is None else history.base
    if base is None:
        target.history = History(node)
    else:
        assert history is not None
        place = next((i for i, a in enumerate(args) if a is target), None)
        base.history = History(CopySlices(edge_of(base), node, place, history.steps, base.meta))
        history.seen = node  # not the base's: walked again on next use
    _save_outputs(node, (target,))


class CopySlices(Node):
    """Of a base whose view was changed in place by `change`; input `place` of that is what the view was."""

    __slots__ = ("change", "place", "steps")

    def __init__(self, before: Edge, change: Recorded, place: int | None, steps: Steps, meta: Meta) -> None:
        others = [edge for i, edge in enumerate(change.edges) if i != place]
        super().__init__((before, *others), (meta,))
        self.change, self.place, self.steps = change, place, steps

    def gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        whole = grads[0].clone()
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
