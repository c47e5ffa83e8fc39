"""Schemas of operators, such as `mylib::add(Tensor x, float y=2.) -> Tensor`: reading, writing and checking calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from flambeau.core.device import device
from flambeau.core.dtype import ALIASES, DTYPES, dtype
from flambeau.runtime.generator import Generator
from flambeau.tensor.tensor import Tensor

_SCALARS = (
    "Tensor", "SymInt", "int", "float", "bool", "str", "Scalar", "ScalarType", "Device", "Layout", "MemoryFormat",
    "Generator", "complex", "Any", "SymBool", "SymFloat", "Stream", "Storage", "QScheme", "DeviceIndex",
)  # fmt: skip
_TYPE = re.compile(r"(?P<kind>[A-Za-z_]\w*(?:\.\w+)*)(?P<alias>\([\w! |*>-]+\))?(?P<rest>(?:\?|\[\d*\])*)")
_DTYPES = {kind.name: kind for kind in DTYPES} | ALIASES
TENSOR_OR_NUMBER = "Tensor or number"  # the type of arguments of some operators of PyTorch's own
_UNKNOWN = (
    "unknown type specifier. Common valid schema types include Tensor, SymInt, int, float, bool, Scalar; for a full "
    "list, please see https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/README.md#func"
)


class Argument(NamedTuple):
    """One argument or result of an operator.

    Attributes:
        kind: The type's name without annotations: "Tensor", "SymInt".
        rest: The suffixes "[]", "[2]" and "?" in their order.
        alias: The alias annotation, such as "(a0!)".
        name: The name; empty for most results.
        default: The default value.
        has_default: True if there is one.
        kwarg_only: True if it is passed by keyword only.
    """

    kind: str
    rest: str = ""
    alias: str = ""
    name: str = ""
    default: Any = None
    has_default: bool = False
    kwarg_only: bool = False

    @property
    def is_write(self) -> bool:
        """Return True if the operator changes this argument."""
        return "!" in self.alias

    @property
    def is_tensors(self) -> bool:
        """Return True if the argument is a list of tensors."""
        return self.kind == "Tensor" and "[" in self.rest

    def __str__(self) -> str:
        text = f"{self.kind}{self.alias}{self.rest}{' ' + self.name if self.name else ''}"
        return f"{text}={_write(self)}" if self.has_default else text


class FunctionSchema(NamedTuple):
    """The declaration of one overload of an operator."""

    name: str
    overload_name: str
    arguments: tuple[Argument, ...]
    returns: tuple[Argument, ...]

    @property
    def is_mutable(self) -> bool:
        """Return True if the operator changes an argument."""
        return any(a.is_write for a in self.arguments)

    def __str__(self) -> str:
        parts = [str(a) for a in self.arguments]
        first = next((i for i, a in enumerate(self.arguments) if a.kwarg_only), None)
        if first is not None:
            parts.insert(first, "*")
        returns = [str(a) for a in self.returns]
        one = len(returns) == 1 and not self.returns[0].name
        full = f"{self.name}.{self.overload_name}" if self.overload_name else self.name
        return f"{full}({', '.join(parts)}) -> {returns[0] if one else '(' + ', '.join(returns) + ')'}"

    def __repr__(self) -> str:
        return str(self)


def _write(argument: Argument) -> str:
    value = argument.default
    if isinstance(value, float):
        return f"{value:g}." if value == int(value) and abs(value) < 1e6 else f"{value:.17g}"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value)


# -- reading ------------------------------------------------------------------------------------------------------


def parse_schema(text: str) -> FunctionSchema:
    """Read a schema.

    Raises:
        RuntimeError: If the text is not a schema.
    """
    match = re.fullmatch(
        r"\s*(?P<name>(?:\w+::)?\w+)(?:\.(?P<overload>\w+))?\s*(?P<inputs>\(.*\))\s*->\s*(?P<outputs>.*?)\s*",
        text,
        re.DOTALL,
    )
    if match is None:
        if "(" not in text:
            raise RuntimeError("Tried to parse a function schema but only the operator name was given")
        raise RuntimeError(f"expected a schema such as 'name(Tensor x) -> Tensor', got: {text}")
    outputs = match["outputs"]
    results = _split(outputs[1:-1]) if outputs.startswith("(") else [outputs]
    return FunctionSchema(
        match["name"],
        match["overload"] or "",
        tuple(_parse_arguments(_split(match["inputs"][1:-1]), text)),
        tuple([_parse_argument(part, text) for part in results]),
    )


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets and quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif letter == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _parse_arguments(parts: Sequence[str], text: str) -> list[Argument]:
    arguments, kwarg_only = [], False
    for part in parts:
        if part == "*":
            kwarg_only = True
        else:
            arguments.append(_parse_argument(part, text)._replace(kwarg_only=kwarg_only))
    return arguments


def _parse_argument(part: str, text: str) -> Argument:
    match = _TYPE.match(part)
    if match is None or (match["kind"] not in _SCALARS and not match["kind"].startswith("__torch__")):
        raise RuntimeError(f"\n{_UNKNOWN} :\n{text}\n")
    name, equals, default = part[match.end() :].strip().partition("=")
    value = _read_default(default.strip(), match["kind"], text) if equals else None
    if (
        (size := re.fullmatch(r"\[(\d+)\]", match["rest"]))
        and value is not None
        and not isinstance(value, list)
    ):
        value = [value] * int(size[1])
    return Argument(
        match["kind"], match["rest"], match["alias"] or "", name.strip(), value, bool(equals), False
    )


def _read_default(word: str, kind: str, text: str) -> Any:
    if kind == "ScalarType" and word in _DTYPES:
        return _DTYPES[word]
    try:
        value = ast.literal_eval(word)
    except (ValueError, SyntaxError):
        if kind in ("ScalarType", "Layout", "MemoryFormat", "int", "Device"):
            return word  # a name of PyTorch's, such as contiguous_format
        raise RuntimeError(f"expected a default value, got {word!r} in: {text}") from None
    return float(value) if kind == "float" and type(value) is int else value


# -- calls --------------------------------------------------------------------------------------------------------


def bind_arguments(
    schema: FunctionSchema, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Check and convert the arguments of a call.

    Returns:
        Positional arguments, and arguments that are passed by keyword only, all with defaults filled in.

    Raises:
        RuntimeError: If one is missing, unknown or of the wrong type.
    """
    positional = [a for a in schema.arguments if not a.kwarg_only]
    if len(args) > len(positional):
        raise RuntimeError(
            f"{schema.name}() expected at most {len(positional)} argument(s) but received {len(args)} argument(s). "
            f"Declaration: {schema}"
        )
    unused = dict(kwargs)
    values: dict[str, Any] = {}
    for at, argument in enumerate(schema.arguments):
        if at < len(args):
            value = args[at]
        elif argument.name in unused:
            value = unused.pop(argument.name)
        elif argument.has_default:
            values[argument.name] = argument.default
            continue
        else:
            raise RuntimeError(
                f"{schema.name}() is missing value for argument '{argument.name}'. Declaration: {schema}"
            )
        values[argument.name] = _convert(schema, argument, at, value)
    if unused:
        raise RuntimeError(
            f"Unknown keyword argument '{next(iter(unused))}' for operator '{schema.name}'. Schema: {schema}"
        )
    keywords = {a.name: values[a.name] for a in schema.arguments if a.kwarg_only}
    return [values[a.name] for a in positional], keywords


