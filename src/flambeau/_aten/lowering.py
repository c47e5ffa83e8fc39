"""Calls of Flambeau's operators as dispatch handlers see them: as calls of overloads of `torch.ops.aten`.

See Note [Dispatch below autograd] in tensor/dispatch.py. `translations.py` and `structured.py` say which overloads one
operator stands for. An operator without a translation is shown by its own name, as `torch.ops.flambeau.<name>`, whose
arguments are those of Flambeau's operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

from flambeau._aten import composed, structured  # noqa: F401
from flambeau._aten.creations import show_creation
from flambeau._aten.overloads import find_overload, own_overload
from flambeau._aten.translations import SEVERAL, VIEWS, Call, Translation, translation_of
from flambeau._library.user_operators import overloads_of, packet_of
from flambeau.core.frozen import Record
from flambeau.ops.op import Derivative, Op
from flambeau.tape.mode import mode, recording
from flambeau.tensor import dispatch, interception
from flambeau.tensor.autograd import autograd_meta
from flambeau.tensor.autograd.in_place import begin_in_place, finish_in_place
from flambeau.tensor.autograd.recording import RecordPlan, record_result
from flambeau.tensor.tensor import Tensor, make


class _Recorded(Record):
    """The name and derivative that a call is recorded with, if PyTorch's formula for it differs."""

    name: str
    derivative: Derivative


@cache
def _recorded_as(op: Op, derivative: Derivative | None) -> Any:
    if derivative is None:
        return op
    name = derivative.name or op.derivative.name
    return _Recorded(op.name, _rename(derivative, name))


def _rename(derivative: Derivative, name: Any) -> Derivative:
    return Derivative(*derivative.formulas, whole=derivative.whole, name=name, outputs=derivative.outputs)


def intercept(op: Any, args: Sequence[Any], params: tuple[Any, ...]) -> Any:
    """Show a call of an operator, and record it."""
    if not dispatch.is_shown(args):
        return NotImplemented
    translation = translation_of(op) or _own(op)
    with recording(False):
        shown = translation.calls(args, params)
        result = shown.run() if isinstance(shown, Call) else shown
    outputs = result if isinstance(result, tuple | list) else (result,)
    outputs = tuple([_apart(output, args) for output in outputs])
    if mode.recording and all(isinstance(output, Tensor) for output in outputs):
        record_result(_recorded_as(op, translation.derivative), params, args, outputs)
    kept = translation.kept or len(outputs)
    return outputs[0] if kept == 1 else tuple(outputs[:kept])


def _apart(output: Any, args: Sequence[Any]) -> Any:
    """Return `output`, or another tensor of the same memory if a handler returned one of the arguments.

    A result is recorded as a new tensor; an argument keeps the history that it has.
    """
    if type(output) is not Tensor or not any(output is a for a in args):
        return output
    alike = make(output.meta, output.memory, output.ptr)
    alike.counter = output.counter
    return alike


@cache
def _own(op: Any) -> Translation:
    overload = own_overload(op)
    return Translation(lambda args, params: Call(overload, (*args, params)))


def intercept_into(
    op: Any, outputs: Sequence[Tensor], args: Sequence[Any], params: tuple[Any, ...], resize: bool
) -> Any:
    """Show a call that writes into tensors, in place or to `out=`, and record it."""
    if not dispatch.is_shown((*args, *outputs)):
        return NotImplemented
    translation = translation_of(op)
    target = outputs[0]
    node = None
    if mode.recording and not resize:
        recorded = _recorded_as(op, translation.derivative if translation else None)
        plan = RecordPlan(recorded, params, args, tuple([t.meta for t in outputs]))
        node = begin_in_place(plan, args, target)
    with recording(False):
        shown = (translation or _own(op)).calls(args, params)
        if isinstance(shown, Call):
            shown.into(outputs, in_place=bool(args) and args[0] is target and not resize)
        else:
            for t, source in zip(outputs, shown if isinstance(shown, tuple) else (shown,), strict=False):
                t.copy_(source)
    for t in outputs:
        if t.__class__ in dispatch.classes:
            t.counter.version += 1
    if node is not None:
        finish_in_place(node, args, target)
    return target if len(outputs) == 1 else tuple(outputs)


def intercept_view(view: Any, t: Tensor, params: tuple[Any, ...]) -> Any:
    """Show a view, and let it be one of its tensor for autograd."""
    if not dispatch.is_shown((t,)):
        return NotImplemented
    translate = VIEWS.get(view.name)
    with recording(False):
        call = translate(t, *params) if translate else Call(own_overload(view), (t, *params), {})
        result = call.run()
    if isinstance(result, Tensor) and result is not t:
        plan = autograd_meta.ViewPlan(view, t.meta, params)
        result.history = _history_of(view, t, params, plan)
        if result.__class__ in dispatch.classes:
            result.counter = t.counter
    return result


def _history_of(view: Any, t: Tensor, params: tuple[Any, ...], plan: Any) -> Any:
    if t.history is None:
        restriction = None if mode.recording else autograd_meta.current_restriction()
        return autograd_meta.history_of_view(t, view, params, restriction)
    return autograd_meta.recorded_view(t, view, params, plan)


def intercept_views(kind: Any, t: Tensor, dim: int, parts: Sequence[Any]) -> Any:
    """Show a call that makes several views."""
    if not dispatch.is_shown((t,)):
        return NotImplemented
    with recording(False):
        results = tuple(SEVERAL[kind.__name__](t, dim, parts).run())
    autograd_meta.record_several(kind, t, dim, parts, results)
    return results


def _show(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return find_overload(name)(*args, **kwargs)


def _find_packet(name: str) -> Any:
    return packet_of(f"aten::{name}") if overloads_of(f"aten::{name}") else None


dispatch.lower_with(show=_show, create=show_creation, find_packet=_find_packet)
interception.add_layer(
    SimpleNamespace(
        intercept=intercept,
        intercept_into=intercept_into,
        intercept_view=intercept_view,
        intercept_views=intercept_views,
    )
)
