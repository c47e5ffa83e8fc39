"""Overloads by name, and overloads for operators that only Flambeau has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from flambeau._aten.table import load
from flambeau._library.schema import parse_schema
from flambeau._library.user_operators import Operator, OpOverload, OpOverloadPacket, packet_of
from flambeau.ops.view import View
from flambeau.tensor.autograd import autograd_meta
from flambeau.tensor.call import call


@cache
def find_overload(name: str) -> OpOverload:
    """Return the overload of `torch.ops.aten` with a name such as "add.Tensor" or "relu"."""
    name, _, overload = name.partition(".")
    load(name)
    found: OpOverload = getattr(packet_of(f"aten::{name}"), overload or "default")
    return found


class _OwnOperator(Operator):
    """An operator or view of Flambeau as an overload: its arguments are the inputs and then the tuple of parameters."""

    def __init__(self, op: Any) -> None:
        name = op.name.replace(".", "_")
        super().__init__(parse_schema(f"flambeau::{name}(Tensor self) -> Tensor"))
        self._op = op

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        return list(args), dict(kwargs)

    def count_given(self, positional: list[Any]) -> int:
        return len(positional)

    def call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if isinstance(self._op, View):
            return autograd_meta.run(self._op, *args)
        return call(self._op, args[:-1], args[-1])


@cache
def own_overload(op: Any) -> OpOverload:
    """Return the overload that stands for an operator of Flambeau: `torch.ops.flambeau.<name>.default`."""
    operator = _OwnOperator(op)
    return OpOverload(OpOverloadPacket(operator.schema.name), operator)
