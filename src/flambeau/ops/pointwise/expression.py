"""Expressions of pointwise operators as one operator, for user kernels.

An expression is a graph of `Node`s: inputs, numbers, and pointwise operators applied to nodes. Each operator
definition has host arithmetic, C++ text and a derivative, so an expression has all three: its reference implementation
runs the operators' in order, its CUDA form is their texts as one kernel, and its derivative, by the chain rule, is an
expression again.

# Note [One dtype]
All values except truth values are computed in one dtype: the promoted dtype of operands and numbers, or a floating one
if a function of the expression returns floats for integers. Half precision is computed in float32 and rounded once, at
the end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from flambeau.core.device import CPU
from flambeau.core.dtype import DTYPES, FLOATING, bool_, dtype, float32
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Expression, Launch, native_code
from flambeau.ops.cache_blocks import BLOCK
from flambeau.ops.derivative_helpers import zeros
from flambeau.ops.op import INPUTS, MISSING, NOT_DIFFERENTIABLE, Derivative, Op, Operand, names_of
from flambeau.ops.pointwise import activation
from flambeau.ops.pointwise import pointwise_arithmetic as arithmetic
from flambeau.ops.pointwise import pointwise_functions as functions
from flambeau.ops.pointwise import pointwise_logic as logic
from flambeau.ops.pointwise import pointwise_special as special
from flambeau.ops.pointwise.dtype_promotion import (
    FLOAT_TO_REAL,
    TO_FLOAT,
    TO_REAL,
    Promotion,
    result_type,
    wide,
)
from flambeau.ops.pointwise.pointwise import Pointwise, pointwise
from flambeau.ops.pointwise.pointwise_body import Array, Into, Lazy
from flambeau.ops.pointwise.pointwise_several import together

MOST = 8  # the maximum number of tensors
LETTERS = "abcdefghjklmnopqrstuvwxyz"  # names of operands in C++
_Number = bool | int | float | complex
_EITHER = {logic.logical_and, logic.logical_or, logic.logical_xor, logic.logical_not, logic.eq, logic.ne}
_OF_TRUTHS = {
    logic.bitwise_and: logic.logical_and,
    logic.bitwise_or: logic.logical_or,
    logic.bitwise_xor: logic.logical_xor,
    logic.bitwise_not: logic.logical_not,
}


# -- the graph ----------------------------------------------------------------------------------------------


class Node:
    """A node of an expression's graph. It supports the operators and methods of tensors that derivative formulas use.

    Attributes:
        place: Its position in the text, for errors.
        truth: True if it is a truth value.
    """

    place = ""
    truth = False
    meta = SimpleNamespace(shape=())
    dtype = float32  # real, because derivative formulas ask whether operands are complex
    requires_grad = True  # its own derivative may be requested

    def __add__(self, other: Any) -> Node:
        return self if type(other) is int and other == 0 else apply_operator(arithmetic.add, self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Node:
        return apply_operator(arithmetic.sub, self, other)

    def __rsub__(self, other: Any) -> Node:
        return apply_operator(arithmetic.sub, other, self)

    def __mul__(self, other: Any) -> Node:
        return self if type(other) is int and other == 1 else apply_operator(arithmetic.mul, self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Node:
        return apply_operator(arithmetic.div, self, other)

    def __rtruediv__(self, other: Any) -> Node:
        return apply_operator(arithmetic.div, other, self)

    def __pow__(self, other: Any) -> Node:
        return apply_operator(arithmetic.pow_, self, other)

    def __rpow__(self, other: Any) -> Node:
        return apply_operator(arithmetic.pow_, other, self)

    def __neg__(self) -> Node:
        return apply_operator(arithmetic.neg, self)

    def __lt__(self, other: Any) -> Node:
        return apply_operator(logic.lt, self, other)

    def __le__(self, other: Any) -> Node:
        return apply_operator(logic.le, self, other)

    def __gt__(self, other: Any) -> Node:
        return apply_operator(logic.gt, self, other)

    def __ge__(self, other: Any) -> Node:
        return apply_operator(logic.ge, self, other)

    def __eq__(self, other: object) -> Node:  # type: ignore[override]
        return apply_operator(logic.eq, self, other)

    def __ne__(self, other: object) -> Node:  # type: ignore[override]
        return apply_operator(logic.ne, self, other)

    __hash__ = object.__hash__

    def __and__(self, other: Any) -> Node:
        return apply_operator(logic.bitwise_and, self, other)

    def __or__(self, other: Any) -> Node:
        return apply_operator(logic.bitwise_or, self, other)

    def __invert__(self) -> Node:
        return apply_operator(logic.bitwise_not, self)

    def __bool__(self) -> bool:
        raise NotImplementedError("an expression has no truth value before it runs")

    def conj(self) -> Node:
        return apply_operator(functions.conj_physical, self)

    def where(self, condition: Any, other: Any) -> Node:
        return apply_operator(logic.where, condition, self, other)

    def clamp(self, min: Any = None, max: Any = None) -> Node:
        raised = self if min is None else apply_operator(RECORDS["clamp_min"], self, min)
        return raised if max is None else apply_operator(RECORDS["clamp_max"], raised, max)

    def masked_fill(self, mask: Any, value: Any) -> Node:
        return apply_operator(logic.where, mask, value, self)

    def new_zeros(self, shape: Any) -> Node:
        return Number(0)

    def square(self) -> Node:
        return self * self

    def polygamma(self, n: int) -> Node:
        return (-1) ** (n + 1) * math.factorial(n) * apply_operator(RECORDS["special_zeta"], n + 1, self)

    def div(self, other: Any, *, rounding_mode: str | None = None) -> Node:
        quotient = apply_operator(RECORDS["div"], self, other)
        return quotient if rounding_mode is None else apply_operator(RECORDS[rounding_mode], quotient)

    def __getattr__(self, name: str) -> Callable[..., Node]:
        record = RECORDS.get(name)
        if record is None:
            raise NotImplementedError(f"an expression has no {name!r}")
        return lambda *more: apply_operator(record, self, *more)


class Input(Node):
    """A node that stands for the element of the operand with this index."""

    def __init__(self, index: int) -> None:
        self.index = index


class Number(Node):
    """A number in the text of an expression."""

    def __init__(self, value: _Number) -> None:
        self.value = value
        self.truth = isinstance(value, bool)


class Applied(Node):
    """A node that applies an operator to other nodes."""

    def __init__(self, record: Pointwise, args: tuple[Node, ...], place: str = "") -> None:
        self.record = record
        self.args = args
        self.place = place
        self.truth = _holds(record, args)


def apply_operator(record: Pointwise, *args: Any, place: str = "") -> Node:
    """Return a node that applies an operator to nodes and numbers."""
    return Applied(record, tuple([x if isinstance(x, Node) else Number(x) for x in args]), place)


def _usable(record: Any) -> bool:
    """Return True if expressions may use an operator: it takes no static params, and its C++ text is always equal."""
    if not isinstance(record, Pointwise) or record.static or not record.name.isidentifier():
        return False
    if record.promotion.common not in (result_type, TO_FLOAT.common) or record.name.endswith("_backward"):
        return False
    if record.promotion.result(float32) not in (float32, bool_):
        return False
    form = record.kernel.cuda
    return record is arithmetic.pow_ or (isinstance(form, Expression) and isinstance(form.text, str))


RECORDS: dict[str, Pointwise] = {
    record.name: record
    for module in (arithmetic, functions, logic, special, activation)
    for record in vars(module).values()
    if _usable(record)
}
"""What expressions may name."""


def _holds(record: Pointwise, args: Sequence[Node]) -> bool:
    """Return True if an operator returns a truth value for these arguments."""
    if record is logic.where:
        return args[1].truth and args[2].truth
    if record in _OF_TRUTHS:
        return all(x.truth for x in args)
    return record.promotion.result(float32) is bool_


def topological_order(*roots: Node) -> list[Node]:
    """Return these nodes and all that they depend on, each after its inputs."""
    found: dict[Node, None] = {}
    for root in roots:
        stack: list[tuple[Node, Iterator[Node]]] = [(root, _args(root))]
        while stack:
            node, left = stack[-1]
            for arg in left:
                if arg not in found:
                    stack.append((arg, _args(arg)))
                    break
            else:
                found[node] = None
                stack.pop()
    return list(found)


def _args(node: Node) -> Iterator[Node]:
    return iter(node.args if isinstance(node, Applied) else ())


# -- the operator ---------------------------------------------------------------------------------------------


def operator(
    name: str,
    roots: Sequence[Node],
    arity: int,
    differentiable: bool = False,
    *,
    floats: bool = True,
    promoting: slice = slice(None),
) -> Op:
    """Return the operator of expressions of `arity` operands, with one output for each. It is not in the table of
    operators.

    Args:
        floats: Functions return floats for integers; otherwise integers stay integers and such functions are refused.
        promoting: The operands whose dtypes determine the result's.
    """
    derivative = _derivative(name, roots, arity) if differentiable else MISSING
    records = [_single(name, root, roots, arity, derivative, floats, promoting) for root in roots]
    return records[0] if len(records) == 1 else together(name, records, derivative)


def _single(
    name: str,
    root: Node,
    roots: Sequence[Node],
    arity: int,
    derivative: Derivative,
    floats: bool,
    promoting: slice,
) -> Pointwise:
    """Return the operator of one output, whose dtype all nodes determine: see Note [One dtype]."""
    everything = topological_order(*roots)
    nodes = [x for x in everything if isinstance(x, Applied)]
    numbers = [type(x.value) for x in everything if isinstance(x, Number)] if floats else []
    computing = [x for x in nodes if not all(arg.truth for arg in x.args)]
    to_float = floats and any(x.record.promotion.common is TO_FLOAT.common for x in nodes)

    def common(operands: Sequence[Operand], default: dtype) -> dtype:
        kind = result_type([*operands, *numbers], default)
        return default if to_float and kind.category < FLOATING else kind

    def check(kind: dtype, operands: Sequence[Operand]) -> None:
        for node in computing:
            if not _computes_in(node, kind, floats):
                raise NotImplementedError(
                    f"\"{node.record.name}\" not implemented for '{kind.torch_name}' in {name}{node.place}"
                )

    truth = root.truth and floats  # without `floats` the result has the operands' dtype, as in C++
    return pointwise(
        name,
        Lazy(lambda launch: Into(_Arithmetic(root, arity, launch).store)),
        arity,
        name,
        cuda=_text(root, arity),
        header=_header([x for x in topological_order(root) if isinstance(x, Applied)]),
        promotion=Promotion(common, (lambda kind: bool_) if truth else (lambda kind: kind)),
        dtypes=DTYPES,
        check=check,
        promoting=promoting,
        flops=max(1, len(nodes) // len(roots)),
        derivative=derivative,
        listed=False,
    )


_PARTS = (TO_REAL, FLOAT_TO_REAL)  # operators whose results are real if the operand is complex


def _computes_in(node: Applied, kind: dtype, floats: bool) -> bool:
    """Return True if an operation of an expression, with its constants, can be computed in a dtype.

    Args:
        node: The operation.
        kind: The dtype.
        floats: True if operations that make floats of integers can be part of the expression.
    """
    whole = kind.category < FLOATING and not floats
    if whole and (node.record.promotion.common is TO_FLOAT.common or any(map(_is_float, node.args))):
        return False
    return kind in node.record.dtypes and not (kind.is_complex and node.record.promotion in _PARTS)


def _is_float(node: Node) -> bool:
    return isinstance(node, Number) and isinstance(node.value, float | complex)


def _header(nodes: Sequence[Applied]) -> str:
    forms = [x.record.kernel.cuda for x in nodes]
    headers = {form.header for form in forms if isinstance(form, Expression)} - {""}
    if len(headers) > 1:
        raise NotImplementedError(f"an expression over functions of {sorted(headers)} together")
    return headers.pop() if headers else ""


@dataclass(frozen=True, slots=True)
class _Step:
    """One statement: its operator (None for a conversion), the slots of its inputs, and whether it is a truth value."""

    record: Pointwise | None
    slots: tuple[int, ...]
    truth: bool


_ToTruth = logic.ne


def _steps(root: Node, arity: int) -> tuple[list[_Number], list[_Step], int]:
    """Return numbers, statements, and the slot of the result. Slots: inputs, numbers, then a statement each.

    Equal statements are one. Numbers used as truth values are compared with 0, truth values used as numbers
    converted.
    """
    nodes = topological_order(root)
    numbers = {repr(x.value): x.value for x in nodes if isinstance(x, Number)} | {"0": 0}
    at_number = {text: arity + i for i, text in enumerate(numbers)}
    steps: dict[_Step, int] = {}
    place: dict[Node, int] = {}
    truths = {at_number[text] for text, value in numbers.items() if isinstance(value, bool)}

    def add(record: Pointwise | None, slots: tuple[int, ...], truth: bool) -> int:
        step = _Step(record, slots, truth)
        found = steps.setdefault(step, arity + len(numbers) + len(steps))
        if truth:
            truths.add(found)
        return found

    def as_number(slot: int) -> int:
        return add(None, (slot,), False) if slot in truths else slot

    def as_truth(slot: int) -> int:
        return slot if slot in truths else add(_ToTruth, (slot, at_number["0"]), True)

    for node in nodes:
        if isinstance(node, Input):
            place[node] = node.index
        elif isinstance(node, Number):
            place[node] = at_number[repr(node.value)]
        elif isinstance(node, Applied):
            record, slots = node.record, [place[x] for x in node.args]
            all_truths = all(slot in truths for slot in slots)
            if record in _OF_TRUTHS and all_truths:
                record = _OF_TRUTHS[record]
            if record.conditions:
                both = slots[1] in truths and slots[2] in truths
                values = slots[1:] if both else [as_number(x) for x in slots[1:]]
                slots = [as_truth(slots[0]), *values]
            elif not (record in _EITHER and all_truths):
                slots = [as_number(x) for x in slots]
            place[node] = add(record, tuple(slots), node.truth)
    last = place[root] if root.truth else as_number(place[root])
    return list(numbers.values()), list(steps), last


class _Arithmetic:
    """The reference implementation: it runs the statements in order over blocks of arrays in the computing dtype."""

    def __init__(self, root: Node, arity: int, launch: Launch) -> None:
        numbers, steps, self._last = _steps(root, arity)
        self._kind = kind = wide(launch.params[0]).numpy
        self._numbers = [x if isinstance(x, bool) else np.asarray(x).astype(kind)[()] for x in numbers]
        of_steps = [bool_ if step.truth else wide(launch.params[0]) for step in steps]
        kinds = [wide(launch.params[0])] * arity + [type(x) for x in numbers] + of_steps
        native = [
            _native_step(step, [kinds[slot] for slot in step.slots], result)
            for step, result in zip(steps, of_steps, strict=True)
        ]
        self._steps = [
            (code or _computes(step.record, launch), step.slots, step.truth)
            for step, code in zip(steps, native, strict=True)
        ]
        self._truth = root.truth

    def store(self, *operands: Any, out: Array | None = None) -> Any:
        """Compute the result, in `out` if it is not None. Integers wrap around."""
        if out is None:
            shape = np.broadcast_shapes(*[np.shape(x) for x in operands])
            operands = tuple([np.broadcast_to(x, shape) if np.ndim(x) else x for x in operands])
            out = np.empty(shape, np.bool_ if self._truth else self._kind)
        if out.size <= BLOCK:
            out[...] = self._run(operands)
            return out
        for block in _blocks(out, operands):
            block[0][...] = self._run(block[1:])
        return out

    def _run(self, operands: Sequence[Any]) -> Any:
        kind, values = self._kind, [*operands, *self._numbers]
        for compute, slots, truth in self._steps:
            found = compute(*[values[slot] for slot in slots])
            values.append(found if truth or found.dtype == kind else np.asarray(found).astype(kind))
        return values[self._last]


def _blocks(out: Array, operands: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield corresponding blocks of output and operands: ranges of memory if there are no gaps, otherwise rows."""
    if all(x.flags.c_contiguous for x in (out, *operands) if np.ndim(x)):
        out, operands = out.reshape(-1), [x.reshape(-1) if np.ndim(x) else x for x in operands]
    rows = max(1, BLOCK * len(out) // out.size)
    for start in range(0, len(out), rows):
        part = slice(start, start + rows)
        yield [out[part], *[x[part] if np.ndim(x) else x for x in operands]]


def _computes(record: Pointwise | None, launch: Launch) -> Callable[..., Any]:
    if record is None:
        return np.asarray
    compute = record.compute
    if isinstance(compute, Lazy):
        compute = compute.load(launch)
    return compute.store if isinstance(compute, Into) else compute


def _native_step(step: _Step, kinds: Sequence[dtype | type], result: dtype) -> Callable[..., Any] | None:
    """Return the native code of a statement, if a launch of its operator alone would run native code.

    A launch whose operands are integers alone, as in `x > 0 ? 1 : 2`, has another dtype than the statement.

    Args:
        step: The statement.
        kinds: The dtypes of its inputs, and the types of those that are numbers.
        result: The dtype of its result.
    """
    native = native_code()
    if native is None or step.record is None or not any(isinstance(x, dtype) for x in kinds):
        return None
    operands = [Meta.contiguous_of((2,), x, CPU) if isinstance(x, dtype) else x for x in kinds]
    signature = step.record.rule(operands, (float32,))
    if signature.outputs[0].dtype is not result:
        return None
    alone = Launch(step.record.kernel, signature.outputs, signature.inputs, signature.params)
    code: Callable[..., Any] | None = native.native_step(alone)
    return code


def _text(root: Node, arity: int) -> str:
    """Return the statements in C++, as an expression: an immediately called function."""
    numbers, steps, last = _steps(root, arity)
    names = list(LETTERS[:arity])
    lines = []
    for i, value in enumerate(numbers):
        names.append(f"n{i}")
        kind = "bool" if isinstance(value, bool) else "T"
        lines.append(f"const {kind} n{i} = {_literal(value)};")
    for i, step in enumerate(steps):
        args = [names[slot] for slot in step.slots]
        constant = len(step.slots) == 2 and arity <= step.slots[1] < arity + len(numbers)
        lines.append(
            f"const {'bool' if step.truth else 'T'} v{i} = {_applied_text(step.record, args, constant)};"
        )
        names.append(f"v{i}")
    return f"[&] {{ {' '.join(lines)} return {names[last]}; }}()"


def _applied_text(record: Pointwise | None, args: Sequence[str], constant: bool) -> str:
    """Return C++ that applies an operator to operands' names. `constant`: the second operand is a number of the
    text.
    """
    if record is None:
        return f"to<T>({args[0]})"
    if record is arithmetic.pow_:
        return f"pow_any({args[0]}, {args[1]}, {str(constant).lower()})"
    form = record.kernel.cuda
    assert isinstance(form, Expression) and isinstance(form.text, str)
    named = dict(zip("abcdefgh", args, strict=False))
    return re.sub(r"\b[a-h]\b", lambda found: named[found[0]], form.text)


def _literal(value: _Number) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, complex):
        return f"to<T>(c128{{{_double(value.real)}, {_double(value.imag)}}})"
    return f"to<T>({_double(value)})" if isinstance(value, float) else f"to<T>({value}ll)"


