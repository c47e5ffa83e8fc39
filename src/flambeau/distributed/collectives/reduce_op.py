"""`ReduceOp`: the operation that combines numbers of several ranks into one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from flambeau.distributed.backend_names import NamedNumber
from flambeau.driver.protocol import PreMul
from flambeau.tensor.tensor import Tensor


class RedOpType(NamedNumber):
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


class _Either(type):
    """A metaclass with which `isinstance(ReduceOp.SUM, ReduceOp)` is True, as in PyTorch."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, RedOpType) or type.__instancecheck__(cls, value)


class ReduceOp(metaclass=_Either):
    """A reduction: `SUM`, `AVG`, `PRODUCT`, `MIN`, `MAX`, and for integers on the CPU `BAND`, `BOR`, `BXOR`.

    `ReduceOp(op)` equals `op`. Only `_make_nccl_premul_sum` creates operations of type PREMUL_SUM, which have a
    `factor`.
    """

    __module__ = "flambeau.distributed.distributed_c10d"

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

    def __init__(self, op: RedOpType) -> None:
        if not isinstance(op, RedOpType):
            raise TypeError(f"ReduceOp(): op must be a ReduceOp.RedOpType, not {type(op).__name__}")
        if op is RedOpType.PREMUL_SUM:
            raise RuntimeError(
                "Use `torch.distributed._make_nccl_premul_sum` to create an instance of ReduceOp with PREMUL_SUM"
            )
        self._stand(op, None)

    def _stand(self, op: RedOpType, factor: Any) -> None:
        self.op = op
        self._factor = factor

    @property
    def factor(self) -> Any:
        """Return the factor, a float or a tensor, by which a PREMUL_SUM multiplies its input.

        Raises:
            RuntimeError: If the operation is of another type.
        """
        if self.op is not RedOpType.PREMUL_SUM:
            raise RuntimeError("Only PREMUL_SUM supports accessing factor")
        return self._factor

    def __getstate__(self) -> tuple[RedOpType, Any]:
        return self.op, self._factor

    def __setstate__(self, state: tuple[RedOpType, Any]) -> None:
        self._stand(*state)

    def __eq__(self, other: object) -> bool:
        return self.op is (other.op if type(other) is ReduceOp else other)

    def __hash__(self) -> int:
        return hash(self.op)


def _make_nccl_premul_sum(factor: Any) -> ReduceOp:
    """Return a reduction that sums each rank's input times that rank's factor. Only for floating-point tensors on GPUs.

    Args:
        factor: A float, or a tensor of one element, which the host reads (and waits for) when tensors are reduced.

    Raises:
        TypeError: If `factor` is neither.
        RuntimeError: If the tensor has several elements.
    """
    if not isinstance(factor, (float, Tensor)):
        raise TypeError(
            f"_make_nccl_premul_sum(): factor must be a float or a Tensor, not {type(factor).__name__}"
        )
    if isinstance(factor, Tensor) and factor.numel() != 1:
        raise RuntimeError(f"the factor must be one number, not {factor.numel()}")
    made = ReduceOp.__new__(ReduceOp)
    made._stand(RedOpType.PREMUL_SUM, factor)
    return made


class Deprecated:
    """The class of `torch.distributed.reduce_op`, which has the reductions under their oldest name."""

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
    """Return the operation that an argument names.

    Raises:
        TypeError: If it is not a reduction.
    """
    if isinstance(op, RedOpType):
        return op
    if not isinstance(op, ReduceOp):
        raise TypeError(f"op must be a torch.distributed.ReduceOp, not {type(op).__name__}: {op!r}")
    return op.op


def word_of(op: Any) -> str | PreMul:
    """Return the driver's name of a reduction: sum, avg, prod, min, max, band, bor, bxor, or a PreMul object.

    Raises:
        TypeError: If a PREMUL_SUM has no factor.
    """
    kind = type_of(op)
    if kind is not RedOpType.PREMUL_SUM:
        return _WORDS[kind]
    if op is kind:
        raise TypeError(
            "ReduceOp.PREMUL_SUM has no factor: torch.distributed._make_nccl_premul_sum makes one"
        )
    return PreMul(float(op.factor))
