"""`one_hot`: rows of zeros with a 1 at an index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import dtype, int64
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Kernel, Launch, Routine
from flambeau.ops.index_common import in_range
from flambeau.ops.op import NOT_DIFFERENTIABLE, Make, Op, Operand, Sample, Signature, define, one_device

Array = np.ndarray[Any, Any]


def _rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results. Params: the length of a row."""
    x = operands[0]
    assert isinstance(x, Meta)
    out = Meta.contiguous_of((*x.shape, params[0]), int64, one_device(operands))
    return Signature((out,), (x,), params)


def _host(launch: Launch) -> Body:
    (classes,) = launch.params

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        places = in_range(inputs[0], classes, inputs[0].ndim)
        np.equal(places[..., None], np.arange(classes), out=outputs[0], casting="unsafe")

    return body


def _samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((np.array([[0, 2], [1, 2]]),), (3,)), ((np.array(1),), (4,))]


one_hot = define(
    Op(
        "one_hot",
        _rule,
        Kernel("one_hot", _host, cuda=Routine("index.one_hot:one_hot")),
        (int64,),
        _samples,
        derivative=NOT_DIFFERENTIABLE,
    )
)
