"""Forward-mode AD: tensors with tangents, and their propagation by operators. Owner of the open dual levels.

# Note [Forward mode]
A dual tensor stores its tangent of each open level in its `__dict__`. A call with dual inputs is intercepted (see Note
[Interception]): it runs on the inputs without the tangents of the innermost level. Then `_push_forward` computes the
tangents of its results by ordinary operators, which are recorded for backward and propagate tangents of outer levels.

The tangent of a result is computed from the operator's derivative. If a formula is elementwise in the gradient of the
result, it is applied to the tangent of the input. If the operator is linear in an input, it is called on the tangent.
Otherwise the formula, which is linear in the gradient, is differentiated by the gradient: the transpose of the
transposed Jacobian.

A tensor that a node saves keeps its tangents, so backward can be differentiated in forward mode.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from flambeau.core.dtype import FLOATING
from flambeau.core.meta import Meta
from flambeau.ops.copy import copy as copy_op
from flambeau.ops.op import INPUTS, MISSING, NOT_DIFFERENTIABLE, names_of
from flambeau.ops.pointwise.pointwise import Pointwise
from flambeau.ops.view import alias as alias_view
from flambeau.tape.autograd_node import Node
from flambeau.tape.mode import mode, recording
from flambeau.tensor import interception
from flambeau.tensor.autograd import autograd_meta as views
from flambeau.tensor.autograd.grad_validation import fit_gradient, zeros_of
from flambeau.tensor.autograd.saved import SavedTensor
from flambeau.tensor.call import call, call_into
from flambeau.tensor.functions.gradients import run_grad
from flambeau.tensor.tensor import Tensor, make

_KEY = "_forward_gradients"  # in a tensor's __dict__: level -> tangent; None where a view of a dual has none


class Level:
    """A dual level. While it is open, tensors may have tangents of this level."""

    __slots__ = ("duals", "is_open")

    def __init__(self) -> None:
        self.is_open = True
        self.duals: list[weakref.ref[Tensor]] = []


class _OpenLevels(threading.local):
    """The open levels of one thread, outermost first."""

    enabled = True

    def __init__(self) -> None:
        self.levels: list[Level] = []


local = _OpenLevels()


def open_level() -> Level:
    """Open a dual level inside the open ones."""
    level = Level()
    local.levels.append(level)
    interception.open_one()
    return level


def close_level(level: Level) -> None:
    """Close the innermost level and drop its tangents."""
    local.levels.remove(level)
    level.is_open = False
    for reference in level.duals:
        t = reference()
        if t is not None and _KEY in t.__dict__:
            t.__dict__[_KEY].pop(level, None)
            if not t.__dict__[_KEY]:
                del t.__dict__[_KEY]
    interception.close_one()


@contextmanager
def levels() -> Iterator[Level]:
    """Open a dual level inside the open ones for a block."""
    level = open_level()
    try:
        yield level
    finally:
        close_level(level)


# -- tangents of tensors --------------------------------------------------------------------------------------------


def tangent_of(t: Tensor, level: Level) -> Any:
    """Return the tangent of a tensor; None if it has none.

    A view of a dual tensor has the view of its tangent.
    """
    own = t.__dict__.get(_KEY)
    if own is not None and level in own:
        return own[level]
    history = t.history
    if history is None or history.base is None:
        return None
    whole = tangent_of(history.base, level)
    if whole is None:
        return None
    part = views.replay(history.steps, whole)
    _attach(t, level, part)
    return part


def _attach(t: Tensor, level: Level, tangent: Any) -> None:
    t.__dict__.setdefault(_KEY, {})[level] = tangent
    level.duals.append(weakref.ref(t))


def set_tangent(t: Tensor, level: Level, tangent: Tensor) -> None:
    """Set a tensor's tangent, in the tensor's layout so that views of both agree."""
    _attach(t, level, _lay_out(tangent, t.meta))


def _lay_out(tangent: Any, meta: Meta) -> Any:
    if tangent.meta.strides == meta.strides or not meta.numel or 0 in meta.strides:
        return tangent
    return tangent.new_empty_strided(meta.shape, meta.strides).copy_(tangent)


def make_dual(primal: Tensor, tangent: Tensor, level: Level) -> Tensor:
    """Return a view of a tensor that has a tangent.

    Raises:
        RuntimeError: If the tensor has one, or the sizes or dtypes differ.
    """
    here, there = primal.meta, tangent.meta
    if tangent_of(primal, level) is not None:
        raise RuntimeError(
            "Making a dual Tensor based on a Tensor that already has a forward gradient at the same level "
            f"{len(local.levels) - 1} is not supported."
        )
    if here.shape != there.shape:
        raise RuntimeError(
            "Trying to set a forward gradient that has a different size than that of the original Tensor, this is not "
            f"supported. Tensor is of size {list(here.shape)} while the given forward gradient is of size "
            f"{list(there.shape)}."
        )
    if here.dtype is not there.dtype:
        raise RuntimeError("Expected tangent to have the same dtype as primal")
    if here.device is not there.device:
        raise RuntimeError("Expected tangent to have the same device as primal")
    dual = views.run(alias_view, primal)
    set_tangent(dual, level, tangent)
    return dual


def without_tangent(t: Tensor, level: Level) -> Tensor:
    """Return the tensor without its tangent of a level. It keeps its place in the autograd graph."""
    alike = make(t.meta, t.memory, t.ptr)
    alike.counter, alike.history = t.counter, t.history
    _attach(alike, level, None)
    for other, tangent in t.__dict__.get(_KEY, {}).items():
        if other is not level:
            _attach(alike, other, tangent)
    return alike


def carry_tangents(
    source: Tensor, target: Tensor, change: Callable[[Any], Any] = lambda tangent: tangent
) -> Tensor:
    """Give `target`, which has the values of `source`, the changed tangents of `source`."""
    for level in local.levels:
        tangent = tangent_of(source, level)
        if tangent is not None:
            _attach(target, level, change(tangent))
    return target


# -- calls ----------------------------------------------------------------------------------------------------------


def innermost_level(tensors: Sequence[Any]) -> Level | None:
    """Return the innermost dual level at which a tensor among the arguments has a tangent; None if none has."""
    if not local.enabled:
        return None
    for level in reversed(local.levels):
        if any(isinstance(t, Tensor) and tangent_of(t, level) is not None for t in tensors):
            return level
    return None


def intercept(op: Any, args: Sequence[Any], params: tuple[Any, ...]) -> Any:
    """Run a call with dual inputs: see Note [Forward mode]."""
    level = innermost_level(args)
    if level is None:
        return NotImplemented
    primals, tangents = split(args, level)
    result = call(op, primals, params)
    outputs = result if isinstance(result, tuple) else (result,)
    computed = _push_forward(op, primals, tangents, params, outputs)
    for output, tangent in zip(outputs, computed, strict=True):
        if tangent is not None:
            set_tangent(output, level, tangent)
    _save_by_position(outputs, tangents, level)
    return result


def split(args: Sequence[Any], level: Level) -> tuple[list[Any], list[Any]]:
    """Return inputs without their tangents, and the tangents; None for an input without one."""
    tangents = [tangent_of(a, level) if isinstance(a, Tensor) else None for a in args]
    primals = [a if t is None else without_tangent(a, level) for a, t in zip(args, tangents, strict=True)]
    return primals, tangents


def intercept_into(
    op: Any, outputs: Sequence[Tensor], args: Sequence[Any], params: tuple[Any, ...], resize: bool
) -> Any:
    """Run a call that writes into a dual tensor, or that writes results of dual inputs."""
    level = innermost_level((*args, *outputs))
    if level is None:
        return NotImplemented
    if resize or len(outputs) != 1:
        raise RuntimeError(
            f"{op.name}(): functions with out=... arguments don't support automatic differentiation, but one of the "
            "arguments has a forward gradient."
        )
    target = outputs[0]
    primals, tangents = split(args, level)
    primal = without_tangent(target, level)
    before_change = [
        t.clone() if a is target and t is not None else t for a, t in zip(args, tangents, strict=True)
    ]
    change: Any = None
    with recording(mode.recording or op is copy_op):  # a copy is recorded by its caller
        if any(t is not None for t in tangents):
            before = primal.clone() if any(a is target for a in args) else None
            given = [before if a is target else p for a, p in zip(args, primals, strict=True)]
            result = call(op, given, params)
            change = _push_forward(op, given, tangents, params, (result,))[0]
    call_into(
        op, (primal,), [primal if a is target else p for a, p in zip(args, primals, strict=True)], params
    )
    target.meta = primal.meta
    if target.history is not primal.history:
        target.history = primal.history
    with recording(mode.recording or op is copy_op):
        _change_tangent(target, level, change)
    _save_by_position((target,), before_change, level)
    return target


def _change_tangent(target: Tensor, level: Level, tangent: Any) -> None:
    """Set the tangent of a tensor that was changed in place. None represents zeros."""
    if target.meta.dtype.category < FLOATING:
        return
    existing = tangent_of(target, level)
    history = target.history
    if existing is None and tangent is not None and history is not None and history.base is not None:
        _attach(history.base, level, zeros_of(history.base.meta))
        existing = views.replay(history.steps, tangent_of(history.base, level))
        _attach(target, level, existing)
    if existing is not None:
        existing.copy_(0 if tangent is None else tangent)
    elif tangent is not None:
        set_tangent(target, level, fit_gradient(tangent, target.meta))


def intercept_view(view: Any, t: Tensor, params: tuple[Any, ...]) -> Any:
    """Return a view of a dual tensor, whose tangent is the view of its tangent."""
    level = innermost_level((t,))
    if level is None:
        return NotImplemented
    tangent = tangent_of(t, level)
    result = views.run(view, without_tangent(t, level), *params)
    _rebase(result, t)
    if view.derivative is not None:
        _attach(result, level, views.run(view, tangent, *params))
    return result


def intercept_views(kind: Any, t: Tensor, dim: int, parts: Sequence[Any]) -> Any:
    """Return several views of a dual tensor, whose tangents are views of its tangent."""
    level = innermost_level((t,))
    if level is None:
        return NotImplemented
    results = views.run_several(kind, without_tangent(t, level), dim, parts)
    tangents = views.run_several(kind, tangent_of(t, level), dim, parts)
    for result, tangent in zip(results, tangents, strict=True):
        _rebase(result, t)
        _attach(result, level, tangent)
    return results


def _rebase(result: Tensor, t: Tensor) -> None:
    """Make the dual tensor the base of a view, in place of the tensor without tangent."""
    history = result.history
    if history is not None and history.base is not None and (t.history is None or t.history.base is None):
        history.base = t  # type: ignore[misc]


def _save_by_position(outputs: Sequence[Tensor], tangents: Sequence[Any], level: Level) -> None:
    """Let the node of a call save the tangents of its saved inputs and outputs."""
    node: Any = _node_of(outputs)
    spec = getattr(node, "saved_spec", None)
    if spec is None or not node.saved:
        return
    by_name = {INPUTS[i]: t for i, t in enumerate(tangents)}
    by_name |= {f"out{i or ''}": tangent_of(t, level) for i, t in enumerate(outputs)}
    node.saved = [
        [_with_tangent(x, tangent_of(t, level), level) for x, t in zip(saved, outputs, strict=True)]
        if name == "outs"
        else _with_tangent(saved, by_name.get(name), level)
        for name, saved in zip(spec.saved_names, node.saved, strict=True)
    ]


def save_input_tangents(output: Tensor, args: Sequence[Any]) -> None:
    """Let the node of a result save the tangents of the inputs that it saved, so that backward is differentiated."""
    for level in local.levels:
        tangents = [tangent_of(a, level) if isinstance(a, Tensor) else None for a in args]
        if any(t is not None for t in tangents):
            _save_by_position((output,), tangents, level)


def _node_of(outputs: Sequence[Any]) -> Any:
    histories = [t.history for t in outputs if isinstance(t, Tensor) and t.history is not None]
    return next((history.node for history in histories if history.node is not None), None)


def _with_tangent(saved: Any, tangent: Any, level: Level) -> Any:
    return (
        SavedDual(saved, level, tangent) if tangent is not None and isinstance(saved, SavedTensor) else saved
    )


def save_tangents(outputs: Sequence[Any], args: Sequence[Any], level: Level) -> None:
    """Let the context of a Function's call save the tangents of its saved tensors."""
    duals = [(t, tangent_of(t, level)) for t in (*outputs, *args) if isinstance(t, Tensor)]
    duals = [(t, tangent) for t, tangent in duals if tangent is not None]
    for kept in getattr(getattr(_node_of(outputs), "state", None), "saved", None) or ():
        for t, tangent in duals:
            saved: Any = kept.saved if kept is not None else None
            inner = saved.inner if isinstance(saved, SavedDual) else saved
            if inner is not None and inner.ptr == t.ptr and inner.meta is t.meta and inner.memory is t.memory:
                kept.saved = SavedDual(saved, level, tangent)
                break


