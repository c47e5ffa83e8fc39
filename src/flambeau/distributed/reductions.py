"""`ReduceOp`: how numbers of several ranks become one."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Mapping
from typing import Any

from flambeau.core.errors import NotSupportedError


class RedOpType(enum.IntEnum):
    """The operations by name."""

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7
    PREMUL_SUM = 8

    def __str__(self) -> str:
        return f"RedOpType.{self.name}"


class ReduceOp:
    """`ReduceOp.SUM`, `AVG`, `PRODUCT`, `MIN`, `MAX`, and of integers on the CPU `BAND`, `BOR`, `BXOR`.

    An operation made by `ReduceOp(...)` equals the one that it was made of. PREMUL_SUM is a name only: what it would
    multiply by comes from a function that Flambeau lacks.
    """

    __module__ = "flambeau.distributed"

    RedOpType = RedOpType
    SUM = RedOpType.SUM
    AVG = RedOpType.AVG
    PRODUCT = RedOpType.PRODUCT
    MIN = RedOpType.MIN
    MAX = RedOpType.MAX
    BAND = RedOpType.BAND
    BOR = RedOpType.BOR
    BXOR = RedOpType.BXOR
    PREMUL_SUM = RedOpType.PREMUL_SUM

    def __init__(self, op: Any = RedOpType.SUM) -> None:
        self.op = type_of(op)

    def __eq__(self, other: object) -> bool:
        return self.op is (other.op if isinstance(other, ReduceOp) else other)

    def __hash__(self) -> int:
        return hash(self.op)

    def __repr__(self) -> str:
        return repr(self.op)


class Deprecated:
    """`torch.distributed.reduce_op`: the operations by their oldest name."""

    @property
    def __members__(self) -> Mapping[str, RedOpType]:
        return RedOpType.__members__

    def __getattr__(self, name: str) -> RedOpType:
        if name not in RedOpType.__members__:
            raise AttributeError(f"'_reduce_op' object has no attribute '{name}'")
        warnings.warn(
            "`torch.distributed.reduce_op` is deprecated, please use `torch.distributed.ReduceOp` instead",
            FutureWarning,
            stacklevel=2,
        )
        return RedOpType[name]


reduce_op = Deprecated()

_WORDS = {
    RedOpType.SUM: "sum", RedOpType.AVG: "avg", RedOpType.PRODUCT: "prod", RedOpType.MIN: "min", RedOpType.MAX: "max",
    RedOpType.BAND: "band", RedOpType.BOR: "bor", RedOpType.BXOR: "bxor",
}  # fmt: skip


def type_of(op: Any) -> RedOpType:
    """The operation that an argument names. TypeError: it names none."""
    if isinstance(op, ReduceOp):
        return op.op
    if not isinstance(op, RedOpType):
        raise TypeError(f"op must be a torch.distributed.ReduceOp, not {type(op).__name__}: {op!r}")
    return op


def word_of(op: Any) -> str:
    """What drivers call it: sum, avg, prod, min, max, band, bor, bxor. NotSupportedError: PREMUL_SUM."""
    kind = type_of(op)
    if kind is RedOpType.PREMUL_SUM:
        raise NotSupportedError("Flambeau lacks ReduceOp.PREMUL_SUM: multiply the tensor before the sum")
    return _WORDS[kind]
