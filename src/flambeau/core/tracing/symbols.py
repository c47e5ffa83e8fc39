"""Symbolic integers: `Symbol` stands for a size, a stride or another number of a call while it is planned.

# Note [Plans of a structure]
Problem: a call with a new shape needs a plan, and the code that makes plans (rules of operators, builders of kernels)
takes a hundred microseconds. It is written for one shape at a time, and all of it should stay so.
Rule: once a structure (operator, dtypes, numbers of dimensions) has been seen with several shapes, the planning code
runs once over symbols. A symbol has the value of this call. Arithmetic on symbols computes values and records nodes; a
comparison answers for this call and is recorded as a guard; every other use of the number (an index, a length, text
of a kernel) fixes it, which is a guard of equality. The nodes and guards become straight-line code (`plan_tree.py`).
Why: the code that is generated is right by construction. A kernel whose text contains a size has a guard on that size.
Consequences: planning code must be pure. Bytes of parameters are packed by `pack`, or the numbers in them are fixed.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any

Key = tuple[Any, ...]
_INFINITY = math.inf


class ShapeGraph:
    """The nodes of all traces of one structure, numbered by what they compute.

    Attributes:
        codes: Node -> Python expression of the variables v0, v1, ...
        operands: Node -> nodes that its expression uses.
        products: Node -> (coefficient, factors) if the node is a product of integers.
        groups: Node -> the nodes that one line of code defines together, and that line.
    """

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.operands: list[tuple[int, ...]] = []
        self.products: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.groups: dict[int, tuple[tuple[int, ...], str]] = {}
        self._numbers: dict[Key, int] = {}

    def node(self, key: Key, code: str, operands: tuple[int, ...]) -> int:
        """Return the number of the node with this key; a new node takes the code and the operands."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.codes)
            self.codes.append(code)
            self.operands.append(operands)
        return number


class PlanTrace:
    """One run of planning code over symbols.

    Attributes:
        events: What the run depends on, in order: ("ask", condition, its nodes, answer) or
            ("fix", node, (node,), value).
        is_closed: True after the run: symbols then are plain numbers.
        metas: The metas of the run, by what their numbers are.
    """

    def __init__(self, graph: ShapeGraph) -> None:
        self.graph = graph
        self.events: list[tuple[str, Any, tuple[int, ...], Any]] = []
        self.is_closed = False
        self.metas: dict[Any, Any] = {}
        self._answers: dict[str, bool] = {}
        self._fixed: dict[int, Any] = {}
        self._least: dict[int, float] = {}

    def input(self, name: str, value: int, least: float = -_INFINITY) -> Symbol:
        """Return the symbol of a number that the generated code is called with, in the variable of its node."""
        node = self.graph.node(("input", name), name, ())
        self.set_bound(node, least)
        return Symbol(self, node, value)

    def inputs(self, name: str, values: Sequence[int], least: float = -_INFINITY) -> list[Symbol]:
        """Return the symbols of a tuple of numbers that one line of the generated code takes apart."""
        symbols = [self.input(f"{name}[{i}]", value, least) for i, value in enumerate(values)]
        nodes = tuple([symbol.node for symbol in symbols])
        line = "".join([f"v{node}, " for node in nodes]) + f"= {name}"
        self.graph.groups.update(dict.fromkeys(nodes, (nodes, line)))
        return symbols

    def is_node(self, x: Any) -> bool:
        """Return True if the generated code computes `x`."""
        return isinstance(self.reduce(x), _Node)

    def reduce(self, x: Any) -> Any:
        """Return the node of a symbol; the value of a fixed symbol or a plain number."""
        if type(x) is not Symbol:
            return x
        return self._fixed[x.node] if x.node in self._fixed else _Node(x.node)

    def names(self, numbers: Sequence[Any]) -> tuple[str, ...]:
        """Return each number as the generated code writes it."""
        return tuple([_text(self.reduce(n)) for n in numbers])

    def least(self, x: Any) -> float:
        """Return a lower bound of a node or a plain number."""
        if not isinstance(x, _Node):
            return float(x)
        least = self._least.get(x, -_INFINITY)
        coefficient, factors = self.graph.products.get(x, (1, ()))
        bounds = [self._least.get(factor, -_INFINITY) for factor in factors]
        if bounds and coefficient > 0 and min(bounds) >= 0:
            least = max(least, coefficient * math.prod(bounds))
        return least

    def set_bound(self, node: int, least: float) -> None:
        """Note a lower bound of a node."""
        if least > self._least.get(node, -_INFINITY):
            self._least[node] = least

    def fix(self, symbol: Symbol) -> Any:
        """Make the run depend on the value of a symbol."""
        if not self.is_closed and symbol.node not in self._fixed:
            self._fixed[symbol.node] = symbol.value
            self.events.append(("fix", symbol.node, (symbol.node,), symbol.value))
        return symbol.value

    def ask(self, sign: str, a: Any, b: Any, answer: bool) -> bool:
        """Make the run depend on the answer to `a < b` or `a == b`, of nodes and plain numbers."""
        if sign == "==" and (not isinstance(a, _Node) or (isinstance(b, _Node) and a > b)):
            a, b = b, a
        a, b = _cancel_common(self, a, b)
        nodes = tuple([int(x) for x in (a, b) if isinstance(x, _Node)])
        if not nodes or (len(nodes) == 2 and a == b) or self._is_bounded(sign, a, b):
            return answer
        condition = f"{_text(a)} {sign} {_text(b)}"
        if condition not in self._answers:
            self._answers[condition] = answer
            self.events.append(("ask", condition, nodes, answer))
            self._learn(sign, a, b, answer)
        return answer

    def _is_bounded(self, sign: str, a: Any, b: Any) -> bool:
        """Return True if bounds answer the question."""
        if not isinstance(b, _Node):
            return self.least(a) >= b if sign == "<" else self.least(a) > b
        return not isinstance(a, _Node) and self.least(b) > a

    def _learn(self, sign: str, a: Any, b: Any, answer: bool) -> None:
        """Record the bounds of a node that follow from the result of a comparison with a number."""
        if isinstance(a, _Node) and not isinstance(b, _Node):
            if sign == "==" and answer:
                self._fixed[int(a)] = b
            elif sign == "==" and self.least(a) == b:
                self.set_bound(int(a), b + 1)
            elif sign == "<" and not answer:
                self.set_bound(int(a), b)
        elif not isinstance(a, _Node) and answer:
            self.set_bound(int(b), a + 1 if a.__class__ is int else a)