class SavedDual(SavedTensor):
    """A saved tensor with its tangents."""

    __slots__ = ("inner", "tangents")

    inner: SavedTensor
    tangents: dict[Level, Tensor]

    def __init__(self, saved: SavedTensor, level: Level, tangent: Tensor) -> None:
        self.tangents = {**(saved.tangents if isinstance(saved, SavedDual) else {}), level: tangent}
        self.inner = saved.inner if isinstance(saved, SavedDual) else saved
        self.meta, self.memory, self.ptr = saved.meta, saved.memory, saved.ptr
        self.counter, self.version = saved.counter, saved.version
        self.node, self.index = saved.node, saved.index

    def unpack_detached(self, node: Node | None) -> Tensor:
        """Return the saved tensor with the tangents of levels that are still open."""
        t = self.inner.unpack_detached(node)
        for level, tangent in self.tangents.items():
            if level.is_open:
                _attach(t, level, tangent)
        return t


# -- how operators pass tangents on -----------------------------------------------------------------------------------


def _push_forward(
    op: Any,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    params: tuple[Any, ...],
    outputs: Sequence[Tensor],
) -> list[Any]:
    """Return the tangents of an operator's outputs; None for those that have no derivative."""
    derivative = op.derivative
    count = len(outputs) if derivative.outputs is None else derivative.outputs
    differentiable = [
        i < count and output.meta.dtype.category >= FLOATING for i, output in enumerate(outputs)
    ]
    passing = [
        t is not None
        and (derivative.takes is None or i in derivative.takes)
        and t.meta.dtype.category >= FLOATING
        for i, t in enumerate(tangents)
    ]
    if derivative is NOT_DIFFERENTIABLE or not any(passing) or not any(differentiable):
        return [None] * len(outputs)
    if derivative is MISSING:
        raise NotImplementedError(
            f"Trying to use forward AD with {op.name} that does not support it because it has not been implemented yet."
        )
    given = [t if p else None for t, p in zip(tangents, passing, strict=True)]
    if _is_linear(op, primals, params):
        computed = [_apply_linear(op, primals, given, params)]
    elif derivative.linear == "each":
        computed = [_apply_bilinear(op, primals, given, params)]
    elif _is_elementwise(op, primals, outputs):
        computed = [_apply_formulas(op, primals, given, params, outputs)]
    else:
        computed = _transpose(op, primals, given, params, outputs, differentiable)
    computed += [None] * (len(outputs) - len(computed))
    return [
        None if not d else _own(fit_tangent(t, output.meta), given)
        for t, output, d in zip(computed, outputs, differentiable, strict=True)
    ]


