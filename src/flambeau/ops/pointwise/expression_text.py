"""Texts of user kernels: expressions in Python's syntax, read as graphs of nodes.

    x * y + z                                    operands in the order in which they are named
    lambda x, y, slope=0.1: x if x > y else slope * (x - y)
    x * cos(y), x * sin(y)                       several results

There are Python's operators (`and`, `or`, `not` and `a if c else b` element by element, comparisons in chains),
the numbers pi, inf and nan, and every pointwise function of `torch` by name, `min` and `max` of any number of
arguments.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from functools import reduce
from typing import Any, NoReturn

from flambeau.ops.pointwise import pointwise_arithmetic as arithmetic
from flambeau.ops.pointwise import pointwise_functions as functions
from flambeau.ops.pointwise import pointwise_logic as logic
from flambeau.ops.pointwise.expression import MOST, RECORDS, Input, Node, Number, apply_operator

_BINARY = {
    ast.Add: arithmetic.add, ast.Sub: arithmetic.sub, ast.Mult: arithmetic.mul, ast.Div: arithmetic.div,
    ast.FloorDiv: arithmetic.floor_divide, ast.Mod: arithmetic.remainder, ast.Pow: arithmetic.pow_,
    ast.BitAnd: logic.bitwise_and, ast.BitOr: logic.bitwise_or, ast.BitXor: logic.bitwise_xor,
    ast.LShift: logic.bitwise_left_shift, ast.RShift: logic.bitwise_right_shift,
}  # fmt: skip
_UNARY = {ast.USub: arithmetic.neg, ast.Not: logic.logical_not, ast.Invert: logic.bitwise_not}
_COMPARED = {
    ast.Eq: logic.eq, ast.NotEq: logic.ne, ast.Lt: logic.lt, ast.LtE: logic.le, ast.Gt: logic.gt, ast.GtE: logic.ge,
}  # fmt: skip
_BOOLEAN = {ast.And: logic.logical_and, ast.Or: logic.logical_or}
_NUMBERS = {"pi": math.pi, "inf": math.inf, "nan": math.nan}
_OTHERWISE = {
    "conj": functions.conj_physical, "arcsin": functions.asin, "arccos": functions.acos, "arctan": functions.atan,
    "arctan2": functions.atan2, "arcsinh": functions.asinh, "arccosh": functions.acosh, "arctanh": functions.atanh,
    "fix": functions.trunc, "divide": arithmetic.div, "multiply": arithmetic.mul, "subtract": arithmetic.sub,
    "negative": arithmetic.neg, "floor_divide": arithmetic.floor_divide, "true_divide": arithmetic.div,
    "absolute": arithmetic.abs_,
}  # fmt: skip
_OF_MANY = {"min": arithmetic.minimum, "max": arithmetic.maximum}


@dataclass(frozen=True, slots=True)
class Text:
    """The parsed text of an expression: the operands' names, default values, and a node for each result."""

    names: tuple[str, ...]
    defaults: dict[str, Any]
    results: tuple[Node, ...]
    several: bool


def read(text: str) -> Text:
    """Parse the text of an expression. Raises SyntaxError, with the position, for invalid text or unknown names."""
    source = text.strip()
    try:
        tree: ast.AST = ast.parse(source, "<elementwise>", "eval").body
    except SyntaxError as error:
        error.filename = "<elementwise>"
        raise
    reader = _Reader(source)
    defaults = {}
    if isinstance(tree, ast.Lambda):
        defaults = reader.parameters(tree)
        tree = tree.body
    results = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    nodes = tuple([reader.node(x) for x in results])
    if not reader.inputs:
        reader.refuse(tree, "an expression needs an operand")
    if len(reader.inputs) > MOST:
        reader.refuse(tree, f"an expression has at most {MOST} operands, not {len(reader.inputs)}")
    return Text(tuple(reader.inputs), defaults, nodes, isinstance(tree, ast.Tuple))


