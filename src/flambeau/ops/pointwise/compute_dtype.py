"""The dtypes in which reference implementations compute, and the conversion of arrays to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flambeau.core.dtype import dtype
from flambeau.driver.protocol import Steps
from flambeau.ops.copy import caster
from flambeau.ops.pointwise.dtype_promotion import wide

Array = np.ndarray[Any, Any]


def computing_steps(kind: dtype, source: dtype) -> Steps:
    """Return the dtypes through which `source` is converted to the computing dtype of `kind`."""
    target = wide(kind)
    # with dtype=, operands are rounded to it first, as in PyTorch
    if kind is not target and source is not kind:
        return kind, target
    return () if target is source else (target,)


def to_computing(kind: dtype, source: dtype) -> Callable[[Array], Array]:
    """Return a function that converts an array of `source` to the computing dtype of `kind`."""
    target = wide(kind)
    steps = computing_steps(kind, source)
    if len(steps) == 2:
        first, second = caster(source, kind), caster(kind, target)

        def through(x: Array) -> Array:
            narrow, out = np.empty(x.shape, kind.numpy), np.empty(x.shape, target.numpy)
            first(narrow, x)
            second(out, narrow)
            return out

        return through
    if not steps:
        return lambda x: x
    cast = caster(source, target)

    def convert(x: Array) -> Array:
        out = np.empty_like(x, dtype=target.numpy)
        cast(out, x)
        return out

    return convert