def fit_tangent(tangent: Any, meta: Meta) -> Any:
    """Return a tangent in the dtype and shape of its tensor; None becomes zeros."""
    if tangent is None:
        return zeros_of(meta)
    if tangent.meta.dtype is not meta.dtype:
        if tangent.meta.dtype.is_complex and not meta.dtype.is_complex:
            tangent = tangent.real
        tangent = tangent.to(meta.dtype)
    return tangent if tangent.meta.shape == meta.shape else tangent.expand(meta.shape)


def _own(tangent: Any, inputs: Sequence[Any]) -> Any:
    """Return a tangent that shares no memory with the inputs' tangents, because a tangent may be changed in place."""
    shared = any(t is not None and t.memory is tangent.memory for t in inputs)
    return tangent.clone() if shared or 0 in tangent.meta.strides else tangent


def _is_linear(op: Any, primals: Sequence[Any], params: tuple[Any, ...]) -> bool:
    return op.derivative.linear == "together" and all(
        p.meta.dtype.category >= FLOATING or i > 0 for i, p in enumerate(primals) if isinstance(p, Tensor)
    )


def _apply_linear(op: Any, primals: Sequence[Any], tangents: Sequence[Any], params: tuple[Any, ...]) -> Any:
    inputs = [
        t
        if t is not None
        else zeros_of(p.meta)
        if isinstance(p, Tensor) and p.meta.dtype.category >= FLOATING
        else p
        for p, t in zip(primals, tangents, strict=True)
    ]
    return call(op, inputs, params)


