"""The operators of torch.ops.aten, each created when its name is first used.

`schemas.txt` declares the overloads, one a line, as PyTorch's operators declare them; `tools/aten_schemas.py` writes
it. `kernels.py` finds the function that computes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from flambeau._aten.kernels import kernel_of
from flambeau._library import user_operators
from flambeau._library.schema import TENSOR_OR_NUMBER, Argument, FunctionSchema, bind_arguments, parse_schema
from flambeau._library.user_operators import Operator, is_default

# Operators for which a number may stand for a tensor.
_NUMBERS_AS_TENSORS = frozenset(
    {
        f"aten::{name}{suffix}"
        for name in (
            "__and__", "__iand__", "__ior__", "__ixor__", "__or__", "__xor__", "add", "bitwise_and", "bitwise_or",
            "bitwise_xor", "copy", "div", "eq", "fill", "floor_divide", "fmod", "ge", "gt", "le", "logical_and",
            "logical_or", "logical_xor", "lt", "maximum", "minimum", "mul", "ne", "pow", "remainder", "rsub", "sub",
            "to", "true_divide",
        )
        for suffix in ("", "_")
    }
)  # fmt: skip


class _DeclaredSchema(FunctionSchema):
    """A schema that is written as PyTorch writes it, which differs for defaults of lists."""

    text = ""

    def __str__(self) -> str:
        return self.text or super().__str__()


@cache
def _lines() -> dict[str, list[str]]:
    """Return the lines of `schemas.txt` by the name of the operator."""
    found: dict[str, list[str]] = {}
    for line in (Path(__file__).parent / "schemas.txt").read_text().splitlines():
        found.setdefault(line.partition("(")[0].partition(".")[0], []).append(line)
    return found


def names() -> list[str]:
    """Return the names of all operators, without overloads."""
    return list(_lines())


@cache
def load(name: str) -> None:
    """Add all overloads of an aten operator to the table of operators; do nothing if it has them already.

    Args:
        name: The name without its namespace: "add".
    """
    for line in _lines().get(name, ()):
        text, _, tags = line.partition("  # ")
        schema = _DeclaredSchema(*parse_schema(f"aten::{text}"))
        schema.text = f"aten::{text}"
        user_operators.add_operator(AtenOperator(schema, tags.split()))


class AtenOperator(Operator):
    """An overload of torch.ops.aten. A public function, which records itself for backward, computes it.

    Attributes:
        is_composite: True if PyTorch composes the operator of others, above autograd.
    """

    def __init__(self, schema: FunctionSchema, tags: Sequence[str]) -> None:
        self.is_composite = "composite" in tags
        marks = [user_operators.Tag[tag] for tag in tags if tag != "composite"]
        super().__init__(schema, [*marks, user_operators.Tag.pt2_compliant_tag])
        self.kernels["CompositeImplicitAutograd"] = self._compute
        self._binding = schema if schema.name not in _NUMBERS_AS_TENSORS else _with_numbers(schema)
        if schema.name == "aten::_scaled_dot_product_efficient_attention_backward":
            self._binding = _without_bias(schema)
        self._positional = [a for a in schema.arguments if not a.kwarg_only]
        self._named = {a.name: a for a in schema.arguments}
        self._outputs = [a.name for a in schema.arguments if a.kwarg_only and a.is_write]
        self._kernel: Any = None

    @property
    def is_decomposed(self) -> bool:
        """Return True if PyTorch composes the operator of others, above autograd."""
        return self.is_composite

    def _compute(self, *args: Any, **kwargs: Any) -> Any:
        if self._kernel is None:
            self._kernel = kernel_of(self.schema)
        outputs = [kwargs.pop(name) for name in self._outputs]
        if outputs:
            kwargs["out"] = outputs[0] if len(outputs) == 1 else tuple(outputs)
        values = [_as_public(a, v) for a, v in zip(self._positional, args, strict=False)]
        return self._kernel(*values, **{k: _as_public(self._named.get(k), v) for k, v in kwargs.items()})

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Check and convert arguments; numbers may stand for tensors in some operators."""
        return bind_arguments(self._binding, args, kwargs)

    def call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Check the arguments and run the operator."""
        result = super().call(args, kwargs)
        if type(result) is not tuple and isinstance(result, tuple):
            return tuple(result)  # a named tuple of a public function
        return list(result) if self.returns_list and isinstance(result, tuple) else result

    def count_shown(self, positional: list[Any]) -> int:
        """Return the number of positional arguments to pass: a loss's reduction has another default here."""
        reductions = [i + 1 for i, a in enumerate(self._positional) if a.name == "reduction"]
        return max([super().count_shown(positional), *reductions])

    @property
    def returns_list(self) -> bool:
        """Return True if the result is a list of tensors."""
        returns = self.schema.returns
        return len(returns) == 1 and returns[0].is_tensors


def _with_numbers(schema: FunctionSchema) -> FunctionSchema:
    """Return a copy of a schema in which a number may stand for every tensor except the first."""
    first, *others = schema.arguments
    relaxed = [a._replace(kind=TENSOR_OR_NUMBER) if a.kind == "Tensor" and not a.rest else a for a in others]
    numbers = schema._replace(arguments=(first, *relaxed))
    numbers.text = str(schema)  # type: ignore[attr-defined]
    return numbers


def _without_bias(schema: FunctionSchema) -> FunctionSchema:
    """Return a copy of a schema whose `attn_bias` may be None, which PyTorch's C++ passes for it."""
    relaxed = [a._replace(rest="?") if a.name == "attn_bias" else a for a in schema.arguments]
    return schema._replace(arguments=tuple(relaxed))


def _as_public(argument: Argument | None, value: Any) -> Any:
    """Return an argument as public functions have it: None for an empty list that stands for the default."""
    if argument is not None and value == [] and is_default(argument, value):
        return None
    return value


user_operators.load_aten_with(load)
