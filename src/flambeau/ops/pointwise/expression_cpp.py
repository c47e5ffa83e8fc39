"""A reader of C++ functions of one element, as torch.cuda.jiterator takes them, which returns graphs of nodes.

    template <typename T> T name(T x, T y) { const T z = sin(x); if (z > y) return z; return z * y + T(2); }

It reads arithmetic, comparisons, logic, `?:`, functions of C's math library, variables, assignments, `if`, `return`,
and calls of functions that are defined earlier. Other syntax is refused by name.
"""

from __future__ import annotations

import operator as numbers
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from flambeau.core.dtype import FLOATING
from flambeau.core.errors import NotSupportedError
from flambeau.driver.protocol import Launch
from flambeau.ops.op import MISSING, NOT_DIFFERENTIABLE, Op
from flambeau.ops.pointwise import pointwise_arithmetic as arithmetic
from flambeau.ops.pointwise import pointwise_functions as functions
from flambeau.ops.pointwise import pointwise_logic as logic
from flambeau.ops.pointwise.dtype_promotion import FLOATING_OR_COMPLEX, INTEGERS
from flambeau.ops.pointwise.expression import LETTERS, Applied, Input, Node, Number, apply_operator, operator
from flambeau.ops.pointwise.pointwise import Pointwise, pointwise
from flambeau.ops.pointwise.pointwise_body import Lazy
from flambeau.ops.pointwise.pointwise_several import together

_FUNCTION = re.compile(
    r"\s*template\s*<\s*(?:typename|class)\s+(?P<kind>\w+)\s*>\s*(?P<result>\w+)\s+(?P<name>\w+)\s*"
    r"\((?P<parameters>[^)]*)\)\s*"
)
_TOKEN = re.compile(
    r"(?P<skip>\s+|//[^\n]*|/\*.*?\*/)"
    r"|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFuUlL]*)"
    r"|(?P<name>(?:::)?[A-Za-z_]\w*(?:::\w+)*)"
    r"|(?P<mark><<=|>>=|\+\+|--|->|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%&|^~!<>=?:;,.(){}\[\]#])",
    re.DOTALL,
)


# -- what C++ means, where Python means something else --------------------------------------------------------


def _by_kind(floats: Callable[..., Any], integers: Pointwise) -> Lazy:
    def load(launch: Launch) -> Any:
        if launch.params[0].category >= FLOATING:
            return floats
        whole = integers.compute
        return whole.load(launch) if isinstance(whole, Lazy) else whole

    return Lazy(load)


_quotient = pointwise(
    "/",
    _by_kind(np.true_divide, arithmetic.div_trunc),
    2,
    "C's quotient: integers' is an integer.",
    dtypes=(*INTEGERS, *FLOATING_OR_COMPLEX),
    cuda="a / b",
    derivative=NOT_DIFFERENTIABLE,
    listed=False,
)
_BINARY = [  # by precedence, the lowest first
    {"||": logic.logical_or}, {"&&": logic.logical_and}, {"|": logic.bitwise_or}, {"^": logic.bitwise_xor},
    {"&": logic.bitwise_and}, {"==": logic.eq, "!=": logic.ne},
    {"<": logic.lt, "<=": logic.le, ">": logic.gt, ">=": logic.ge},
    {"<<": logic.bitwise_left_shift, ">>": logic.bitwise_right_shift},
    {"+": arithmetic.add, "-": arithmetic.sub},
    {"*": arithmetic.mul, "/": _quotient, "%": arithmetic.fmod},
]  # fmt: skip
_UPDATES = {
    f"{mark}=": record
    for level in _BINARY
    for mark, record in level.items()
    if mark in {"+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"}
}
_UNARY = {"-": arithmetic.neg, "!": logic.logical_not, "~": logic.bitwise_not}
_SAME = (
    "sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan",
    "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "hypot", "copysign",
    "floor", "ceil", "trunc", "fmod",
)  # fmt: skip
_NAMED: dict[str, Pointwise] = {
    name: getattr(module, name)
    for name in _SAME
    for module in (functions, arithmetic)
    if isinstance(getattr(module, name, None), Pointwise)
} | {
    "pow": arithmetic.pow_, "abs": arithmetic.abs_, "fabs": arithmetic.abs_, "rint": functions.round_,
    "nearbyint": functions.round_, "rsqrt": functions.rsqrt, "min": arithmetic.fmin, "max": arithmetic.fmax,
    "fmin": arithmetic.fmin, "fmax": arithmetic.fmax, "isnan": logic.isnan, "isinf": logic.isinf,
    "isfinite": logic.isfinite, "signbit": logic.signbit,
}  # fmt: skip
_floating = pointwise(
    "float",
    lambda x: x,
    1,
    "A cast of a T to float or double, which changes nothing where T is one; integers would need another T.",
    dtypes=FLOATING_OR_COMPLEX,
    cuda="a",
    derivative=NOT_DIFFERENTIABLE,
    listed=False,
)
_KINDS = {"float", "double", "auto"}
_WHOLE = {"int", "long", "short", "char", "unsigned", "int64_t", "int32_t", "size_t"}
_FOLDED: dict[str, Callable[[Any, Any], int]] = {
    "+": numbers.add,
    "-": numbers.sub,
    "*": numbers.mul,
    "/": lambda a, b: int(a / b),
}
_OF_INTEGERS = (arithmetic.add, arithmetic.sub, arithmetic.mul, arithmetic.neg, arithmetic.fmod)