def _apply_bilinear(op: Any, primals: Sequence[Any], tangents: Sequence[Any], params: tuple[Any, ...]) -> Any:
    total = None
    for i, t in enumerate(tangents):
        if t is not None:
            part = call(op, [t if k == i else p for k, p in enumerate(primals)], params)
            total = part if total is None else total + part
    return total


def _is_elementwise(op: Any, primals: Sequence[Any], outputs: Sequence[Tensor]) -> bool:
    tensors = [p for p in primals if isinstance(p, Tensor)]
    return (
        isinstance(op, Pointwise)
        and len(outputs) == 1
        and op.derivative.whole is None
        and not any(t.meta.dtype.is_complex for t in (*tensors, *outputs))
    )


def _arguments(
    formula: Callable[..., Any], op: Any, primals: Sequence[Any], params: tuple[Any, ...], outputs: Sequence[Any],
    grads: Sequence[Any], needs: Sequence[bool],
) -> list[Any]:  # fmt: skip
    """Return the arguments of a derivative formula: see Note [Derivatives] in ops/op.py."""
    known: dict[str, Any] = {
        "grad": grads[0], "given": tuple(grads), "grads": tuple(grads), "params": params, "needs": tuple(needs),
        "metas": tuple([p.meta if isinstance(p, Tensor) else None for p in primals]), "call": call,
        "out": outputs[0], "outs": tuple(outputs),
    }  # fmt: skip
    known |= {f"out{i}": output for i, output in enumerate(outputs) if i}
    known |= {name: primals[i] if i < len(primals) else None for i, name in enumerate(INPUTS)}
    return [known[name] for name in names_of(formula)]