class _Node(int):
    """The number of a node, as distinct from a plain number."""

    __slots__ = ()


def _text(x: Any) -> str:
    return f"v{int(x)}" if isinstance(x, _Node) else repr(x)


_PLAIN = (int, float, bool)
_APPLY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "/": operator.truediv, "<<": operator.lshift, ">>": operator.rshift, "&": operator.and_, "|": operator.or_,
    "^": operator.xor, "**": operator.pow,
}  # fmt: skip


def _binary(sign: str, a: Any, b: Any) -> Any:
    """Return the symbol of `a sign b`, or the number if no symbol takes part any more."""
    symbol: Any = a if is_symbol(a) else b
    other: Any = b if symbol is a else a
    kind: Any = other.__class__
    if kind not in _PLAIN:
        return NotImplemented
    value = _APPLY[sign](value_of(a), value_of(b))
    trace = symbol.trace
    if is_symbol(other) and other.trace is not trace:  # a symbol of a trace that has ended
        trace = other.trace if trace.is_closed else trace
        a, b = (value_of(x) if type(x) is Symbol and x.trace is not trace else x for x in (a, b))
    if trace.is_closed:
        return value
    x, y = trace.reduce(a), trace.reduce(b)
    if not isinstance(x, _Node) and not isinstance(y, _Node):
        return value
    node = _simplify(trace, sign, x, y) if value.__class__ is int else None
    if node is None:
        if sign == "+" and isinstance(x, _Node) and isinstance(y, _Node) and x > y:
            x, y = y, x
        code = f"{_text(x)} {sign} {_text(y)}"
        node = _Node(
            trace.graph.node(("code", code), code, tuple([int(n) for n in (x, y) if isinstance(n, _Node)]))
        )
        trace.set_bound(node, _least_result(sign, trace.least(x), trace.least(y)))
    return Symbol(trace, int(node), value) if isinstance(node, _Node) else value


def _least_result(sign: str, x: float, y: float) -> float:
    """Return a lower bound of `x sign y`, where these are lower bounds of the operands."""
    if sign == "+":
        return x + y
    return 0 if x >= 0 and y > 0 and sign in ("//", "%", "/") else -_INFINITY


