"""Activations of torch.nn.functional that are one pointwise kernel, in addition to `pointwise_functions`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from flambeau.ops.autocast_rules import LOWER
from flambeau.ops.op import Derivative, note
from flambeau.ops.pointwise.dtype_promotion import FLOATS, NUMBERS
from flambeau.ops.pointwise.pointwise import pointwise
from flambeau.ops.pointwise.pointwise_backward import straight
from flambeau.ops.pointwise.pointwise_body import Into
from flambeau.ops.pointwise.pointwise_logic import kept

_activation = partial(pointwise, dtypes=FLOATS, promoting=slice(1), wide_scalars=True, flops=12)


def _log_sigmoid(x: Any) -> Any:
    return np.minimum(x, x.dtype.type(0)) - np.log1p(np.exp(-np.abs(x)))


def _hard_sigmoid(x: Any) -> Any:
    return np.minimum(np.maximum(x + 3, x.dtype.type(0)), x.dtype.type(6)) / 6


def _soft_shrink(x: Any, lambd: Any) -> Any:
    return np.where(x > lambd, x - lambd, np.where(x < -lambd, x + lambd, x * 0))


def _hard_swish_back(grad: Any, a: Any, call: Any) -> Any:
    return call(kept, (~(a <= -3), call(kept, (a < 3, grad * (a / 3 + 0.5), grad)), 0))


def _shrunk_back(grad: Any, a: Any, b: Any, call: Any) -> Any:
    return straight(call(kept, (~((a >= -b) & (a <= b)), grad, 0)), a, call)


def _mish_back(grad: Any, a: Any) -> Any:
    t = a.exp().log1p().tanh()
    return grad * (t + a * (1 - t * t) * a.sigmoid())


mish = _activation(
    "mish", lambda x: x * np.tanh(np.log1p(np.exp(x))), 1, "x * tanh(softplus(x)).",
    cuda="a * tanh_(log1p_(exp_(a)))", derivative=Derivative(_mish_back),
)  # fmt: skip
log_sigmoid = _activation(
    "log_sigmoid", _log_sigmoid, 1, "log(sigmoid(x)), without overflow.",
    cuda="lesser(a, T(0)) - log1p_(exp_(-absolute(a)))", derivative=Derivative(lambda grad, a: grad * (-a).sigmoid()),
)  # fmt: skip
note(log_sigmoid, "logsigmoid")
hardsigmoid = _activation(
    "hardsigmoid",
    _hard_sigmoid,
    1,
    "relu6(x + 3) / 6.",
    cuda="lesser(greater(a + 3, T(0)), T(6)) / 6",
    derivative=Derivative(lambda grad, a, call: call(kept, ((a > -3) & (a < 3), grad / 6, 0))),
)
hardswish = _activation(
    "hardswish",
    lambda x: x * np.minimum(np.maximum(x + 3, x.dtype.type(0)), x.dtype.type(6)) / 6,
    1,
    "x * relu6(x + 3) / 6.",
    cuda="a * lesser(greater(a + 3, T(0)), T(6)) / 6",
    derivative=Derivative(_hard_swish_back),
)
hardtanh = _activation(
    "hardtanh",
    Into(lambda x, least, most, out=None: np.clip(x, least, most, out=out)),
    3,
    "x held to [least, most]; no gradient passes at the bounds.",
    dtypes=NUMBERS,
    examples=((-0.5, 0.5),),
    cuda="lesser(greater(a, b), c)",
    derivative=Derivative(
        lambda grad, a, b, c, call: straight(call(kept, (~((a <= b) | (a >= c)), grad, 0)), a, call)
    ),
)
hardshrink = _activation(
    "hardshrink",
    lambda x, lambd: np.where((x >= -lambd) & (x <= lambd), x.dtype.type(0), x),
    2,
    "x, or 0 within [-lambd, lambd].",
    examples=((0.5,),),
    cuda="a >= -b && a <= b ? T(0) : a",
    derivative=Derivative(_shrunk_back),
)
softshrink = _activation(
    "softshrink",
    _soft_shrink,
    2,
    "x moved towards 0 by lambd, 0 within [-lambd, lambd].",
    examples=((0.5,),),
    cuda="a > b ? a - b : a < -b ? a + b : a * 0",
    derivative=Derivative(_shrunk_back),
)
threshold = _activation(
    "threshold",
    lambda x, least, value: np.where(x <= least, value, x),
    3,
    "x, or `value` where x <= threshold.",
    dtypes=NUMBERS,
    examples=((0.1, 20),),
    cuda="a <= b ? c : a",
    derivative=Derivative(lambda grad, a, b, call: straight(grad.where(~(a <= b), 0), a, call)),
)
prelu = pointwise(
    "prelu",
    lambda x, weight: np.where(x > 0, x, weight * x),
    2,
    "x, or weight * x where it is negative.",
    dtypes=FLOATS,
    flops=2,
    cuda="a > 0 ? a : b * a",
    derivative=Derivative(
        lambda grad, a, b, call: straight(grad.where(a > 0, b * grad), a, call),
        lambda grad, a: (a * grad).where(a <= 0, 0),
        name="PreluKernelBackward0",
    ),
    autocast=LOWER,
)
glu = pointwise(
    "glu",
    lambda a, b: a * (1 / (1 + np.exp(-b))),
    2,
    "a * sigmoid(b).",
    dtypes=FLOATS,
    flops=12,
    cuda="a * sigmoid_(b)",
    derivative=Derivative(
        lambda grad, b: grad * b.sigmoid(), lambda grad, a, b: grad * a * b.sigmoid() * (1 - b.sigmoid())
    ),
)