def _apply_formulas(
    op: Any,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    params: tuple[Any, ...],
    outputs: Sequence[Tensor],
) -> Any:
    """Return the output's tangent of an elementwise operator: the sum of derivative times tangent over its inputs."""
    total, meta = None, outputs[0].meta
    needs = [t is not None for t in tangents]
    for formula, t in zip(op.derivative.formulas, tangents, strict=False):
        if t is None or formula is None:
            continue
        grad = fit_tangent(t, meta)
        part = formula(*_arguments(formula, op, primals, params, outputs, (grad,), needs))
        if part is not None:
            total = part if total is None else total + part
    return total


def _transpose(
    op: Any, primals: Sequence[Any], tangents: Sequence[Any], params: tuple[Any, ...], outputs: Sequence[Tensor],
    differentiable: Sequence[bool],
) -> list[Any]:  # fmt: skip
    """Return the derivative along tangents, computed from formulas of gradients."""
    derivative, needs = op.derivative, [t is not None for t in tangents]
    with recording(True):
        grads = [
            zeros_of(output.meta).requires_grad_() if d else zeros_of(output.meta)
            for output, d in zip(outputs, differentiable, strict=True)
        ]
        if derivative.whole is not None:
            formula = getattr(derivative.whole, "bind_needs", lambda needs: derivative.whole)(tuple(needs))
            by_input = list(formula(*_arguments(formula, op, primals, params, outputs, grads, needs)))
        else:
            by_input = [
                formula(*_arguments(formula, op, primals, params, outputs, grads, needs))
                if formula is not None and need
                else None
                for formula, need in zip(derivative.formulas, needs, strict=False)
            ]
        pairs = [
            (fit_gradient(g, p.meta), t)
            for g, t, p in zip(by_input, tangents, primals, strict=False)
            if g is not None and t is not None
        ]
        pairs = [(g, t) for g, t in pairs if g.requires_grad]
        wanted = [g for g, d in zip(grads, differentiable, strict=True) if d]
    found = _gradients(pairs, wanted, mode.recording or len(local.levels) > 1)
    following = iter(found)
    return [next(following) if d else None for d in differentiable]


def _gradients(pairs: Sequence[Any], wanted: Sequence[Tensor], create: bool) -> Sequence[Any]:
    if not pairs:
        return [None] * len(wanted)
    grads, along = tuple([g for g, _ in pairs]), tuple([t for _, t in pairs])
    return run_grad(grads, tuple(wanted), along, create, create, True)


interception.add_layer(
    SimpleNamespace(
        intercept=intercept,
        intercept_into=intercept_into,
        intercept_view=intercept_view,
        intercept_views=intercept_views,
    )
)
