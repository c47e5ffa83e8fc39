"""Backward operators of the activations that train networks: one kernel where a formula would take several."""

from __future__ import annotations

from math import pi
from math import sqrt as root
from typing import Any

import numpy as np

from flambeau.driver.protocol import Launch
from flambeau.ops.cache_blocks import choose
from flambeau.ops.derivative_helpers import conj, zeros
from flambeau.ops.op import Derivative
from flambeau.ops.pointwise.dtype_promotion import FLOATING_OR_COMPLEX, FLOATS, NUMBERS
from flambeau.ops.pointwise.pointwise import Pointwise, pointwise
from flambeau.ops.pointwise.pointwise_body import Into

relu_backward: Pointwise = pointwise(
    "relu_backward",
    Into(lambda grad, y, out=None: choose(y <= 0, grad.dtype.type(0), grad, out)),
    2,
    "Return the gradient of relu from that of its result and the result.",
    dtypes=NUMBERS,
    leading=1,
    cuda="b <= 0 ? T(0) : a",
    derivative=Derivative(
        lambda grad, b, call: call(relu_backward, (grad, b)),
        lambda b: zeros(b),
        name="ThresholdBackwardBackward0",
    ),
)


def straight(slope: Any, a: Any, call: Any) -> Any:
    """Return the gradient of a function that is piecewise linear in `a`. A recorded gradient also depends on `a`, with
    derivative 0, as in PyTorch.
    """
    return slope + call(relu_backward, (zeros(slope), a)) if a.requires_grad else slope


tanh_backward = pointwise(
    "tanh_backward",
    lambda grad, out: grad * np.conj(1 - out * out),
    2,
    "Return the gradient of tanh from that of its result and the result.",
    dtypes=FLOATING_OR_COMPLEX,
    flops=3,
    cuda="a * conjugate(one<T>() - b * b)",
    derivative=Derivative(
        lambda grad, b: grad * (1 - b * b), lambda grad, a, b: conj(grad) * a * -2 * conj(b)
    ),
)
sigmoid_backward = pointwise(
    "sigmoid_backward",
    lambda grad, out: grad * np.conj((1 - out) * out),
    2,
    "Return the gradient of sigmoid from that of its result and the result.",
    dtypes=FLOATING_OR_COMPLEX,
    flops=3,
    cuda="a * conjugate((one<T>() - b) * b)",
    derivative=Derivative(
        lambda grad, b: grad * (1 - b) * b,
        lambda grad, a, b: conj(grad) * a * conj(1 - 2 * b),
    ),
)


def _gelu_slope(x: Any, approximate: str) -> Any:
    if approximate == "tanh":
        inner = root(2 / pi) * (x + 0.044715 * x * x * x)
        t = np.tanh(inner)
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root(2 / pi) * (1 + 3 * 0.044715 * x * x)
    from scipy.special import erf  # as in gelu itself

    return 0.5 * (1 + erf(x * root(0.5))) + x * np.exp(-0.5 * x * x) * (1 / root(2 * pi))


def _gelu_text(launch: Launch) -> str:
    if launch.params[1] == "tanh":
        t = "tanh_(T(0.7978845608028654) * (b + T(0.044715) * b * b * b))"
        slope = "T(0.7978845608028654) * (1 + T(0.134145) * b * b)"
        return f"a * (T(0.5) * (1 + {t}) + T(0.5) * b * (1 - {t} * {t}) * {slope})"
    return "a * (T(0.5) * (1 + erf_(b * T(0.7071067811865476))) + b * exp_(T(-0.5) * b * b) * T(0.3989422804014327))"


def gelu_second(grad: Any, a: Any, b: Any, params: Any) -> Any:
    """Return the gradient of `gelu_backward` with respect to its second input: the second derivative of gelu."""
    if params[0] == "tanh":
        k, c = root(2 / pi), 0.044715
        t = (k * (b + c * b * b * b)).tanh()
        slope = 1 - t * t
        first = k * (1 + 3 * c * b * b)
        return grad * a * (slope * first + 0.5 * b * (-2 * t * slope * first * first + slope * k * 6 * c * b))
    density = (-0.5 * b * b).exp() * (1 / root(2 * pi))
    return grad * a * density * (2 - b * b)


gelu_backward: Pointwise = pointwise(
    "gelu_backward",
    lambda grad, x, approximate: grad * _gelu_slope(x, approximate),
    2,
    "Return the gradient of gelu from that of its result and its input.",
    dtypes=FLOATS,
    params=(("none",), ("tanh",)),
    flops=30,
    cuda=_gelu_text,
    derivative=Derivative(lambda grad, b, params, call: call(gelu_backward, (grad, b), params), gelu_second),
)


def _silu_back(grad: Any, x: Any) -> Any:
    s = 1 / (1 + np.exp(-x))
    return grad * np.conj(s * (1 + x * (1 - s)))


def _silu_first(grad: Any, b: Any) -> Any:
    s = b.sigmoid()
    return grad * s * (1 + b * (1 - s))


def _silu_second(grad: Any, a: Any, b: Any) -> Any:
    s = b.sigmoid()
    return conj(grad) * a * conj(s * (1 - s) * (2 + b * (1 - 2 * s)))


silu_backward = pointwise(
    "silu_backward",
    _silu_back,
    2,
    "Return the gradient of silu from that of its result and its input.",
    dtypes=FLOATING_OR_COMPLEX,
    flops=16,
    cuda="a * conjugate(sigmoid_(b) * (one<T>() + b * (one<T>() - sigmoid_(b))))",
    derivative=Derivative(_silu_first, _silu_second),
)