class _Reader:
    """A reader of expressions.

    Attributes:
        inputs: The operands so far. If the parameters are declared, other names are refused.
    """

    def __init__(self, source: str) -> None:
        self._lines = source.splitlines()
        self.inputs: dict[str, Input] = {}
        self._closed = False

    def parameters(self, tree: ast.Lambda) -> dict[str, Any]:
        """Read a lambda's parameters and their defaults, which must be numbers."""
        args = tree.args
        for found in (args.vararg, args.kwarg, *args.kwonlyargs, *args.posonlyargs):
            if found is not None:
                self.refuse(found, "the parameters of an elementwise lambda are plain names")
        for arg in args.args:
            self.inputs[arg.arg] = Input(len(self.inputs))
        self._closed = True
        defaults = {}
        for arg, value in zip(args.args[len(args.args) - len(args.defaults) :], args.defaults, strict=True):
            node = self.node(value)
            if not isinstance(node, Number):
                self.refuse(value, f"the default of {arg.arg} must be a number")
            defaults[arg.arg] = node.value
        return defaults

    def refuse(self, tree: ast.AST, why: str) -> NoReturn:
        line, column = getattr(tree, "lineno", 1), getattr(tree, "col_offset", 0) + 1
        end = (getattr(tree, "end_lineno", line), getattr(tree, "end_col_offset", column) + 1)
        raise SyntaxError(why, ("<elementwise>", line, column, self._lines[line - 1], *end))

    def node(self, tree: ast.AST) -> Node:
        """Return the node of a part of the syntax tree."""
        place = f" at line {getattr(tree, 'lineno', 1)}, column {getattr(tree, 'col_offset', 0) + 1}"
        if isinstance(tree, ast.Name):
            return self._read_name(tree)
        if isinstance(tree, ast.Constant):
            return self._number(tree)
        if isinstance(tree, ast.BinOp):
            record = _BINARY.get(type(tree.op)) or self.refuse(tree, "there is no such operator of elements")
            return apply_operator(record, self.node(tree.left), self.node(tree.right), place=place)
        if isinstance(tree, ast.UnaryOp):
            return self._unary(tree, place)
        if isinstance(tree, ast.BoolOp):
            record = _BOOLEAN[type(tree.op)]
            return reduce(lambda a, b: apply_operator(record, a, b, place=place), map(self.node, tree.values))
        if isinstance(tree, ast.Compare):
            return self._read_comparison(tree, place)
        if isinstance(tree, ast.IfExp):
            chosen = (self.node(tree.test), self.node(tree.body), self.node(tree.orelse))
            return apply_operator(logic.where, *chosen, place=place)
        if isinstance(tree, ast.Call):
            return self._read_call(tree, place)
        self.refuse(tree, f"an elementwise expression has no {type(tree).__name__.lower()}")

    def _read_name(self, tree: ast.Name) -> Node:
        if tree.id in self.inputs:
            return self.inputs[tree.id]
        if tree.id in _NUMBERS:
            return Number(_NUMBERS[tree.id])
        if self._closed:
            self.refuse(tree, f"{tree.id!r} is none of the parameters {', '.join(self.inputs)}")
        return self.inputs.setdefault(tree.id, Input(len(self.inputs)))

    def _number(self, tree: ast.Constant) -> Node:
        if not isinstance(tree.value, bool | int | float | complex):
            self.refuse(tree, f"{tree.value!r} is not a number")
        if isinstance(tree.value, int) and tree.value >= 1 << 63:
            self.refuse(tree, f"{tree.value} does not fit into 64 bits")
        return Number(tree.value)

    def _unary(self, tree: ast.UnaryOp, place: str) -> Node:
        node = self.node(tree.operand)
        if isinstance(tree.op, ast.UAdd):
            return node
        if isinstance(tree.op, ast.USub) and isinstance(node, Number) and not isinstance(node.value, bool):
            return Number(-node.value)
        return apply_operator(_UNARY[type(tree.op)], node, place=place)

    def _read_comparison(self, tree: ast.Compare, place: str) -> Node:
        values = [self.node(x) for x in (tree.left, *tree.comparators)]
        links = []
        for op, a, b in zip(tree.ops, values, values[1:], strict=False):
            record = _COMPARED.get(type(op)) or self.refuse(tree, "elements are compared by == != < <= > >=")
            links.append(apply_operator(record, a, b, place=place))
        return reduce(lambda a, b: apply_operator(logic.logical_and, a, b, place=place), links)

    def _read_call(self, tree: ast.Call, place: str) -> Node:
        if not isinstance(tree.func, ast.Name):
            self.refuse(tree.func, "a function is called by its name")
        name = tree.func.id
        if tree.keywords:
            self.refuse(tree.keywords[0], f"{name} takes its arguments by position")
        args = [self.node(x) for x in tree.args]
        if name in _OF_MANY and len(args) > 1:
            return reduce(lambda a, b: apply_operator(_OF_MANY[name], a, b, place=place), args)
        record = _OTHERWISE.get(name) or RECORDS.get(name)
        if record is None:
            self.refuse(tree.func, f"there is no function {name!r} of elements")
        if len(args) != record.arity:
            self.refuse(tree, f"{name} takes {record.arity} arguments, not {len(args)}")
        return apply_operator(record, *args, place=place)
