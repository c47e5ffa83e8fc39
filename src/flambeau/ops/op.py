"""`Op`: everything about an operator in one frozen record.

An operator is made complete or not at all: every field is required. Families (`pointwise`, `reduction`,
...) fill the fields that their members share. The steps that bring CUDA kernels and autograd add the
fields `cuda` and `derivative`, required from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flambeau.core import errors
from flambeau.core.device import CPU, device
from flambeau.core.dtype import dtype
from flambeau.core.meta import Meta
from flambeau.driver.api import Kernel

Operand = Meta | type
"""What a rule sees of an input: a tensor's meta, or the type of a Python scalar (bool, int, float, complex)."""


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """What a rule decides: metas of new outputs, the inputs as the kernel sees them, static params.

    An input that the rule turns into a dtype travels by value (a Python scalar, a 0-dim CPU tensor beside
    CUDA tensors). A Meta is a layout over the same address (broadcast: stride 0). `checked` are the positions
    of scalars that must fit their dtype; others wrap, as PyTorch's do.
    """

    outputs: tuple[Meta, ...]
    inputs: tuple[Meta | dtype | type[object], ...]
    params: tuple[Any, ...] = ()
    checked: tuple[int, ...] = ()


Rule = Callable[[Sequence[Operand], tuple[Any, ...]], Signature]
Make = Callable[..., Any]
Sample = tuple[tuple[Any, ...], tuple[Any, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One operator.

    name: PyTorch's public name.
    rule: `(operands, params) -> Signature`; pure; raises PyTorch's errors for bad shapes, dtypes, dims.
    kernel: what is launched; its host body is the operator's meaning.
    dtypes: dtypes of the first operand that it takes.
    samples: `(make, dtype) -> [(inputs, params), ...]`, where `make(*shape, low=, high=)` gives a random array
        of the dtype: the inputs that every generated test runs.
    casts_output: the kernel itself stores to any output dtype that `can_cast` allows (pointwise operators);
        otherwise an `out=` of another dtype goes through a temporary.
    flags: names of the flags that it depends on; their values come to the rule at the end of `params`.
    planned: what a CUDA device loads for it is a library's plan, kept in that device's bounded cache of them.
    """

    name: str
    rule: Rule
    kernel: Kernel
    dtypes: tuple[dtype, ...]
    samples: Callable[[Make, dtype], Iterable[Sample]]
    casts_output: bool = False
    flags: tuple[str, ...] = ()
    planned: bool = False


table: dict[str, Op] = {}
"""Every operator by name; filled by `define` alone."""


def define(op: Op) -> Op:
    """Put an operator in the table. A name is defined once."""
    if op.name in table:
        raise ValueError(f"operator {op.name!r} is defined twice")
    table[op.name] = op
    return op


def common_device(operands: Sequence[Operand]) -> device:
    """The device that an operator on these operands runs on.

    0-dim CPU tensors go along with CUDA tensors, by value. Raises RuntimeError for any other mixture.
    """
    found: device | None = None
    for x in operands:
        if isinstance(x, Meta) and not (x.device is CPU and x.ndim == 0):
            if found is None:
                found = x.device
            elif found is not x.device:
                raise RuntimeError(errors.devices_differ(found, x.device))
    if found is not None:
        return found
    devices = [x.device for x in operands if isinstance(x, Meta)]
    return devices[0] if devices else CPU
