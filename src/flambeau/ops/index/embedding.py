"""`embedding`: select rows of a table by index. It is `index_select` with a different gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import DTYPES, dtype
from flambeau.core.meta import Meta
from flambeau.ops.index.indexing import index_select
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define


def _rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results. Operands: weight (count, size), indices (n); params: the row without gradient or None,
    divided by frequency or not.
    """
    found = index_select.rule(operands, (0,))
    return Signature(found.outputs, found.inputs, (0,))


def _gradient(grad: Any, b: Any, metas: tuple[Meta, ...], params: tuple[Any, ...]) -> Any:
    padding, by_frequency = params
    if by_frequency:
        count = metas[0].shape[0]
        times = grad.new_zeros((count,)).index_add_(0, b, grad.new_ones(b.shape))
        grad = grad / times.index_select(0, b).unsqueeze(1)
    if padding is not None:
        grad = grad.masked_fill((b == padding).unsqueeze(1), 0)
    return grad.new_zeros(metas[0].shape).index_add_(0, b, grad)


def _samples(make: Make, kind: dtype) -> Iterable[Sample]:
    indices = np.array([3, 0, 1, 3, 2, 3])
    return [((make(5, 4), indices), how) for how in ((None, False), (3, False), (None, True), (0, True))]


embedding = define(
    Op("embedding", _rule, index_select.kernel, DTYPES, _samples, derivative=Derivative(_gradient))
)