def _convert(schema: FunctionSchema, argument: Argument, at: int, value: Any) -> Any:
    converted = _fit(argument.kind, argument.rest, value)
    if converted is _WRONG:
        raise RuntimeError(
            f"{schema.name}() Expected a value of type '{_type_name(argument.kind, argument.rest)}' for argument "
            f"'{argument.name}' but instead found type '{_found_name(value)}'.\nPosition: {at}\nValue: {value!r}\n"
            f"Declaration: {schema}"
        )
    return converted


_WRONG = object()


def _fit(kind: str, rest: str, value: Any) -> Any:
    """Return a value as its type has it, or `_WRONG`."""
    if rest.endswith("?"):
        return None if value is None else _fit(kind, rest[:-1], value)
    if rest.endswith("]"):
        start = rest.rindex("[")
        size = rest[start + 1 : -1]
        if size and not isinstance(value, list | tuple):
            one = _fit(kind, rest[:start], value)
            return one if one is _WRONG else [one] * int(size)
        if not isinstance(value, list | tuple):
            return _WRONG
        items = [_fit(kind, rest[:start], item) for item in value]
        return _WRONG if any(item is _WRONG for item in items) else items
    return _fit_scalar(kind, value)


def _fit_scalar(kind: str, value: Any) -> Any:
    if kind == "Tensor":
        return value if isinstance(value, Tensor) else _WRONG
    if kind == TENSOR_OR_NUMBER:
        return value if isinstance(value, Tensor | int | float | complex) else _WRONG
    if kind in ("SymInt", "int", "DeviceIndex"):
        return value if hasattr(value, "__index__") and not isinstance(value, Tensor) else _WRONG
    if kind in ("float", "SymFloat"):
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else _WRONG
    if kind in ("bool", "SymBool"):
        return value if isinstance(value, bool) else _WRONG
    if kind == "Scalar":
        return value if isinstance(value, int | float | complex | bool) else _WRONG
    if kind == "Device":
        return device(value) if isinstance(value, str | device) else _WRONG
    classes: dict[str, Any] = {"str": str, "ScalarType": dtype, "Generator": Generator, "complex": complex}
    return value if kind not in classes or isinstance(value, classes[kind]) else _WRONG


def _type_name(kind: str, rest: str) -> str:
    name = {"SymInt": "int", "Scalar": "number", "ScalarType": "int"}.get(kind, kind)
    for suffix in re.findall(r"\?|\[\d*\]", rest):
        name = f"Optional[{name}]" if suffix == "?" else f"List[{name}]"
    return name


def _found_name(value: Any) -> str:
    return "Tensor" if isinstance(value, Tensor) else type(value).__name__