def _simplify(trace: PlanTrace, sign: str, x: Any, y: Any) -> Any:
    """Return the node or number that `x sign y` of integers is equal to; None if it needs its own node."""
    if y.__class__ is int and ((y == 0 and sign in "+-") or (y == 1 and sign == "//")):
        return x
    if x.__class__ is int and x == 0 and sign == "+":
        return y
    if sign == "*":
        return _product(trace, x, y)
    return _quotient(trace, sign, x, y)


def _factors(trace: PlanTrace, x: Any) -> tuple[int, tuple[int, ...]]:
    if not isinstance(x, _Node):
        return x, ()
    return trace.graph.products.get(int(x), (1, (int(x),)))


def _product(trace: PlanTrace, x: Any, y: Any) -> Any:
    (m, first), (n, second) = _factors(trace, x), _factors(trace, y)
    return _product_node(trace, m * n, tuple(sorted(first + second)))


def _product_node(trace: PlanTrace, coefficient: int, factors: tuple[int, ...]) -> Any:
    if not factors or coefficient == 0:
        return coefficient
    if coefficient == 1 and len(factors) == 1:
        return _Node(factors[0])
    text = " * ".join([f"v{factor}" for factor in factors])
    text = text if coefficient == 1 else f"{text} * {coefficient}"
    node = trace.graph.node(("*", coefficient, factors), text, factors)
    trace.graph.products[node] = (coefficient, factors)
    return _Node(node)


def _cancel_common(trace: PlanTrace, a: Any, b: Any) -> tuple[Any, Any]:
    """Return two products without the positive factors that both have."""
    if not isinstance(a, _Node) or not isinstance(b, _Node):
        return a, b
    (m, first), (n, second) = _factors(trace, a), _factors(trace, b)
    rest, others = list(second), []
    for factor in first:
        if factor in rest and trace.least(_Node(factor)) > 0:
            rest.remove(factor)
        else:
            others.append(factor)
    if len(rest) == len(second):
        return a, b
    return _product_node(trace, m, tuple(others)), _product_node(trace, n, tuple(rest))


