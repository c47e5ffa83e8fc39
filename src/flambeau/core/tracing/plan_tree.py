"""`PlanTree`: the plans of one structure, as straight-line code that grows with the cases that it meets.

# Note [Plan trees]
A trace is a sequence of guards with a result that depends on symbols. The traces of one structure form a tree, since
planning code asks the same questions until an answer differs. Each trace becomes one function: it checks its guards
from the fork on and builds the result. A guard that fails calls the function on the other side of that fork, if there
is one. A tree stops growing at a limit: a structure whose plans all differ is planned call by call.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from flambeau.core.device import device
from flambeau.core.dtype import dtype
from flambeau.core.frozen import Record
from flambeau.core.layout import contiguous_strides
from flambeau.core.meta import Meta, MetaKind, intern, tracing
from flambeau.core.tracing.symbols import Packed, PlanTrace, ShapeGraph, Symbol, is_symbol, round_to_float32

_LIMIT = 128  # the maximum number of traces in a tree
_ATOMS = (bool, int, float, complex, str, bytes, type(None), type, dtype, device, MetaKind)
_lock = threading.Lock()  # allows one trace at a time, because metas refer to it


class Build:
    """A part of a recorded plan that depends on sizes: a later call computes `function(*values)` from its own."""

    __slots__ = ("function", "values")

    def __init__(self, function: Callable[..., Any], *values: Any) -> None:
        self.function, self.values = function, values


class _Fork:
    """A guard of a tree.

    Attributes:
        question: The condition that the guard tests, ("ask", condition), or the number that it compares, ("fix", node).
        following: Answer -> the next guard; None where a trace ends.
        functions: Answer -> the function that continues, for answers that were added after the guard was compiled.
    """

    __slots__ = ("following", "functions", "question")

    def __init__(self, question: tuple[str, Any]) -> None:
        self.question = question
        self.following: dict[Any, _Fork | None] = {}
        self.functions: dict[Any, Callable[..., Any]] = {}


class PlanTree:
    """The plans of calls that have one structure.

    Attributes:
        find: Returns the result for the metas and numbers of a call; None if the tree has no such case.
        is_full: True if the tree learns no more.
    """

    def __init__(self) -> None:
        self.find: Callable[..., Any] = _find_nothing
        self.is_full = False
        self._graph = ShapeGraph()
        self._start = _Fork(("start", 0))
        self._cases = 0
        self._namespace: dict[str, Any] = {
            "intern": intern,
            "nothing": _find_nothing,
            "round_to_float32": round_to_float32,
        }

    def learn(
        self,
        plan: Callable[[Sequence[Meta], Sequence[Any]], Any],
        metas: Sequence[Meta],
        numbers: Sequence[int],
    ) -> None:
        """Run planning code over symbols, and add the case to the tree.

        Args:
            plan: The planning code. It returns what `find` is to return: metas, numbers, tuples of these, `Build`.
            metas: Layouts of the call, each once.
            numbers: Further numbers of the call.
        """
        if not _lock.acquire(blocking=False):
            return
        trace = PlanTrace(self._graph)
        try:
            with tracing(trace):
                symbolic = [_symbolic_meta(trace, i, meta) for i, meta in enumerate(metas)]
                symbols = [trace.input(f"n{i}", number) for i, number in enumerate(numbers)]
                result = plan(symbolic, symbols)
                self._add(trace, symbolic, len(numbers), result)
        except Exception:
            if REPORT:
                raise
            # the code does something that a trace cannot follow: each call is planned by itself
            self.is_full = True
        finally:
            trace.is_closed = True
            _lock.release()
        self._cases += 1
        self.is_full = self.is_full or self._cases >= _LIMIT

    def _add(self, trace: PlanTrace, metas: Sequence[Meta], numbers: int, result: Any) -> None:
        """Add the function of a trace at the point where the trace leaves the tree."""
        parameters = ", ".join([f"m{i}" for i in range(len(metas))] + [f"n{i}" for i in range(numbers)])
        writer = _PlanWriter(trace, metas, parameters, self._namespace)
        returned = writer.write(result)  # this may fix symbols, which adds guards
        fork, answer, events = self._start, True, iter(trace.events)
        while answer in fork.following:
            following, event = fork.following[answer], next(events, None)
            if event is None or following is None:
                return  # the tree contains this case already
            if following.question != event[:2]:
                raise Untraceable(
                    f"planning asks {event[:2]} after the answers that led to {following.question}"
                )
            fork, answer = following, event[3]
        last, entrance = fork, answer
        for kind, what, nodes, given in events:
            fork.following[answer] = guard = _Fork((kind, what))
            fork, answer = guard, given
            writer.write_guard(guard, nodes, given)
        fork.following[answer] = None
        function = writer.function(returned)
        if last is self._start:
            self.find = function
        else:
            last.functions[entrance] = function


class Untraceable(Exception):
    """The error raised if planning code depends on something that a trace cannot record."""


REPORT = False  # set by tests: raise the reason why a structure cannot be traced


def _find_nothing(*inputs: Any) -> None:
    """Return None, because the tree has no plan for the call."""


def _symbolic_meta(trace: PlanTrace, at: int, meta: Meta) -> Meta:
    """Return a meta whose sizes, and strides unless they follow from these, are symbols."""
    if meta.__class__ is not Meta:
        raise Untraceable("a layout that is not strided, or beyond its storage")
    shape: Any = tuple(trace.inputs(f"m{at}.shape", meta.shape, least=0))
    strides: Any = (
        contiguous_strides(shape) if meta.plain else tuple(trace.inputs(f"m{at}.strides", meta.strides))
    )
    return Meta.of(shape, strides, meta.dtype, meta.device) if shape else meta


class _PlanWriter:
    """A writer of the code of one function of a plan tree."""

    def __init__(
        self, trace: PlanTrace, metas: Sequence[Meta], parameters: str, namespace: dict[str, Any]
    ) -> None:
        self._trace, self._graph, self._parameters, self._namespace = (
            trace,
            trace.graph,
            parameters,
            namespace,
        )
        self._metas = {id(meta): f"m{i}" for i, meta in enumerate(metas)}
        self._lines: list[str] = []
        self._defined: set[int] = set()
        self._late: list[str] = []  # lines that build the result

    def function(self, returned: Callable[[], str]) -> Callable[..., Any]:
        """Compile the statements written so far to a function that returns the value of an expression."""
        expression = returned()
        lines = "".join([f"    {line}\n" for line in self._lines])
        text = f"def find({self._parameters}):\n{lines}    return {expression}\n"
        scope: dict[str, Any] = {}
        exec(
            compile(text, "<plan tree>", "exec"), self._namespace, scope
        )  # safe, because all of the text is generated here
        found: Callable[..., Any] = scope["find"]
        return found

    def write_guard(self, guard: _Fork, nodes: Sequence[int], answer: Any) -> None:
        kind, what = guard.question
        for node in nodes:
            self._define(node)
        others = self._constant(guard.functions)
        if kind == "fix":
            self._lines.append(
                f"if v{what} != {answer!r}: return {others}.get(v{what}, nothing)({self._parameters})"
            )
        else:
            test = f"not ({what})" if answer else what
            self._lines.append(f"if {test}: return {others}.get({not answer}, nothing)({self._parameters})")

    def write(self, value: Any) -> Callable[[], str]:
        """Return what gives the expression of a result once the guards are written."""
        text = self._expression(value)
        return lambda: text() if callable(text) else text

    def _expression(self, value: Any) -> Any:
        if type(value) is Symbol:
            return self._number(value)
        if isinstance(value, Meta):
            return self._meta(value)
        if isinstance(value, Packed):
            layout = self._constant(struct.Struct(value.layout).pack)
            return self._call(layout, value.values)
        if isinstance(value, Build):
            return self._call(self._constant(value.function), value.values)
        if value.__class__ in (tuple, list):
            parts = [self._expression(each) for each in value]
            left, right = "()" if value.__class__ is tuple else "[]"
            return lambda: f"{left}{''.join([part() + ', ' for part in parts])}{right}"
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._call(self._constant(value.__class__), tuple(value))
        if isinstance(value, Record):
            names = value._fields
            parts = [self._expression(getattr(value, name)) for name in names]
            kind = self._constant(value.__class__)
            named = list(zip(names, parts, strict=True))
            return lambda: f"{kind}({', '.join([f'{name}={part()}' for name, part in named])})"
        if isinstance(value, _ATOMS) or (isinstance(value, FunctionType) and value.__closure__ is None):
            constant = repr(value) if value.__class__ in (int, bool, type(None)) else self._constant(value)
            return lambda: constant
        raise Untraceable(f"a {type(value).__name__} may hold symbols")

    def _call(self, function: str, values: Sequence[Any]) -> Callable[[], str]:
        parts = [self._expression(each) for each in values]
        return lambda: f"{function}({', '.join([part() for part in parts])})"

    def _number(self, symbol: Symbol) -> Callable[[], str]:
        def text() -> str:
            reduced = self._trace.names((symbol,))[0]
            if self._trace.is_node(symbol):
                self._define(symbol.node)
            return reduced

        return text

    def _meta(self, meta: Meta) -> Callable[[], str]:
        name = self._metas.get(id(meta))
        if name is not None:
            return lambda: name
        if not any(is_symbol(n) for n in (*meta.shape, *meta.strides)):
            constant = self._constant(meta)
            return lambda: constant
        return self._call("intern", (meta.shape, meta.strides, meta.kind, meta.numel))

    def _constant(self, value: Any) -> str:
        """Return the name of an object in the namespace of the tree's functions."""
        name = f"c{len(self._namespace)}"
        self._namespace[name] = value
        return name

    def _define(self, node: int) -> None:
        if node in self._defined:
            return
        for operand in self._graph.operands[node]:
            self._define(operand)
        group, line = self._graph.groups.get(node, ((node,), f"v{node} = {self._graph.codes[node]}"))
        self._defined.update(group)
        self._lines.append(line)