def _double(value: float) -> str:
    if value != value:
        return "(double)NAN"
    if value in (float("inf"), float("-inf")):
        return f"{'-' if value < 0 else ''}(double)INF"
    return repr(float(value))


# -- the derivative ---------------------------------------------------------------------------------------------


def _derivative(name: str, roots: Sequence[Node], arity: int) -> Derivative:
    reached = set().union(*[_inputs_with_gradient(root) for root in roots if not root.truth])
    if not reached:
        return NOT_DIFFERENTIABLE
    derivative = Derivative(whole=_Gradients(name, roots, arity))
    derivative.takes = frozenset(reached)
    return derivative


def _inputs_with_gradient(root: Node) -> set[int]:
    """Return the inputs for which the expression has a gradient."""
    found, stack = {root}, [root]
    while stack:
        node = stack.pop()
        if isinstance(node, Applied):
            new = [arg for i, arg in enumerate(node.args) if _passes(node, i) and arg not in found]
            found.update(new)
            stack += new
    return {x.index for x in found if isinstance(x, Input)}


def _passes(node: Applied, i: int) -> bool:
    """Return True if an operator passes a gradient to input `i`, or would if its derivative were implemented."""
    derivative = node.record.derivative
    if derivative is NOT_DIFFERENTIABLE or node.truth or node.args[i].truth:
        return False
    return derivative.takes is None or i in derivative.takes