def _quotient(trace: PlanTrace, sign: str, x: Any, y: Any) -> Any:
    """Return the quotient or remainder of a product by some of its factors."""
    if sign not in ("//", "%"):
        return None
    (m, first), (n, second) = _factors(trace, x), _factors(trace, y)
    if n == 0 or m % n or any(trace.least(_Node(factor)) < 1 for factor in second):
        return None
    rest = list(first)
    for factor in second:
        if factor not in rest:
            return None
        rest.remove(factor)
    return 0 if sign == "%" else _product_node(trace, m // n, tuple(rest))


def _compare(sign: str, a: Any, b: Any) -> bool:
    """Return `a < b` or `a == b`, and make the run depend on it."""
    answer = bool((operator.lt if sign == "<" else operator.eq)(value_of(a), value_of(b)))
    symbol = a if type(a) is Symbol else b
    trace = symbol.trace
    if trace.is_closed and type(b) is Symbol:
        trace = b.trace
    if trace.is_closed:
        return answer
    a, b = (value_of(x) if type(x) is Symbol and x.trace is not trace else x for x in (a, b))
    if sign == "==" and type(a) is not Symbol:
        a, b = b, a
    return trace.ask(sign, trace.reduce(a), trace.reduce(b), answer)


def is_symbol(x: Any) -> bool:
    """Return True if `x` is a symbol, which `isinstance` takes for a number."""
    return type(x) is Symbol


def value_of(x: Any) -> Any:
    """Return the number that a symbol has in this call; anything else itself."""
    return x.value if type(x) is Symbol else x


class Symbol:
    """A number of a traced call. It is an `int`, or a `float` if it is a quotient.

    See Note [Plans of a structure].
    """

    __slots__ = ("node", "trace", "value")

    def __init__(self, trace: PlanTrace, node: int, value: Any) -> None:
        self.trace, self.node, self.value = trace, node, value

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # isinstance() uses this
        return self.value.__class__

    # -- arithmetic: computes a node ------------------------------------------------------------------
    def __add__(self, other: Any) -> Any:
        return _binary("+", self, other)

    def __radd__(self, other: Any) -> Any:
        return _binary("+", other, self)

    def __sub__(self, other: Any) -> Any:
        return _binary("-", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _binary("-", other, self)

    def __mul__(self, other: Any) -> Any:
        return _binary("*", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _binary("*", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return _binary("//", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _binary("//", other, self)

    def __mod__(self, other: Any) -> Any:
        return _binary("%", self, other)

    def __rmod__(self, other: Any) -> Any:
        return _binary("%", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _binary("/", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _binary("/", other, self)

    def __lshift__(self, other: Any) -> Any:
        return _binary("<<", self, other)

    def __rlshift__(self, other: Any) -> Any:
        return _binary("<<", other, self)

    def __rshift__(self, other: Any) -> Any:
        return _binary(">>", self, other)

    def __rrshift__(self, other: Any) -> Any:
        return _binary(">>", other, self)

    def __and__(self, other: Any) -> Any:
        return _binary("&", self, other)

    def __rand__(self, other: Any) -> Any:
        return _binary("&", other, self)

    def __or__(self, other: Any) -> Any:
        return _binary("|", self, other)

    def __ror__(self, other: Any) -> Any:
        return _binary("|", other, self)

    def __xor__(self, other: Any) -> Any:
        return _binary("^", self, other)

    def __pow__(self, other: Any) -> Any:
        return _binary("**", self, other)

    def __rpow__(self, other: Any) -> Any:
        return _binary("**", other, self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __neg__(self) -> Any:
        return _binary("*", self, -1)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def bit_length(self) -> Any:
        """Return the number of bits, like `int.bit_length`."""
        trace = self.trace
        if trace.is_closed or not isinstance(trace.reduce(self), _Node):
            return self.value.bit_length()
        node = trace.graph.node(("bits", self.node), f"v{self.node}.bit_length()", (self.node,))
        trace.set_bound(node, 0)
        return Symbol(trace, node, self.value.bit_length())

    # -- comparisons: a guard -------------------------------------------------------------------------
    def __eq__(self, other: object) -> bool:
        return _compare("==", self, other) if other.__class__ in _PLAIN else False

    def __ne__(self, other: object) -> bool:
        return not _compare("==", self, other) if other.__class__ in _PLAIN else True

    def __lt__(self, other: Any) -> bool:
        return _compare("<", self, other)

    def __gt__(self, other: Any) -> bool:
        return _compare("<", other, self)

    def __le__(self, other: Any) -> bool:
        return not _compare("<", other, self)

    def __ge__(self, other: Any) -> bool:
        return not _compare("<", self, other)

    def __bool__(self) -> bool:
        return not _compare("==", self, 0)

    # -- every other use: fixes the value -------------------------------------------------------------
    def __index__(self) -> int:
        return self.trace.fix(self)

    def __int__(self) -> int:
        return int(self.trace.fix(self))

    def __float__(self) -> float:
        return float(self.trace.fix(self))

    def __hash__(self) -> int:
        return hash(self.trace.fix(self))

    def __repr__(self) -> str:
        return repr(self.trace.fix(self))

    def __format__(self, spec: str) -> str:
        return format(self.trace.fix(self), spec)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trace.fix(self), name)


_SINGLE = struct.Struct("<f")


def round_to_float32(x: Any) -> Any:
    """Return a float rounded to the nearest that float32 has; for a symbol, the symbol of that."""
    if type(x) is not Symbol or x.trace.is_closed or not x.trace.is_node(x):
        return _SINGLE.unpack(_SINGLE.pack(value_of(x)))[0]
    code = f"round_to_float32(v{x.node})"
    node = x.trace.graph.node(("code", code), code, (x.node,))
    return Symbol(x.trace, node, round_to_float32(x.value))


class Packed:
    """Bytes of parameters that contain symbols: what `struct.pack(layout, *values)` gives once they are known."""

    __slots__ = ("layout", "values")

    def __init__(self, layout: str, values: tuple[Any, ...]) -> None:
        self.layout, self.values = layout, values

    def __len__(self) -> int:
        return struct.calcsize(self.layout)

    def __add__(self, more: Any) -> Packed:
        if isinstance(more, Packed):
            return Packed(self.layout + more.layout[1:], (*self.values, *more.values))
        return Packed(f"{self.layout}{len(more)}s", (*self.values, more))

    def __radd__(self, before: bytes) -> Packed:
        return Packed(f"<{len(before)}s{self.layout[1:]}", (before, *self.values))


def pack(layout: str, *values: Any) -> Any:
    """Return `struct.pack(layout, *values)`; `Packed` if there are symbols among the values.

    Args:
        layout: Begins with "<": no alignment.
    """
    for value in values:
        if type(value) is Symbol and not value.trace.is_closed:
            return Packed(layout, values)
    return struct.pack(layout, *values)
