"""The norms of several tensors as one vector, and the scaling by which clipping uses them. Each is one launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import dtype
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Kernel, Launch, Routine
from flambeau.ops.multi_tensor.foreach import foreach
from flambeau.ops.op import NOT_DIFFERENTIABLE, Make, Op, Operand, Sample, Signature, define, note, one_device
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import FLOATS

Array = np.ndarray[Any, Any]


def _rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results. Operands: tensors of one dtype; params (order of the norm,). The result has an element for
    each.
    """
    metas = [x for x in operands if isinstance(x, Meta)]
    if not metas:
        raise RuntimeError("Tensor list must have at least one tensor.")
    where, kind = one_device(metas), metas[0].dtype
    if kind not in FLOATS or any(x.dtype is not kind for x in metas):
        raise RuntimeError("_foreach_norm: expected tensors of one floating-point dtype")
    return Signature((Meta.contiguous_of((len(metas),), kind, where),), tuple(metas), params)


def _norm(order: float) -> Callable[[Array], Any]:
    """Return a function that computes the norm of a vector in its own dtype."""
    if order == 2:
        return lambda x: np.sqrt(np.add.reduce(x * x))
    if order == 1:
        return lambda x: np.add.reduce(np.abs(x))
    if order == 0:
        return lambda x: np.add.reduce((x != 0).astype(x.dtype))
    if math.isinf(order):
        fold = np.maximum if order > 0 else np.minimum
        return lambda x: fold.reduce(np.abs(x), initial=0 if order > 0 else np.inf)
    return lambda x: np.power(
        np.add.reduce(np.power(np.abs(x), x.dtype.type(order))), x.dtype.type(1 / order)
    )


def _host(launch: Launch) -> Body:
    kind = launch.outputs[0].dtype
    widen, norm = to_computing(kind, kind), _norm(launch.params[0])

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        found = [norm(np.ravel(widen(x), order="K")) for x in inputs]
        np.copyto(outputs[0], np.array(found), casting="unsafe")

    return body


def _flops(launch: Launch) -> int:
    return 2 * sum(x.numel for x in launch.inputs if isinstance(x, Meta))


def _samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for order in (2.0, 1.0, 0.0, 3.0, math.inf, -math.inf):
        yield (make(3, 4), make(5), make()), (order,)
    yield (make(70, 80), make(1), make(2, 3)), (2.0,)


foreach_norm = define(
    Op(
        "_foreach_norm",
        _rule,
        Kernel("foreach_norm", _host, _flops, cuda=Routine("linalg.norms:foreach_norm")),
        FLOATS,
        _samples,
        derivative=NOT_DIFFERENTIABLE,
    )
)
note(foreach_norm, "clip_grad_norm_")


def _clip(f: Any, options: Any, x: Sequence[Any], s: Sequence[Any]) -> Sequence[Any]:
    """Return a gradient (the first list), scaled so that the norm of all gradients (the second list) is at most s."""
    return (x[0] * f.minimum(s[0] / (x[1] + 1e-6), 1.0),)


foreach_clip = foreach("_foreach_clip", _clip, lambda o: 2, lambda o: (1.5,), positive=lambda o: (1,))
note(foreach_clip, "clip_grad_norm_")
# scalars: the smallest and the largest value
foreach_clamp = foreach(
    "_foreach_clamp", lambda f, options, x, s: (f.minimum(f.maximum(x[0], s[0]), s[1]),), lambda o: 1,
    lambda o: (-1.0, 1.5),
)  # fmt: skip
note(foreach_clamp, "clip_grad_value_")