class _Gradients:
    """The formula of all gradients: expressions of the results' gradients and of the required inputs."""

    def __init__(self, name: str, roots: Sequence[Node], arity: int) -> None:
        self.name = name
        self.truths = [root.truth for root in roots]
        self._roots = [root for root in roots if not root.truth]
        self._arity = arity
        self._slopes: dict[int, Node | Exception | None] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Return the values needed if every input requires a gradient."""
        return self.bind_needs((True,) * self._arity).names

    def __call__(self, needs: Sequence[bool], grad: Any, call: Any, *inputs: Any) -> list[Any]:
        return self.bind_needs((True,) * self._arity)(needs, grad, call, *inputs)

    def bind_needs(self, needs: Sequence[bool]) -> _Bound:
        """Return the formula for the inputs that require a gradient."""
        return _Bound(self, {i: self._slope(i) for i, needed in enumerate(needs) if needed}, len(self._roots))

    def _slope(self, index: int) -> Node | Exception | None:
        """Return the gradient of an input as a node; None if it is zero; the error to raise if there is none.

        Input(-1 - k) is the gradient of the k-th result.
        """
        if index not in self._slopes:
            grads = [Input(-1 - k) for k in range(len(self._roots))]
            try:
                self._slopes[index] = _backward(self._roots, index, grads)
            except (NotImplementedError, RuntimeError) as error:
                self._slopes[index] = error
        return self._slopes[index]


class _Bound:
    """The gradient formula of an expression for a set of inputs that require gradients.

    Attributes:
        names: The values that it needs: see Note [Derivatives].
    """

    def __init__(self, of: _Gradients, slopes: dict[int, Node | Exception | None], count: int) -> None:
        self._of, self._slopes = of, slopes
        nodes = topological_order(*[x for x in slopes.values() if isinstance(x, Node)])
        used = sorted({x.index for x in nodes if isinstance(x, Input) and x.index >= 0})
        place = {-1 - k: k for k in range(count)} | {index: count + i for i, index in enumerate(used)}
        nodes_of = {i: x for i, x in slopes.items() if isinstance(x, Node)}
        self._kernels = GradientOperators(f"{of.name}.gradient", nodes_of, place)
        grad = "grad" if len(of.truths) == 1 else "grads"
        self.names = ("needs", grad, "call", *[INPUTS[index] for index in used])

    def __call__(self, needs: Sequence[bool], grad: Any, call: Any, *inputs: Any) -> list[Any]:
        grads = (grad,) if len(self._of.truths) == 1 else grad
        given = [g for g, truth in zip(grads, self._of.truths, strict=True) if not truth]
        found: list[Any] = [None] * len(needs)
        computed = []
        for i, slope in self._slopes.items():
            if not needs[i]:
                continue
            if isinstance(slope, Exception):
                raise slope
            if isinstance(slope, Input) and slope.index < 0:
                found[i] = given[-1 - slope.index]
            elif slope is None:
                found[i] = zeros(given[0])
            else:
                computed.append(i)
        for i, result in self._kernels.compute(computed, call, (*given, *inputs)):
            found[i] = result
        return found


class GradientOperators:
    """Operators of several inputs' gradients, one for each set of inputs, created when it is first needed."""

    def __init__(self, name: str, slopes: dict[int, Node], place: dict[int, int]) -> None:
        """Create an object that creates operators when they are needed.

        Args:
            name: The name of the operators.
            slopes: The gradient of each input, as an expression.
            place: Index of an `Input` of the expressions -> position of the operand. The first has a gradient's shape.
        """
        self._name, self._slopes, self._place = name, slopes, place
        self._found: dict[tuple[int, ...], tuple[Op, list[int]]] = {}

    def compute(
        self, indices: Sequence[int], call: Any, operands: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        """Yield these inputs' numbers and gradients, all of one launch."""
        if indices:
            record, places = self.find(tuple(indices))
            results = call(record, tuple([operands[place] for place in places]))
            yield from zip(indices, results if len(indices) > 1 else (results,), strict=True)

    def find(self, indices: tuple[int, ...]) -> tuple[Op, list[int]]:
        """Return the operator that computes these inputs' gradients, and the positions of the operands that it
        reads.
        """
        if indices not in self._found:
            slopes = [self._slopes[i] for i in indices]
            used = {x.index for x in topological_order(*slopes) if isinstance(x, Input)}
            places = sorted(
                {0} | {self._place[index] for index in used}
            )  # a constant has the shape of the first
            roots = _renumber_inputs(slopes, {index: places.index(self._place[index]) for index in used})
            record = operator(self._name, roots, len(places), differentiable=len(places) <= len(INPUTS))
            self._found[indices] = record, places
        return self._found[indices]


def _backward(roots: Sequence[Node], index: int, given: Sequence[Node]) -> Node | None:
    """Return the gradient of input `index`, given those of the roots, by the chain rule; None if no root depends on
    it.
    """
    grads: dict[Node, Node] = {}
    for root, grad in zip(roots, given, strict=True):
        grads[root] = grads[root] + grad if root in grads else grad
    total: Node | None = None
    leads = {node: index in _inputs_with_gradient(node) for node in topological_order(*roots)}
    for node in reversed(leads):
        if not leads[node] or node not in grads:
            continue
        if isinstance(node, Input):
            total = grads[node] if total is None else total + grads[node]
        if not isinstance(node, Applied):
            continue
        for i, arg in enumerate(node.args):
            part = _through(node, i, grads[node]) if leads[arg] and _passes(node, i) else None
            if part is not None:
                grads[arg] = grads[arg] + part if arg in grads else part
    return total


def _through(node: Applied, i: int, grad: Node) -> Node | None:
    """Return the gradient that an operator's derivative formula passes to its input `i`."""
    derivative = node.record.derivative
    formula = derivative.formulas[i] if i < len(derivative.formulas) else None
    if formula is None:
        raise RuntimeError(f"derivative for torch.{node.record.name} is not implemented in expressions")
    given: dict[str, Any] = {"grad": grad, "out": node, "call": _apply_in_formula, "params": ()}
    for at, (name, arg) in enumerate(zip(INPUTS, node.args, strict=False)):
        given[name] = arg.value if isinstance(arg, Number) else arg
        if at < node.record.conditions and not arg.truth:
            given[name] = arg != 0
    found = formula(*[given[name] for name in names_of(formula)])
    return found if isinstance(found, Node) or found is None else Number(found)


def _apply_in_formula(record: Pointwise, args: Sequence[Any], params: tuple[Any, ...] = ()) -> Node:
    """Return `symbolic`, and polygamma of a fixed order by the zeta function, which has no kernels in 16 bits."""
    return args[0].polygamma(*params) if record.name == "polygamma" else symbolic(record, args, params)


def symbolic(record: Pointwise, args: Sequence[Any], params: tuple[Any, ...] = ()) -> Node:
    if record.static:
        raise NotImplementedError(f"{record.name} has static parameters, which expressions lack")
    return apply_operator(record, *args)


def _renumber_inputs(roots: Sequence[Node], place: dict[int, int]) -> list[Node]:
    made: dict[Node, Node] = {}
    for node in topological_order(*roots):
        if isinstance(node, Input):
            made[node] = Input(place[node.index])
        elif isinstance(node, Applied):
            made[node] = Applied(node.record, tuple([made[x] for x in node.args]), node.place)
        else:
            made[node] = node
    return [made[root] for root in roots]