class _Whole(Number):
    """An integer constant of C++. It is an int until it is combined with a T, so that 1 / 2 is 0."""


def _is_int(node: Node) -> bool:
    """Return True if C++ computes the node's value in type int."""
    if isinstance(node, _Whole) or node.truth:
        return True
    if not isinstance(node, Applied):
        return False
    args = node.args[1:] if node.record is logic.where else node.args
    return node.record in (*_OF_INTEGERS, logic.where) and all(map(_is_int, args))


def _as_t(node: Node) -> Node:
    """Return a value converted as if it were stored in a variable of type T."""
    if isinstance(node, _Whole):
        return Number(node.value)
    return apply_operator(arithmetic.add, node, Number(0)) if _is_int(node) else node


def _as_bool(node: Node) -> Node:
    return node if node.truth else apply_operator(logic.ne, node, 0)


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a text: its parameters, of which `outputs` are references, and its statements as tokens."""

    name: str
    kind: str
    result: str
    types: tuple[str, ...]
    parameters: tuple[str, ...]
    outputs: tuple[str, ...]
    body: tuple[_Token, ...]


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    sort: str
    at: int


def functions_of(text: str) -> list[Function] | None:
    """Return the functions of a text, the last of which is the kernel; None if the text is not a sequence of function
    templates.
    """
    found = []
    at = 0
    while text[at:].strip():
        head = _FUNCTION.match(text, at)
        if head is None:
            return None
        end = _closing(text, head.end())
        if end is None:
            return None
        types, names, outputs = [], [], []
        for parameter in filter(None, [x.partition("=")[0].strip() for x in head["parameters"].split(",")]):
            *kinds, name = re.split(r"[\s&*]+", parameter)
            names.append(name)
            types += kinds
            if "&" in parameter and not parameter.startswith("const"):
                outputs.append(name)
        body = _tokens(text, head.end() + 1, end)
        signature = head["name"], head["kind"], head["result"], tuple(types)
        found.append(Function(*signature, tuple(names), tuple(outputs), body))
        at = end + 1
    return found or None


def _closing(text: str, at: int) -> int | None:
    """Return the position of the brace that closes the block beginning at position `at`."""
    if at >= len(text) or text[at] != "{":
        return None
    depth = 0
    for i in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if not depth:
            return i
    return None


def _tokens(text: str, start: int, end: int) -> tuple[_Token, ...]:
    found: list[_Token] = []
    at = start
    while at < end:
        match = _TOKEN.match(text, at, end)
        if match is None:
            return (*found, _Token(text[at], "mark", at))
        sort = match.lastgroup or ""
        if sort != "skip":
            found.append(_Token(match[0], sort, at))
        at = match.end()
    return tuple(found)


def kernel_of(text: str, functions: list[Function], tensors: int, scalars: int) -> Op:
    """Return the operator of the last function of a text, for `tensors` tensors followed by `scalars` scalars.

    Text that this reader does not understand is compiled unchanged, and runs on real GPUs only.

    Raises:
        RuntimeError: If the function takes another number of arguments.
    """
    kernel = functions[-1]
    arity = len(kernel.parameters) - len(kernel.outputs)
    if arity != tensors + scalars:
        raise RuntimeError(f"{kernel.name} takes {arity} inputs, but {tensors + scalars} were given")
    known = {f.name: f for f in functions[:-1]}
    try:
        roots = _run(text, kernel, known, [Input(i) for i in range(arity)], 0)
    except NotSupportedError as error:
        return _compile_text(text, kernel, arity, tensors, error)
    return operator(kernel.name, roots, arity, floats=False, promoting=slice(tensors))


def _compile_text(text: str, kernel: Function, arity: int, tensors: int, why: NotSupportedError) -> Op:
    """Return an operator that compiles the text itself, for real GPUs. See Note [What a text may call]."""

    def unread(launch: Launch) -> Any:
        raise why

    inputs = iter(LETTERS)
    called = f"user::{kernel.name}<T>"
    device = re.sub(r"(template\s*<[^>]*>)", r"\1 __device__", text)
    names = [
        f"o{kernel.outputs.index(x)}" if x in kernel.outputs else next(inputs) for x in kernel.parameters
    ]
    if kernel.outputs:
        declared = " ".join([f"T o{i}{{}};" for i in range(len(kernel.outputs))])
        texts = [
            f"[&] {{ {declared} {called}({', '.join(names)}); return o{i}; }}()"
            for i in range(len(kernel.outputs))
        ]
    else:
        texts = [f"{called}({', '.join(names)})"]
    functions = f"{_STD}namespace user {{\n{device}\n}}\n"
    records = [
        pointwise(
            kernel.name,
            Lazy(unread),
            arity,
            kernel.name,
            cuda=one,
            functions=functions,
            promoting=slice(tensors),
            flops=10,
            derivative=MISSING,
            listed=False,
        )
        for one in texts
    ]
    return records[0] if len(records) == 1 else together(kernel.name, records, MISSING)


# Note [What a text may call]
# There are no headers, so `std::` has what is named here, and `::sin` is the compiler's own.
_STD = f"namespace std {{ {' '.join([f'using ::{name};' for name in _SAME if name != 'erfinv'])} }}\n"


def _run(
    text: str, function: Function, known: dict[str, Function], args: list[Node], depth: int
) -> tuple[Node, ...]:
    names = [name for name in function.parameters if name not in function.outputs]
    env: dict[str, Node | None] = dict(zip(names, map(_as_t, args), strict=True)) | dict.fromkeys(
        function.outputs
    )
    body = _Body(text, function, known, depth)
    for kind in (function.result, *function.types):
        if kind in _WHOLE:
            body.refuse(f"a {'result' if kind == function.result else 'parameter'} of type {kind}")
    return body.run(function.body, env)


Env = dict[str, Any]
"""Variables by name; None: declared, without a value yet."""


def _select(condition: Node, yes: Node, no: Node) -> Node:
    return yes if yes is no else apply_operator(logic.where, condition, yes, no)


class _Body:
    """The interpreter of one function's statements. Variables have nodes as values."""

    def __init__(self, text: str, function: Function, known: dict[str, Function], depth: int) -> None:
        self._text, self._function, self._known, self._depth = text, function, known, depth
        self._tokens: tuple[_Token, ...] = ()
        self._at = 0
        self._env: Env = {}
        self._bools: set[str] = set()

    def refuse(self, what: str, token: _Token | None = None) -> NoReturn:
        before = self._text[: token.at if token else len(self._text)]
        line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        raise NotSupportedError(
            f"{self._function.name}: {what} at line {line}, column {column}: virtual GPUs compute a part of C++ only, "
            "see torch.cuda.jiterator; real GPUs compile all of it"
        )

    def run(self, tokens: tuple[_Token, ...], env: Env) -> tuple[Node, ...]:
        """Run the rest of the function and return its results."""
        outer = self._tokens, self._at, self._env
        self._tokens, self._at, self._env = tokens, 0, env
        try:
            while self._at < len(self._tokens):
                found = self._statement()
                if found is not None:
                    return found
            if self._function.result != "void":
                self.refuse("a way without a return")
            return self._outputs()
        finally:
            self._tokens, self._at, self._env = outer

    def _outputs(self) -> tuple[Node, ...]:
        for name in self._function.outputs:
            if self._env[name] is None:
                self.refuse(f"{name} is not assigned on every way")
        return tuple([self._env[name] for name in self._function.outputs])

    # -- statements -----------------------------------------------------------------------------------
    def _statement(self) -> tuple[Node, ...] | None:
        token = self._next()
        if token.text == ";":
            return None
        if token.text == "{":
            block = self._block()
            self._tokens = (*block, *self._tokens[self._at :])
            self._at = 0
            return None
        if token.text == "return":
            return self._return()
        if token.text == "if":
            return self._if()
        if token.text in ("const", "constexpr"):
            token = self._next()
        if token.text in (_KINDS | {self._function.kind, "bool"}) and self._peek().sort == "name":
            self._declare(token.text)
            return None
        if token.text in _WHOLE:
            self.refuse(f"a variable of type {token.text}", token)
        if token.sort != "name" or token.text not in self._env:
            self.refuse(f"`{token.text}`", token)
        self._assign(token)
        return None

    def _return(self) -> tuple[Node, ...]:
        if self._function.result == "void":
            self._expect(";")
            return self._outputs()
        value = self._expression()
        if self._depth or isinstance(value, Number):
            value = _as_t(value)  # the kernel stores its own result as a T
        self._expect(";")
        return (_as_bool(value) if self._function.result == "bool" else value,)

    def _if(self) -> tuple[Node, ...] | None:
        self._expect("(")
        condition = self._expression()
        self._expect(")")
        then = self._one()
        otherwise: tuple[_Token, ...] = ()
        if self._at < len(self._tokens) and self._peek().text == "else":
            self._next()
            otherwise = self._one()
        if all(token.text != "return" for token in (*then, *otherwise)):
            self._env = self._merge_branches(condition, self._after(then), self._after(otherwise))
            return None
        rest, env = self._tokens[self._at :], self._env
        yes, no = self.run((*then, *rest), dict(env)), self.run((*otherwise, *rest), dict(env))
        return tuple([_select(condition, a, b) for a, b in zip(yes, no, strict=True)])

    def _after(self, tokens: tuple[_Token, ...]) -> Env:
        """Return the variables after a branch whose statements do not return."""
        outer = self._tokens, self._at, self._env
        self._tokens, self._at, self._env = tokens, 0, dict(self._env)
        try:
            while self._at < len(self._tokens):
                self._statement()
            return self._env
        finally:
            self._tokens, self._at, self._env = outer

    def _merge_branches(self, condition: Node, yes: Env, no: Env) -> Env:
        """Return the variables that existed before the branches. One that a branch leaves without a value has none."""
        pairs = {name: (yes[name], no[name]) for name in self._env}
        return {
            name: None if pair[0] is None or pair[1] is None else _select(condition, *pair)
            for name, pair in pairs.items()
        }

    def _one(self) -> tuple[_Token, ...]:
        """Return the tokens of the next statement."""
        start = self._at
        self._skip()
        return self._tokens[start : self._at]

    def _skip(self) -> None:
        token = self._next()
        if token.text == "{":
            self._block()
        elif token.text == "if":
            self._expect("(")
            self._skip_balanced("(", ")")
            self._skip()
            if self._at < len(self._tokens) and self._peek().text == "else":
                self._next()
                self._skip()
        else:
            while token.text != ";":
                token = self._next()

    def _skip_balanced(self, opening: str, closing: str) -> None:
        """Skip to the end of a bracket's contents."""
        depth = 1
        while depth:
            depth += {opening: 1, closing: -1}.get(self._next().text, 0)

    def _block(self) -> tuple[_Token, ...]:
        """Return the tokens up to the brace that closes the block."""
        start = self._at
        self._skip_balanced("{", "}")
        return self._tokens[start : self._at - 1]

    def _declare(self, kind: str) -> None:
        while True:
            name = self._next()
            if name.sort != "name" or name.text in self._env:
                self.refuse(f"another `{name.text}`", name)
            value = None
            if kind == "bool":
                self._bools.add(name.text)
            if self._peek().text == "=":
                self._next()
                value = self._convert_to_variable(name.text, self._expression(), kind)
            self._env[name.text] = value
            mark = self._next()
            if mark.text == ";":
                return
            if mark.text != ",":
                self.refuse(f"`{mark.text}`", mark)

    def _convert_to_variable(self, name: str, value: Node, kind: str = "") -> Node:
        """Return a value as a variable of its type stores it."""
        if name in self._bools:
            return _as_bool(value)
        return (
            self._cast(kind, value)
            if kind in ("float", "double")
            else value
            if kind == "auto"
            else _as_t(value)
        )

    def _assign(self, name: _Token) -> None:
        mark = self._next()
        if mark.text == "=":
            self._env[name.text] = self._convert_to_variable(name.text, self._expression())
        elif mark.text in _UPDATES and name.text not in self._bools:
            self._env[name.text] = apply_operator(_UPDATES[mark.text], self._value(name), self._expression())
        else:
            self.refuse(f"`{mark.text}`", mark)
        self._expect(";")

    # -- expressions ----------------------------------------------------------------------------------
    def _expression(self) -> Node:
        condition = self._level(0)
        if self._peek().text != "?":
            return condition
        self._next()
        yes = self._expression()
        self._expect(":")
        return apply_operator(logic.where, condition, yes, self._expression())

    def _level(self, level: int) -> Node:
        if level == len(_BINARY):
            return self._unary()
        left = self._level(level + 1)
        while self._at < len(self._tokens) and self._peek().text in _BINARY[level]:
            mark = self._next()
            left = self._join_operands(mark, _BINARY[level][mark.text], left, self._level(level + 1))
        return left

    def _join_operands(self, mark: _Token, record: Pointwise, left: Node, right: Node) -> Node:
        """Return an operator applied to two operands. Two ints are combined to an int, without conversion to T."""
        if isinstance(left, _Whole) and isinstance(right, _Whole) and mark.text in _FOLDED:
            if mark.text == "/" and not right.value:
                self.refuse("a division by 0", mark)
            return _Whole(_FOLDED[mark.text](left.value, right.value))
        if mark.text in "/%" and _is_int(left) and _is_int(right):
            self.refuse(f"`{mark.text}` of integers", mark)
        return apply_operator(record, left, right)

    def _unary(self) -> Node:
        token = self._peek()
        if token.text == "+":
            self._next()
            return self._unary()
        if token.text in _UNARY:
            self._next()
            operand = self._unary()
            if token.text == "-" and isinstance(operand, _Whole):
                return _Whole(-operand.value)
            return apply_operator(_UNARY[token.text], operand)
        return self._primary()

    def _primary(self) -> Node:
        token = self._next()
        if token.sort == "number":
            digits = token.text.rstrip("fFuUlL")
            return _Whole(int(digits, 0)) if digits.isdigit() else Number(float(digits))
        if token.text in ("true", "false"):
            return Number(token.text == "true")
        if token.text == "(":
            return self._in_parentheses()
        if token.sort != "name":
            self.refuse(f"`{token.text}`", token)
        if self._peek().text == "(":
            return self._call(token)
        return self._value(token)

    def _in_parentheses(self) -> Node:
        cast = (
            self._peek().text in (_KINDS | {self._function.kind}) and self._tokens[self._at + 1].text == ")"
        )
        if cast:
            kind = self._next().text
            self._expect(")")
            return self._cast(kind, self._unary())
        found = self._expression()
        self._expect(")")
        return found

    def _cast(self, kind: str, value: Node) -> Node:
        if kind in ("float", "double") and not isinstance(value, Number):
            return apply_operator(_floating, value)
        return _as_t(value)

    def _value(self, token: _Token) -> Node:
        found = self._env.get(token.text)
        if found is None:
            self.refuse(f"`{token.text}`, which has no value", token)
        value: Node = found
        return value

    def _call(self, token: _Token) -> Node:
        name = token.text.removeprefix("std").removeprefix("::")
        self._expect("(")
        args = []
        while self._peek().text != ")":
            args.append(self._expression())
            if self._peek().text == ",":
                self._next()
        self._next()
        if name in (_KINDS | {self._function.kind}) and len(args) == 1:
            return self._cast(name, args[0])
        if name == "fma" and len(args) == 3:
            return args[0] * args[1] + args[2]
        called = self._known.get(name)
        if (
            called is not None
            and not called.outputs
            and len(args) == len(called.parameters)
            and self._depth < 50
        ):
            return _run(self._text, called, self._known, args, self._depth + 1)[0]
        record = _NAMED.get(name) or _NAMED.get(name.removesuffix("f"))
        if record is None or record.arity != len(args):
            self.refuse(f"`{token.text}` of {len(args)} arguments", token)
        return apply_operator(record, *args)

    # -- tokens ---------------------------------------------------------------------------------------
    def _peek(self) -> _Token:
        if self._at >= len(self._tokens):
            self.refuse("the end where more is needed")
        return self._tokens[self._at]

    def _next(self) -> _Token:
        token = self._peek()
        self._at += 1
        return token

    def _expect(self, text: str) -> None:
        token = self._next()
        if token.text != text:
            self.refuse(f"`{token.text}` where `{text}` is needed", token)
